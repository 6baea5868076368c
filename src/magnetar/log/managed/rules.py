"""When a log closes its ledger, and which ledgers it may delete. Pure decisions.

Why: docs/adr/0053-retention-keeps-by-default.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from magnetar.log.managed.chain import LedgerInfo
from magnetar.model.ids import Position

UNLIMITED = -1


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
class Retention:
    """How much is kept of what no cursor needs any more. A ledger stays while its age is within
    ``kept_ms`` and the log within ``kept_bytes``; -1 sets no limit, so (-1, -1) keeps
    everything and (0, 0) nothing."""

    kept_ms: int = UNLIMITED
    kept_bytes: int = UNLIMITED

    @property
    def everything(self) -> bool:
        return self.kept_ms == UNLIMITED and self.kept_bytes == UNLIMITED


def deletable(
    ledgers: Sequence[LedgerInfo],
    mark_deletes: Iterable[Position],
    retention: Retention,
    now_ms: int,
) -> int:
    """How many ledgers at the front of the log may go: closed, wholly acknowledged by every
    cursor (``mark_deletes``, as stored), and past retention. The open ledger never goes."""
    if retention.everything:
        return 0
    slowest = min(mark_deletes, default=None)
    kept_bytes = sum(info.stored_bytes for info in ledgers)
    count = 0
    for info in ledgers:
        if not info.closed or not _passed(info, slowest):
            break
        if not _past_retention(info, retention, kept_bytes, now_ms):
            break
        kept_bytes -= info.stored_bytes
        count += 1
    return count


def _passed(info: LedgerInfo, slowest: Position | None) -> bool:
    return slowest is None or slowest >= (info.ledger_id, info.entries - 1)


def _past_retention(info: LedgerInfo, retention: Retention, kept_bytes: int, now_ms: int) -> bool:
    too_old = retention.kept_ms != UNLIMITED and now_ms - info.closed_ms >= retention.kept_ms
    too_large = retention.kept_bytes != UNLIMITED and kept_bytes > retention.kept_bytes
    return too_old or too_large
