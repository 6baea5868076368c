"""Which entries of transactions a subscription gets: those of committed ones, and no marker.

An entry of a transaction is delivered once its outcome is known, which the marker of its producer
says that follows it in the log. ``sort`` is given entries on their way to consumers; what it has to
know it finds by reading on in the log, at once where that is in memory.

Rules:

* Order is kept: what follows an entry without an outcome waits with it.
* Markers, and entries of aborted transactions, are for nobody: they are to be acknowledged.
* It reads each entry once, as long as the subscription goes forward; when that goes back, it begins
  anew.

Nothing of it is stored: the log says it. Why: docs/adr/0117-transactions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Final, NamedTuple

from magnetar.log.seam import ReadableLog
from magnetar.model.entry import Entry
from magnetar.model.errors import EntryDamagedError, NoEntryError, ProtocolError
from magnetar.model.ids import Position
from magnetar.topics.entry_format import EntryFormat, describe

STEP_ENTRIES: Final = 256
STEP_BYTES: Final = 1 << 20
SOUGHT_STEPS: Final = 16
OUTCOMES_MAX: Final = 100_000
"""Entries of transactions whose outcome is known; then it begins anew."""


LOOK_BACK_ENTRIES: Final = 1_000


async def last_delivered(source: ReadableLog, entry_format: EntryFormat) -> Position:
    """The last entry that consumers get, as far as it is decided: readers ask for it to know when
    they have all. What it is if a transaction without an outcome, or aborted ones, end the log with
    more than ``LOOK_BACK_ENTRIES``, is not looked for. What says nothing of itself is left out by
    dispatch: who waited for it would wait for whatever is published next. Raises as reading a log.
    """
    positions = source.positions
    ends: dict[int, bool] = {}
    at = positions.readable
    for _ in range(LOOK_BACK_ENTRIES):
        if at.entry_id < 0 or at < positions.first:
            break
        try:
            entries = await source.read(at, 1, 1)
            part = describe(entries[0], entry_format).transaction if entries else None
        except (EntryDamagedError, NoEntryError):
            break  # nobody can read it, and still it is there
        except ProtocolError:
            at = positions.previous_position(at)
            continue
        if part is None or (part.commits is None and ends.get(part.producer_id)):
            break
        if part.commits is not None:
            ends[part.producer_id] = part.commits
        at = positions.previous_position(at)
    return at


class Given(NamedTuple):
    """Of a stretch of the log, up to ``sought_to``. ``any``: consumers get an entry of it.
    ``undecided``: of some entries it was not seen how their transactions ended."""

    any: bool
    sought_to: Position
    undecided: bool = False


async def given_between(
    source: ReadableLog, entry_format: EntryFormat, first: Position, stop: Position
) -> Given:
    """Whether consumers get an entry from ``first`` on and before ``stop``; some MiB are looked at,
    behind ``stop`` too: there is said how transactions ended. One that cannot be read counts."""
    positions, at = source.positions, first
    waiting: set[int] = set()
    for _ in range(SOUGHT_STEPS):
        try:
            entries = await source.read(at, STEP_ENTRIES, STEP_BYTES)
        except (EntryDamagedError, NoEntryError):
            return Given(at < stop, min(at, stop), bool(waiting))
        for entry in entries:
            place = entry.position
            if place >= stop and not waiting:
                return Given(False, stop)
            if _is_given(entry, entry_format, waiting, within=place < stop):
                return Given(True, min(place, stop))
            at = positions.next_position(place)
        if not entries:
            break  # the log ends; what is before ``stop`` was to be there
    return Given(False, min(at, stop), bool(waiting))


def _is_given(entry: Entry, entry_format: EntryFormat, waiting: set[int], *, within: bool) -> bool:
    """True: an entry is given, this one or one whose transaction it commits. ``waiting``: producers
    of transactions with entries ``within`` the stretch, whose end has not come yet."""
    try:
        part = describe(entry, entry_format).transaction
    except ProtocolError:
        return within
    if part is None:
        return within
    if part.commits is None:
        if within:
            waiting.add(part.producer_id)
        return False
    if part.producer_id not in waiting:
        return False
    waiting.remove(part.producer_id)
    return part.commits


class Sorted(NamedTuple):
    """``delivered`` in their order; ``hidden`` for nobody; ``waiting``: the rest, from the first
    entry on that has no outcome yet."""

    delivered: list[Entry]
    hidden: list[Position]
    waiting: list[Entry]


class TransactionView:
    """Of one subscription; see the module's text. ``read``: has a task read, and tells whether it
    could; there is one task at a time, and when it has ended entries are sorted again."""

    def __init__(
        self,
        source: ReadableLog,
        entry_format: EntryFormat,
        read: Callable[[Callable[[], Coroutine[None, None, None]]], bool],
    ) -> None:
        self._log = source
        self._format = entry_format
        self._have_read = read
        self._reading = False
        self._begin: Position | None = None
        self._next = Position(-1, -1)
        self._waiting: dict[int, list[Position]] = {}
        self._committed: dict[Position, bool] = {}

    def sort(self, entries: Sequence[Entry]) -> Sorted:
        """``entries``: described, in the order of the log."""
        delivered: list[Entry] = []
        hidden: list[Position] = []
        for index, entry in enumerate(entries):
            part = describe(entry, self._format).transaction
            if part is None:
                delivered.append(entry)
                continue
            place = entry.position
            committed = False if part.commits is not None else self._outcome(place)
            if committed is None:
                return Sorted(delivered, hidden, list(entries[index:]))
            if committed:
                delivered.append(entry)
            else:
                hidden.append(place)
        return Sorted(delivered, hidden, [])

    def _outcome(self, place: Position) -> bool | None:
        """Whether the transaction of the entry there has committed; None: not known yet."""
        if self._reading:
            return self._committed.get(place)
        if self._begin is None or place < self._begin or len(self._committed) > OUTCOMES_MAX:
            self._begin = self._next = place
            self._waiting.clear()
            self._committed.clear()
        while place not in self._committed and self._next <= self._log.positions.readable:
            entries = self._log.read_cached(self._next, STEP_ENTRIES, STEP_BYTES)
            if entries is None:
                self._reading = self._have_read(self._read)
                return None
            if not entries:
                break
            self._learn(entries)
        return self._committed.get(place)

    async def _read(self) -> None:
        try:
            self._learn(await self._log.read(self._next, STEP_ENTRIES, STEP_BYTES))
        finally:
            self._reading = False

    def _learn(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            place = entry.position
            self._next = self._log.positions.next_position(place)
            try:
                part = describe(entry, self._format).transaction
            except ProtocolError:
                continue
            if part is None:
                continue
            if part.commits is None:
                self._waiting.setdefault(part.producer_id, []).append(place)
            else:
                for other in self._waiting.pop(part.producer_id, ()):
                    self._committed[other] = part.commits
