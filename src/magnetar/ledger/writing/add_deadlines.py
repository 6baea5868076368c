"""Which bookies let a writer wait too long.

Owns no timer: the writer asks now and then. One number per slot instead of one per request: a
slot is late when acknowledgements of it are awaited and its mark has not moved for ``timeout_s``.
"""

from __future__ import annotations

from magnetar.ledger.writing.quorum_write import QuorumWrite


class AddDeadlines:
    """Watches the marks of a writer's slots; times are seconds on one monotonic clock."""

    def __init__(self, machine: QuorumWrite, slots: int, timeout_s: float) -> None:
        self._machine = machine
        self._timeout_s = timeout_s
        self._marks = [-2] * slots
        self._moved_at_s = [0.0] * slots

    def begin(self, now_s: float) -> None:
        """Watching begins (again): nobody has been late so far."""
        self._moved_at_s = [now_s] * len(self._moved_at_s)

    def sent_again(self, slot: int, now_s: float) -> None:
        """The slot's time begins again: it was replaced or is tried once more."""
        self._moved_at_s[slot] = now_s

    def late_slots(self, now_s: float) -> list[int]:
        """The slots that are up and late at ``now_s``."""
        return [slot for slot in range(len(self._marks)) if self._late(slot, now_s)]

    def _late(self, slot: int, now_s: float) -> bool:
        machine = self._machine
        mark = machine.mark(slot)
        if mark != self._marks[slot] or not machine.up(slot) or not machine.awaits(slot):
            self._marks[slot] = mark
            self._moved_at_s[slot] = now_s
            return False
        return now_s - self._moved_at_s[slot] >= self._timeout_s
