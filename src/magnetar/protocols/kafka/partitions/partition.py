"""A partition as Kafka's clients know it: an open topic's log, and its idempotent producers.

Owns the way of one batch into the log, and the places of readers in it. A partition is made when a
topic that is open here is first asked for through Kafka, and goes with it.

Rules:

* A batch is checked (``wire.kafka.batches.check_produced``), then held against what is known of its
  producer, then appended, in one turn of the loop: nothing comes between them.
* On a topic with ``LogAppendTime`` a batch gets this broker's time before it is appended: one time
  of all its records, a new checksum, nothing else. Followers have it as it is stored.
* What is known of producers is read from the log's end before the first idempotent batch, and again
  after an append failed, once none of such a batch is under way; what is known of transactions
  likewise, before the first batch, marker or reader whom they concern.
* Nobody waits for what others append: of a log in use something is always under way.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NamedTuple

from magnetar.log.seam import Content, Run, Stamp
from magnetar.log.sequences import KnownProducer
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    BacklogHoldsError,
    LogClosedError,
    MagnetarError,
    MessageTooLargeError,
    NotEnoughReplicasError,
    PartitionError,
    ProtocolError,
    SequenceGapError,
    ServiceNotReadyError,
)
from magnetar.model.ids import Position
from magnetar.protocols.kafka.partitions.early_batches import EarlyBatches
from magnetar.protocols.kafka.partitions.partition_transactions import PartitionTransactions
from magnetar.protocols.kafka.partitions.producer_states import (
    KnownBatch,
    ProducerSequences,
    SequencesOfOne,
)
from magnetar.protocols.kafka.partitions.transaction_index import is_part
from magnetar.protocols.kafka.unread import LOST, UnreadPlaces
from magnetar.topics.consuming.feed import behind_lost
from magnetar.topics.entry_format import EntryFormat, describe
from magnetar.topics.publishing.resend import BYTES_MAX, ENTRIES_MAX, STEP_ENTRIES, entries_back
from magnetar.topics.quotas import Exceeded, refusal
from magnetar.topics.topic import Topic
from magnetar.wire.kafka.batches import (
    APPEND_TIME,
    CONTROL,
    TRANSACTIONAL,
    BatchHeader,
    appended_at,
    check_produced,
    is_batch,
    read_batch_header,
)
from magnetar.wire.kafka.errors import ErrorCode, error_code
from magnetar.wire.kafka.markers import build_marker

REFUSALS: Final = (PartitionError, MessageTooLargeError, ProtocolError)
"""What a log that looks at batches itself refuses one for."""
PLACES_KEPT: Final = 256
"""Offsets whose positions are remembered: each consumer asks next for what follows its last."""
TOUCH_S: Final = 1.0
TOUCHES: Final = 10
"""In the time after which an idle topic is unloaded, if that is short."""
MAY_COME: Final = "the one before it may be on its way: this log was opened a moment ago"
NO_PART_OF_IT: Final = "the producer has a transaction open here, and the batch is no part of it"
UNREAD_MAX: Final = 1000
"""So many entries of the log's end that cannot be read, each some questions to bookies, are enough:
it is not looked further back."""


class Produced(NamedTuple):
    """How a batch fared. ``append_time_ms``: which its records were given; -1: none.
    ``refused_records``: which of them it was refused for, by their places, as far as they are
    known. ``header``: of a batch that was refused, and may come again as it was. ``log_start``:
    where the log of one that is stored begins."""

    error: ErrorCode
    base_offset: int = -1
    why: str | None = None
    append_time_ms: int = -1
    refused_records: tuple[int, ...] = ()
    header: BatchHeader | None = None
    log_start: int = -1


Told = Callable[[Produced], None]


class Ending(NamedTuple):
    """How a producer's transaction ends in a partition, as its coordinator says."""

    producer_id: int
    epoch: int
    commits: bool
    coordinator_epoch: int


class _Appending(NamedTuple):
    """A batch on its way into the log. ``awaits_all``: see ``log.seam.Content``."""

    header: BatchHeader
    byte_count: int
    stamp: Stamp
    told: Told
    known: KnownBatch | None = None
    commits: bool | None = None  # of a marker
    awaits_all: bool = True


