"""How much of each entry log is still of use: the bytes of living ledgers, by log.

Kept in memory and counted down as ledgers are deleted; at a start it is made again from the logs'
footers. Entries that were written twice, or replaced by a later add, count as live in every log
that holds them: what is said here to be dead is dead, what is said to be live may not be.

Decides nothing by itself and does no I/O; ``compaction_plan.py`` decides over its ``uses``.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple


class LogUse(NamedTuple):
    """Of one closed log: ``byte_count`` and ``live_bytes`` are of its records."""

    log_id: int
    byte_count: int
    live_bytes: int


class _Log:
    """Ledger ids, ascending, and the bytes of each; 0 once the ledger is deleted."""

    __slots__ = ("byte_count", "bytes_of", "ledger_ids", "live_bytes", "settled")

    def __init__(self, byte_count: int, rows: Sequence[tuple[int, int]], settled: bool) -> None:
        self.byte_count = byte_count
        self.settled = settled
        self.ledger_ids = array("q", [ledger_id for ledger_id, _ in rows])
        self.bytes_of = array("Q", [size for _, size in rows])
        self.live_bytes = sum(self.bytes_of)

    def forget(self, ledger_id: int) -> int:
        """How many bytes are dead by it that were not."""
        at = bisect_left(self.ledger_ids, ledger_id)
        if at == len(self.ledger_ids) or self.ledger_ids[at] != ledger_id:
            return 0
        size = self.bytes_of[at]
        self.live_bytes -= size
        self.bytes_of[at] = 0
        return size

    def deleted(self) -> frozenset[int]:
        rows = zip(self.ledger_ids, self.bytes_of, strict=True)
        return frozenset(ledger_id for ledger_id, size in rows if not size)


class LogUsage:
    """Of one ledger directory. ``record_bytes``: what a record costs beside its entry."""

    def __init__(self, record_bytes: int) -> None:
        self._record_bytes = record_bytes
        self._logs: dict[int, _Log] = {}
        self.dead_bytes = 0
        """Of all logs, what is not live. May be read on any thread."""

    def __contains__(self, log_id: int) -> bool:
        return log_id in self._logs

    def add(
        self,
        log_id: int,
        byte_count: int,
        ledgers: Mapping[int, Sequence[int]],
        deleted: Callable[[int], bool],
        settled: bool = False,
    ) -> None:
        """A log that takes no more. ``ledgers``: ledger id -> (entries, bytes); ``deleted`` says
        of each whether it is already; ``settled``: all of it that is of use is in the index."""
        rows = [
            (ledger_id, 0 if deleted(ledger_id) else counts[1] + counts[0] * self._record_bytes)
            for ledger_id, counts in sorted(ledgers.items())
        ]
        self.drop([log_id])
        added = self._logs[log_id] = _Log(byte_count, rows, settled)
        self.dead_bytes += byte_count - added.live_bytes

    def byte_count(self, log_id: int) -> int:
        """Of a log's records; the log is there."""
        return self._logs[log_id].byte_count

    def state(self, log_id: int) -> tuple[frozenset[int], int]:
        """(the ledgers in it that are deleted, bytes of its records); nothing of a log that is
        gone."""
        known = self._logs.get(log_id)
        return (known.deleted(), known.byte_count) if known is not None else (frozenset(), 0)

    def drop(self, log_ids: Iterable[int]) -> None:
        """Logs that are removed."""
        for log_id in log_ids:
            dropped = self._logs.pop(log_id, None)
            if dropped is not None:
                self.dead_bytes -= dropped.byte_count - dropped.live_bytes

    def forget_ledgers(self, ledger_ids: Sequence[int]) -> None:
        """Ledgers that were deleted, durably."""
        for each in self._logs.values():
            for ledger_id in ledger_ids:
                self.dead_bytes += each.forget(ledger_id)

    def uses(self, below: int) -> list[LogUse]:
        """Of the logs with ids under ``below``, and of those that were ``settled`` when they were
        added, ascending."""
        return [
            LogUse(log_id, each.byte_count, each.live_bytes)
            for log_id, each in sorted(self._logs.items())
            if log_id < below or each.settled
        ]
