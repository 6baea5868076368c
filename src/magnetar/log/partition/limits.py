"""What holds for one partition's files: sizes, times, when bytes are synced, what is kept.

Pure values; the names in brackets are Kafka's settings.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

UNLIMITED: Final = -1


class SyncPolicy(Enum):
    """When appended batches are made durable. Only with ``EACH_BATCH`` an acknowledgement survives
    a loss of power on every replica at once; the other two are chosen by name, and warned about."""

    EACH_BATCH = "each-batch"  # before an append counts, at leader and followers
    INTERVAL = "interval"  # [flush.ms]: what is acknowledged may be lost for that long
    OPERATING_SYSTEM = "operating-system"  # Kafka's default: whenever the kernel likes

    @property
    def durable(self) -> bool:
        """What counts is on the disk."""
        return self is SyncPolicy.EACH_BATCH


class Cleanup(Enum):
    """What becomes of old batches [cleanup.policy]."""

    DELETE = "delete"
    COMPACT = "compact"
    COMPACT_AND_DELETE = "compact,delete"

    @property
    def deletes(self) -> bool:
        return self is not Cleanup.COMPACT

    @property
    def compacts(self) -> bool:
        return self is not Cleanup.DELETE


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """Bounds of one segment; reaching any of them begins the next [segment.bytes, segment.ms,
    segment.index.bytes, index.interval.bytes]."""

    segment_bytes_max: int = 1 << 30
    segment_age_ms_max: int = 7 * 24 * 3600 * 1000
    index_bytes_max: int = 10 << 20
    index_interval_bytes: int = 4096

    def with_bounds(self, bytes_max: int, age_ms_max: int) -> SegmentLimits:
        """As a topic says; 0: it does not."""
        return replace(
            self,
            segment_bytes_max=bytes_max or self.segment_bytes_max,
            segment_age_ms_max=age_ms_max or self.segment_age_ms_max,
        )


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a log [retention.ms, retention.bytes, cleanup.policy, delete.retention.ms,
    min.cleanable.dirty.ratio, min.compaction.lag.ms, max.compaction.lag.ms]. -1 sets no limit."""

    kept_ms: int = UNLIMITED
    kept_bytes: int = UNLIMITED
    cleanup: Cleanup = Cleanup.DELETE
    tombstones_kept_ms: int = 24 * 3600 * 1000
    dirty_ratio_least: float = 0.5
    compaction_lag_ms: int = 0
    compaction_lag_ms_max: int = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class PartitionPolicy:
    """``batch_bytes_max``: [max.message.bytes]. ``producers_kept_ms``:
    [producer.id.expiration.ms]."""

    sync: SyncPolicy = SyncPolicy.EACH_BATCH
    sync_interval_ms: int = 1000
    segments: SegmentLimits = field(default_factory=SegmentLimits)
    kept: Kept = field(default_factory=Kept)
    batch_bytes_max: int = 1_048_588
    producers_kept_ms: int = 24 * 3600 * 1000

    @property
    def warning(self) -> str | None:
        """What an operator must be told of at start."""
        if self.sync.durable:
            return None
        after = f"for up to {self.sync_interval_ms} ms"
        if self.sync is SyncPolicy.OPERATING_SYSTEM:
            after = "until the kernel writes them"
        return (
            f"partitions are synced by {self.sync.value}: acknowledged messages are lost {after} "
            "if all replicas lose power; set each-batch to keep them"
        )
