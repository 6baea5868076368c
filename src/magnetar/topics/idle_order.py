"""Which unused things go first: those that were used least recently.

Owns an order of keys (the registry's are names of topics) by the time of their last use. Nobody
tells it that a key is in use again: whoever takes keys out says so of those that are looked at, and
they leave the order until they are let go (``touch``).

Rules:

* ``touch`` comes whenever a use of a key ends. So a key that is in use need not be in the order,
  and one that is unused always is, with the time at which its last use ended.
* Every look at a key takes it out of the order, so all looks together are at most as many as all
  touches, however many keys there are: nothing is ever scanned.
* Times never go back, so the order of touches is the order of times.

This module decides; its caller has the clock and the timer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Generic, TypeVar

K = TypeVar("K")


class Look(Enum):
    """What a look at a key has found."""

    IN_USE = "it is touched when that ends"
    NEEDED = "nobody uses it, and it still has something to do: it only goes to make place"
    UNUSED = "it may go"


class IdleOrder(Generic[K]):
    """See the module's text. A key is idle when it is unused for ``idle_s``."""

    def __init__(self, idle_s: float, look: Callable[[K], Look]) -> None:
        self._idle_s = idle_s
        self._look = look
        # Not a dict: its first key is found past all that were deleted before it, so taking many
        # from the front, one by one, takes the square of their number.
        self._touched: OrderedDict[K, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._touched)

    def __contains__(self, key: K) -> bool:
        return key in self._touched

    def touch(self, key: K, now_s: float) -> None:
        """A use of ``key`` ends now (or it is new)."""
        last = next(reversed(self._touched.values()), now_s)
        assert now_s >= last, f"time went back from {last} to {now_s}"
        self._touched[key] = now_s
        self._touched.move_to_end(key)

    def forget(self, key: K) -> None:
        """``key`` is gone."""
        self._touched.pop(key, None)

    def due_s(self) -> float | None:
        """When the next look is due; None if nothing is in the order."""
        first = next(iter(self._touched.values()), None)
        return None if first is None else first + self._idle_s

    def take_idle(self, now_s: float, count: int, looks_max: int) -> list[K]:
        """Up to ``count`` idle keys, least recently used first, which leave the order. Looks at no
        more than ``looks_max``; what is needed still is looked at again after ``idle_s``."""
        idle: list[K] = []
        for _ in range(looks_max):
            due_s = self.due_s()
            if len(idle) >= count or due_s is None or due_s > now_s:
                break
            key = self._take_first()
            found = self._look(key)
            if found is Look.UNUSED:
                idle.append(key)
            elif found is Look.NEEDED:
                self.touch(key, now_s)
        return idle

    def take_oldest(self) -> K | None:
        """The unused key that was used least recently, to make place for another; it leaves the
        order. None if all are in use."""
        while self._touched:
            key = self._take_first()
            if self._look(key) is not Look.IN_USE:
                return key
        return None

    def _take_first(self) -> K:
        return self._touched.popitem(last=False)[0]
