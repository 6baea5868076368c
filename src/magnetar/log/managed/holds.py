"""Holds of readers on a log's front: what they read is not trimmed meanwhile. Implements
``log.seam.Holds``.

A hold has an end. Whoever reads on asks again in time; whoever is gone does not, and its hold ends
by itself. Rules:

* What was promised is in the log's record before it is: another owner keeps it. So that asking
  again does not write each time, the record's end is twice as far as what was asked for, and is
  written again only when less than that is left.
* A hold may move forward without a write: the record then keeps more than needed. One that is
  released is written: else the next owner would hold what nobody reads until its end.
* ``HOLDS_MAX`` of a log, ``HOLD_MS_MAX`` at once.

Why: docs/adr/0087-readers-hold-what-they-read.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.log.seam import ReaderHold
from magnetar.model.errors import LogFencedError, NotAllowedError
from magnetar.model.ids import NO_ENTRY, Position

HOLDS_MAX: Final = 100
HOLD_MS_MAX: Final = 3_600_000
HOLDER_CHARS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class HoldEvents:
    """What the log wants to know. ``require_open`` raises when it is not open here any more."""

    released: Callable[[], None]
    lost: Callable[[LogFencedError], None]
    require_open: Callable[[], None]


class HoldStore(Protocol):
    """A log's record, as far as holds are concerned."""

    name: str

    @property
    def stored_holds(self) -> tuple[ReaderHold, ...]: ...

    def keep_holds(self, current: Callable[[], tuple[ReaderHold, ...]]) -> None:
        """Each write of the record stores what ``current`` says from now on."""
        ...

    async def save(self) -> None:
        """Write the record. Raises ``LogFencedError``, ``MetadataError``."""
        ...


class LogHolds:
    """The holds on one log, for its owner."""

    def __init__(self, store: HoldStore, now_ms: Callable[[], int], events: HoldEvents) -> None:
        self._store = store
        self._now_ms = now_ms
        self._events = events
        self._held = {hold.holder: hold for hold in store.stored_holds}
        store.keep_holds(self.all)

    def all(self) -> tuple[ReaderHold, ...]:
        """Those that have not ended, by name."""
        now_ms = self._now_ms()
        self._held = {name: hold for name, hold in self._held.items() if hold.until_ms > now_ms}
        return tuple(self._held[name] for name in sorted(self._held))

    def needed_after(self) -> list[Position]:
        """Positions after which somebody reads."""
        return [Position(hold.ledger_id, NO_ENTRY) for hold in self.all()]

    async def take(self, holder: str, ledger_id: int, for_ms: int) -> None:
        """See the seam."""
        self._events.require_open()
        self._check(holder, for_ms)
        former = self._held.get(holder)
        until_ms = self._now_ms() + for_ms
        stored = next((each for each in self._store.stored_holds if each.holder == holder), None)
        if stored is not None and stored.until_ms >= until_ms and stored.ledger_id <= ledger_id:
            self._held[holder] = ReaderHold(holder, ledger_id, stored.until_ms)
        else:
            self._held[holder] = ReaderHold(holder, ledger_id, until_ms + for_ms)
            await self._save()
            if holder not in self._held and self._is_stored(holder):
                await self._save()  # it was let go while that was written
        if former is not None and former.ledger_id < ledger_id:
            self._events.released()

    async def _save(self) -> None:
        try:
            await self._store.save()
        except LogFencedError as error:
            self._events.lost(error)
            raise

    def _check(self, holder: str, for_ms: int) -> None:
        name = self._store.name
        if not holder or len(holder) > HOLDER_CHARS_MAX:
            raise NotAllowedError(
                f"log {name}: the name of a hold has 1 to {HOLDER_CHARS_MAX} characters"
            )
        if not 0 < for_ms <= HOLD_MS_MAX:
            raise NotAllowedError(
                f"log {name}: a hold is for 1 to {HOLD_MS_MAX} ms, not {for_ms}; ask again in time"
            )
        others = [hold for hold in self.all() if hold.holder != holder]
        if len(others) >= HOLDS_MAX:
            raise NotAllowedError(
                f"log {name} is held by {HOLDS_MAX} readers already; the first that ends is "
                f"{min(others, key=lambda hold: hold.until_ms).holder}"
            )

    async def release(self, holder: str) -> None:
        """See the seam."""
        if self._held.pop(holder, None) is None:
            return
        self._events.released()
        # The record promises it until its end: who opens the log next would keep to that.
        if self._is_stored(holder):
            await self._save()

    def _is_stored(self, holder: str) -> bool:
        return any(each.holder == holder for each in self._store.stored_holds)
