"""One run of ring 2 whose brokers' wall clocks are set, ahead and back: that of ``broker_run``."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from magnetar.config import BrokerConfig
from magnetar.metrics import Metrics
from magnetar_sim.brokers.broker_moves import BrokerMoves
from magnetar_sim.brokers.broker_run import FAULTS_FROM_S, HEAL_S, BrokerRun
from magnetar_sim.brokers.clock_faults import ClockFaults
from magnetar_sim.cluster.faults import Faults
from magnetar_sim.world.loop import SimLoop
from magnetar_sim.world.planned_faults import PlannedFaults
from magnetar_sim.world.trace import Trace

COUNTS: Final = (1, 4, 12)
FORGOTTEN_MS: Final = 60_000
"""More than a run takes."""


class ClockedRun(BrokerRun):
    """The run of ``seed``."""

    _deduplication_share = 0.5

    def __init__(self, seed: int, loop: SimLoop, trace: Trace, metrics: Metrics) -> None:
        self._clocks = random.Random(f"{seed}/clocks")
        super().__init__(seed, loop, trace, metrics)

    def _configured(self, config: BrokerConfig) -> BrokerConfig:
        """They look at what is old often, and forget soon who sent it."""
        config = super()._configured(config)
        return replace(
            config,
            expiry_check_interval_ms=self._clocks.choice((20, 200, 1000)),
            deduplication_inactive_ms=FORGOTTEN_MS,
        )

    def _plan_faults(self, begin_s: float) -> list[Faults | PlannedFaults | BrokerMoves]:
        clocks = ClockFaults(
            self.cluster, self._clocks, self.brokers, self.clients, self.watch.set_ahead
        )
        count = self._clocks.choice(COUNTS)
        clocks.plan(count, begin_s + FAULTS_FROM_S, begin_s + HEAL_S - 1)
        return [*super()._plan_faults(begin_s), clocks]
