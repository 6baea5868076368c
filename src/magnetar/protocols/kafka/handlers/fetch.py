"""Fetch, ListOffsets, OffsetForLeaderEpoch.

A fetch answers with whole entries as they lie in the log: parts of the answer are views of what the
tail cache holds. Entries of Pulsar's producers are converted (``wire.crossing.pulsar_to_kafka``).

Rules:

* The first partition that has something gives at least one batch, whatever the client's bounds
  are, so that a batch larger than they are can be read; every other keeps to what is left.
* A fetch that finds less than ``bytes_min`` waits until one of its logs grows, or ``wait_ms_max``
  is over; an error ends the wait at once, and so does the end of the connection. Nothing is polled.
* Who reads what is committed gets batches before the last stable offset only, and is told which
  transactions among them were aborted; markers go out to everybody, since clients go by them.
* A follower's fetch (it names a replica) is answered by its partition's replica, not by a topic.
* What it has loaded, or waits for, is held until it ends: were it unloaded on the way, which a
  short ``broker.idle_topic_unload_ms`` would do, the next look would load it again, and so on.
* What could not be read, and does not pass by itself, ends the wait only after ``LOST_WAIT_S``:
  there are clients that ask again at once.
* No session is kept (``session_id`` 0 is answered): every fetch names its partitions. One that goes
  on with a session, of whoever listened here before, names those alone that have changed: it is
  refused at once, and its client names them all.
* Who names topics by ids gets what the topic of that id holds, or ``UNKNOWN_TOPIC_ID``: never what
  another holds that has its name by now, not even in a fetch that waited meanwhile.
* One answer is bounded by ``kafka.fetch_bytes_max`` and by what a connection may have unsent.
* Of a topic whose dispatch rate is used up nothing is answered but how long to wait
  (``throttle_time_ms``); the connection is not read for as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from magnetar.env.loop_turns import THINGS_PER_TURN
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    MagnetarError,
    NotAllowedError,
    ProtocolError,
    UnknownTopicIdError,
)
from magnetar.model.ids import Position
from magnetar.protocols.entry_work import TIMES, batch_work
from magnetar.protocols.kafka.crossing import Crossing
from magnetar.protocols.kafka.partitions.partition import Partition
from magnetar.protocols.kafka.partitions.partition_transactions import commits_of
from magnetar.protocols.kafka.partitions.transaction_index import is_part
from magnetar.protocols.kafka.services import KafkaServices
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.protocols.kafka.unread import LOST
from magnetar.topics.rate_limits import MayPass
from magnetar.topics.throttle import TopicThrottle
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.batches import BatchHeader, is_batch, read_batch_header
from magnetar.wire.kafka.errors import ErrorCode, error_code, fetch_error_code
from magnetar.wire.kafka.fetch_messages import (
    AbortedRange,
    ClientFetchRequest,
    EpochEndPartition,
    EpochEndTopic,
    EpochPartition,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchResponse,
    FetchTopic,
    ListedPartition,
    ListedTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from magnetar.wire.kafka.primitives import Buffer
from magnetar.wire.kafka.records import read_batch, timestamp_of

log = structlog.get_logger(__name__)

ENTRIES_AT_ONCE: Final = 500
WAIT_S_MAX: Final = 60.0
LOST_WAIT_S: Final = 0.5
LATEST: Final = -1
EARLIEST: Final = -2
GREATEST_TIME: Final = -3
NOTHING_FOUND: Final = (-1, -1)
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
"""Of what Kafka has moved to remote storage: nothing is."""
ASKS_NO_END: Final = frozenset((EARLIEST, EARLIEST_LOCAL, LATEST_TIERED))
OFFSET_NOT_AVAILABLE_SINCE: Final = 5
"""Version of LIST_OFFSETS."""


LOOK_BYTES: Final = 1 << 20
"""Of entries that are looked through for a time, in one read."""

READ_COMMITTED: Final = 1
IDS_SINCE: Final = 13
"""The version of Fetch from which on topics are named by their ids."""


class FetchedBatches(NamedTuple):
    """What a partition has for a fetch. ``transactional``: the headers of batches that are part of
    transactions, and whether a marker commits; ``after``: the entry behind the last one, which
    begins at ``next_offset``."""

    parts: list[Buffer]
    size: int
    transactional: list[tuple[BatchHeader, bool | None]]
    after: Position
    next_offset: int


class ReadBounds(NamedTuple):
    """Of one read: batches before ``end_offset``."""

    end_offset: int
    bytes_max: int
    entries_max: int = ENTRIES_AT_ONCE


async def fetch(
    session: KafkaSession, head: RequestHead, request: ClientFetchRequest
) -> FetchResponse:
    if request.replica_id >= 0 and session.services.replicated is not None:
        return await session.services.replicated.serve(request)
    if request.session_epoch > 0:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    deadline = began_s + min(max(0, request.wait_ms_max) / 1000, WAIT_S_MAX)
    grown = asyncio.Event()
    session.at_end(fetch, grown.set)
    watches: dict[Partition, Callable[[], None]] = {}
    held = _HeldTopics()
    try:
        while True:
            grown.clear()
            collected = _Collected(session, request, head.version >= IDS_SINCE, held)
            answer = await collected.collect()
            left_s = deadline - loop.time()
            if collected.lost:
                left_s = min(left_s, began_s + LOST_WAIT_S - loop.time())
            enough = collected.size >= request.bytes_min or collected.failed
            if collected.wait_s > 0:
                answer.throttle_time_ms = session.hold_back(collected.wait_s)
                enough = True
            if enough or left_s <= 0 or session.closed:
                session.services.traffic.fetched_bytes += collected.size
                return answer
            new = [each for each in collected.partitions if each not in watches]
            for partition in new:
                watches[partition] = partition.log.watch_readable(grown.set)
                held.add(partition)
            if new:
                continue  # what came before the watch began is found now
            timer = loop.call_later(left_s, grown.set)
            try:
                await grown.wait()
            finally:
                timer.cancel()
    finally:
        for end in watches.values():
            end()
        held.release()


async def name_fetched(services: KafkaServices, topic: FetchTopic) -> None:
    """A topic that is asked for by its id gets its name, if it has none yet. Raises
    ``UnknownTopicIdError``, ``MetadataError``."""
    if not topic.name:
        found = await services.topic_ids.names([topic.topic_id])
        if topic.topic_id not in found:
            raise UnknownTopicIdError(f"no topic has the id {topic.topic_id}")
        topic.name = found[topic.topic_id]


class _HeldTopics:
    """The partitions that a fetch holds."""

    def __init__(self) -> None:
        self._partitions: dict[Partition, None] = {}

    def add(self, partition: Partition) -> None:
        if partition not in self._partitions:
            self._partitions[partition] = None
            partition.topic.hold()

    def release(self) -> None:
        for partition in self._partitions:
            partition.topic.release()


class _Collected:
    """One look at all that a fetch asks for."""

    def __init__(
        self, session: KafkaSession, request: ClientFetchRequest, by_id: bool, held: _HeldTopics
    ) -> None:
        self._session = session
        self._turns = session.turns(at_once=THINGS_PER_TURN)  # of that many most fetches ask
        self._held = held
        self._by_id = by_id
        self._services = session.services
        self._request = request
        self._committed = request.isolation_level == READ_COMMITTED
        self.size = 0
        self.failed = False
        """An error that the client can do something about is to be told."""
        self.lost = False
        """Something could not be read, and cannot be."""
        self.wait_s = 0.0
        """How long the client should ask for nothing."""
        self.partitions: list[Partition] = []
        most = max(session.services.connections.turn_bytes, 1)
        self._left = min(request.bytes_max, self._services.config.fetch_bytes_max, most)

    async def collect(self) -> FetchResponse:
        answer = FetchResponse()
        for topic in self._request.topics:
            said = FetchedTopic(topic.name, topic.topic_id)
            answer.topics.append(said)
            if self._by_id:
                # Each time: while the fetch waits another topic may get the name.
                topic.name = self._services.topic_ids.told(topic.topic_id) or ""
            for part in topic.partitions:
                await self._turns.next()
                said.partitions.append(await self._one(topic, part))
        return answer

    async def _one(self, topic: FetchTopic, part: FetchPartition) -> FetchedPartition:
        found = FetchedPartition(part.partition, aborted=[], records=[])
        try:
            partition = await self._partition(topic, part.partition)
            self.partitions.append(partition)
            partition.touch()
            _check_epoch(partition, part.current_leader_epoch)
            found.log_start_offset = partition.start_offset()
            if self._committed and not partition.transactions.known:
                await partition.know_transactions()
            found.high_watermark = partition.positions.end_offset
            found.last_stable_offset = partition.stable_offset()
            end_offset = found.last_stable_offset if self._committed else found.high_watermark
            # What another leader gave its consumers this one may not know to be committed yet: they
            # must wait, and not begin anew.
            log_end = max(found.high_watermark, partition.log.opening.end_offset)
            if not found.log_start_offset <= part.fetch_offset <= log_end:
                found.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            elif part.fetch_offset < end_offset:
                most = min(self._left, part.partition_bytes_max)
                throttle, entries_max = partition.topic.dispatch_throttle, ENTRIES_AT_ONCE
                if throttle is not None:
                    may_pass = self._admitted(throttle)
                    most = min(most, may_pass.byte_count)
                    entries_max = min(entries_max, may_pass.messages)
                if most > 0 or (throttle is None and not self.size):
                    bounds = ReadBounds(end_offset, max(most, 1), entries_max)
                    await self._read(found, partition, part.fetch_offset, bounds)
        except _CodeError as error:
            found.error_code = error.code
        except MagnetarError as error:
            found.error_code = fetch_error_code(error)
            if isinstance(error, LOST):
                self.lost = True
                where = f"{topic.name}-{part.partition}"
                self._services.unread.failed(where, f"offset {part.fetch_offset}", error)
                return found
            self._services.connections.refusals.say(
                "fetch refused",
                self._session.peer,
                topic=topic.name,
                partition=str(part.partition),
                error=str(error),
            )
        self.failed = self.failed or found.error_code != ErrorCode.NONE
        return found

    async def _partition(self, topic: FetchTopic, index: int) -> Partition:
        services = self._services
        if self._by_id:
            await name_fetched(services, topic)
        ready, asker = services.ready(topic.name, index), self._session
        if self._by_id:
            found = await services.partition_by_id(topic.topic_id, topic.name, index, asker)
        else:
            found = ready or await services.partition(topic.name, index, asker)
        if found is not ready:
            self._held.add(found)
        return found

    def _admitted(self, throttle: TopicThrottle) -> MayPass:
        """What may be read now, perhaps nothing."""
        left = throttle.left()
        if left is None:
            self.wait_s = max(self.wait_s, throttle.wait_s())
            return MayPass(0, 0)
        return left

    async def _read(
        self,
        found: FetchedPartition,
        partition: Partition,
        offset: int,
        bounds: ReadBounds,
    ) -> None:
        batches = await read_batches(partition, offset, bounds, self._services.conversions)
        if self.size and batches.size > self._left:
            return  # it comes with the next fetch
        if self._committed:
            aborted = await partition.transactions.aborted_in(
                offset, batches.transactional, batches.after
            )
            found.aborted = [AbortedRange(each.producer_id, each.first_offset) for each in aborted]
        found.records = batches.parts
        if partition.topic.dispatch_throttle is not None and batches.parts:
            messages = max(0, batches.next_offset - offset)
            partition.topic.dispatch_throttle.take(messages, batches.size)
        self.size += batches.size
        self._left -= batches.size


class _CodeError(MagnetarError):
    """The client is told that code."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


