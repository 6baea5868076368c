"""Which ledgers a log may delete. Pure decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from magnetar.log.managed.chain import LedgerInfo
from magnetar.log.policy import UNLIMITED, Retention
from magnetar.log.seam import StoredAt, TableMark
from magnetar.model.ids import EARLIEST, Position


def deletable(
    ledgers: Sequence[LedgerInfo],
    mark_deletes: Iterable[Position],
    retention: Retention,
    now_ms: int,
    front: Position = EARLIEST,
) -> int:
    """How many ledgers at the front of the log may go: closed, wholly acknowledged by every
    cursor (``mark_deletes``, as stored), and past retention, or with nothing in it at or after
    ``front``: records before that were deleted. The open ledger never goes."""
    if retention.everything and front == EARLIEST:
        return 0
    slowest = min(mark_deletes, default=None)
    kept_bytes = sum(info.stored_bytes for info in ledgers)
    count = 0
    for info in ledgers:
        if not info.closed or not _passed(info, slowest):
            break
        deleted = front > (info.ledger_id, info.entries - 1)
        if not deleted and not _past_retention(info, retention, kept_bytes, now_ms):
            break
        kept_bytes -= info.stored_bytes
        count += 1
    return count


def past_bookies(
    ledgers: Sequence[LedgerInfo],
    mark_deletes: Iterable[Position],
    held: Iterable[Position],
    retention: Retention,
    table: TableMark,
    least_ms: int,
    now_ms: int,
) -> list[LedgerInfo]:
    """The ledgers of a log with a table that bookies need not keep any longer, in order: whether
    they are in the table yet (``StoredAt.BOTH``) or are waited for.

    ``held``: after these positions somebody reads at the bookies. Where the table has bounds of its
    own, cursors hold nothing: what they have not acknowledged is read from the table. None goes
    that was closed less than ``least_ms`` ago: what a producer sends again when it comes back is
    held against what lies there, byte for byte, and compressed entries come back otherwise.
    """
    own = Retention(table.kept_ms, table.kept_bytes)
    bounds = retention if own.everything else own
    if bounds.everything:
        return []
    needed = [*held, *(mark_deletes if own.everything else ())]
    slowest = min(needed, default=None)
    there = [info for info in ledgers if info.stored is not StoredAt.TABLE]
    kept_bytes = sum(info.stored_bytes for info in there)
    found = []
    for info in there:
        if not info.closed or not _passed(info, slowest) or now_ms - info.closed_ms < least_ms:
            break
        if not _past_retention(info, bounds, kept_bytes, now_ms):
            break
        kept_bytes -= info.stored_bytes
        found.append(info)
    return found


def frees_later(
    last_of_first: Position,
    mark_deletes: Iterable[Position],
    stored_bytes: int,
    retention: Retention,
    front: Position = EARLIEST,
) -> bool:
    """Whether the log's first ledger, with that last entry, goes without anybody's doing: its time
    passes, or it is the open one and rolls for its age. ``stored_bytes`` are those of the log;
    ``front``: as in ``deletable``."""
    if last_of_first.entry_id < 0:
        return False  # an empty ledger does not roll
    slowest = min(mark_deletes, default=None)
    if slowest is not None and slowest < last_of_first:
        return False  # somebody has to acknowledge first
    too_large = retention.kept_bytes != UNLIMITED and stored_bytes > retention.kept_bytes
    return retention.kept_ms != UNLIMITED or too_large or front > last_of_first


def _passed(info: LedgerInfo, slowest: Position | None) -> bool:
    return slowest is None or slowest >= (info.ledger_id, info.entries - 1)


def _past_retention(info: LedgerInfo, retention: Retention, kept_bytes: int, now_ms: int) -> bool:
    too_old = retention.kept_ms != UNLIMITED and now_ms - info.closed_ms >= retention.kept_ms
    too_large = retention.kept_bytes != UNLIMITED and kept_bytes > retention.kept_bytes
    return too_old or too_large
