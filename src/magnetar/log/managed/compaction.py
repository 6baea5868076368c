"""What compaction has left of a log, and the log read with that in the place of its older entries.
Implements ``log.seam.KeyCompaction``.

A compacted ledger holds the entries that survived, of everything up to a *horizon*, under the
positions that they had (``compacted_entries``). The record of the log says which, and up to where.
Rules:

* The record is the switch: one compare-and-set puts the new ledger and horizon in the place of the
  old ones, and names the old ledger as one that has left. Who reads sees one of the two, whole.
* A ledger that is being written is named in the record, among those to be deleted, before its first
  entry: if its writer ends, the next owner deletes it. The old one stands meanwhile.
* An old ledger is deleted after the record that does without it is stored.
* The log after the horizon is never trimmed: whoever reads the view has it nowhere else. Up to the
  horizon it may be; what survived stays readable, by its position.
* While a compaction runs nothing that it may read is trimmed.
* Another process may compact as well (``compaction_elsewhere``): who is done first wins, and the
  other one is refused, since what it read is not the view any more.
* A compacted ledger that an operator has given up counts as none: the view is the log, until it is
  compacted again.
* Nobody who reads the view reads an entry twice, or out of order: survivors end at the horizon, and
  the log goes on behind it.

Why: docs/adr/0130-compaction-is-a-second-view.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from magnetar.log.managed.chain import Chain
from magnetar.log.managed.chain_store import ChainStore
from magnetar.log.managed.compacted_entries import (
    original,
    position_of,
    prefix_of,
    whole_payload,
)
from magnetar.log.managed.compaction_elsewhere import CompactionElsewhere
from magnetar.log.managed.gone import gone
from magnetar.log.managed.ledgers import ChainReader, ChainWriter, Ledgers
from magnetar.log.managed.records import NO_LEDGER, Compacted
from magnetar.log.policy import LogPolicy
from magnetar.log.seam import (
    Buffer,
    CompactedElsewhere,
    CompactedStats,
    LogStats,
    Positions,
    ReadableLog,
    ReaderHold,
    Survivor,
)
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    LedgerError,
    LogFencedError,
    MagnetarError,
    NoEntryError,
    NoSuchLedgerError,
    NotAllowedError,
)
from magnetar.model.ids import EARLIEST, Position
from magnetar.model.ledger import COMPACTED_KEY

log = structlog.get_logger(__name__)

SEARCH_BYTES: Final = 1 << 30
"""Of one entry that is looked at: no bound but that of bookies."""


@dataclass(frozen=True, slots=True)
class CompactionEvents:
    """What the log wants to know. ``require_open`` raises when it is not open here any more."""

    released: Callable[[], None]
    lost: Callable[[LogFencedError], None]
    require_open: Callable[[], None]


class LogCompaction:
    """See the module's text."""

    def __init__(
        self,
        source: ReadableLog,
        chain: Chain,
        store: ChainStore,
        ledgers: Ledgers,
        policy: Callable[[], LogPolicy],
        now_ms: Callable[[], int],
        events: CompactionEvents,
        holds: Callable[[], Sequence[ReaderHold]],
    ) -> None:
        self._name = source.name
        self._chain = chain
        self._store = store
        self._ledgers = ledgers
        self._policy = policy
        self._now_ms = now_ms
        self._events = events
        self._running = False
        self._base: Compacted | None = None
        self._elsewhere = CompactionElsewhere(
            self._name, store, ledgers, policy, now_ms, source.positions, holds
        )
        self.view: ReadableLog = CompactedView(source, store, ledgers, self._forget)
        self._mark()

    def _mark(self) -> None:
        found = self._store.compacted
        self._chain.compacted_to = EARLIEST if found is None else found.horizon

    @property
    def stats(self) -> CompactedStats | None:
        """See the seam."""
        found = self._store.compacted
        if found is None:
            return None
        return CompactedStats(
            found.ledger_id, found.horizon, found.entries, found.stored_bytes, found.finished_ms
        )

    @property
    def in_use(self) -> bool:
        """Something was left of the log, or is about to be."""
        return self._running or self._store.compacted is not None or self._store.being_compacted

    def payload(self, entry: Entry) -> Buffer:
        """See the seam."""
        return whole_payload(entry)

    def needed_after(self) -> list[Position]:
        """Positions after which nothing may be trimmed."""
        found = self._store.compacted
        if found is not None and not self._running:
            return [found.horizon]
        # A compaction that has just replaced the view may still be reading before the new horizon.
        return [EARLIEST] if self._running else []

    def reads_after(self) -> list[Position]:
        """Positions after which a compaction reads now, wherever the entries lie."""
        return [EARLIEST] if self._running else []

    @contextmanager
    def reading(self) -> Iterator[None]:
        """See the seam."""
        if self._running:
            raise NotAllowedError(f"log {self._name} is being compacted; wait until that is over")
        self._running = True
        self._base = self._store.compacted
        try:
            yield
        finally:
            self._running = False
            self._events.released()

    async def replace(
        self, horizon: Position, survivors: AsyncIterator[Sequence[Survivor]]
    ) -> None:
        """See the seam."""
        self._events.require_open()
        assert self._running, "what is read must not be trimmed meanwhile"
        try:
            await self._replace(horizon, survivors)
        except LogFencedError as error:
            self._events.lost(error)
            raise
        await self._store.delete_left()

    async def _replace(
        self, horizon: Position, survivors: AsyncIterator[Sequence[Survivor]]
    ) -> None:
        writer: ChainWriter | None = None
        entries = 0
        last = EARLIEST
        try:
            async for some in survivors:
                if not some:
                    continue
                if writer is None:
                    writer = await self._begin()
                assert last < some[0].position <= some[-1].position <= horizon
                last = some[-1].position
                await _append(writer, some)
                entries += len(some)
            length = 0 if writer is None else await self._end(writer, entries)
            self._events.require_open()
            self._check_base()
            ledger_id = NO_LEDGER if writer is None else writer.ledger_id
            # All of it is durable, and closed, before anybody can be told of it.
            found = Compacted(ledger_id, horizon, entries, length, self._now_ms(), last)
            await self._store.end_compacted(found)
        except BaseException:
            if writer is not None:
                self._store.give_up_compacted(writer.ledger_id)
            raise
        finally:
            self._mark()

    async def _forget(self, found: Compacted) -> None:
        """An operator has given it up: the view is the log, until it is compacted again."""
        log.warning(
            "what compaction had left was given up: the log is read as it is",
            log=self._name,
            ledger=found.ledger_id,
            up_to=str(found.horizon),
        )
        try:
            await self._store.forget_compacted(found)
        except LogFencedError as error:
            self._events.lost(error)
            raise
        finally:
            self._mark()

    def _check_base(self) -> None:
        """What was read is what is replaced; from here to the write nobody else has a turn."""
        if self._store.compacted is self._base:
            return
        if self._store.compacted is None:
            raise NotAllowedError(
                f"log {self._name}: what compaction had left was given up meanwhile; compact it "
                "again"
            )
        raise NotAllowedError(
            f"log {self._name} was compacted by a job meanwhile; what that has left is the view"
        )

    async def begin_elsewhere(self, holder: str) -> int:
        """See the seam."""
        self._events.require_open()
        try:
            return await self._elsewhere.begin(holder)
        except LogFencedError as error:
            self._events.lost(error)
            raise

    async def take(
        self, holder: str, base: CompactedStats | None, found: CompactedElsewhere
    ) -> None:
        """See the seam."""
        self._events.require_open()
        try:
            await self._elsewhere.take(holder, base, found)
        except LogFencedError as error:
            self._events.lost(error)
            raise
        finally:
            self._mark()
        await self._store.delete_left()
        self._events.released()

    def give_up(self, holder: str) -> None:
        """See the seam."""
        self._elsewhere.give_up(holder)

    def clean_up(self) -> None:
        """Some time has passed."""
        self._elsewhere.clean_up()

    async def _begin(self) -> ChainWriter:
        about = {COMPACTED_KEY: self._name.encode()}
        writer = await self._ledgers.create(custom=about, quorums=self._policy().quorums)
        try:
            await self._store.begin_compacted(writer.ledger_id)
        except LogFencedError:
            await self._store.discard(writer.ledger_id)
            raise
        except BaseException:
            self._store.give_up_compacted(writer.ledger_id)
            raise
        return writer

    async def _end(self, writer: ChainWriter, entries: int) -> int:
        closed = await writer.close()
        if closed.last_entry_id != entries - 1:
            raise LedgerError(
                f"log {self._name}: of {entries} entries of compacted ledger {writer.ledger_id} "
                f"{closed.last_entry_id + 1} are confirmed; compact it again"
            )
        return closed.length


