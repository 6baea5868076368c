"""Produce: batches of clients into the logs of partitions.

The batches of a request are appended one after the other, each to its partition, in one turn of the
loop; the answer leaves when all of them have their outcomes. With ``acks`` 1 an outcome is known
when the leader's own log has the batch, where the log has a leader and followers; on ledgers, and
with -1, when the log says that it is stored. ``acks=0`` has no answer, so an error closes the
connection, as with Kafka: the client learns of it so, and only so.

A batch to a topic whose publish rate is used up is taken, and so its client is told
(``throttle_time_ms``) how long the next one has to wait; the connection is not read for as long.

Why: docs/adr/0142-acks-below-all.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from magnetar.model.errors import MagnetarError
from magnetar.protocols.kafka.handlers.recompression import is_kept_as_it_comes, recompress
from magnetar.protocols.kafka.handlers.record_keys import check_keys, is_keyed
from magnetar.protocols.kafka.handlers.record_times import check_times
from magnetar.protocols.kafka.partitions.partition import Partition, Produced
from magnetar.protocols.kafka.services import KafkaServices
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.protocols.kafka.unread import LOST, REMEDY
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.batches import (
    BATCH_HEADER_BYTES,
    MAGIC,
    MAGIC_AT,
    TRANSACTIONAL,
    BatchHeader,
    read_batch_header,
)
from magnetar.wire.kafka.errors import ErrorCode, error_code
from magnetar.wire.kafka.produce_messages import (
    BatchError,
    ProducedPartition,
    ProducedTopic,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)

ALL: Final = -1
ACKS: Final = (ALL, 0, 1)


class _Answer:
    """Collects the outcomes of a request; ``answer`` when there are all."""

    __slots__ = ("_answer", "_left", "_response", "_session", "acks")

    def __init__(
        self, session: KafkaSession, request: ProduceRequest, answer: Callable[[Any], None]
    ) -> None:
        self._session = session
        self._answer = answer
        self.acks = request.acks
        self._left = 1  # the caller's own, until everything is begun
        self._response = ProduceResponse()

    def topic(self, name: str) -> ProducedTopic:
        made = ProducedTopic(name)
        self._response.topics.append(made)
        return made

    def expect(self) -> None:
        self._left += 1

    def told(
        self, topic: str, where: ProducedPartition, byte_count: list[int], outcome: Produced
    ) -> None:
        where.error_code = outcome.error
        where.base_offset = outcome.base_offset
        where.log_append_time_ms = outcome.append_time_ms
        where.log_start_offset = outcome.log_start
        where.error_message = outcome.why
        where.record_errors = [BatchError(each, outcome.why) for each in outcome.refused_records]
        header = outcome.header
        if header is not None and header.producer_id >= 0:
            # It comes again: what is behind it must not come before it.
            now_s = asyncio.get_running_loop().time()
            self._session.first_refused.refused((topic, where.index), header, now_s)
        if byte_count:
            self._session.publish_ended(byte_count.pop())
        self.ended()

    def hold_back(self, wait_s: float) -> None:
        """So long the client should send nothing more."""
        if wait_s > 0:
            told_ms = self._session.hold_back(wait_s)
            self._response.throttle_time_ms = max(self._response.throttle_time_ms, told_ms)

    def ended(self) -> None:
        self._left -= 1
        if self._left:
            return
        if self.acks != 0:
            self._answer(self._response)
            return
        failed = any(
            each.error_code for topic in self._response.topics for each in topic.partitions
        )
        self._answer(None)
        if failed:
            self._session.close()


def _idempotent(records: Any) -> BatchHeader | None:
    """The batch's header if it is of an idempotent producer, as far as its bytes say. Messages of
    before there were batches have none: they are refused as what they are."""
    if records is None or len(records) < BATCH_HEADER_BYTES or records[MAGIC_AT] != MAGIC:
        return None
    header = read_batch_header(records)
    return header if header.producer_id >= 0 else None


def _unknown(partition: Partition, records: Any, named: bool) -> bool:
    """Whether something must be found out before the batch can be taken or refused. ``named``: the
    request says a transactional id; without one no batch is part of a transaction."""
    header = _idempotent(records)
    if header is None:
        return False
    if not partition.producers_known:
        return True
    if not header.attributes & TRANSACTIONAL:
        return False
    transactions = partition.transactions
    return not (named and transactions.there and transactions.writers.takes(header))


def produce_now(
    session: KafkaSession, head: RequestHead, request: ProduceRequest, answer: Callable[[Any], None]
) -> bool:
    """``session.KafkaHandlers``."""
    ready, named = session.services.ready, request.transactional_id is not None
    found: list[Partition] = []
    for topic in request.topics:
        for part in topic.partitions:
            partition = ready(topic.name, part.index)
            if partition is None:
                return False
            if _unknown(partition, part.records, named):
                return False
            if not is_kept_as_it_comes(partition, part.records):
                return False
            if partition.topic.policy.kafka.bounds_times or not is_keyed(partition, part.records):
                return False
            found.append(partition)
    _append(session, request, answer, found)
    return True


def _append(
    session: KafkaSession,
    request: ProduceRequest,
    answer: Callable[[Any], None],
    partitions: Sequence[Partition | Produced],
) -> None:
    """Append all; ``partitions`` in the order of the request, or why one has none."""
    collected = _Answer(session, request, answer)
    refused = _refusal(request)
    at = iter(partitions)
    for topic in request.topics:
        said = collected.topic(topic.name)
        for part in topic.partitions:
            where = ProducedPartition(part.index)
            said.partitions.append(where)
            collected.expect()
            partition = next(at)
            begun: list[int] = []
            told = partial(collected.told, topic.name, where, begun)
            if refused is not None:
                told(refused)
            elif isinstance(partition, Produced):
                told(partition)
            elif session.first_refused and _held_back(session, topic.name, part):
                why = "one that was sent before it was refused; send that one first"
                told(Produced(ErrorCode.KAFKA_STORAGE_ERROR, why=why))
            else:
                _append_one(session, partition, part, begun, told, request.acks == ALL)
                if partition.topic.publish_throttle is not None:
                    collected.hold_back(partition.topic.publish_throttle.wait_s())
    collected.ended()


def _held_back(session: KafkaSession, topic: str, part: ProducePartition) -> bool:
    header = _idempotent(part.records)
    if header is None:
        return False
    now_s = asyncio.get_running_loop().time()
    return session.first_refused.holds_back((topic, part.index), header, now_s)


def _append_one(
    session: KafkaSession,
    partition: Partition,
    part: ProducePartition,
    begun: list[int],
    told: Callable[[Produced], None],
    awaits_all: bool,
) -> None:
    records = part.records
    if not isinstance(records, memoryview):
        told(Produced(ErrorCode.INVALID_RECORD, why="no records were sent"))
        return
    most = session.services.broker.message_bytes_max
    policy = partition.topic.policy
    for own in (policy.kafka.batch_bytes_max, policy.limits.message_bytes):
        if own:  # settings may have become less since
            most = min(most, own)
    if len(records) > most:
        why = f"a batch of {len(records)} bytes; the largest allowed is {most}"
        told(Produced(ErrorCode.MESSAGE_TOO_LARGE, why=why))
        return
    byte_count = partition.produce(records, told, awaits_all=awaits_all)
    if byte_count:  # it has no outcome yet
        begun.append(byte_count)
        session.publish_begun(byte_count)


def _refusal(request: ProduceRequest) -> Produced | None:
    """Why nothing of the request is taken."""
    if request.acks not in ACKS:
        return Produced(ErrorCode.INVALID_REQUIRED_ACKS, why=f"acks={request.acks}")
    return None


async def produce(session: KafkaSession, head: RequestHead, request: ProduceRequest) -> Any:
    """What ``produce_now`` could not do: topics are loaded, producers looked for."""
    services = session.services
    found: list[Partition | Produced] = []
    for topic in request.topics:
        for part in topic.partitions:
            try:
                partition = await services.partition(topic.name, part.index, session)
                refused = await check_keys(services, partition, part)
                refused = refused or await check_times(services, partition, part)
                refused = refused or await recompress(services, partition, part)
                if refused is not None:
                    found.append(refused)
                    continue
                header = _idempotent(part.records)
                if header is not None:
                    where = topic.name, part.index
                    await _know(services, partition, request.transactional_id, header, where)
                found.append(partition)
            except MagnetarError as error:
                code = error.code if isinstance(error, _RefusedError) else error_code(error)
                # To what can be no topic nothing comes again, and its name may be very long.
                again = code is not ErrorCode.INVALID_TOPIC_EXCEPTION
                header = _idempotent(part.records) if again else None
                found.append(Produced(code, why=str(error), header=header))
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answer(response: Any) -> None:
        if not done.done():
            done.set_result(response)

    parts = [part for topic in request.topics for part in topic.partitions]
    for place, (each, part) in enumerate(zip(found, parts, strict=True)):
        if not isinstance(each, Partition) or each.producers_known:
            continue
        if (header := _idempotent(part.records)) is not None:
            # An append failed while others were loaded, and what was known with it.
            why = "what is known of producers is read again; send it once more"
            found[place] = Produced(ErrorCode.KAFKA_STORAGE_ERROR, why=why, header=header)
    _append(session, request, answer, found)
    return await done


async def _know(
    services: KafkaServices,
    partition: Partition,
    name: str | None,
    header: BatchHeader,
    place: tuple[str, int],
) -> None:
    """What must be known before a batch of an idempotent producer. Raises ``_RefusedError``, and
    as ``_allow``."""
    try:
        await partition.know_producers()
        if header.attributes & TRANSACTIONAL:
            await _allow(services, partition, name, header, place)
    except LOST as error:
        # Of what lies in the log. Said of a produce request it would be of the batch that came,
        # which some clients give up then.
        where = f"{place[0]}-{place[1]}"
        services.unread.failed(where, "what is open of transactions", error)
        why = f"what {where} has of producers cannot be read: {error}; {REMEDY}"
        raise _RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, why) from error


class _RefusedError(MagnetarError):
    def __init__(self, code: ErrorCode, why: str) -> None:
        super().__init__(why)
        self.code = code


async def _allow(
    services: KafkaServices,
    partition: Partition,
    name: str | None,
    header: BatchHeader,
    place: tuple[str, int],
) -> None:
    """The first batch of a transaction in a partition: its coordinator is asked whether it knows.
    Else one that comes late would open a transaction that nobody ends. Raises ``_RefusedError``,
    ``ServiceNotReadyError``, and as reading a log."""
    if name is None or services.takes_part is None:
        raise _RefusedError(
            ErrorCode.INVALID_TXN_STATE, "a batch of a transaction without a transactional id"
        )
    producer_id, epoch = header.producer_id, header.producer_epoch
    while True:
        await partition.prepare_transactions()
        writers = partition.transactions.writers
        if writers.takes(header):
            return
        ends = writers.ends(producer_id)
        error = await services.takes_part(name, producer_id, epoch, place)
        if error is ErrorCode.PRODUCER_FENCED:
            error = ErrorCode.INVALID_PRODUCER_EPOCH  # as a partition says it
        if error is not ErrorCode.NONE:
            raise _RefusedError(
                error, f"{place[0]}-{place[1]} takes no part in a transaction of {name}, {epoch=}"
            )
        if partition.transactions.writers is writers:
            writers.allow(producer_id, epoch, ends)
            return
        # An append has failed meanwhile, and what is known was read again: a marker may be there.
