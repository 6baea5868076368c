"""PRODUCER and CLOSE_PRODUCER."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from magnetar.cluster.topic_name import parse_topic
from magnetar.env.tasks import fails
from magnetar.model.errors import (
    MagnetarError,
    NotAllowedError,
    ProducerBusyError,
    ProducerFencedError,
    ServiceNotReadyError,
)
from magnetar.model.ids import EARLIEST
from magnetar.protocols.pulsar.bounds import check_producer
from magnetar.protocols.pulsar.handlers.redirects import check_wanted
from magnetar.protocols.pulsar.handlers.schemas import producer_version
from magnetar.protocols.pulsar.receipts import SessionProducer
from magnetar.protocols.pulsar.session import Session
from magnetar.topics.opening import open_durable
from magnetar.topics.publishing.access import AccessMode, Verdict, check_claim
from magnetar.topics.publishing.deduplicated_producer import DeduplicatedProducer
from magnetar.topics.publishing.producer import Producer, ProducerFacts
from magnetar.topics.quota_keeping import check_quota
from magnetar.topics.topic import Topic
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandProducer
from magnetar.wire.pulsar.replies import success


class ProducerAdmission(NamedTuple):
    """A PRODUCER on its way: who asks, for what, and the producer that will be connected."""

    session: Session
    topic: Topic
    producer: Producer
    request: CommandProducer
    schema_version: bytes

    @property
    def claimed_epoch(self) -> int | None:
        """The topic's, under which the producer had it to itself before."""
        return self.request.topic_epoch if self.request.HasField("topic_epoch") else None


async def open_producer(session: Session, command: BaseCommand) -> None:
    request = command.producer
    services = session.services
    name = parse_topic(request.topic)
    properties = check_producer(request)
    old = session.producers.get(request.producer_id)
    if old is not None:
        if old.topic.name != name:
            raise NotAllowedError(
                f"producer {request.producer_id} of this connection is on {old.topic.name}"
            )
        if request.epoch <= old.epoch and not old.closed:
            # the client did not hear our first answer
            version = await producer_version(session, name, request)
            if not old.closed:  # it may have been sent away meanwhile
                _tell_success(session, old, request, version, old.topic.epoch)
                return
        old.topic.remove_producer(old)
        old.client.drop(tell=False)
    else:
        session.check_room()
    topic = await services.topics.get(name, create=True, asker=session)
    with topic.held():  # until the producer is connected, an idle topic could be unloaded
        await _open_on(session, topic, request, properties)


async def _open_on(
    session: Session, topic: Topic, request: CommandProducer, properties: Mapping[str, str]
) -> None:
    # First: no schema, and no subscription, is made for who is refused.
    topic.check_takes()
    await check_quota(topic)
    # Before anything else is made for a producer that may be refused by it.
    schema_version = await producer_version(session, topic.name, request)
    if request.initial_subscription_name:
        made = request.initial_subscription_name
        check_wanted(session, topic, made)
        await open_durable(topic, made, EARLIEST, {}, topic.makes_subscriptions)
    producer = _make(session, topic, request, properties)
    await _admit(ProducerAdmission(session, topic, producer, request, schema_version))


def _make(
    session: Session, topic: Topic, request: CommandProducer, properties: Mapping[str, str]
) -> Producer:
    """As the policy says at the moment; ``_prepare`` holds it against what it says then."""
    services, client = session.services, SessionProducer(session, request.producer_id)
    facts = ProducerFacts(
        request.producer_id,
        request.producer_name or services.producer_name(),
        AccessMode(request.producer_access_mode),
        request.epoch,
        not (request.producer_name and request.user_provided_producer_name),
        services.now_ms(),
        properties,
        session.client_version,
    )
    if topic.policy.deduplicates:
        return DeduplicatedProducer(client, topic, facts, topic.deduplication)
    return Producer(client, topic, facts)


async def _admit(admission: ProducerAdmission) -> None:
    """Connect the producer, if need be after asking whether the one in its place is alive."""
    session, topic, producer, request, _ = admission
    await session.services.topics.check_space(topic)
    if _comes_back(request):
        # Before the lock: under it little is left to read.
        await topic.frames.catch_up()
    try:
        await _admit_once(admission)
    except ProducerBusyError as error:
        old = topic.producers.get(producer.name)
        if old is None or session.producers.get(old.producer_id) is old:
            raise
        if await old.client.is_alive():
            if producer.mode is AccessMode.EXCLUSIVE:
                # As of a producer of any other name: applications know by it that they come second.
                raise ProducerFencedError(str(error)) from error
            raise
        old.client.abort()
        topic.remove_producer(old)
        await _admit_once(admission)


def _comes_back(request: CommandProducer) -> bool:
    """Whether the producer was connected before, and may send again what it had sent."""
    return request.epoch > 0 and bool(request.producer_name)


