"""Wall clocks of brokers that are set: by an operator, by a time server that was away, by a guest
that slept. What brokers wait for, and how long somebody was silent, goes by another clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from magnetar_sim.brokers.broker_faults import BrokerFaults, ClientHost
from magnetar_sim.brokers.brokers import BrokerMachine
from magnetar_sim.cluster.cluster import Cluster

OFF_S: Final = (-86_400.0, -5.0, -0.7, 0.4, 0.9, 3.0, 60.0, 3600.0, 86_400.0)
BREAKS_SHARE: Final = 0.5


class ClockFaults(BrokerFaults):
    """Of one run. ``ahead``: told how far ahead a clock is from now on, in seconds."""

    def __init__(
        self,
        cluster: Cluster,
        rng: random.Random,
        brokers: Sequence[BrokerMachine],
        clients: Sequence[ClientHost],
        ahead: Callable[[float], None],
    ) -> None:
        super().__init__(cluster, rng, brokers, clients)
        self._ahead = ahead

    def plan(self, count: int, begin_s: float, end_s: float) -> None:
        for _ in range(count):
            self._at(self._random.uniform(begin_s, end_s), self._begin)

    def _begin(self) -> None:
        """Half of the time between a break and when clients are back."""
        if self._random.random() < BREAKS_SHARE:
            self._break_all()
            self._at(self._cluster.loop.time() + self._random.uniform(0.01, 0.15), self._set_clock)
        else:
            self._set_clock()

    def _set_clock(self) -> None:
        broker, off_s = self._broker(), self._random.choice(OFF_S)
        self._ahead(off_s)
        broker.skew.seconds = off_s

        def set_right() -> None:
            broker.skew.seconds = 0.0

        lasts_s = self._after(set_right)
        self._note(f"the clock of {broker.name} is off by {off_s} s for {lasts_s:.1f} s")
        self._cluster.count("clocks that were set")
