"""Decides how long a catch-up reader rests, so that it does not crowd out the adds.

A reader that goes forward through a ledger rests after each read from the disk ``REST_SHARE`` times
as long as that took, while entries are being added. What starts anew (the first read of a ledger, a
jump) never waits. See ``docs/adr/0018-reads-yield-to-adds.md``.
"""

from __future__ import annotations

from typing import NamedTuple

REST_SHARE = 2.0
REST_S_MAX = 0.05
ADDING_S = 0.1
"""So long after an add was seen, adds count as going on."""
LEDGERS_MAX = 1024


class _Reader(NamedTuple):
    next_entry_id: int
    resting_until_s: float


class ReadPace:
    """Times are seconds of one clock that never goes back."""

    def __init__(self) -> None:
        self._readers: dict[int, _Reader] = {}
        self._appended_bytes = 0
        self._added_at_s = -ADDING_S

    def rest_s(self, ledger_id: int, entry_id: int, appended_bytes: int, now_s: float) -> float:
        """How long to wait before reading ``entry_id`` from the disk. ``appended_bytes``: what
        adds have brought so far."""
        if appended_bytes != self._appended_bytes:
            self._appended_bytes, self._added_at_s = appended_bytes, now_s
        reader = self._readers.get(ledger_id)
        if reader is None or reader.next_entry_id != entry_id:
            return 0.0
        if now_s - self._added_at_s >= ADDING_S:
            return 0.0
        return max(0.0, reader.resting_until_s - now_s)

    def read(self, ledger_id: int, next_entry_id: int, seconds: float, now_s: float) -> None:
        """A read that took ``seconds`` ended before ``next_entry_id``."""
        rest_s = min(REST_SHARE * seconds, REST_S_MAX)
        self._readers.pop(ledger_id, None)
        self._readers[ledger_id] = _Reader(next_entry_id, now_s + rest_s)
        if len(self._readers) > LEDGERS_MAX:
            del self._readers[next(iter(self._readers))]