async def _admit_once(admission: ProducerAdmission) -> None:
    session, topic, producer, request, _ = admission
    async with topic.lock:
        await topic.settle_deduplication()
        if producer.mode is not AccessMode.SHARED and topic.epoch is None:
            # Not for each topic that is opened: few ever have such a producer.
            topic.epoch = await session.services.control.counters.topic_epoch(topic.name)
        claimed = admission.claimed_epoch
        verdict = topic.admit(producer.name, producer.incarnation._replace(claimed_epoch=claimed))
        if verdict is Verdict.QUEUE:
            _queue(admission)
            return
        if _comes_back(request):
            producer.resends = await topic.find_resends(producer.name)
        if verdict is Verdict.FENCE_OTHERS:
            topic.fence_producers(producer.name)
        if verdict is not Verdict.CONNECT:
            await _begin_epoch(admission)
        await _prepare(topic, producer)
        _connect(admission)


async def _begin_epoch(admission: ProducerAdmission) -> None:
    """A new one of the topic, unless the producer had it last: its client may not hear the answer,
    and would then be fenced by itself."""
    session, topic, *_ = admission
    if admission.claimed_epoch is None or admission.claimed_epoch != topic.epoch:
        topic.epoch = await session.services.control.counters.raise_topic_epoch(topic.name)


async def _prepare(topic: Topic, producer: Producer) -> None:
    """A producer whose messages are deduplicated knows what is stored of it. Raises
    ``ServiceNotReadyError`` if the policy is another one by now."""
    if isinstance(producer, DeduplicatedProducer) is not topic.deduplication.on:
        raise ServiceNotReadyError(
            f"topic {topic.name} begins or ends to deduplicate messages; look it up again"
        )
    if isinstance(producer, DeduplicatedProducer):
        await topic.drained(producer.name)
        if topic.deduplication.on:  # else it is closed by now
            producer.mark = topic.deduplication.mark(producer.name)


def _connect(admission: ProducerAdmission) -> None:
    session, topic, producer, request, _ = admission
    if session.closed:
        return
    if topic.closed:
        raise ServiceNotReadyError(f"topic {topic.name} is closing here; look it up again")
    producer.closed = False
    topic.add_producer(producer)
    session.producers[producer.producer_id] = producer
    _tell_success(session, producer, request, admission.schema_version, topic.epoch)


def _queue(admission: ProducerAdmission) -> None:
    """Wait for exclusive access, beside the producer's subject: it may be closed meanwhile."""
    session, topic, producer, request, _ = admission
    if session.closed:
        return
    producer.closed = True
    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    topic.waiting.append((producer, turn))
    session.producers[producer.producer_id] = producer
    version = admission.schema_version
    _tell_success(session, producer, request, version, topic.epoch, ready=False)

    def failed(task: str, error: BaseException) -> None:
        session.close()  # its client must not wait for a turn that will not come

    name = f"wait {producer.name}"
    session.services.scope.spawn(_wait_turn(admission, turn), name, fails(failed))


async def _wait_turn(admission: ProducerAdmission, turn: asyncio.Future[None]) -> None:
    session, topic, producer, request, _ = admission
    try:
        await turn
        # Others would wait behind one whose connection is dead, until that is found out.
        if len(topic.waiting) > 1 and not await producer.client.is_alive():
            producer.client.abort()
            topic.remove_producer(producer)
            return
        async with topic.lock:
            if producer.gone:
                return
            # Whoever had the lock before may have taken the topic: two would have it to themselves.
            topic.check_in_line(producer)
            # It may have come back, and waited while those before it had the topic.
            check_claim(str(topic.name), topic.epoch or 0, admission.claimed_epoch)
            await _begin_epoch(admission)
            if producer.gone:
                return  # closed meanwhile
            if _comes_back(request):
                producer.resends = await topic.find_resends(producer.name)
            await _prepare(topic, producer)
            if producer.gone:
                return  # while the log was read
            # first in line until it is connected, so that nobody else has a turn meanwhile
            topic.waiting = [item for item in topic.waiting if item[0] is not producer]
            _connect(admission)
    except MagnetarError as error:
        topic.remove_producer(producer)  # so that the next in line has its turn
        producer.client.drop(tell=False)
        session.refuse(BaseCommand(type=BaseCommand.PRODUCER, producer=request), error)


def _tell_success(
    session: Session,
    producer: Producer,
    request: CommandProducer,
    schema_version: bytes,
    topic_epoch: int | None,
    ready: bool = True,
) -> None:
    answer = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
    reply = answer.producer_success
    reply.request_id = request.request_id
    reply.producer_name = producer.name
    reply.last_sequence_id = producer.last_sequence_id
    # Set even if empty: Java's client reads the version without asking whether it is there, and
    # drops the connection, with everybody on it, when it is not.
    reply.schema_version = schema_version
    reply.producer_ready = ready
    if ready and producer.mode is not AccessMode.SHARED:
        assert topic_epoch is not None, "it was raised for this producer"
        reply.topic_epoch = topic_epoch
    session.send_command(answer)


async def close_producer(session: Session, command: BaseCommand) -> None:
    """Answer once every send has its outcome. Closing what is closed is fine."""
    request = command.close_producer
    producer = session.producers.get(request.producer_id)
    if producer is not None:
        await producer.wait_drained()
        producer.client.drop(tell=False)
        producer.topic.remove_producer(producer)
    session.write(success(request.request_id))
