"""Decides how long a catch-up reader rests, so that it does not crowd out the adds.

A reader that goes forward through a ledger rests after each read from the disk ``REST_SHARE`` times
as long as that took, while entries are being added. It may have asked for several runs at once: a
read is one of a reader that goes forward when it begins where another one has ended, or was asked
to end; their rests add up. What starts anew (the first read of a ledger, a jump) never waits. A few
small entries are not adds going on: a consumer that catches up has its acknowledgements stored ten
times a second, and would rest for its own. See
``docs/adr/0018-reads-yield-to-adds.md``.
"""

from __future__ import annotations

from collections import deque

REST_SHARE = 5.0
REST_S_MAX = 0.05
"""After one read."""
ADDING_S = 0.1
ADDING_BYTES = 1024
"""So much within ``ADDING_S`` is adds going on, and for so long after it: ten entries of 1 KiB
a second, or what a few cursors store of their acknowledgements."""
LEDGERS_MAX = 1024
RUNS_AT_ONCE_MAX = 32
"""Ends of reads that are remembered of a ledger."""


class _Reader:
    __slots__ = ("ended_at_s", "ends", "resting_until_s")

    def __init__(self) -> None:
        self.ends: deque[int] = deque(maxlen=RUNS_AT_ONCE_MAX)
        self.ended_at_s = 0.0
        self.resting_until_s = 0.0


class ReadPace:
    """Times are seconds of one clock that never goes back."""

    def __init__(self) -> None:
        self._readers: dict[int, _Reader] = {}
        self._adding = False
        self._counted_bytes = 0
        self._counted_at_s = 0.0

    def rest_s(self, ledger_id: int, entry_id: int, appended_bytes: int, now_s: float) -> float:
        """How long to wait before reading ``entry_id`` from the disk. ``appended_bytes``: what
        adds have brought so far."""
        adding = self.adding(appended_bytes, now_s)
        reader = self._readers.get(ledger_id)
        if reader is None or entry_id not in reader.ends or not adding:
            return 0.0
        return max(0.0, reader.resting_until_s - now_s)

    def adding(self, appended_bytes: int, now_s: float) -> bool:
        """Whether entries are being added. ``appended_bytes``: what adds have brought so far."""
        many = appended_bytes - self._counted_bytes >= ADDING_BYTES
        if many or now_s - self._counted_at_s >= ADDING_S:
            self._adding = many
            self._counted_bytes, self._counted_at_s = appended_bytes, now_s
        return self._adding

    def begun(self, ledger_id: int, next_entry_id: int) -> None:
        """A read is to end before ``next_entry_id``."""
        reader = self._readers.pop(ledger_id, None) or _Reader()
        self._readers[ledger_id] = reader
        reader.ends.append(next_entry_id)
        if len(self._readers) > LEDGERS_MAX:
            del self._readers[next(iter(self._readers))]

    def ended(self, ledger_id: int, next_entry_id: int, begun_s: float, now_s: float) -> None:
        """A read that began at ``begun_s`` has ended before ``next_entry_id``. Where it waited
        for another read of the ledger only the other one was at work."""
        reader = self._readers.get(ledger_id)
        if reader is None:
            return
        if next_entry_id not in reader.ends:
            reader.ends.append(next_entry_id)
        worked_s = now_s - max(begun_s, reader.ended_at_s)
        reader.ended_at_s = now_s
        rest_s = min(REST_SHARE * worked_s, REST_S_MAX)
        reader.resting_until_s = max(reader.resting_until_s, now_s) + rest_s
