"""Recognising what a reconnected producer sends again.

A client that loses its connection sends every message again whose receipt it has not seen, byte
for byte. Some of those are in the log already: they were stored, and only their receipts were
lost. Storing them twice would show readers a duplicate of an acknowledged message.

So when an incarnation of a producer comes back (same name, epoch above 0), a frame that the end of
the log holds from that producer is answered with the position it has. Rules:

* What is stored of the pending messages is a leading part of them (appends keep their order), so
  the window closes at the first frame that is not found; from then on nothing is looked up.
* A frame is the same only if producer name, sequence id, length and the client's own checksum
  (over metadata, with its publish time, and payload) are the same. Frames without a checksum are
  never taken for repeats. Two messages of an application never agree in all of these.
* What it sends again begins with the oldest message whose receipt it has not seen. The ids of a
  producer rise, so the end of the log is looked through back to a frame of that producer with a
  lower id: what it stored before that it does not send again. Mostly that is one of the last
  entries, also when a topic comes to another broker.
* The search is bounded (``ENTRIES_MAX``, ``BYTES_MAX``); what a client keeps pending is far less
  by default. Past the bound repeats are stored again: at least once. So are those of a producer
  whose application gives ids that fall.

When a connection breaks, or a broker ends, all its producers come back at the same time. So what is
read of the log serves all of them: ``StoredFrames`` keeps it by producer, reads further back for
whom it does not go back far enough, and on from where it stopped when the next comes back; it is
forgotten after a while (``KEEP_S``) or when all topics together keep too much (``KeptFrames``). It
reads in slices, so that others have their turns in between.

This needs no stored state of its own and holds across crashes: the log is the only record. Full
deduplication by sequence id, for producers that restart, is a policy and not this
(``deduplicating``).

Why: docs/adr/0060-repeats-after-a-reconnection.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

from magnetar.log.seam import Positions, WritableLog
from magnetar.model.errors import ProtocolError
from magnetar.model.ids import Position
from magnetar.topics.entry_format import EntryFormat, Fingerprint

ENTRIES_MAX: Final = 10_000
BYTES_MAX: Final = 64 << 20
STEP_ENTRIES: Final = 500
"""Entries that are looked at in one loop turn: some 2 ms."""

FIRST_STEP_ENTRIES: Final = 16
"""Backwards the first step is short, for entries may be large; the next are twice as long."""

KEEP_S: Final = 60.0
KEPT_ENTRIES_MAX: Final = 200_000
"""Frames kept over all topics, some 300 bytes each."""

Frames: TypeAlias = dict[Fingerprint, Position]
_Frame: TypeAlias = tuple[str, Fingerprint, Position]


class ResendWindow:
    """The frames of one producer that the end of the log holds; open until one is not found."""

    __slots__ = ("_format", "_stored")

    def __init__(self, stored: dict[Fingerprint, Position], entry_format: EntryFormat) -> None:
        self._stored = stored
        self._format = entry_format

    def __len__(self) -> int:
        return len(self._stored)

    def find(self, sequence_id: int, payload: memoryview) -> Position | None:
        """Where the frame is stored; None closes the window for good."""
        key = self._format.fingerprint(sequence_id, payload)
        found = self._stored.pop(key, None) if key is not None else None
        if found is None:
            self._stored.clear()
        return found


class Resends:
    """What an earlier incarnation of one producer has stored, for its first sends."""

    __slots__ = ("_frames", "_name", "_window")

    def __init__(self, frames: StoredFrames, producer_name: str) -> None:
        self._frames = frames
        self._name = producer_name
        self._window: ResendWindow | None = None

    def searched(self, sequence_id: int) -> bool:
        """Whether it is known what is stored of ``sequence_id``, the first that is sent, and of all
        that follow."""
        if self._window is None and self._frames.reaches(self._name, sequence_id):
            self._window = self._frames.window(self._name)
        return self._window is not None

    async def search(self, sequence_id: int) -> None:
        """Find out. Raises ``LogError``."""
        self._window = await self._frames.search(self._name, sequence_id)

    def find(self, sequence_id: int, payload: memoryview) -> Position | None:
        """Where the frame is stored; None: nowhere, and so is all that follows. To be asked when
        it is ``searched``."""
        assert self._window is not None
        return self._window.find(sequence_id, payload)


class KeptFrames:
    """The frames that all topics of a broker keep; bounds their number, and the time since their
    last use."""

    def __init__(self) -> None:
        self._used: dict[StoredFrames, tuple[float, int]] = {}
        self._count = 0
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        return self._count

    def use(self, frames: StoredFrames) -> None:
        """``frames`` was just used. Others that were not for the longest time give way."""
        loop = asyncio.get_running_loop()
        self._take(frames)
        count = max(1, len(frames))  # an empty one takes memory too
        self._used[frames] = (loop.time(), count)
        self._count += count
        while len(self._used) > 1 and self._count > KEPT_ENTRIES_MAX:
            self._forget_first()
        if self._sweep is None:
            self._sweep = loop.call_later(KEEP_S / 2, self._forget_old)

    def _take(self, frames: StoredFrames) -> None:
        _, count = self._used.pop(frames, (0.0, 0))
        self._count -= count

    def drop(self, frames: StoredFrames) -> None:
        self._take(frames)
        frames.forget()

    def _forget_first(self) -> None:
        self.drop(next(iter(self._used)))

    def _forget_old(self) -> None:
        self._sweep = None
        loop = asyncio.get_running_loop()
        while self._used and loop.time() - next(iter(self._used.values()))[0] >= KEEP_S:
            self._forget_first()
        if self._used:
            self._sweep = loop.call_later(KEEP_S / 2, self._forget_old)

    def close(self) -> None:
        """Forget everything."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        while self._used:
            self._forget_first()


