"""A log engine in memory, with the seam's promises and knobs to make it late or broken.

Entries live in ledgers of ``ledger_entries`` each, so that positions step over ledgers as they do
in the real engine. Appends are confirmed in the next loop turn, or when ``release`` is called
while ``held`` is set.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pyroaring import BitMap

from magnetar.log.acknowledgements import AckImage, ack_set_bits, ack_set_words
from magnetar.log.managed.followed_cursors import CursorsOfFollowed
from magnetar.log.managed.front import EpochsOfLedgers
from magnetar.log.policy import LogPolicy, RollRule
from magnetar.log.seam import (
    AppendDone,
    Binding,
    Buffer,
    Checkpoint,
    Checkpoints,
    CompactedElsewhere,
    CompactedStats,
    Content,
    Cursors,
    FollowedCursors,
    Holds,
    KeyCompaction,
    KnownLog,
    LedgerStats,
    LogEnd,
    LogEpochs,
    LogFront,
    LogProducers,
    LogStats,
    Opening,
    Positions,
    ReadableLog,
    ReaderHold,
    Run,
    Survivor,
    Termination,
)
from magnetar.log.watching import ReadableWatch
from magnetar.log.whole import Whole
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    CursorNotFoundError,
    LogClosedError,
    LogError,
    LogFencedError,
    LogTerminatedError,
    MagnetarError,
    NoSpaceError,
    NoSuchLogError,
    NotAllowedError,
)
from magnetar.model.ids import EARLIEST, LATEST, Position
from magnetar.wire.kafka.batches import STAMP_BYTES, stamp

HEADER = bytes(36)


class MemoryCursor:
    """Acknowledgements as plain sets; stores nothing, but counts who waited for it."""

    def __init__(
        self,
        source: MemoryLog,
        name: str,
        start: Position,
        durable: bool,
        properties: Mapping[str, str],
    ) -> None:
        self.name = name
        self.durable = durable
        self.properties = properties
        self.waits = 0
        self._log = source
        self._mark = source._order.before(start)
        self._acked: set[Position] = set()
        self._words: dict[Position, list[int]] = {}
        self.lending: MemoryLending | None = MemoryLending(self) if durable else None
        self.noted: MemoryNote | None = MemoryNote(self) if durable else None

    @property
    def mark_delete(self) -> Position:
        return self._mark

    def acknowledge(self, positions: Sequence[Position]) -> None:
        for position in positions:
            assert isinstance(position, Position)
            self._words.pop(position, None)
            if self._mark < position <= self._log.positions.readable:
                self._acked.add(position)
        while (following := self._log.positions.next_position(self._mark)) in self._acked:
            self._acked.remove(following)
            self._mark = following

    def acknowledge_batch(
        self, position: Position, batch_size: int, ack_set: Sequence[int]
    ) -> bool:
        if self.is_acknowledged(*position):
            return True
        whole = [-1] * len(ack_set)
        words = [a & b for a, b in zip(self._words.get(position, whole), ack_set, strict=True)]
        if any(words):
            self._words[position] = words
            return False
        self.acknowledge([position])
        return True

    def acknowledge_cumulative(self, position: Position) -> None:
        self._mark = max(self._mark, min(position, self._log.positions.readable))
        self._acked = {other for other in self._acked if other > self._mark}
        self._words = {at: words for at, words in self._words.items() if at > self._mark}
        self.acknowledge([])

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        position = Position(ledger_id, entry_id)
        return position <= self._mark or position in self._acked

    def unacknowledged(self, entries: Sequence[Entry]) -> list[Entry]:
        return [e for e in entries if not self.is_acknowledged(e.ledger_id, e.entry_id)]

    def ack_set(self, position: Position) -> list[int] | None:
        return self._words.get(position)

    def backlog_entries(self) -> int:
        after = self._log.positions.entries_between(self._mark, self._log.positions.readable)
        return after - len(self._acked)

    async def reset(self, position: Position) -> None:
        await asyncio.sleep(0)
        if self._log.failing is not None:
            raise self._log.failing
        self._mark = self._log._order.before(position)
        self._acked.clear()
        self._words.clear()
        if self.lending is not None:
            self.lending.reset_epoch += 1

    async def wait_stored(self) -> None:
        await asyncio.sleep(0)
        self.waits += 1


class MemoryNote:
    """``log.seam.CursorNote`` of a memory cursor."""

    def __init__(self, cursor: MemoryCursor) -> None:
        self._cursor = cursor
        self.value = b""

    def take(self, position: Position, value: bytes) -> None:
        assert value
        self._cursor.acknowledge_cumulative(position)
        self.value = value


class MemoryLending:
    """``log.seam.CursorLending`` of a memory cursor."""

    def __init__(self, cursor: MemoryCursor) -> None:
        self._cursor = cursor
        self.binding = Binding()
        self.term = 1
        self.reset_epoch = 0
        self.failing: MagnetarError | None = None

    async def bind(self, binding: Binding) -> None:
        await asyncio.sleep(0)
        if self.failing is not None:
            raise self.failing
        self.binding = binding

    def image(self) -> AckImage:
        cursor = self._cursor
        holes: dict[int, BitMap] = {}
        for position in sorted(cursor._acked):
            holes.setdefault(position.ledger_id, BitMap()).add(position.entry_id)
        sets = {at: ack_set_bits(words) for at, words in cursor._words.items()}
        return AckImage(cursor.mark_delete, holes, sets, self.reset_epoch)

    def merge(self, image: AckImage) -> None:
        cursor = self._cursor
        if image.reset_epoch < self.reset_epoch:
            return
        if image.reset_epoch > self.reset_epoch:
            self.reset_epoch = image.reset_epoch
            cursor._mark = image.mark_delete
            cursor._acked.clear()
            cursor._words.clear()
        cursor.acknowledge_cumulative(image.mark_delete)
        for ledger_id, bitmap in image.holes.items():
            cursor.acknowledge([Position(ledger_id, entry_id) for entry_id in bitmap])
        for at, bits in image.ack_sets.items():
            cursor.acknowledge_batch(at, bits.bit_length(), ack_set_words(bits))


class MemoryCompaction:
    """Of a log that is never compacted."""

    def __init__(self, source: ReadableLog) -> None:
        self.view = source
        self.stats: CompactedStats | None = None

    def payload(self, entry: Entry) -> Buffer:
        return entry.payload

    def reading(self) -> AbstractContextManager[None]:
        raise NotAllowedError("a log in memory is not compacted")

    async def replace(
        self, horizon: Position, survivors: AsyncIterator[Sequence[Survivor]]
    ) -> None:
        raise NotAllowedError("a log in memory is not compacted")

    async def begin_elsewhere(self, holder: str) -> int:
        raise NotAllowedError("a log in memory is not compacted")

    async def take(
        self, holder: str, base: CompactedStats | None, found: CompactedElsewhere
    ) -> None:
        raise NotAllowedError("a log in memory is not compacted")

    def give_up(self, holder: str) -> None:
        """Nothing was begun."""


class MemoryHolds:
    """``log.seam.Holds``; nothing is trimmed here."""

    def __init__(self) -> None:
        self.taken: dict[str, ReaderHold] = {}

    async def take(self, holder: str, ledger_id: int, for_ms: int) -> None:
        self.taken[holder] = ReaderHold(holder, ledger_id, for_ms)

    async def release(self, holder: str) -> None:
        self.taken.pop(holder, None)

    def all(self) -> tuple[ReaderHold, ...]:
        return tuple(self.taken[holder] for holder in sorted(self.taken))


class MemoryPositions:
    """``log.seam.Positions`` over a list of entries, in ledgers of ``size`` from 1 on."""

    def __init__(self, entries: list[Entry], size: int) -> None:
        self._entries = entries
        self._size = size
        self._offsets = [0]  # of each entry's first message, and of what comes next
        self._times_ms: list[int] = []

    def told(self, content: Content) -> None:
        """What the next entries hold."""
        for messages in content.messages:
            self._offsets.append(self._offsets[-1] + messages)
        self._times_ms += content.publish_times_ms

    @property
    def next_offset(self) -> int:
        return self._offsets[-1]

    def content(self) -> Content:
        """What all entries hold."""
        counts = [b - a for a, b in pairwise(self._offsets)]
        return Content(counts, self._times_ms)

    def index(self, position: Position) -> int:
        """The index of the first entry at or after ``position``."""
        if position.ledger_id < 1:
            return 0
        return (position.ledger_id - 1) * self._size + min(max(position.entry_id, 0), self._size)

    def at(self, index: int) -> Position:
        return Position(1 + index // self._size, index % self._size)

    def before(self, start: Position) -> Position:
        """The mark-delete position with which ``start`` is the next to read."""
        if start == LATEST or start > self.readable:
            return self.readable
        index = self.index(self.first if start == EARLIEST else start)
        return self.at(index - 1) if index else Position(1, -1)

    @property
    def first(self) -> Position:
        return Position(1, 0)

    @property
    def readable(self) -> Position:
        count = len(self._entries)
        return self.at(count - 1) if count else Position(1, -1)

    held = readable

    def _rank(self, position: Position) -> int:
        """How many entries are at or before ``position``."""
        if position.ledger_id < 1:
            return 0
        inside = min(max(position.entry_id, -1) + 1, self._size)
        return min((position.ledger_id - 1) * self._size + inside, len(self._entries))

    def next_position(self, position: Position) -> Position:
        return self.at(self._rank(position))

    def previous_position(self, position: Position) -> Position:
        rank = self._rank(Position(position.ledger_id, position.entry_id - 1))
        return self.at(rank - 1) if rank else Position(1, -1)

    def entries_between(self, after: Position, last: Position) -> int:
        return max(0, self._rank(last) - self._rank(after))

    def messages_between(self, after: Position, last: Position) -> int:
        return max(0, self._offsets[self._rank(last)] - self._offsets[self._rank(after)])

    @property
    def end_offset(self) -> int:
        return self._offsets[len(self._entries)]

    async def offset_of(self, position: Position) -> int:
        return self._offsets[self._rank(Position(position.ledger_id, position.entry_id - 1))]

    def times_of(self, ledger_id: int) -> tuple[int, int]:
        """The least and the greatest publish time of a ledger."""
        pairs = zip(self._entries, self._times_ms, strict=False)
        found = [time_ms for entry, time_ms in pairs if entry.ledger_id == ledger_id]
        return min(found, default=0), max(found, default=0)

    async def position_of(self, offset: int) -> Position:
        index = bisect_right(self._offsets, offset) - 1
        return self.at(max(0, min(index, len(self._entries))))

    def first_at(self, time_ms: int) -> Position:
        times = enumerate(self._times_ms)
        return self.at(next((i for i, at in times if at >= time_ms), len(self._entries)))


class MemoryCursors:
    """``log.seam.Cursors``; the cursors outlive the log that they were opened in."""

    def __init__(self, source: MemoryLog) -> None:
        self._log = source
        self.opened: dict[str, MemoryCursor] = {}

    async def open(
        self, name: str, start: Position, properties: Mapping[str, str] | None = None
    ) -> MemoryCursor:
        await asyncio.sleep(0)
        if name not in self.opened:
            self.opened[name] = MemoryCursor(self._log, name, start, True, properties or {})
        return self.opened[name]

    def reader(self, name: str, start: Position) -> MemoryCursor:
        return MemoryCursor(self._log, name, start, False, {})

    async def delete(self, name: str) -> None:
        await asyncio.sleep(0)
        if self._log.failing is not None:
            raise self._log.failing
        if name not in self.opened:
            raise CursorNotFoundError(f"log {self._log.name} has no cursor {name!r}")
        del self.opened[name]

    def durable(self) -> Mapping[str, MemoryCursor]:
        return dict(self.opened)

    def moved_to(self, source: MemoryLog) -> MemoryCursors:
        """The same cursors over a log that was opened again."""
        moved = MemoryCursors(source)
        moved.opened = self.opened
        for cursor in self.opened.values():
            cursor._log = source
        return moved


class MemoryCheckpoints:
    """``log.seam.Checkpoints``, written only by ``save``."""

    def __init__(self) -> None:
        self.stored: Checkpoint | None = None
        self._current: Callable[[], Checkpoint | None] = lambda: self.stored

    def keep(self, current: Callable[[], Checkpoint | None]) -> None:
        self._current = current

    async def save(self) -> None:
        await asyncio.sleep(0)
        self.stored = self._current()

    def reopened(self) -> MemoryCheckpoints:
        """As the next owner finds it."""
        found = MemoryCheckpoints()
        found.stored = self.stored
        return found


class WholeFront:
    """Implements ``log.seam.LogFront``: of a log that keeps all."""

    offset = 0

    async def delete_before(self, offset: int) -> int:
        raise NotAllowedError("a log in memory keeps all")


class MemoryTermination:
    """Implements ``log.seam.Termination``."""

    def __init__(self, log: MemoryLog) -> None:
        self.terminated = False
        self._log = log

    async def terminate(self, check: Callable[[], Awaitable[None]]) -> None:
        if not self.terminated:
            self._log.release()
            await check()
            self.terminated = True
            self._log._watch.grew()


class MemoryLog:
    """One log; ledger ids start at 1."""

    followable = True
    owns_sequences = False
    producers: LogProducers | None = None

    def __init__(self, name: str, ledger_entries: int) -> None:
        self.name = name
        self.front: LogFront = WholeFront()
        self.epochs: LogEpochs = EpochsOfLedgers(1, lambda: self.positions.end_offset)
        self.opening: Opening = Whole()
        self.closed = False
        self.held = False
        self.frees_later = False
        self.cached = True
        self.failing: MagnetarError | None = None
        self.damaged: dict[Position, MagnetarError] = {}
        """Entries that cannot be read, where ``cached`` is off."""
        self.lost_watchers: list[Callable[[LogFencedError], None]] = []
        self.reads = 0
        self.now_ms = 1
        self.made_ms = 1
        self.epoch = 1
        self._size = ledger_entries
        self._watch = ReadableWatch()
        self._entries: list[Entry] = []
        self._order = MemoryPositions(self._entries, ledger_entries)
        self.positions: Positions = self._order
        self._pending: list[tuple[list[bytes], AppendDone, Content]] = []
        self._scheduled = False
        self._cursors = MemoryCursors(self)
        self.cursors: Cursors = self._cursors
        self._checkpoints = MemoryCheckpoints()
        self.checkpoints: Checkpoints = self._checkpoints
        self.holds: Holds = MemoryHolds()
        self.compaction: KeyCompaction = MemoryCompaction(self)
        self.ended = MemoryTermination(self)
        self.termination: Termination = self.ended
        self.end: LogEnd = self.ended

    # -- appending ----------------------------------------------------------------------------

    def append(
        self, payloads: Sequence[Buffer], done: AppendDone, content: Content | None = None
    ) -> None:
        count = len(payloads)
        content = content or Content([1] * count, [self.now_ms] * count)
        self._pending.append(([HEADER + payload for payload in payloads], done, content))
        if not self._scheduled and not self.held:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.release)

    def release(self) -> None:
        """Confirm what is pending."""
        self._scheduled = False
        pending, self._pending = self._pending, []
        for datas, done, content in pending:
            error = LogClosedError(f"log {self.name} is closed") if self.closed else self.failing
            if self.end.terminated and error is None:
                error = LogTerminatedError(f"log {self.name} is terminated")
            if error is not None:
                done(error, ())
            else:
                self._confirm(datas, done, content)

    def _confirm(
        self, datas: list[bytes], done: AppendDone, content: Content | None = None
    ) -> None:
        content = content or Content([1] * len(datas), [self.now_ms] * len(datas))
        if content.stamp is not None:
            content.stamp.base_offset = self._order.next_offset
            content.stamp.leader_epoch = self.epoch
            batch = datas[0][len(HEADER) :]
            length = int.from_bytes(batch[8:12], "big")
            head = stamp(content.stamp.base_offset, length, self.epoch)
            datas = [HEADER + head + batch[STAMP_BYTES:]]
        self._order.told(content)
        start = len(self._entries)
        size = self._size
        self._entries += [
            Entry(1 + i // size, i % size, data, len(HEADER)) for i, data in enumerate(datas, start)
        ]
        self._watch.grew()
        stop = len(self._entries)
        runs: list[Run] = []
        while start < stop:
            end = min(stop, (start // size + 1) * size)
            runs.append(Run(1 + start // size, start % size, end - start))
            start = end
        done(None, runs)

    @property
    def pending_bytes(self) -> int:
        return sum(len(data) for datas, _, _ in self._pending for data in datas)

    def watch_readable(self, grown: Callable[[], None]) -> Callable[[], None]:
        return self._watch.watch(grown)

    # -- reading ------------------------------------------------------------------------------

    def read_cached(self, start: Position, max_entries: int, max_bytes: int) -> list[Entry] | None:
        if self.closed or (not self.cached and start <= self.positions.readable):
            return None
        return self._slice(start, max_entries, max_bytes)

    async def read(self, start: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        await asyncio.sleep(0)
        self.reads += 1
        if self.closed:
            raise LogClosedError(f"log {self.name} is closed")
        if self.failing is not None:
            raise self.failing
        found = self._slice(start, max_entries, max_bytes)
        for count, entry in enumerate(found):
            error = self.damaged.get(Position(entry.ledger_id, entry.entry_id))
            if error is not None and not count:
                raise error
            if error is not None:
                return found[:count]
        return found

    def _slice(self, start: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        index = self._order.index(start)
        found = self._entries[index : index + max_entries]
        total = 0
        for count, entry in enumerate(found):
            total += len(entry.data)
            if total > max_bytes and count:
                return found[:count]
        return found

    async def first_at(self, time_ms: int) -> Position:
        await asyncio.sleep(0)
        return self._order.first_at(time_ms)

    def set_policy(self, policy: LogPolicy) -> None:
        self.policy: LogPolicy | None = policy

    def watch_lost(self, lost: Callable[[LogFencedError], None]) -> None:
        self.lost_watchers.append(lost)

    def stats(self) -> LogStats:
        sizes: dict[int, list[int]] = {}
        for entry in self._entries:
            sizes.setdefault(entry.ledger_id, []).append(len(entry.data))
        newest = max(sizes, default=0)
        ledgers = tuple(
            LedgerStats(
                ledger_id,
                len(found),
                sum(found),
                "open" if ledger_id == newest else "closed",
                *self._order.times_of(ledger_id),
            )
            for ledger_id, found in sizes.items()
        )
        marks = {name: cursor.mark_delete for name, cursor in self._cursors.opened.items()}
        return LogStats(
            self.name,
            len(self._entries),
            sum(ledger.stored_bytes for ledger in ledgers),
            ledgers,
            self.positions.readable,
            marks,
            created_ms=self.made_ms,
            holds=self.holds.all(),
            frees_later=self.frees_later,
        )

    def _keep(self, old: MemoryLog) -> None:
        """Hold what ``old``, the same log opened before, has held."""
        self._entries += old._entries
        self.ended.terminated = old.ended.terminated
        self._order.told(old._order.content())
        self._cursors = old._cursors.moved_to(self)
        self.cursors = self._cursors
        self.checkpoints = self._checkpoints = old._checkpoints.reopened()

    async def close(self) -> None:
        self.closed = True
        self.release()


class MemoryChain:
    """As much of a chain of ledgers as cursors over a followed log ask."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    @property
    def _order(self) -> MemoryPositions:
        return self._log._order

    @property
    def confirmed(self) -> Position:
        return self._order.readable

    def before_first(self) -> Position:
        return Position(1, -1)

    def mark_before(self, start: Position) -> Position:
        if start == LATEST:
            return self.confirmed
        return Position(1, -1) if start == EARLIEST else self.previous_position(start)

    def previous_position(self, position: Position) -> Position:
        return self._order.previous_position(position)

    def entries_between(self, after: Position, last: Position) -> int:
        return self._order.entries_between(after, last)

    def last_at(self, position: Position) -> Position:
        rank = self._order._rank(position)
        return self._order.at(rank - 1) if rank else Position(1, -1)

    def last_entry(self, ledger_id: int) -> int:
        readable = self.confirmed
        if ledger_id == readable.ledger_id:
            return readable.entry_id
        return self._order._size - 1 if 1 <= ledger_id < readable.ledger_id else -1

    def is_final(self, ledger_id: int) -> bool:
        return ledger_id < self.confirmed.ledger_id

    def following(self, ledger_id: int) -> int | None:
        return ledger_id + 1 if ledger_id < self.confirmed.ledger_id else None