class Partition:
    """See the module's text."""

    def __init__(
        self,
        topic: Topic,
        entry_format: EntryFormat,
        now_ms: Callable[[], int],
        unread: UnreadPlaces,
        idle_ms: int,
    ) -> None:
        """``idle_ms``: after which an unused topic is unloaded; 0: never."""
        self.topic = topic
        self._unread = unread
        self._format = entry_format
        self._now_ms = now_ms
        self.log = topic.log
        self.positions = topic.log.positions
        self.transactions = PartitionTransactions(topic.log)
        self.topic_id: uuid.UUID | None = None
        """By which clients fetch what the log holds; None: nobody has yet."""
        self._states = ProducerSequences()
        self._known = False
        self._early: EarlyBatches | None = EarlyBatches(asyncio.get_running_loop().time())
        """None: it has been open for long."""
        self._loading = asyncio.Lock()
        self._sequences_under_way = 0
        self._sequences_idle = asyncio.Event()
        self._sequences_idle.set()
        self._parts_under_way = 0  # of transactions
        self._parts_idle = asyncio.Event()
        self._parts_idle.set()
        self._markers: dict[int, asyncio.Future[Produced]] = {}
        """That are under way, by producer."""
        self._places: OrderedDict[int, Position] = OrderedDict()
        self._loop = asyncio.get_running_loop()
        self._touched_s = float("-inf")
        self._touch_s = min(TOUCH_S, (idle_ms or math.inf) / 1000 / TOUCHES)

    @property
    def usable(self) -> bool:
        return not self.topic.closed

    def check_usable(self) -> None:
        if self.topic.closed:
            raise ServiceNotReadyError(f"topic {self.topic.name} is closing here; look it up again")

    def touch(self) -> None:
        """It is in use: topics that nobody uses are unloaded."""
        now = self._loop.time()
        if now - self._touched_s > self._touch_s:
            self._touched_s = now
            self.topic.let_go()

    # -- producing ----------------------------------------------------------------------------

    @property
    def producers_known(self) -> bool:
        """Idempotent batches can be taken at once."""
        return self.log.owns_sequences or (self._known and self.transactions.known)

    def produce(self, batch: memoryview, told: Told, *, awaits_all: bool = True) -> int:
        """Append a batch; ``told`` once, now or later. ``batch`` need be valid during the call
        only. Idempotent ones need ``know_producers`` before. ``awaits_all``: see
        ``log.seam.Content``; a part of a transaction always does. Returns the bytes under way."""
        self.touch()
        try:
            header = check_produced(batch)
        except MagnetarError as error:
            told(Produced(error_code(error), why=str(error)))
            return 0
        refused = self._refused(header)
        if refused is not None:
            told(refused)
            return 0
        if self.topic.policy.kafka.append_time:
            batch = memoryview(appended_at(batch, self._now_ms()))
            header = read_batch_header(batch)
        known: KnownBatch | None = None
        if header.producer_id >= 0 and self._early is not None and self._first_is_missing(header):
            told(Produced(ErrorCode.KAFKA_STORAGE_ERROR, why=MAY_COME))
            return 0
        if header.producer_id >= 0 and not self.log.owns_sequences:
            assert self._known, "know_producers comes first"
            try:
                known = self._states.check(header)
            except PartitionError as error:
                told(self._refusal(error))
                return 0
            if known is not None:
                self._answer_repeat(known, told)
                return 0
            if not header.attributes & TRANSACTIONAL and self._has_open(header.producer_id):
                told(Produced(ErrorCode.INVALID_TXN_STATE, why=NO_PART_OF_IT))
                return 0
        if self.log.end.terminated:  # now: of what is stored already the repetition was answered
            why = f"topic {self.topic.name} is terminated: it takes no more records, for good"
            told(Produced(ErrorCode.POLICY_VIOLATION, why=why))
            return 0
        if self.topic.over_quota is not None:
            told(self._over_quota(self.topic.over_quota, header))
            return 0
        if header.producer_id >= 0 and not self.log.owns_sequences:
            known = self._states.add(header)
        if header.attributes & TRANSACTIONAL:
            self.transactions.writers.batch(header)
            awaits_all = True
        if self.topic.publish_throttle is not None:
            self.topic.publish_throttle.take(header.record_count, len(batch))
        self._append(
            batch, _Appending(header, len(batch), Stamp(), told, known, awaits_all=awaits_all)
        )
        return len(batch)

    def _first_is_missing(self, header: BatchHeader) -> bool:
        early = self._opened_lately()
        if early is None:
            return False
        producers = self.log.producers
        known = self._states.knows if producers is None else producers.knows
        return early.first_is_missing(header, known)

    def _opened_lately(self) -> EarlyBatches | None:
        if self._early is not None and not self._early.may_come(self._loop.time()):
            self._early = None
        return self._early

    def _refusal(self, error: MagnetarError, header: BatchHeader | None = None) -> Produced:
        """Of one batch. ``header``: nothing behind it is to come before it."""
        if isinstance(error, SequenceGapError) and self._opened_lately() is not None:
            return Produced(ErrorCode.KAFKA_STORAGE_ERROR, why=f"{error}; {MAY_COME}")
        return Produced(error_code(error), why=str(error), header=header)

    def _has_open(self, producer_id: int) -> bool:
        """A transaction. (What owns its sequences looks itself: ``partition.producer_states``.)"""
        assert self.transactions.known, "know_producers comes first"
        writer = self.transactions.writers.of(producer_id)
        return writer is not None and writer.open

    def _refused(self, header: BatchHeader) -> Produced | None:
        try:
            self.check_usable()
        except MagnetarError as closing:
            return Produced(error_code(closing), why=str(closing), header=header)
        if self.topic.cooling_down:
            failed = self.topic.storage_problem
            why = f"topic {self.topic.name} could not store a moment ago ({failed})"
            return Produced(ErrorCode.KAFKA_STORAGE_ERROR, why=why, header=header)
        if header.attributes & APPEND_TIME:
            why = "LogAppendTime is the topic's to say (message.timestamp.type), not a producer's"
            return Produced(ErrorCode.INVALID_TIMESTAMP, why=why)
        if not header.attributes & TRANSACTIONAL:
            return None
        if not self.transactions.there:
            why = "what is known of transactions is read again; send it once more"
            return Produced(ErrorCode.KAFKA_STORAGE_ERROR, why=why, header=header)
        error = self.transactions.writers.check(header)
        return None if error is ErrorCode.NONE else Produced(error, why=_no_part(header))

    def _over_quota(self, exceeded: Exceeded, header: BatchHeader) -> Produced:
        """Where producers wait they send it again, and nothing behind it is to come before it."""
        error = refusal(self.topic.name, exceeded)
        again = header if isinstance(error, BacklogHoldsError) else None
        return Produced(error_code(error), why=str(error), header=again)

    def _append(self, batch: memoryview | bytes, what: _Appending) -> None:
        header = what.header
        times_ms = (max(0, header.max_timestamp_ms),)
        if _has_sequence(header):
            self._sequences_under_way += 1
            self._sequences_idle.clear()
        if is_part(header):
            self._parts_under_way += 1
            self._parts_idle.clear()
        content = Content((header.record_count,), times_ms, what.stamp, what.awaits_all)
        self.log.append((batch,), partial(self._appended, what), content)

    def _appended(self, what: _Appending, error: MagnetarError | None, runs: Sequence[Run]) -> None:
        if _has_sequence(what.header):
            self._sequences_under_way -= 1
            if not self._sequences_under_way:
                self._sequences_idle.set()
        if is_part(what.header):
            self._parts_under_way -= 1
            if not self._parts_under_way:
                self._parts_idle.set()
        known = what.known
        if runs:  # it is stored, also if what was to follow it was not
            self.topic.entries_confirmed(1, what.byte_count, what.header.record_count)
            self._stored(what, Position(runs[0].ledger_id, runs[0].first_entry_id))
            if known is not None:
                known.stored(what.stamp.base_offset)
            time_ms = what.header.append_time_ms
            if time_ms >= 0 and what.stamp.repeated_ms >= 0:
                time_ms = what.stamp.repeated_ms
            what.told(self._produced(what.stamp.base_offset, time_ms))
            return
        assert error is not None
        if isinstance(error, REFUSALS):  # of this batch: the log goes on, and others with it
            if is_part(what.header):
                self.transactions.doubt()
            again = what.header if isinstance(error, NotEnoughReplicasError) else None
            what.told(self._refusal(error, again))
            return
        self._known = False
        self._states.forget()
        self.transactions.doubt()
        if known is not None:
            known.stored(-1)
        what.told(Produced(error_code(error), why=str(error), header=what.header))
        self.topic.append_failed(error)

    def _produced(self, base_offset: int, append_time_ms: int) -> Produced:
        start = self.start_offset()
        return Produced(ErrorCode.NONE, base_offset, append_time_ms=append_time_ms, log_start=start)

    def _answer_repeat(self, known: KnownBatch, told: Told) -> None:
        """As the first one was answered, or is going to be."""

        def answer(base_offset: int) -> None:
            if base_offset < 0:
                why = "the first copy of this batch was not stored; send it again"
                told(Produced(ErrorCode.KAFKA_STORAGE_ERROR, why=why))
            else:
                told(self._produced(base_offset, known.append_time_ms))

        if known.base_offset < 0:
            known.waiting.append(answer)
        else:
            answer(known.base_offset)

    def _stored(self, what: _Appending, position: Position) -> None:
        offset = what.stamp.base_offset
        if what.commits is not None:
            self.transactions.marker_stored(what.header, offset, position, what.commits)
        elif what.header.attributes & TRANSACTIONAL:
            self.transactions.batch_stored(what.header, offset, position)

    # -- transactions -------------------------------------------------------------------------

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[None]:
        """One at a time reads what the log says of its writers. The topic is in use meanwhile: one
        that was unloaded on the way would be read anew by the next request, and again."""
        with self.topic.held():
            async with self._loading:
                yield

    async def know_transactions(self) -> None:
        """Read what is open, and what was aborted lately. Raises as reading a log."""
        async with self._reading():
            while not self.transactions.known:
                await self._parts_idle.wait()
                found = await self.transactions.read()
                if not self._parts_under_way:
                    self.transactions.learned(found)

    async def prepare_transactions(self) -> None:
        """Before the first batch of one. Raises as reading a log, and ``MetadataError``."""
        await self.know_transactions()
        async with self._reading():
            await self.transactions.prepare()

    async def end_transaction(
        self, ending: Ending, now_ms: int, asked: Callable[[], bool]
    ) -> Produced:
        """Write the marker of a transaction, if it has records here; stored when it returns.
        ``asked``: whoever wants it still waits. Else it may have been told another time, and the
        producer have begun its next transaction, which a late marker would end."""
        while True:
            self.check_usable()
            await self.know_transactions()
            producer_id, epoch, commits, coordinator_epoch = ending
            writers = self.transactions.writers
            refused = writers.check_marker(producer_id, epoch, coordinator_epoch)
            if refused is not ErrorCode.NONE:
                return Produced(refused, why=f"producer {producer_id} has moved on from {epoch}")
            if self.topic.cooling_down or not asked():
                return Produced(ErrorCode.KAFKA_STORAGE_ERROR)
            if writers.marker(producer_id, epoch, coordinator_epoch):
                marker = build_marker(producer_id, epoch, commits, coordinator_epoch, now_ms)
                return await self._append_marker(marker, commits)
            # Nothing is open, perhaps because the marker of an earlier request is on its way: that
            # one must be stored before this one is answered.
            under_way = self._markers.get(producer_id)
            if under_way is not None:
                await asyncio.wait([under_way])
            self.check_usable()  # else another owner may have taken records of it since
            if self.transactions.known:
                return Produced(ErrorCode.NONE)

    async def _append_marker(self, marker: bytes, commits: bool) -> Produced:
        header = read_batch_header(marker)
        markers, producer_id = self._markers, header.producer_id
        done = markers[producer_id] = self._loop.create_future()

        def told(outcome: Produced) -> None:
            if markers.get(producer_id) is done:
                del markers[producer_id]
            done.set_result(outcome)

        self._append(marker, _Appending(header, len(marker), Stamp(), told, commits=commits))
        return await asyncio.shield(done)  # another may wait for it as well

    async def know_producers(self) -> None:
        """Read from the log's end what is stored of idempotent producers, and what they have open.
        Raises as reading."""
        if self.log.owns_sequences:
            return
        async with self._reading():
            while not self._known:
                await self._sequences_idle.wait()
                states = ProducerSequences()
                for header in await self._last_headers():
                    if header is None:
                        states.not_read()
                    else:
                        states.add(header, header.base_offset)
                if not self._sequences_under_way:
                    self._states, self._known = states, True
        await self.know_transactions()

    async def known_producers(self) -> list[KnownProducer]:
        """Of idempotent producers and of transactions. Raises as reading a log."""
        if self.log.producers is not None:
            return list(await self.log.producers.known())
        await self.know_producers()
        sequences, transactions = self._states.known(), self.transactions
        # A transaction may be open for longer than the log's end is looked at.
        numbers = dict.fromkeys([*sequences, *transactions.stored.open_producers()])
        return [
            described_producer(number, sequences.get(number), transactions) for number in numbers
        ]

    async def _last_headers(self) -> list[BatchHeader | None]:
        """Of idempotent producers, in order, as far back as is looked: by steps from the end. None
        stands for what cannot be read any more, whatever it was."""
        positions, found, entries, size = self.positions, deque[BatchHeader | None](), 0, 0
        last, unread = positions.readable, 0
        while last >= positions.first and entries < ENTRIES_MAX and size < BYTES_MAX:
            first = entries_back(positions, last, STEP_ENTRIES)
            step = await self._entries(first, last)
            found.extendleft(reversed(_producers_headers(step)))
            entries += STEP_ENTRIES
            size += sum(len(each.data) for each in step if each is not None)
            unread += step.count(None)
            before = positions.previous_position(first)
            if before >= last or unread >= UNREAD_MAX:
                break
            last = before
        return list(found)

    async def _entries(self, first: Position, last: Position) -> list[Entry | None]:
        """All in [first, last]; None: one that cannot be read, or all the rest of a ledger."""
        found: list[Entry | None] = []
        at = first
        while at <= last:
            try:
                step = await self._read(at, STEP_ENTRIES, BYTES_MAX // 4)
            except LOST as error:
                self._unread.failed(
                    str(self.topic.name),
                    f"entry {at}, one of the last, which say what idempotent producers have sent "
                    "(they go on; a batch in it is stored again if it comes again)",
                    error,
                )
                found.append(None)
                at = behind_lost(self.positions, at, error)
                continue
            step = [each for each in step if each.position <= last]
            if not step:
                break
            found += step
            at = self.positions.next_position(step[-1].position)
            await asyncio.sleep(0)  # others have their turns
        return found

    # -- reading ------------------------------------------------------------------------------

    async def _read(self, at: Position, entries_max: int, bytes_max: int) -> list[Entry]:
        # Nearly all fetches find it in memory: they pay for no coroutine.
        found = self.log.read_cached(at, entries_max, bytes_max)
        return await self.log.read(at, entries_max, bytes_max) if found is None else found

    def start_offset(self) -> int:
        """Where readers begin. Compaction may have taken the entries that were there."""
        if self.log.owns_sequences:  # it is in Kafka's files, and knows it to the offset
            return self.log.front.offset
        # All that is held is counted, which is exact from the first entry to the readable end.
        places = self.positions
        held = places.messages_between(places.previous_position(places.first), places.readable)
        return max(places.end_offset - held, self.log.front.offset)

    def stable_offset(self) -> int:
        """What a transaction wrote that is open may have been deleted."""
        return max(self.transactions.stable_offset(), self.log.front.offset)

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


def described_producer(
    producer_id: int, sequences: SequencesOfOne | None, transactions: PartitionTransactions
) -> KnownProducer:
    writer = transactions.writers.of(producer_id)
    epochs = [each.epoch for each in (sequences, writer) if each is not None]
    return KnownProducer(
        producer_id,
        max(epochs, default=-1),
        sequences.batches[-1].last_sequence if sequences is not None else -1,
        sequences.time_ms if sequences is not None else -1,
        writer.coordinator_epoch if writer is not None else -1,
        transactions.stored.open_from(producer_id),
    )


def _has_sequence(header: BatchHeader) -> bool:
    """It says something of an idempotent producer."""
    return header.producer_id >= 0 and not header.attributes & CONTROL


def _producers_headers(entries: Sequence[Entry | None]) -> list[BatchHeader | None]:
    """Of idempotent producers' batches among them, and of what could not be read None."""
    found: list[BatchHeader | None] = []
    for entry in entries:
        if entry is None:
            found.append(None)
        elif is_batch(entry.payload):
            header = read_batch_header(entry.payload)
            if _has_sequence(header):
                found.append(header)
    return found


def _no_part(header: BatchHeader) -> str:
    return (
        f"producer {header.producer_id} (epoch {header.producer_epoch}) has no open transaction "
        "with this partition"
    )
