"""A partition as Kafka's clients know it: an open topic's log, and its idempotent producers.

Owns the way of one batch into the log, and the places of readers in it. A partition is made when a
topic that is open here is first asked for through Kafka, and goes with it.

Rules:

* A batch is checked (``wire.kafka.batches.check_produced``), then held against what is known of its
  producer, then appended, in one turn of the loop: nothing comes between them.
* What is known of producers is read from the log's end before the first idempotent batch, and again
  after an append failed, once none is under way.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from magnetar.log.seam import Content, Run, Stamp
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    LogClosedError,
    MagnetarError,
    NotAllowedError,
    ServiceNotReadyError,
)
from magnetar.model.ids import Position
from magnetar.protocols.kafka.producer_states import KnownBatch, ProducerSequences
from magnetar.topics.entry_format import EntryFormat, describe
from magnetar.topics.resend import BYTES_MAX, ENTRIES_MAX, STEP_ENTRIES, entries_back
from magnetar.topics.topic import Topic
from magnetar.wire.kafka.batches import (
    TRANSACTIONAL,
    BatchHeader,
    check_produced,
    is_batch,
    read_batch_header,
)
from magnetar.wire.kafka.errors import ErrorCode, error_code

PLACES_KEPT: Final = 256
"""Offsets whose positions are remembered: each consumer asks next for what follows its last."""
TOUCH_S: Final = 1.0


class Produced(NamedTuple):
    """How a batch fared."""

    error: ErrorCode
    base_offset: int = -1
    why: str | None = None


Told = Callable[[Produced], None]


class Partition:
    """See the module's text."""

    def __init__(self, topic: Topic, entry_format: EntryFormat) -> None:
        self.topic = topic
        self._format = entry_format
        self.log = topic.log
        self.positions = topic.log.positions
        self._states = ProducerSequences()
        self._known = False
        self._loading = asyncio.Lock()
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._places: OrderedDict[int, Position] = OrderedDict()
        self._loop = asyncio.get_running_loop()
        self._touched_s = float("-inf")

    @property
    def usable(self) -> bool:
        return not self.topic.closed

    def check_usable(self) -> None:
        if self.topic.closed:
            raise ServiceNotReadyError(f"topic {self.topic.name} is closing here; look it up again")

    def touch(self) -> None:
        """It is in use: topics that nobody uses are unloaded."""
        now = self._loop.time()
        if now - self._touched_s > TOUCH_S:
            self._touched_s = now
            self.topic.let_go()

    # -- producing ----------------------------------------------------------------------------

    @property
    def producers_known(self) -> bool:
        """Idempotent batches can be taken at once."""
        return self._known

    def produce(self, batch: memoryview, told: Told) -> int:
        """Append a batch; ``told`` once, now or later. ``batch`` need be valid during the call
        only. Idempotent ones need ``know_producers`` before. Returns the bytes under way."""
        self.touch()
        try:
            header = check_produced(batch)
            if header.attributes & TRANSACTIONAL:
                raise NotAllowedError("transactions are not served; produce without them")
            self.check_usable()
        except MagnetarError as error:
            told(Produced(error_code(error), why=str(error)))
            return 0
        if self.topic.cooling_down:
            why = f"topic {self.topic.name} could not store a moment ago"
            told(Produced(ErrorCode.KAFKA_STORAGE_ERROR, why=why))
            return 0
        known: KnownBatch | None = None
        if header.producer_id >= 0:
            assert self._known, "know_producers comes first"
            found = self._states.check(header)
            if isinstance(found, KnownBatch):
                _answer_repeat(found, told)
                return 0
            if found is not ErrorCode.NONE:
                told(Produced(found, why=_out_of_order(header)))
                return 0
            known = self._states.add(header)
        stamp = Stamp()
        content = Content((header.record_count,), (max(0, header.max_timestamp_ms),), stamp)
        self._under_way += 1
        self._idle.clear()
        size = len(batch)
        done = partial(self._appended, header.record_count, size, stamp, known, told)
        self.log.append((batch,), done, content)
        return size

    def _appended(
        self,
        count: int,
        size: int,
        stamp: Stamp,
        known: KnownBatch | None,
        told: Told,
        error: MagnetarError | None,
        runs: Sequence[Run],
    ) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()
        if runs:  # it is stored, also if what was to follow it was not
            self.topic.entries_confirmed(1, size, count)
            if known is not None:
                known.stored(stamp.base_offset)
            told(Produced(ErrorCode.NONE, stamp.base_offset))
            return
        assert error is not None
        self._known = False
        self._states.forget()
        if known is not None:
            known.stored(-1)
        told(Produced(error_code(error), why=str(error)))
        self.topic.append_failed(error)

    async def know_producers(self) -> None:
        """Read from the log's end what is stored of idempotent producers. Raises as reading."""
        async with self._loading:
            while not self._known:
                await self._idle.wait()
                states = ProducerSequences()
                for header in await self._last_headers():
                    states.add(header, header.base_offset)
                if not self._under_way:
                    self._states, self._known = states, True

    async def _last_headers(self) -> list[BatchHeader]:
        """Of idempotent producers, in order, as far back as is looked: by steps from the end."""
        positions, found, entries, size = self.positions, deque[BatchHeader](), 0, 0
        last = positions.readable
        while last >= positions.first and entries < ENTRIES_MAX and size < BYTES_MAX:
            first = entries_back(positions, last, STEP_ENTRIES)
            step = await self._entries(first, last)
            headers = (read_batch_header(each.payload) for each in step if is_batch(each.payload))
            found.extendleft(
                header for header in reversed(list(headers)) if header.producer_id >= 0
            )
            entries += len(step)
            size += sum(len(each.data) for each in step)
            before = positions.previous_position(first)
            if before >= last:
                break
            last = before
        return list(found)

    async def _entries(self, first: Position, last: Position) -> list[Entry]:
        """All in [first, last]."""
        found: list[Entry] = []
        at = first
        while at <= last:
            step = await self._read(at, STEP_ENTRIES, BYTES_MAX // 4)
            step = [each for each in step if Position(each.ledger_id, each.entry_id) <= last]
            if not step:
                break
            found += step
            at = self.positions.next_position(Position(step[-1].ledger_id, step[-1].entry_id))
            await asyncio.sleep(0)  # others have their turns
        return found

    # -- reading ------------------------------------------------------------------------------

    async def _read(self, at: Position, entries_max: int, bytes_max: int) -> list[Entry]:
        found = self.log.read_cached(at, entries_max, bytes_max)
        return await self.log.read(at, entries_max, bytes_max) if found is None else found

    async def start_offset(self) -> int:
        return await self.positions.offset_of(self.positions.first)

    async def place_of(self, offset: int) -> Position:
        """The entry that holds the message of that offset."""
        found = self._places.get(offset)
        if found is not None and found >= self.positions.first:
            return found
        return await self.positions.position_of(offset)

    def remember(self, offset: int, place: Position) -> None:
        """Somebody asks for that offset next."""
        self._places[offset] = place
        self._places.move_to_end(offset)
        if len(self._places) > PLACES_KEPT:
            self._places.popitem(last=False)

    async def entries_at(self, place: Position, entries_max: int, bytes_max: int) -> list[Entry]:
        """Raises as ``log.seam.ReadableLog.read``."""
        if not self.usable:
            raise LogClosedError(f"topic {self.topic.name} is closing here")
        return await self._read(place, entries_max, bytes_max)

    def messages_in(self, entry: Entry) -> int:
        """Raises ``ProtocolError``."""
        payload = entry.payload
        if is_batch(payload):
            return read_batch_header(payload).last_offset_delta + 1
        return describe(entry, self._format).messages


def _answer_repeat(known: KnownBatch, told: Told) -> None:
    """As the first one was answered, or is going to be."""

    def answer(base_offset: int) -> None:
        if base_offset < 0:
            why = "the first copy of this batch was not stored; send it again"
            told(Produced(ErrorCode.KAFKA_STORAGE_ERROR, why=why))
        else:
            told(Produced(ErrorCode.NONE, base_offset))

    if known.base_offset < 0:
        known.waiting.append(answer)
    else:
        answer(known.base_offset)


def _out_of_order(header: BatchHeader) -> str:
    return (
        f"producer {header.producer_id} (epoch {header.producer_epoch}) sent sequence "
        f"{header.base_sequence}, which does not follow its last batch"
    )
