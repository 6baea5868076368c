"""What a connection was refused first of each idempotent producer's batches, so that nothing that
was sent behind it is stored before it.

A batch is refused when its topic cannot be opened just then, or is closing, or when its log cannot
store. Those behind it are on their way already, and may find the topic open and the log well: of a
producer that the log does not know any sequence is taken, and the first batch, sent again, would be
out of order for good. So they are refused too, until the first one comes again, or for ``HELD_S``:
it never comes where the client has heard elsewhere that it was stored. A new epoch, or another
connection, begins anew: there a client sends the oldest first.

Pure. Why: docs/adr/0199-nothing-is-appended-behind-a-refusal.md.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeAlias

from magnetar.log.sequences import is_behind
from magnetar.wire.kafka.batches import BatchHeader

HELD_S: Final = 10.0
"""Since it was refused last. What was under way behind it is there by then."""
KEPT_MAX: Final = 1000
"""Places of one connection; the one that was refused longest ago makes room."""

Place: TypeAlias = tuple[str, int]


class FirstRefused:
    """Of one connection; false while there is nothing to hold back."""

    def __init__(self) -> None:
        self._first: OrderedDict[tuple[str, int, int, int], tuple[int, float]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._first)

    def refused(self, place: Place, header: BatchHeader, now_s: float) -> None:
        """It is not stored, and comes again."""
        key = (*place, header.producer_id, header.producer_epoch)
        first, _ = self._first.get(key, (header.base_sequence, 0.0))
        if not is_behind(header.base_sequence, first):
            self._first[key] = header.base_sequence, now_s
        if len(self._first) > KEPT_MAX:
            self._first.popitem(last=False)

    def holds_back(self, place: Place, header: BatchHeader, now_s: float) -> bool:
        """Whether it must wait for the one that was refused; that one, or one before it, ends the
        wait."""
        key = (*place, header.producer_id, header.producer_epoch)
        if key not in self._first:
            return False
        first, refused_s = self._first[key]
        if now_s - refused_s < HELD_S and is_behind(header.base_sequence, first):
            return True
        del self._first[key]
        return False
