"""How much of each entry log is still of use: the bytes of living ledgers, by log.

What the deciding parts look at: two numbers a log, in memory. Where they come from, and what a
start finds of them: ``usage_store.py``. Entries that were written twice, or replaced by a later
add, count as live in every log that holds them: what is said here to be dead is dead, what is said
to be live may not be.

Decides nothing by itself and does no I/O; ``compaction_plan.py`` decides over its ``uses``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class LogUse(NamedTuple):
    """Of one closed log: ``byte_count`` and ``live_bytes`` are of its records."""

    log_id: int
    byte_count: int
    live_bytes: int


class _Log:
    __slots__ = ("byte_count", "live_bytes", "settled")

    def __init__(self, byte_count: int, live_bytes: int, settled: bool) -> None:
        self.byte_count = byte_count
        self.live_bytes = live_bytes
        self.settled = settled


class LogUsage:
    """Of one ledger directory."""

    def __init__(self) -> None:
        self._logs: dict[int, _Log] = {}
        self.dead_bytes = 0
        """Of all logs, what is not live. May be read on any thread."""

    def __contains__(self, log_id: int) -> bool:
        return log_id in self._logs

    def add(self, log_id: int, byte_count: int, live_bytes: int, settled: bool = False) -> None:
        """A log that takes no more. ``settled``: all of it that is of use is in the index."""
        self.drop([log_id])
        self._logs[log_id] = _Log(byte_count, live_bytes, settled)
        self.dead_bytes += byte_count - live_bytes

    def byte_count(self, log_id: int) -> int:
        """Of a log's records; 0 of a log that is gone."""
        known = self._logs.get(log_id)
        return known.byte_count if known is not None else 0

    def drop(self, log_ids: Iterable[int]) -> None:
        """Logs that are removed."""
        for log_id in log_ids:
            dropped = self._logs.pop(log_id, None)
            if dropped is not None:
                self.dead_bytes -= dropped.byte_count - dropped.live_bytes

    def forget(self, shares: Iterable[tuple[int, int]]) -> None:
        """(log id, bytes) of a ledger that was deleted, durably."""
        for log_id, size in shares:
            known = self._logs.get(log_id)
            if known is not None:
                known.live_bytes -= size
                self.dead_bytes += size

    def uses(self, below: int) -> list[LogUse]:
        """Of the logs with ids under ``below``, and of those that were ``settled`` when they were
        added, ascending."""
        return [
            LogUse(log_id, each.byte_count, each.live_bytes)
            for log_id, each in sorted(self._logs.items())
            if log_id < below or each.settled
        ]
