"""Decides how many bytes of unfinished frames all connections together may hold.

Owns the account of one budget: who holds how much, and who waits to hold more. Rules:

* What has arrived is held, whatever the budget says: it cannot be given back to the peer. What is
  decided is who may *go on* receiving a large frame. Whoever may not waits, its reading paused.
* Those who wait are served in the order they began to wait.
* Somebody can always go on: when every holder waits, the first of them is let past the budget,
  until its frame is whole (one at a time: what they take beyond the budget must not add up).
  So the bytes held are at most the budget, one frame, and what holders had received before they
  were told to wait; and a full budget never stands still.
* A holder that may go on and does not finish within ``patience_s`` while others wait is in their
  way: the oldest of such are named by ``overdue``, as many as make the first waiter's room.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

H = TypeVar("H", bound=Hashable)


@dataclass(slots=True)
class _Holding:
    byte_count: int
    begun_s: float
    """When it could last begin to receive its frame."""
    wanted_bytes: int = 0
    """What it waits to hold; 0: it does not wait."""


class FrameBudget(Generic[H]):
    """``bytes_max``: of all holders together. Times are seconds of one clock that never goes
    back."""

    def __init__(self, bytes_max: int, patience_s: float) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._patience_s = patience_s
        self._holdings: dict[H, _Holding] = {}
        self._waiting: dict[H, float] = {}  # since when, in the order of coming
        self._past: H | None = None  # may go past the budget

    @property
    def tight(self) -> bool:
        """New large frames have to wait."""
        return bool(self._waiting) or self.held_bytes >= self.bytes_max

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def ask(self, holder: H, arrived_bytes: int, wanted_bytes: int, now_s: float) -> bool:
        """``holder`` has received ``arrived_bytes`` of its frame and wants to hold
        ``wanted_bytes``, which is no less. False: it waits until ``serve`` names it."""
        assert wanted_bytes >= arrived_bytes, "what has arrived is held"
        holding = self._holdings.get(holder)
        if holding is None:
            holding = self._holdings[holder] = _Holding(0, now_s)
        more = wanted_bytes - holding.byte_count
        # past those who wait already only without taking anything from them
        fits = not self._waiting and self.held_bytes + more <= self.bytes_max
        if more <= 0 or fits or holder == self._past:
            self._hold(holding, wanted_bytes)
            return True
        self._hold(holding, max(holding.byte_count, arrived_bytes))
        holding.wanted_bytes = wanted_bytes
        self._waiting.setdefault(holder, now_s)
        return False

    def release(self, holder: H) -> None:
        """``holder`` holds nothing any more: its frame is whole, or it is gone."""
        holding = self._holdings.pop(holder, None)
        if holding is not None:
            self._hold(holding, 0)
            self._waiting.pop(holder, None)
        if holder == self._past:
            self._past = None

    def serve(self, now_s: float) -> list[H]:
        """Those who waited and hold what they want from now on."""
        served = []
        for holder in list(self._waiting):
            holding = self._holdings[holder]
            fits = self.held_bytes + holding.wanted_bytes - holding.byte_count <= self.bytes_max
            if not fits and len(self._waiting) < len(self._holdings):
                break  # somebody may go on, and will make room
            if not fits:
                self._past = holder
            del self._waiting[holder]
            self._hold(holding, holding.wanted_bytes)
            holding.wanted_bytes = 0
            holding.begun_s = now_s  # it could not receive until now
            served.append(holder)
        return served

    def overdue(self, now_s: float) -> list[H]:
        """Those who must give up their frames, oldest first, so that the first waiter gets on."""
        first = next(iter(self._waiting), None)
        if first is None or now_s - self._waiting[first] < self._patience_s:
            return []
        wants = self._holdings[first].wanted_bytes - self._holdings[first].byte_count
        lacking = self.held_bytes + wants - self.bytes_max
        late = sorted(
            (holding.begun_s, number, holder)
            for number, (holder, holding) in enumerate(self._holdings.items())
            if not holding.wanted_bytes and now_s - holding.begun_s >= self._patience_s
        )
        named = []
        for _, _, holder in late:
            if lacking <= 0:
                break
            lacking -= self._holdings[holder].byte_count
            named.append(holder)
        return named

    def _hold(self, holding: _Holding, byte_count: int) -> None:
        self.held_bytes += byte_count - holding.byte_count
        holding.byte_count = byte_count
