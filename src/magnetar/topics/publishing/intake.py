"""Taking what queries have committed into one topic's log: in order, each entry once.

The entries lie in staged ledgers, or in the query's record; they are appended as they are, a part
after the other, and each says in its own metadata which it is (``staging.marks``). So the log is
the only record of how far that went, and no crash can part the two.

Rules:

* Before the first entry the log's record has a checkpoint: a later owner reads from its position
  on, and knows how far each query was taken in.
* The checkpoint counts up to a position behind which no append of ours is under way. An append
  that changes ledgers in the middle is counted when all of it is confirmed.
* After an append that failed nobody knows what of it is stored, perhaps until the log's last ledger
  is recovered: nothing more is appended here (``broken``), and the topic is to be opened again.
* An entry is appended only if a producer might have sent it, and if it says itself that it is the
  one of its part whose turn it is.
* A share is taken in when its last entry is confirmed: only then may its query's record forget it.

Why: docs/adr/0084-staged-writes.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, Protocol

from magnetar.log.seam import Checkpoint, Content, Run, WritableLog
from magnetar.model.errors import MagnetarError, ProtocolError, StagedWriteError
from magnetar.model.ids import Position
from magnetar.staging.marks import Mark, QueryMarks, sender
from magnetar.staging.records import Commit, Source
from magnetar.topics.entry_format import EntryFormat, Published

WINDOW_BYTES: Final = 2 << 20
"""Appended and not confirmed: enough for the journal's groups, and producers' sends wait behind no
more than this."""

SCAN_ENTRIES: Final = 500
SCAN_BYTES: Final = 4 << 20

Buffer = bytes | bytearray | memoryview


class StagedEntries(Protocol):
    """Where staged entries are read (``staging.reading``)."""

    def entries(
        self, topic: str, source: Source, first: int
    ) -> AsyncGenerator[Sequence[Buffer], None]: ...


class _StagedAppend:
    """An append under way: what the query's mark is when it is confirmed."""

    __slots__ = ("before", "byte_count", "confirmed", "key", "mark", "messages")

    def __init__(
        self, key: str, mark: Mark, before: Position, byte_count: int, messages: int
    ) -> None:
        self.key = key
        self.confirmed = False
        self.mark = mark
        self.before = before
        self.byte_count = byte_count
        self.messages = messages


