"""Where a subscription's next entries come from: replays first, then the log from its position on.

Entries in memory are taken at once (``read_cached``); for others one task at a time reads ahead, a
bounded number of entries and bytes, and calls ``ready``. What was read and could not be placed is
kept (``give_back``), so nothing is read twice for lack of permits.

Invariant: an entry is either before ``position``, and then it is acknowledged, out at a consumer,
not due yet (``delays``), waiting in ``redelivery`` or held here; or it is at ``position`` or after
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Final, NamedTuple

import structlog

from magnetar.cluster.topic_name import topic_of_log
from magnetar.env.tasks import TaskScope, nothing
from magnetar.log.seam import Cursor, Positions, ReadableLog
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    EntryDamagedError,
    LogClosedError,
    LogError,
    MagnetarError,
    MetadataFormatError,
    NoEntryError,
    NoSuchLedgerError,
)
from magnetar.model.ids import Position
from magnetar.topics.dispatch.redelivery import Key, Redelivery, ReplayRun, Replays

log = structlog.get_logger(__name__)

ENTRIES_MAX: Final = 256
BYTES_MAX: Final = 1 << 20
EVERYTHING: Final[Key] = (1 << 63, 0)
ENTRY_ID_MAX: Final = (1 << 63) - 1
RETRY_DELAY_S: Final = 1.0
"""Pause after a read that failed (a bookie that is away), before the next try."""
TOLD_AGAIN_S: Final = 60.0
"""How often it is logged that an entry still cannot be read."""


def behind_lost(positions: Positions, place: Position, error: MagnetarError) -> Position:
    """Where to go on without what could not be read at ``place``: behind the entry, or behind the
    ledger where it is the ledger's metadata that is lost, and so none of its entries is read."""
    if isinstance(error, NoSuchLedgerError | MetadataFormatError):
        place = Position(place.ledger_id, ENTRY_ID_MAX)
    return positions.next_position(place)


class Unread(NamedTuple):
    """The read of what is at ``place`` failed. ``behind``: where one can go on without it.
    ``lost``: all who should have it have said that they have not, or not sound."""

    place: Position
    behind: Position
    why: str
    lost: bool = False