class StoredFrames:
    """What the end of one topic's log holds, by the producer that sent it."""

    def __init__(self, log: WritableLog, entry_format: EntryFormat, kept: KeptFrames) -> None:
        self._log = log
        self._format = entry_format
        self._kept = kept
        self._reading = asyncio.Lock()
        self._forget_soon = False
        self._closed = False
        self.forget()

    def __len__(self) -> int:
        return len(self._order or ())

    def forget(self) -> None:
        """Not what is being read: whoever reads would begin anew without end."""
        self._forget_soon = self._reading.locked()
        if self._forget_soon:
            return
        self._producers: dict[str, Frames] = {}
        self._least: dict[str, int] = {}
        """The least sequence id that was met of each of them."""
        self._order: deque[_Frame] | None = None
        """None until something is read: of most topics nothing ever is."""
        self._read_to: Position | None = None
        self._back_to: Position | None = None
        """The first entry that was looked at; None: there is no entry."""
        self._entries = self._byte_count = 0
        """That were looked at."""
        self._step = FIRST_STEP_ENTRIES

    def close(self) -> None:
        """The topic ends: it is not to be held in memory for what nobody asks any more."""
        self._closed = True
        self._kept.drop(self)

    # -- asking -------------------------------------------------------------------------------

    def reaches(self, producer_name: str, sequence_id: int) -> bool:
        """Whether all is known that was stored of that producer from ``sequence_id`` on."""
        if self._read_to is None:
            return False
        least = self._least.get(producer_name)
        return (least is not None and least < sequence_id) or self._at_bound

    def window(self, producer_name: str) -> ResendWindow:
        """The frames of that producer that are known."""
        # a copy: the window consumes it, and must not lose it when the frames are forgotten
        return ResendWindow(dict(self._producers.get(producer_name, {})), self._format)

    async def search(self, producer_name: str, sequence_id: int) -> ResendWindow:
        """The frames of that producer from ``sequence_id`` on, readable ones only, and perhaps some
        before them.

        Requires that no append of an earlier incarnation is still pending.
        """
        async with self._session():
            await self._catch_up()
            while not self.reaches(producer_name, sequence_id):
                await self._read_back()
            return self.window(producer_name)

    async def catch_up(self) -> None:
        """Read what has come since the last time, or a little of the end of the log; one at a
        time, so that whoever asks meanwhile finds it done."""
        async with self._session():
            await self._catch_up()

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[None]:
        try:
            async with self._reading:
                yield
                if not self._closed:
                    self._kept.use(self)
        finally:
            if self._forget_soon:
                self.forget()

    # -- reading ------------------------------------------------------------------------------

    @property
    def _at_bound(self) -> bool:
        """There is no more to read, or no more is read."""
        back_to = self._back_to
        return (
            back_to is None
            or back_to <= self._log.positions.first
            or self._entries >= ENTRIES_MAX
            or self._byte_count >= BYTES_MAX
        )

    async def _catch_up(self) -> None:
        await (
            self._log.opening.wait_whole()
        )  # else a former owner's last entries are stored once more
        last = self._log.positions.readable
        before = self._read_to
        if before is None or self._is_far(before, last):
            self._begin_anew(last)
            await self._read_back()
        elif last > before:
            frames, entries, byte_count = await self._read(
                self._log.positions.next_position(before), last
            )
            self._looked_at(entries, byte_count)
            self._add(frames)
        self._read_to = last

    def _is_far(self, before: Position, last: Position) -> bool:
        """Whether so much was stored since that reading on would pass the bound."""
        return self._log.positions.entries_between(before, last) > ENTRIES_MAX

    def _begin_anew(self, last: Position) -> None:
        self._producers, self._least, self._order = {}, {}, deque()
        self._entries = self._byte_count = 0
        self._step = FIRST_STEP_ENTRIES
        self._read_to = None  # until it is read
        positions = self._log.positions
        # As if the entry after the last were looked at: reading back goes on before it.
        self._back_to = positions.next_position(last) if last >= positions.first else None

    async def _read_back(self) -> None:
        """A step further."""
        if self._at_bound:
            return
        positions, before = self._log.positions, self._back_to
        assert before is not None, "that is the bound"
        last = positions.previous_position(before)
        first = entries_back(positions, last, min(self._step, ENTRIES_MAX - self._entries))
        frames, entries, byte_count = await self._read(first, last)
        self._step = min(self._step * 2, STEP_ENTRIES)
        self._looked_at(entries, byte_count)
        self._back_to = first if entries else None
        self._add_before(frames)

    def _looked_at(self, entries: int, byte_count: int) -> None:
        self._entries += entries
        self._byte_count += byte_count

    async def _read(self, first: Position, last: Position) -> tuple[list[_Frame], int, int]:
        """The frames in [first, last]; how many entries, and bytes, were looked at."""
        found: list[_Frame] = []
        count = byte_count = 0
        position = first
        while position <= last:
            entries = await self._log.read(position, STEP_ENTRIES, BYTES_MAX // 4)
            if not entries:
                break
            for entry in entries:
                position = entry.position
                if position > last:
                    break
                count += 1
                byte_count += len(entry.data)
                sent = self._sent(entry.payload)
                if sent is not None:
                    found.append((*sent, position))
            position = self._log.positions.next_position(position)
            await asyncio.sleep(0)  # others have their turns; what is in memory waits for nothing
        return found, count, byte_count

    def _sent(self, payload: memoryview) -> tuple[str, Fingerprint] | None:
        try:
            return self._format.sender(payload)
        except ProtocolError:
            return None  # stored by something that is no producer of ours: never a repeat

    def _add(self, frames: list[_Frame]) -> None:
        """``frames`` come after all that are there; the oldest past the bound go."""
        producers, order = self._producers, self._order
        assert order is not None, "reading began"
        for frame in frames:
            name, key, position = frame
            producers.setdefault(name, {})[key] = position
            self._meet(name, key)
        order.extend(frames)
        while len(order) > ENTRIES_MAX:
            name, key, position = order.popleft()
            stored = producers[name]
            if stored.get(key) == position:  # it may be there again, further on
                del stored[key]
                if not stored:
                    del producers[name]
                    del self._least[name]

    def _add_before(self, frames: list[_Frame]) -> None:
        """``frames`` come before all that are there."""
        for name, key, position in reversed(frames):  # of two that are the same the later one stays
            self._producers.setdefault(name, {}).setdefault(key, position)
            self._meet(name, key)
        assert self._order is not None, "reading began"
        self._order.extendleft(reversed(frames))

    def _meet(self, name: str, key: Fingerprint) -> None:
        least = self._least.get(name)
        if least is None or key[0] < least:
            self._least[name] = key[0]


def entries_back(positions: Positions, last: Position, steps: int) -> Position:
    """The first of the ``steps`` entries that end with ``last``, or the log's first."""
    position = last
    while steps - 1 > position.entry_id and position > positions.first:
        before = positions.previous_position(Position(position.ledger_id, 0))
        if before >= position or before < positions.first:
            break
        steps -= position.entry_id + 1
        position = before
    first = Position(position.ledger_id, max(0, position.entry_id - steps + 1))
    return max(first, positions.first)
