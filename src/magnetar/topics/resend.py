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
* The search is bounded (``ENTRIES_MAX``, ``BYTES_MAX``); what a client keeps pending is far less
  by default. Past the bound repeats are stored again: at least once.

When a connection breaks, or a broker ends, all its producers come back at the same time. So the end
of the log is read once for all of them: ``StoredFrames`` keeps what it found by producer, reads on
from where it stopped when the next comes back, and is forgotten after a while (``KEEP_S``) or when
all topics together keep too much (``KeptFrames``). It reads in slices, so that others have their
turns in between.

This needs no stored state of its own and holds across crashes: the log is the only record. Full
deduplication by sequence id, for producers that restart, is a policy of its own and not this.

Why: docs/adr/0060-repeats-after-a-reconnection.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, TypeAlias

from magnetar.log.seam import Positions, ReadableLog
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

    def _forget_first(self) -> None:
        frames = next(iter(self._used))
        self._take(frames)
        frames.forget()

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

    def __init__(self, log: ReadableLog, entry_format: EntryFormat, kept: KeptFrames) -> None:
        self._log = log
        self._format = entry_format
        self._kept = kept
        self._reading = asyncio.Lock()
        self._producers: dict[str, Frames] = {}
        self._order: deque[tuple[str, Fingerprint, Position]] = deque()
        self._read_to: Position | None = None

    def __len__(self) -> int:
        return len(self._order)

    def forget(self) -> None:
        self._producers = {}
        self._order = deque()
        self._read_to = None

    async def window(self, producer_name: str) -> ResendWindow | None:
        """The frames of that producer, readable ones only; None if there are none.

        Requires that no append of an earlier incarnation is still pending.
        """
        await self.catch_up()
        stored = self._producers.get(producer_name)
        # a copy: the window consumes it, and must not lose it when the frames are forgotten
        return ResendWindow(dict(stored), self._format) if stored else None

    async def catch_up(self) -> None:
        """Read what has come since the last time, or the end of the log; one at a time, so that
        whoever asks meanwhile finds it done."""
        async with self._reading:
            last = self._log.positions.readable
            if not await self._read_on(last):
                frames = await self._read_end(last)
                self.forget()  # only now: nothing may come in between with half of it read
                self._add(frames)
            self._read_to = last
            self._kept.use(self)

    async def _read_on(self, last: Position) -> bool:
        """Read from where the last reading stopped; False if the end must be read anew."""
        before = self._read_to
        if before is None or self._is_far(before, last):
            return False
        if last > before:
            frames, _, _ = await self._read(self._log.positions.next_position(before), last)
            if self._read_to is None:
                return False  # forgotten meanwhile: what was before is missing
            self._add(frames)
        return True

    def _is_far(self, before: Position, last: Position) -> bool:
        """Whether so much was stored since that reading on would pass the bound."""
        return self._log.positions.entries_between(before, last) > ENTRIES_MAX

    async def _read_end(self, last: Position) -> list[_Frame]:
        """The frames from ``last`` back to the bounds, oldest first."""
        positions = self._log.positions
        steps: list[list[_Frame]] = []
        entries = byte_count = 0
        size = FIRST_STEP_ENTRIES
        while entries < ENTRIES_MAX and byte_count < BYTES_MAX and last >= positions.first:
            first = _back(positions, last, min(size, ENTRIES_MAX - entries))
            frames, count, step_bytes = await self._read(first, last)
            steps.append(frames)
            entries, byte_count = entries + count, byte_count + step_bytes
            if count == 0 or first <= positions.first:
                break
            last = positions.previous_position(first)
            size = min(size * 2, STEP_ENTRIES)
        return [frame for frames in reversed(steps) for frame in frames]

    async def _read(self, first: Position, last: Position) -> tuple[list[_Frame], int, int]:
        """The frames in [first, last]; how many entries, and bytes, were looked at."""
        found: list[_Frame] = []
        count = byte_count = 0
        position = first
        while position <= last:
            entries = self._log.read_cached(position, STEP_ENTRIES, BYTES_MAX // 4)
            if entries is None:
                entries = await self._log.read(position, STEP_ENTRIES, BYTES_MAX // 4)
            if not entries:
                break
            for entry in entries:
                position = Position(entry.ledger_id, entry.entry_id)
                if position > last:
                    break
                count += 1
                byte_count += len(entry.data)
                sent = self._sent(entry.payload)
                if sent is not None:
                    found.append((*sent, position))
            position = self._log.positions.next_position(position)
            await asyncio.sleep(0)  # others have their turns; read_cached waits for nothing
        return found, count, byte_count

    def _sent(self, payload: memoryview) -> tuple[str, Fingerprint] | None:
        try:
            return self._format.sender(payload)
        except ProtocolError:
            return None  # stored by something that is no producer of ours: never a repeat

    def _add(self, frames: list[_Frame]) -> None:
        """``frames`` come after all that are there; the oldest past the bound go."""
        producers, order = self._producers, self._order
        for frame in frames:
            name, key, position = frame
            producers.setdefault(name, {})[key] = position
        order.extend(frames)
        while len(order) > ENTRIES_MAX:
            name, key, position = order.popleft()
            stored = producers[name]
            if stored.get(key) == position:  # it may be there again, further on
                del stored[key]
                if not stored:
                    del producers[name]


def _back(positions: Positions, last: Position, steps: int) -> Position:
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