class EntryFeed:
    """One subscription's supply of entries."""

    def __init__(
        self, source: ReadableLog, cursor: Cursor, scope: TaskScope, ready: Callable[[], None]
    ) -> None:
        self._log = source
        self._positions = source.positions
        self._cursor = cursor
        self._scope = scope
        self._ready = ready
        self._ahead: list[Entry] = []
        self._replayed: list[Entry] = []
        self._reading: asyncio.Task[None] | None = None
        self._generation = 0
        self._messages_per_entry = 1.0
        self.closed = False
        self.unread: Unread | None = None
        """Of the last read, if it failed; it is tried again."""
        self._unread_told_s = 0.0
        self._place = cursor.mark_delete
        """Where the read that is under way begins."""
        self.redelivery: Replays = Redelivery()
        self.position = self._positions.next_position(cursor.mark_delete)

    def read_from(self, source: ReadableLog) -> None:
        """``source`` is another view of the same log. To be followed by ``rewind``."""
        self._log, self._positions = source, source.positions

    def replay_by(self, replays: Replays, carry_over: bool) -> None:
        """What is sent again is kept in ``replays`` from now on. To be followed by ``rewind``,
        unless what waits is carried over."""
        before, self.redelivery = self.redelivery, replays
        if carry_over:
            replays.add(before.up_to(EVERYTHING), counted=False)
        before.clear()

    def close(self) -> None:
        """Nothing is taken any more, and nothing kept."""
        self.closed = True
        self._generation += 1
        self._ahead.clear()
        self._replayed.clear()
        self.redelivery.clear()
        self._ready = nothing  # it leads back here, which would be a cycle

    def rewind(self) -> None:
        """Start again after the mark-delete position; forgets replays and what was read ahead."""
        self._generation += 1
        self.unread = None
        self._ahead.clear()
        self._replayed.clear()
        self.redelivery.clear()
        self.position = self._positions.next_position(self._cursor.mark_delete)

    def take_ahead(self) -> list[Entry]:
        """What was read, and could not be placed or was not asked for yet."""
        entries, self._ahead = self._ahead, []
        return entries

    def rest(self, due: list[Entry]) -> None:
        """Nobody is there, and everything stays where it is: what was read is read again, how often
        it was refused is forgotten. What is being read now stays in memory. ``due``: of what was
        taken (``take_ahead``), what may be sent."""
        # Not by going back to the first: those between that are not due would be kept twice.
        self.redelivery.add(map(_place, (*self._replayed, *due)), counted=False)
        self._replayed.clear()
        self.redelivery.counts.clear()

    def skip_acknowledged(self) -> None:
        """The cursor went ahead by itself: what it passed need not be read."""
        after = self._positions.next_position(self._cursor.mark_delete)
        self.position = max(self.position, after)

    @property
    def positions(self) -> Positions:
        """Of what is read now."""
        return self._positions

    @property
    def waits(self) -> bool:
        """``take`` gives nothing before ``ready`` is called."""
        return self._reading is not None or self.closed

    def take(self, room: int, ahead: bool = True) -> tuple[list[Entry], bool]:
        """The next entries for about ``room`` messages, and whether they are replays; without
        ``ahead`` only replays. Empty when there are none, or none yet (then ``ready`` will be
        called)."""
        if self._replayed and not self._lower_waits():
            entries, self._replayed = self._replayed, []
            return entries, True
        if self._reading is not None or self.closed:
            return [], False
        count = max(1, min(ENTRIES_MAX, int(room / self._messages_per_entry) + 1, room))
        if self.redelivery.ready:
            return self._take_replays(count), True
        if not ahead or self.redelivery.full:
            return [], False
        if self._ahead:
            return self.take_ahead(), False
        return self._take_new(count), False

    def give_back(self, entries: list[Entry], replay: bool) -> None:
        """``entries``, a tail of what ``take`` gave, could not be placed."""
        if self.redelivery.by_place:
            self.redelivery.add(map(_place, entries), counted=False)
        elif replay:
            self._replayed += entries
            self._replayed.sort(key=_place)
        else:
            self._ahead = entries

    def _lower_waits(self) -> bool:
        """Whether something is to be replayed before what was read for that: the chunks of a
        message make sense in their order only."""
        if self.redelivery.by_place:
            return self._reading is not None
        first = self._replayed[0]
        return self.redelivery.has_below((first.ledger_id, first.entry_id))

    def learn(self, entries: int, messages: int) -> None:
        """What came back of the last ``take``, to size the next one by."""
        self._messages_per_entry += (messages / entries - self._messages_per_entry) * 0.25

    def _take_new(self, count: int) -> list[Entry]:
        entries = self._log.read_cached(self.position, count, BYTES_MAX)
        if entries is None:
            self._read(self._read_new(self._generation, count))
            return []
        self._step_past(entries)
        return entries

    def _step_past(self, entries: list[Entry]) -> None:
        if entries:
            last = entries[-1]
            self.position = self._positions.next_position(last.position)

    async def _read_new(self, generation: int, count: int) -> None:
        self._place = self.position
        entries = await self._log.read(self.position, count, BYTES_MAX)
        if generation != self._generation:
            return
        if not entries and self.position <= self._positions.readable:
            raise LogError(f"log {self._log.name} has entries at {self.position} and reads none")
        self._step_past(entries)
        self._ahead = entries

    # -- replays ------------------------------------------------------------------------------

    def _take_replays(self, count: int) -> list[Entry]:
        entries: list[Entry] = []
        runs = self.redelivery.take(count)
        # In order, so nothing behind what is not in memory, or did not come: chunks of a message
        # may be among them, and whoever gets the last one first cannot put them together.
        for at, run in enumerate(runs):
            start = Position(run.ledger_id, run.entry_id)
            cached = self._log.read_cached(start, run.length, BYTES_MAX)
            if cached is None:
                if self.redelivery.by_place:  # what is to be read may go before them
                    self._replayed, entries = entries, []
                self._read(self._read_runs(self._generation, runs[at:]))
                break
            wanted, whole = self._of_run(run, cached)
            entries += wanted
            if not whole:
                self._wait_again(runs[at + 1 :])
                break
        return entries

    def _of_run(self, run: ReplayRun, entries: list[Entry]) -> tuple[list[Entry], bool]:
        """Those of ``entries`` that are of ``run``, and whether they are all; what a short read
        left out waits again, and what the log no longer holds is forgotten."""
        stop = run.entry_id + run.length
        wanted = [e for e in entries if e.ledger_id == run.ledger_id and e.entry_id < stop]
        reached = wanted[-1].entry_id + 1 if wanted else stop
        if len(wanted) < len(entries) or reached == stop:
            return wanted, True
        self._wait_again([ReplayRun(run.ledger_id, reached, stop - reached)])
        return wanted, False

    def _wait_again(self, runs: Iterable[ReplayRun]) -> None:
        for run in runs:
            keys = ((run.ledger_id, run.entry_id + i) for i in range(run.length))
            self.redelivery.add(keys, counted=False)

    async def _read_runs(self, generation: int, runs: list[ReplayRun]) -> None:
        done = byte_count = 0
        entries: list[Entry] = []
        try:
            for run in runs:
                if byte_count >= BYTES_MAX:
                    return  # the others wait again
                start = Position(run.ledger_id, run.entry_id)
                self._place = start
                found = await self._log.read(start, run.length, BYTES_MAX)
                if generation != self._generation:
                    return
                wanted, whole = self._of_run(run, found)
                entries += wanted
                byte_count += sum(len(entry.data) for entry in wanted)
                done += 1
                if not whole:
                    return  # as above
        finally:
            if generation == self._generation:
                self._replayed += entries
                self._replayed.sort(key=_place)
                self._wait_again(runs[done:])

    # -- the reading task ---------------------------------------------------------------------

    def read_aside(self, reading: Callable[[], Coroutine[None, None, None]]) -> bool:
        """Have something else of the log read, unless a read is under way: nothing is taken
        meanwhile, and ``ready`` is called when it has ended."""
        if self.waits:
            return False
        self._read(reading())
        return True

    def _read(self, reading: Coroutine[None, None, None]) -> None:
        name = f"read {self._log.name} {self._cursor.name}"
        self._reading = self._scope.spawn(self._guard(reading, self._generation), name)

    async def _guard(self, reading: Coroutine[None, None, None], generation: int) -> None:
        try:
            await reading
            self.unread = None
        except LogClosedError:
            self.closed = True
        except MagnetarError as error:
            if generation == self._generation:
                self._failed(error)
            await asyncio.sleep(RETRY_DELAY_S)
        finally:
            self._reading = None
        self._ready()

    def _failed(self, error: MagnetarError) -> None:
        """Tells of it: once, and now and then for as long as it lasts."""
        before, now_s = self.unread, asyncio.get_running_loop().time()
        place = self._place
        lost = isinstance(error, EntryDamagedError | NoEntryError)
        behind = behind_lost(self._positions, place, error)
        self.unread = Unread(place, behind, str(error), lost)
        known = before is not None and before.place == place
        if known and now_s - self._unread_told_s < TOLD_AGAIN_S:
            return
        self._unread_told_s = now_s
        topic = str(topic_of_log(self._log.name))
        log.warning(
            "read failed; trying again",
            topic=topic,
            subscription=self._cursor.name,
            entry=str(place),
            error=str(error),
            remedy="if no sound copy of it comes back, go on without it: magnetar topics seek "
            f"{topic} --subscription {self._cursor.name} --to {self.unread.behind}",
        )


def _place(entry: Entry) -> Key:
    return entry.ledger_id, entry.entry_id