async def _append(writer: ChainWriter, some: Sequence[Survivor]) -> None:
    """Returns when all of it is confirmed. Raises what the append failed with."""
    done = asyncio.get_running_loop().create_future()
    waiting = len(some)

    def told(error: MagnetarError | None, _ledger_id: int, _first: int, count: int) -> None:
        nonlocal waiting
        waiting -= count
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        elif waiting == 0:
            done.set_result(None)

    prefixes = [prefix_of(each.position, each.kept) for each in some]
    writer.append([each.payload for each in some], told, prefixes)
    await done


class CompactedView:
    """A log with what survived in the place of its entries up to the horizon. Implements
    ``log.seam.ReadableLog``. Of a log that was never compacted it is the log."""

    def __init__(
        self,
        source: ReadableLog,
        store: ChainStore,
        ledgers: Ledgers,
        forget: Callable[[Compacted], Awaitable[None]],
    ) -> None:
        self.name = source.name
        self._forget = forget
        self.positions: Positions = CompactedPositions(source.positions, store)
        self._source = source
        self.end = source.end
        self._store = store
        self._ledgers = ledgers
        self._reader: tuple[int, ChainReader] | None = None
        self._next: dict[tuple[int, Position], int] = {}
        """Where readers that go on will go on: the entry that follows, by compacted ledger. (A read
        of one may end when another has long taken its place.)"""

    def watch_readable(self, grown: Callable[[], None]) -> Callable[[], None]:
        return self._source.watch_readable(grown)

    def read_cached(self, start: Position, max_entries: int, max_bytes: int) -> list[Entry] | None:
        found = self._store.compacted
        if found is not None and start <= found.horizon:
            if start <= found.last:
                return None
            start = self._source.positions.next_position(found.horizon)
        return self._source.read_cached(start, max_entries, max_bytes)

    async def read(self, start: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        while True:
            found = self._store.compacted
            try:
                if found is not None and start <= found.last:
                    return await self._survivors(found, start, max_entries, max_bytes)
                entries = await self._source.read(
                    self._behind(found, start), max_entries, max_bytes
                )
            except (NoSuchLedgerError, NoEntryError):
                if self._store.compacted is not found:
                    continue  # another has taken its place meanwhile
                if found is None or not await self._given_up(found):
                    raise
                await self._forget(found)
            else:
                # If one has, what it has compacted may be trimmed, and the log steps over that.
                if self._store.compacted is found:
                    return entries

    def _behind(self, found: Compacted | None, start: Position) -> Position:
        """Where the log is read from for ``start``, which is behind all that survived."""
        if found is None or start > found.horizon:
            return start
        return self._source.positions.next_position(found.horizon)

    async def _survivors(
        self, found: Compacted, start: Position, max_entries: int, max_bytes: int
    ) -> list[Entry]:
        reader = await self._open(found)
        at = self._next.pop((found.ledger_id, start), None)
        if at is None:
            at = await self._search(reader, found, start)
        stored = await reader.read(at, min(max_entries, found.entries - at), max_bytes)
        entries = [original(each) for each in stored]
        if not entries:
            raise NoEntryError(f"log {self.name}: nothing was read of ledger {found.ledger_id}")
        last = entries[-1].position
        if len(self._next) >= NEXT_MAX:
            del self._next[next(iter(self._next))]
        self._next[found.ledger_id, self.positions.next_position(last)] = at + len(entries)
        return entries

    async def _given_up(self, found: Compacted) -> bool:
        """An operator has: nothing of it is left."""
        if found.ledger_id == NO_LEDGER:
            return False
        try:
            return await self._ledgers.given_up(found.ledger_id)
        except NoSuchLedgerError:
            return False

    async def _open(self, found: Compacted) -> ChainReader:
        if self._reader is None or self._reader[0] != found.ledger_id:
            try:
                reader = await self._ledgers.open_no_recovery(found.ledger_id)
            except NoSuchLedgerError as error:
                way_on = gone(self.name, "is not compacted any more", found.ledger_id, error)
                raise NoSuchLedgerError(way_on) from error
            if reader.last_add_confirmed < found.entries - 1:
                raise NoEntryError(
                    f"log {self.name}: ledger {found.ledger_id} ends at entry "
                    f"{reader.last_add_confirmed}, and not at {found.entries - 1}"
                )
            self._reader = found.ledger_id, reader
        return self._reader[1]

    async def _search(self, reader: ChainReader, found: Compacted, start: Position) -> int:
        """The first survivor at or after ``start``, of which there is one."""
        low, high = 0, found.entries - 1
        while low < high:
            middle = (low + high) // 2
            (entry,) = await reader.read(middle, 1, SEARCH_BYTES)
            if position_of(entry) < start:
                low = middle + 1
            else:
                high = middle
        return low

    async def first_at(self, time_ms: int) -> Position:
        return await self._source.first_at(time_ms)

    def stats(self) -> LogStats:
        return self._source.stats()

    async def close(self) -> None:
        """It is closed with the log."""


NEXT_MAX: Final = 64


class CompactedPositions:
    """Implements ``log.seam.Positions``: the log's, but what was trimmed and survived is there, and
    what was compacted away at the log's end is not its end."""

    def __init__(self, source: Positions, store: ChainStore) -> None:
        self._source = source
        self._store = store
        self.previous_position = source.previous_position
        self.entries_between = source.entries_between
        self.messages_between = source.messages_between

    @property
    def first(self) -> Position:
        return self._source.first if self._store.compacted is None else Position(0, 0)

    @property
    def readable(self) -> Position:
        """The last survivor, when nothing was published after the horizon."""
        found, readable = self._store.compacted, self._source.readable
        return found.last if found is not None and readable <= found.horizon else readable

    @property
    def held(self) -> Position:
        return self._source.held

    def next_position(self, position: Position) -> Position:
        """Up to the horizon it may be a place that holds nothing: reading goes on after it."""
        found = self._store.compacted
        if found is None or position >= found.horizon:
            return self._source.next_position(position)
        return Position(max(0, position.ledger_id), position.entry_id + 1)

    @property
    def end_offset(self) -> int:
        return self._source.end_offset

    async def offset_of(self, position: Position) -> int:
        return await self._source.offset_of(position)

    async def position_of(self, offset: int) -> Position:
        return await self._source.position_of(offset)