def _check_epoch(partition: Partition, epoch: int) -> None:
    """A client that knows an earlier leader only is served where nothing can be gone: to be told of
    another epoch first costs it a question, and some ask but every few seconds."""
    own = partition.log.epoch
    if epoch > own:
        raise _CodeError(ErrorCode.UNKNOWN_LEADER_EPOCH)
    if 0 <= epoch < min(own, partition.log.epochs.whole_since):
        raise _CodeError(ErrorCode.FENCED_LEADER_EPOCH)


async def read_batches(
    partition: Partition, offset: int, bounds: ReadBounds, conversions: asyncio.Semaphore
) -> FetchedBatches:
    """Batches from the one that holds ``offset`` on, at least one. Raises as reading a log, and
    ``NotAllowedError`` if the first entry has no counterpart in Kafka."""
    end_offset, bytes_max, entries_max = bounds
    crossing = Crossing(conversions)
    place = await partition.place_of(offset)
    entries = await partition.entries_at(place, entries_max, bytes_max)
    if entries and _ends_before(entries[0], offset):  # compaction took what was behind it
        place = partition.positions.next_position(place)
        entries = await partition.entries_at(place, entries_max, bytes_max)
    parts: list[Buffer] = []
    transactional: list[tuple[BatchHeader, bool | None]] = []
    size = 0
    next_offset = -1  # not known before the first entry was looked at
    last = place  # of what is answered
    for entry in entries:
        payload, offset_after = entry.payload, next_offset
        batch: Buffer
        header: BatchHeader | None = None
        if is_batch(payload):
            header = read_batch_header(payload)
            if parts and header.base_offset >= end_offset:
                break
            batch, offset_after = payload, header.next_offset
        else:
            if next_offset < 0:
                next_offset = await partition.positions.offset_of(place)
            if parts and next_offset >= end_offset:
                break
            try:
                batch = await crossing.batch(payload, next_offset, partition.log.epoch)
            except (NotAllowedError, ProtocolError):
                if parts:
                    break  # what comes before it is answered first
                raise
            offset_after = next_offset + partition.messages_in(entry)
        if parts and size + len(batch) > bytes_max:
            break
        parts.append(batch)
        size += len(batch)
        if header is not None and is_part(header):
            transactional.append((header, commits_of(header, entry)))
        next_offset, last = offset_after, entry.position
    after = partition.positions.next_position(last)
    if parts:
        partition.remember(next_offset, after)
    return FetchedBatches(parts, size, transactional, after, next_offset)


