"""What a log's policy says of what is kept, as a partition's files know it. Pure."""

from __future__ import annotations

from magnetar.log.partition.limits import Cleanup, Kept
from magnetar.log.policy import LogPolicy


def kept_of(policy: LogPolicy) -> Kept:
    rule = policy.cleanup
    cleanup = Cleanup.DELETE
    if rule.compacts:
        cleanup = Cleanup.COMPACT_AND_DELETE if rule.deletes else Cleanup.COMPACT
    return Kept(
        policy.retention.kept_ms,
        policy.retention.kept_bytes,
        cleanup,
        rule.tombstones_kept_ms,
        rule.dirty_ratio_least,
        rule.lag_ms,
        rule.lag_ms_max,
    )
