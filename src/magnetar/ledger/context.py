"""What all ledgers of one client have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.config import LedgerConfig
from magnetar.env.network.turn_end import TurnEnd
from magnetar.env.timer_wheel import TimerWheel
from magnetar.ledger.bookies import BookiePool
from magnetar.ledger.catalog.seam import LedgerCatalog
from magnetar.ledger.failure_notes import FailureNotes
from magnetar.ledger.mending.mending import Mender
from magnetar.ledger.placing.placement import RandomSource
from magnetar.ledger.placing.quarantine import Quarantine
from magnetar.ledger.placing.topology import Topology
from magnetar.ledger.reading.read_order import ReadPolicy
from magnetar.ledger.reading.reader import read_policy
from magnetar.model.ids import BookieId

STEPS: Final = 40
"""A writer's timers come this part of their time too early, at most."""


@dataclass(frozen=True, slots=True)
class LedgerContext:
    """Made by ``LedgerClient``, who closes it."""

    manager: LedgerCatalog
    pool: BookiePool
    config: LedgerConfig
    random: RandomSource
    quarantine: Quarantine
    policy: ReadPolicy
    mender: Mender
    topology: Topology
    turn_end: TurnEnd
    failure_notes: FailureNotes
    deadlines: TimerWheel
    """Of writers that await answers."""
    quiet: TimerWheel
    """Of writers that have become quiet, perhaps."""
    asking: frozenset[BookieId]
    """Bookies that ask for LACs when a reader does (``BookiePool.let_ask``)."""

    @classmethod
    def of(
        cls,
        manager: LedgerCatalog,
        pool: BookiePool,
        config: LedgerConfig,
        random: RandomSource,
        topology: Topology | None = None,
        asking: frozenset[BookieId] = frozenset(),
    ) -> LedgerContext:
        topology = topology or Topology(config, pool)
        policy = read_policy(config, topology.is_near)
        mender = Mender(manager, pool, config, policy)
        quarantine, turn_end, notes = Quarantine(), TurnEnd(), FailureNotes()
        deadlines = TimerWheel(config.add_timeout_ms / 1000 / STEPS)
        quiet = TimerWheel(max(1, config.explicit_lac_interval_ms) / 1000 / STEPS)
        return cls(
            manager, pool, config, random, quarantine, policy, mender, topology, turn_end, notes,
            deadlines, quiet, asking,
        )  # fmt: skip

    async def close(self) -> None:
        """Idempotent."""
        self.deadlines.close()
        self.quiet.close()
        await self.mender.close()