def _ends_before(entry: Entry, offset: int) -> bool:
    """Else a client whose offset is in a gap would get the batch before it again and again."""
    payload = entry.payload
    return is_batch(payload) and read_batch_header(payload).next_offset <= offset


# -- offsets ----------------------------------------------------------------------------------


async def list_offsets(
    session: KafkaSession, head: RequestHead, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    answer, turns = ListOffsetsResponse(), session.turns()
    conversions = session.services.conversions
    for topic in request.topics:
        said = ListedTopic(topic.name)
        answer.topics.append(said)
        for part in topic.partitions:
            await turns.next()
            listed = ListedPartition(part.index)
            said.partitions.append(listed)
            try:
                partition = await session.services.partition(topic.name, part.index, session)
                _check_epoch(partition, part.current_leader_epoch)
                committed = request.isolation_level == READ_COMMITTED
                with partition.topic.held():
                    if committed and not partition.transactions.known:
                        await partition.know_transactions()
                    await _list(partition, part, committed, listed, conversions)
                _check_end_known(partition, part.timestamp_ms, listed, head.version)
            except _CodeError as error:
                listed.error_code = error.code
            except MagnetarError as error:
                listed.error_code = error_code(error)
                if isinstance(error, LOST):
                    where, place = f"{topic.name}-{part.index}", f"time {part.timestamp_ms}"
                    session.services.unread.failed(where, place, error)
    return answer


def _check_end_known(
    partition: Partition, time_ms: int, listed: ListedPartition, version: int
) -> None:
    """A new leader that may not show all of its log yet says nothing of its end: clients have been
    told of a later one (KIP-207). What was found before that stands."""
    whole = partition.positions.end_offset >= partition.log.opening.end_offset
    if whole or time_ms in ASKS_NO_END or (time_ms >= 0 and listed.offset >= 0):
        return
    listed.offset = listed.timestamp_ms = -1
    known = version >= OFFSET_NOT_AVAILABLE_SINCE
    raise _CodeError(ErrorCode.OFFSET_NOT_AVAILABLE if known else ErrorCode.LEADER_NOT_AVAILABLE)


async def _list(
    partition: Partition,
    asked: ListOffsetsPartition,
    committed: bool,
    listed: ListedPartition,
    conversions: asyncio.Semaphore,
) -> None:
    time_ms = asked.timestamp_ms
    listed.leader_epoch = partition.log.epoch
    if time_ms == LATEST:
        end_offset = partition.positions.end_offset
        listed.offset = partition.stable_offset() if committed else end_offset
    elif time_ms in (EARLIEST, EARLIEST_LOCAL):
        listed.offset = partition.start_offset()
    elif time_ms == GREATEST_TIME:
        listed.offset, listed.timestamp_ms = await _greatest(partition, conversions)
    elif time_ms == LATEST_TIERED:
        listed.leader_epoch = -1
    elif time_ms >= 0:
        listed.offset, listed.timestamp_ms = await _first_at(partition, time_ms, conversions)
    else:
        listed.error_code = ErrorCode.UNSUPPORTED_VERSION
    by_time = time_ms >= 0 or time_ms == GREATEST_TIME
    if by_time and committed and listed.offset >= partition.stable_offset():
        # It is not to be read yet: as in Kafka nothing was found.
        listed.offset = listed.timestamp_ms = -1


async def _greatest(partition: Partition, conversions: asyncio.Semaphore) -> tuple[int, int]:
    """The first of those records that have the greatest timestamp, as ``_first_at``.

    What the log says of times may count what was deleted. Then it is searched by halves for the
    greatest time from which on there is something; the last batch's mostly is that.
    """
    said_ms = max((each.greatest_ms for each in partition.log.stats().ledgers), default=0)
    if not said_ms:
        return NOTHING_FOUND
    best = await _first_at(partition, said_ms, conversions)
    if best != NOTHING_FOUND:
        return best
    guess_ms, none_from_ms = await _last_time(partition), said_ms
    while best[1] + 1 < none_from_ms:
        middle_ms = (best[1] + none_from_ms) // 2
        # (They may be neighbours: the middle is the lesser one, which is known.)
        time_ms = guess_ms if best[1] < guess_ms < none_from_ms else max(middle_ms, best[1] + 1)
        found = await _first_at(partition, time_ms, conversions)
        if found == NOTHING_FOUND:
            none_from_ms = time_ms
        else:
            best = found
        guess_ms = best[1] + 1 if found != NOTHING_FOUND else -1
    return best


async def _last_time(partition: Partition) -> int:
    """What the last batch says of its times; -1: nothing."""
    last = partition.positions.readable
    if last < partition.positions.first:
        return -1
    entries = await partition.entries_at(last, 1, 1)
    if not entries or not is_batch(entries[0].payload):
        return -1
    return read_batch_header(entries[0].payload).max_timestamp_ms


async def _first_at(
    partition: Partition, time_ms: int, conversions: asyncio.Semaphore
) -> tuple[int, int]:
    """The first record with that timestamp or a later one, and its timestamp; -1, -1 if there is
    none. Entries are found by the log; mostly one batch is taken apart."""
    positions = partition.positions
    place, entries_max, bytes_max = await partition.log.first_at(time_ms), 1, 1
    while place <= positions.readable:
        entries = await partition.entries_at(place, entries_max, bytes_max)
        for entry in entries:
            place = entry.position
            found = await _first_of(partition, entry, place, time_ms, conversions)
            if found is not None:
                return found
        if not entries:
            break
        # The log finds entries by publish times, and a record may say that it is older; or it was
        # deleted, or compacted. The next one may lie a million batches behind.
        place, entries_max, bytes_max = positions.next_position(place), ENTRIES_AT_ONCE, LOOK_BYTES
        await asyncio.sleep(0)  # others have their turns
    return NOTHING_FOUND


async def _first_of(
    partition: Partition,
    entry: Entry,
    place: Position,
    time_ms: int,
    conversions: asyncio.Semaphore,
) -> tuple[int, int] | None:
    """As ``_first_at``, of one entry."""
    payload, begin = entry.payload, partition.log.front.offset
    if not is_batch(payload):
        offset = await partition.positions.offset_of(place)
        crossing = Crossing(conversions)
        payload = memoryview(await crossing.batch(payload, offset, partition.log.epoch))
    elif read_batch_header(payload).max_timestamp_ms < time_ms:
        return None
    if batch_work(payload).fits_turn(TIMES):  # a million records take seconds
        return _first_in(payload, time_ms, begin)
    async with conversions:
        return await asyncio.to_thread(_first_in, payload, time_ms, begin)


def _first_in(batch: memoryview, time_ms: int, begin: int) -> tuple[int, int] | None:
    """The first record from offset ``begin`` on with that timestamp or a later one."""
    for offset, made_ms in _times(batch):
        if made_ms >= time_ms and offset >= begin:
            return offset, made_ms
    return None


def _times(batch: memoryview) -> list[tuple[int, int]]:
    """The offset and the time of each record. Of a batch that cannot be taken apart: its ends, with
    the greatest time that it says. It is no reason to find none of what lies behind it; consumers
    meet it where they read it."""
    try:
        header, records = read_batch(batch)
    except ProtocolError:
        header = read_batch_header(batch)
        ends = header.base_offset, header.next_offset - 1
        return [(each, header.max_timestamp_ms) for each in ends]
    base = header.base_offset
    return [(base + each.offset_delta, timestamp_of(header, each)) for each in records]


async def offset_for_leader_epoch(
    session: KafkaSession, head: RequestHead, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """How far what a consumer has read of an epoch is what the log still has (KIP-320)."""
    answer, turns = OffsetForLeaderEpochResponse(), session.turns()
    for topic in request.topics:
        said = EpochEndTopic(topic.name)
        answer.topics.append(said)
        for part in topic.partitions:
            await turns.next()
            said.partitions.append(await _epoch_end(session, topic.name, part))
    return answer


async def _epoch_end(session: KafkaSession, name: str, part: EpochPartition) -> EpochEndPartition:
    found = EpochEndPartition(partition=part.partition)
    try:
        partition = await session.services.partition(name, part.partition, session)
        _check_epoch(partition, part.current_leader_epoch)
        found.leader_epoch, found.end_offset = await partition.log.epochs.end_of(part.leader_epoch)
    except _CodeError as error:
        found.error_code = error.code
    except MagnetarError as error:
        found.error_code = error_code(error)
    return found