class TopicIntake:
    """Of one open topic. ``confirmed(entries, bytes, messages)`` counts them."""

    def __init__(
        self,
        topic: str,
        log: WritableLog,
        entry_format: EntryFormat,
        confirmed: Callable[[int, int, int], None],
    ) -> None:
        self.broken: MagnetarError | None = None
        """An append failed: the log is to be opened again before anything more is taken in."""
        self._topic = topic
        self._log = log
        self._format = entry_format
        self._confirmed = confirmed
        self._marks = QueryMarks()
        self._under_way: list[_StagedAppend] = []  # few: large ones
        self._under_way_bytes = 0
        self._moved: asyncio.Event | None = None  # made by who waits first
        self._loading = asyncio.Lock()
        self._loaded = False
        self._fed = False
        self._taking = 0

    # -- what is in the log already -----------------------------------------------------------

    @property
    def taking(self) -> bool:
        """Something is being taken in."""
        return self._taking > 0

    @property
    def left_behind(self) -> bool:
        """A former owner has taken something in; until ``load`` its checkpoint stands still."""
        return not self._loaded and self._log.checkpoints.stored is not None

    async def load(self) -> None:
        """Learn how far each query was taken in. Raises as ``ReadableLog.read``."""
        async with self._loading:
            if self._loaded:
                return
            stored = self._log.checkpoints.stored
            if stored is not None:
                await self._log.opening.wait_whole()  # else the last of it is taken in once more
                marks = QueryMarks.decode(self._log.name, stored.state)
                await self._scan(marks, stored.position)
                self._marks, self._fed = marks, True
            self._loaded = True
            self._log.checkpoints.keep(self._checkpoint)

    async def _scan(self, marks: QueryMarks, after: Position) -> None:
        """What the log holds after the position, to its end of now: nobody else appends staged
        entries to it."""
        positions = self._log.positions
        last = positions.readable
        position = positions.next_position(after)
        while position <= last:
            entries = await self._log.read(position, SCAN_ENTRIES, SCAN_BYTES)
            if not entries:
                return
            for entry in entries:
                try:
                    marks.found(*self._format.sent(entry.payload))
                except ProtocolError:
                    continue  # of no producer of ours: nobody staged it
            end = entries[-1]
            position = positions.next_position(end.position)

    def _checkpoint(self) -> Checkpoint | None:
        if not self._fed:
            return None
        under_way = self._under_way
        position = under_way[0].before if under_way else self._log.positions.readable
        return Checkpoint(position, self._marks.encode())

    async def _begin(self) -> None:
        """The record has a checkpoint before the log has a staged entry."""
        await self.load()
        self._fed = True
        if self._log.checkpoints.stored is None:
            await self._log.checkpoints.save()

    def forget(self, query: str, but: str | None) -> None:
        """The query is gone, or was made anew and has that key now."""
        if not self._loaded:
            return
        self._marks.forget(query, but)
        if not len(self._marks) and not self._taking:
            self._fed = False

    # -- taking in ----------------------------------------------------------------------------

    async def take(self, key: str, commit: Commit, staged: StagedEntries) -> None:
        """Append what is missing of the topic's share; returns when all of it is confirmed. One
        call at a time for each key. Raises the error of the append that failed (``broken`` is set
        then), and what reading raises."""
        self._taking += 1
        try:
            await self._begin()
            await self._take(key, commit, staged)
        finally:
            self._taking -= 1

    async def _take(self, key: str, commit: Commit, staged: StagedEntries) -> None:
        # Of a call that was cancelled: it is in the log soon, and not among the marks yet.
        await self._until(lambda: all(item.key != key for item in self._under_way))
        last = None
        for source, first in list(self._marks.left(key, commit, self._topic)):
            number = first
            async with aclosing(staged.entries(self._topic, source, first)) as parts:
                async for payloads in parts:
                    number += len(payloads)
                    await self._until(lambda: self._under_way_bytes < WINDOW_BYTES)
                    mark = Mark(commit.batch, source.part, number - 1)
                    last = self._append(key, mark, payloads)
        await self._until(lambda: last is None or last.confirmed)
        self._marks.finish(key, commit.batch)

    def _append(self, key: str, mark: Mark, payloads: Sequence[Buffer]) -> _StagedAppend:
        told = self._checked(key, mark, payloads)
        content = Content([each.messages for each in told], [each.time_ms for each in told])
        item = _StagedAppend(
            key,
            mark,
            self._log.positions.readable,  # what it appends lies after this
            sum(map(len, payloads)),
            sum(content.messages),
        )
        self._under_way.append(item)
        self._under_way_bytes += item.byte_count
        self._log.append(payloads, partial(self._done, item, len(payloads)), content)
        return item

    def _checked(self, key: str, mark: Mark, payloads: Sequence[Buffer]) -> list[Published]:
        """What the entries say of themselves. They are a client's, and came past all that looks at
        what producers send; and a later owner believes what they say of their place."""
        name, first = sender(key, mark.batch, mark.part), mark.entry + 1 - len(payloads)
        found = []
        for number, payload in enumerate(payloads, first):
            try:
                told = self._format.published(memoryview(payload))
            except ProtocolError as error:
                raise StagedWriteError(
                    f"{self._topic}: entry {number} of {name} is refused: {error}"
                ) from error
            if (told.producer, told.sequence_id) != (name, number):
                raise StagedWriteError(
                    f"{self._topic}: entry {number} of {name} is refused: it says that it is entry "
                    f"{told.sequence_id} of {told.producer}"
                )
            found.append(told)
        return found

    def _done(
        self, item: _StagedAppend, count: int, error: MagnetarError | None, runs: Sequence[Run]
    ) -> None:
        """The log's answer; they come in the order of the appends."""
        if self._moved is not None:
            self._moved.set()
        if self.broken is not None:
            return
        if error is not None:
            # The checkpoint stays before it: whoever opens the log finds what is stored of it.
            self.broken = error
            return
        first = self._under_way.pop(0)
        assert first is item, "appends were answered out of order"
        self._under_way_bytes -= item.byte_count
        item.confirmed = True
        self._marks.reach(item.key, item.mark)
        self._confirmed(count, item.byte_count, item.messages)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while self.broken is None and not condition():
            if self._moved is None:
                self._moved = asyncio.Event()
            self._moved.clear()
            await self._moved.wait()
        if self.broken is not None:
            raise self.broken
