"""What holds for one log: how it is replicated, when its ledgers are closed, how long they stay.

Pure values. A log gets its policy when it is opened, and another one by ``set_policy``: how ledgers
are replicated counts from the next one on, the rest at once. Defaults come from ``[ledger]``;
why they keep everything: docs/adr/0053-retention-keeps-by-default.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from magnetar.model.ledger import Quorums

UNLIMITED = -1


class Engine(Enum):
    """What a log is kept by: chains of ledgers on bookies, or the leader and the followers of a
    partition."""

    LEDGER = "ledger"
    PARTITION = "partition"


@dataclass(frozen=True, slots=True)
class RollRule:
    """Bounds of one ledger; reaching any of them closes it (an empty one is left alone)."""

    entries_max: int
    bytes_max: int
    age_ms_max: int

    def full(self, entries: int, stored_bytes: int) -> bool:
        return entries >= self.entries_max or stored_bytes >= self.bytes_max

    def old(self, entries: int, age_ms: int) -> bool:
        return entries > 0 and age_ms >= self.age_ms_max


@dataclass(frozen=True, slots=True)
class PieceRule:
    """What is said for one log of the pieces that it is cut into, segments or ledgers; reaching any
    bound begins the next one. 0: as configured. Ledgers keep to it coarsely: see ``over``.

    Why: docs/adr/0174-topics-say-what-logs-are-cut-into.md."""

    bytes_max: int = 0
    age_ms_max: int = 0

    def over(self, stored_bytes: int, age_ms: int) -> bool:
        """Asked of a ledger with entries, at each housekeeping: so small ones come no faster."""
        return 0 < self.bytes_max <= stored_bytes or 0 < self.age_ms_max <= age_ms


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept of what no cursor needs any more. A ledger stays while its age is within
    ``kept_ms`` and the log within ``kept_bytes``; -1 sets no limit, so (-1, -1) keeps
    everything and (0, 0) nothing."""

    kept_ms: int = UNLIMITED
    kept_bytes: int = UNLIMITED

    @property
    def everything(self) -> bool:
        return self.kept_ms == UNLIMITED and self.kept_bytes == UNLIMITED


@dataclass(frozen=True, slots=True)
class CleanupRule:
    """What becomes of what is old, on partitions: it is deleted as ``Retention`` says, or of each
    key the last record is kept, or both. A record without a value is kept ``tombstones_kept_ms``.
    A log is compacted when ``dirty_ratio_least`` of it was not yet, or some of that for more than
    ``lag_ms_max``; never what is younger than ``lag_ms``."""

    deletes: bool = True
    compacts: bool = False
    tombstones_kept_ms: int = 24 * 3600 * 1000
    dirty_ratio_least: float = 0.5
    lag_ms: int = 0
    lag_ms_max: int = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class LogPolicy:
    """``quorums`` None: the cluster's. ``engine``: of a log that is made; one that is there stays
    on its own. So do the replicas of a partition: ``replication_factor`` of them, of which
    ``min_insync_replicas`` must be in sync for anything to be taken; 0: as configured.
    ``unclean_election``: without any in sync it is led by any of them, and loses what that lacks
    (it may be so as configured, too). ``pieces``: what the log's own say is beside ``roll``."""

    roll: RollRule
    retention: Retention = field(default_factory=Retention)
    quorums: Quorums | None = None
    engine: Engine = Engine.LEDGER
    replication_factor: int = 0
    min_insync_replicas: int = 0
    unclean_election: bool = False
    pieces: PieceRule = field(default_factory=PieceRule)
    cleanup: CleanupRule = field(default_factory=CleanupRule)