class FollowedMemoryLog:
    """A log that somebody else writes: as the log itself, whichever was opened last, but that it
    goes on when that is closed."""

    def __init__(self, store: MemoryLogStore, log: MemoryLog) -> None:
        self.name = log.name
        self._store = store
        self._watch = ReadableWatch()
        self._ended: LogError | None = None
        self._ended_watchers: list[Callable[[LogError], None]] = []
        self.told: list[Position] = []
        self.chain = MemoryChain(log)
        chain: Any = self.chain
        self.cursors: FollowedCursors = CursorsOfFollowed(chain, self.wait_seen)
        self.move_to(log)

    async def wait_seen(self, position: Position) -> None:
        while self.positions.readable < position:  # noqa: ASYNC110 (a test's own pace)
            await asyncio.sleep(0.01)

    def told_end(self, last: Position) -> None:
        self.told.append(last)

    def watch_ended(self, ended: Callable[[LogError], None]) -> None:
        self._ended_watchers.append(ended)

    def move_to(self, log: MemoryLog) -> None:
        self._log = self.chain._log = log
        self.positions = log.positions
        self.end = log.end
        log.watch_readable(self._watch.grew)

    def watch_readable(self, grown: Callable[[], None]) -> Callable[[], None]:
        return self._watch.watch(grown)

    def read_cached(self, start: Position, max_entries: int, max_bytes: int) -> list[Entry] | None:
        if self._ended is not None:
            return None
        return self._log.read_cached(start, max_entries, max_bytes)

    async def read(self, start: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        await asyncio.sleep(0)
        if self._ended is not None:
            raise self._ended
        return self._log._slice(start, max_entries, max_bytes)

    async def first_at(self, time_ms: int) -> Position:
        return await self._log.first_at(time_ms)

    def stats(self) -> LogStats:
        return replace(self._log.stats(), cursors={})

    def finish(self, error: LogError) -> None:
        if self._ended is None:
            self._ended = error
            self._watch.grew()
            for ended in self._ended_watchers:
                asyncio.get_running_loop().call_soon(ended, error)

    async def close(self) -> None:
        self._ended_watchers.clear()
        self.finish(LogClosedError(f"log {self.name} is closed"))
        if self._store.followed.get(self.name) is self:
            del self._store.followed[self.name]


class MemoryLogStore:
    """Logs by name; a closed log can be opened again and still holds its entries."""

    def __init__(self, ledger_entries: int = 1000) -> None:
        self.logs: dict[str, MemoryLog] = {}
        self.opens = 0
        self.made = 0
        self.followed: dict[str, FollowedMemoryLog] = {}
        self.full: NoSpaceError | None = None
        self._name_watches: dict[Callable[[], None], str] = {}
        self._size = ledger_entries
        self.policy = LogPolicy(RollRule(ledger_entries, 1 << 30, 3_600_000))

    async def check_space(self, name: str) -> None:
        if self.full is not None:
            raise self.full

    async def open(
        self,
        name: str,
        policy: LogPolicy | None = None,
        *,
        create: bool = True,
        guard: Callable[[], Awaitable[None]] | None = None,
        permit: Callable[[], Awaitable[None]] | None = None,
    ) -> MemoryLog:
        await asyncio.sleep(0)
        if guard is not None:
            await guard()
        if name not in self.logs:
            if not create:
                raise NoSuchLogError(f"there is no log {name}")
            if permit is not None:
                await permit()
        self.opens += 1
        old = self.logs.get(name)
        log = MemoryLog(name, self._size)
        log.policy = policy
        if old is None:
            self.made += 1
            log.made_ms = self.made
        else:
            log.made_ms = old.made_ms
            old.closed = True
            log._keep(old)
        if name not in self.logs:
            self._tell_names(name)
        self.logs[name] = log
        if name in self.followed:
            self.followed[name].move_to(log)
        return log

    async def follow(self, name: str) -> FollowedMemoryLog:
        await asyncio.sleep(0)
        if name not in self.logs:
            raise NoSuchLogError(f"there is no log {name}")
        if name in self.followed:
            raise LogError(f"log {name} is followed here already")
        self.followed[name] = FollowedMemoryLog(self, self.logs[name])
        return self.followed[name]

    async def exists(self, name: str) -> bool:
        await asyncio.sleep(0)
        return name in self.logs

    async def stored(self, name: str) -> KnownLog:
        await asyncio.sleep(0)
        if name not in self.logs:
            raise NoSuchLogError(f"there is no log {name}")
        return KnownLog(self.logs[name].made_ms, self.logs[name].epoch)

    async def ledger_bytes(self, name: str) -> int | None:
        await asyncio.sleep(0)
        return self.logs[name].stats().stored_bytes if name in self.logs else None

    async def delete(self, name: str) -> None:
        await asyncio.sleep(0)
        self.logs.pop(name, None)
        self._tell_names(name)
        if name in self.followed:
            self.followed[name].finish(NoSuchLogError(f"log {name} was deleted"))

    async def names(self, prefix: str, known: Container[str] = ()) -> list[str]:
        await asyncio.sleep(0)
        return sorted(name for name in self.logs if name.startswith(prefix))

    def watch_names(self, prefix: str, changed: Callable[[], None]) -> Callable[[], None]:
        self._name_watches[changed] = prefix

        def end() -> None:
            del self._name_watches[changed]

        return end

    def _tell_names(self, name: str) -> None:
        for changed, prefix in list(self._name_watches.items()):
            if name.startswith(prefix):
                asyncio.get_running_loop().call_soon(changed)

    async def close(self) -> None:
        for log in self.logs.values():
            await log.close()
