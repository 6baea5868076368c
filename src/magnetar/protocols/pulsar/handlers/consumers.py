"""SUBSCRIBE and everything that a consumer says afterwards.

FLOW, ACK and REDELIVER_UNACKNOWLEDGED_MESSAGES have no subject: they are handled as they come, and
for a consumer that is not there (any more) they mean nothing.

Java's clients count how often a consumer has asked for all messages again (its *epoch*), and say so
with SUBSCRIBE and REDELIVER_UNACKNOWLEDGED_MESSAGES. Messages of exclusive and failover consumers
say it back: what was on its way when the client asked is of an earlier epoch, and passed over
there. Else its application would get those first, and what it acknowledges up to one of them would
be all that was to come again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from magnetar.cluster.topic_name import parse_topic
from magnetar.log.seam import Cursor
from magnetar.model.errors import (
    BrokerMetadataError,
    ConsumerAssignError,
    ConsumerBusyError,
    ConsumerNotFoundError,
    MagnetarError,
    NotAllowedError,
    ServiceNotReadyError,
)
from magnetar.model.ids import EARLIEST, LATEST, Position
from magnetar.protocols.pulsar.bounds import (
    ACK_BYTES_LONG,
    ACK_IDS_MAX,
    check_ack,
    check_subscribe,
    consumer_properties,
)
from magnetar.protocols.pulsar.clients import returns_skipped
from magnetar.protocols.pulsar.consumer_stats import consumer_stats_reply
from magnetar.protocols.pulsar.deliveries import SessionConsumer
from magnetar.protocols.pulsar.handlers.redirects import (
    asked_for_messages,
    check_wanted,
    leaving_cursor,
    send_elsewhere,
    stay_if_leaving,
    subscribed_again,
)
from magnetar.protocols.pulsar.handlers.schemas import check_consumer
from magnetar.protocols.pulsar.key_shared import key_policy
from magnetar.protocols.pulsar.leaving import Leaving
from magnetar.protocols.pulsar.log_compactions import note_compaction
from magnetar.protocols.pulsar.log_extents import (
    fill_given,
    fill_log_extent,
    fill_unread,
    hold_log,
    note_table,
)
from magnetar.protocols.pulsar.message_ids import fill_message_id, position_of, reader_start
from magnetar.protocols.pulsar.session import Session
from magnetar.protocols.pulsar.stored_ledgers import fill_stored_ledgers
from magnetar.topics.consuming.backlog import backlogs
from magnetar.topics.consuming.consumer import Consumer
from magnetar.topics.consuming.subscription import Kind, Subscription
from magnetar.topics.opening import open_subscription
from magnetar.topics.positions import Place, PublishTime
from magnetar.topics.seek import seek
from magnetar.topics.subscribable import SubscribableTopic, Subscribed
from magnetar.wire.pulsar.commands import decode_command
from magnetar.wire.pulsar.errors import server_error
from magnetar.wire.pulsar.hot import decode_ack, decode_flow, decode_long_ack, signed64
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandRedeliverUnacknowledgedMessages,
    CommandSubscribe,
)
from magnetar.wire.pulsar.replies import ack_response, success

KINDS: Final = {
    CommandSubscribe.Exclusive: Kind.EXCLUSIVE,
    CommandSubscribe.Shared: Kind.SHARED,
    CommandSubscribe.Failover: Kind.FAILOVER,
    CommandSubscribe.Key_Shared: Kind.KEY_SHARED,
}


async def subscribe(session: Session, command: BaseCommand) -> None:
    request = command.subscribe
    kind = KINDS[request.subType]
    key_policy(request, kind)  # what cannot be is refused before a topic is made for it
    name = parse_topic(request.topic)
    old = session.consumers.get(request.consumer_id)
    if old is not None:
        if (old.topic.name, old.subscription.name) != (name, request.subscription):
            raise NotAllowedError(
                f"consumer {request.consumer_id} of this connection is on {old.topic.name}"
            )
        _note_epoch(old, request)
        session.write(success(request.request_id))  # the client did not hear our first answer
        return
    if subscribed_again(session, str(name), request):
        return
    session.check_room()
    topic = await session.services.subscribable(name, request.force_topic_creation, session)
    if topic.subscribes is not None:
        host = session.peer.rpartition(":")[0]
        topic.check_subscribe_rate((host, request.consumer_name, request.consumer_id))
    _check_compacted(topic, request, kind)
    with topic.held():  # until the consumer is connected, an idle topic could be unloaded
        if not request.durable:
            await topic.see_end()  # a reader begins at a place that its client knows
        await check_consumer(session, topic, request)
        start = _start(topic, request, session.services.now_ms())
        # The compacted view is its owner's: no other broker serves it.
        here = request.read_compacted
        if here or not await send_elsewhere(session, topic, request, kind, start):
            await _join_alive(session, topic, request, kind)


def _check_compacted(topic: SubscribableTopic, request: CommandSubscribe, kind: Kind) -> None:
    """Raise ``NotAllowedError`` if the compacted view is asked for and cannot be given."""
    if not request.read_compacted:
        return
    if kind.shares:
        raise NotAllowedError(
            f"subscription {request.subscription} on {topic.name} is to read compacted and is "
            "shared: the compacted view is for exclusive and failover subscriptions, and readers"
        )
    if topic.compacted is None:
        raise NotAllowedError(
            f"this broker does not own {topic.name}, and the compacted view is read at its owner: "
            "look the topic up, or subscribe without readCompacted"
        )


async def _join_alive(
    session: Session,
    topic: SubscribableTopic,
    request: CommandSubscribe,
    kind: Kind,
    answered: bool = False,
) -> None:
    """Seat the consumer, if need be in the place of one whose connection is dead. ``answered``: its
    client has heard of its success."""
    try:
        await _join(session, topic, request, kind, answered)
    except (ConsumerBusyError, ConsumerAssignError):
        found = topic.subscriptions.get(request.subscription)
        own = [item.consumer for item in session.consumers.values()]
        if found is None or not await topic.drop_dead(found, own):
            raise
        await _join(session, topic, request, kind, answered)


async def _join(
    session: Session,
    topic: SubscribableTopic,
    request: CommandSubscribe,
    kind: Kind,
    answered: bool,
) -> None:
    services = session.services
    properties = check_subscribe(request)
    if services.followed is not None:
        _forget_sought(session, topic, request.subscription)
    check_wanted(session, topic, request.subscription)
    was_there = request.subscription in topic.subscriptions
    subscription = await open_subscription(
        topic,
        request.subscription,
        request.durable,
        _start(topic, request, services.now_ms()),
        properties,
    )
    try:
        await _seat(session, JoiningConsumer(topic, subscription, request, kind, answered))
    finally:
        if not was_there:  # else a reader's place, which waits for it after a seek, would be lost
            topic.drop_reader(subscription)  # unless it has a consumer now: nobody else would


class JoiningConsumer(NamedTuple):
    """A SUBSCRIBE on its way. ``answered``: its client has heard of its success."""

    topic: SubscribableTopic
    subscription: Subscription
    request: CommandSubscribe
    kind: Kind
    answered: bool


async def _seat(session: Session, what: JoiningConsumer) -> None:
    """Its consumer is the subscription's from now on, unless its client has gone. Raises why it may
    not be."""
    services = session.services
    topic, subscription, request, kind, answered = what
    if services.bindings is not None:
        await services.bindings.wait_free(subscription)
    async with subscription.lock:
        _check_there(topic, subscription)
        if subscription.doubtful:
            await subscription.cursor.wait_stored()
            subscription.doubtful = False
        subscription.check_served_here()
        subscription.check_room(kind, policy := key_policy(request, kind))
        topic.check_consumers(subscription)
        if request.start_message_rollback_duration_sec and not subscription.consumers:
            await _roll_back(topic, subscription, _back_from(services.now_ms(), request))
        _check_there(topic, subscription)  # the topic may have closed meanwhile
        if session.closed:
            return
        consumer = Consumer(
            SessionConsumer(session, request.consumer_id, subscription.partition),
            request.consumer_id,
            request.consumer_name or f"{session.peer}-{request.consumer_id}",
            request.priority_level,
            services.now_ms(),
            consumer_properties(request),
            session.follows_assigned_url,
            request.read_compacted,
            policy,
            session.client_version,
            returns_skipped(session.client_version),
        )
        subscription.add(consumer, kind)
        subscribed = Subscribed(topic, subscription, consumer)
        _note_epoch(subscribed, request)
        session.consumers[request.consumer_id] = subscribed
        if not answered:
            session.write(success(request.request_id))
        subscription.announce(consumer)


def _forget_sought(session: Session, topic: SubscribableTopic, name: str) -> None:
    """A reader that has sought here comes straight back, on the connection by which it did. One
    that comes by another has been at the topic's owner meanwhile, and perhaps sought there: what it
    says now counts."""
    found = topic.subscriptions.get(name)
    if found is not None and not found.durable and found.sought_by is not session:
        topic.drop_reader(found)  # unless it has a consumer


def _start(topic: SubscribableTopic, request: CommandSubscribe, now_ms: int) -> Place:
    """What a new subscription reads first."""
    if request.start_message_rollback_duration_sec:
        return _back_from(now_ms, request)
    if not request.durable and request.HasField("start_message_id"):
        source = topic.readable
        if request.read_compacted and topic.compacted is not None:
            source = topic.compacted
        return reader_start(source.positions, request.start_message_id)
    earliest = request.initialPosition == CommandSubscribe.Earliest
    return EARLIEST if earliest else LATEST


def _back_from(now_ms: int, request: CommandSubscribe) -> PublishTime:
    return PublishTime(max(0, now_ms - request.start_message_rollback_duration_sec * 1000))


async def _roll_back(
    topic: SubscribableTopic, subscription: Subscription, time: PublishTime
) -> None:
    """Move a subscription that nobody uses to the time that its request asks for."""
    try:
        await topic.see_end()
        await subscription.cursor.reset(await topic.position_at(time))
    except MagnetarError:
        topic.drop_reader(subscription)
        raise
    finally:
        # What rests, since it is not due, is known from there on, where the cursor was.
        subscription.dispatcher.rewind()


def _note_epoch(
    found: Subscribed, said: CommandSubscribe | CommandRedeliverUnacknowledgedMessages
) -> None:
    """What the consumer gets from now on is of the epoch that its client says."""
    client = found.consumer.client
    assert isinstance(client, SessionConsumer), "consumers of sessions are made here"
    if said.HasField("consumer_epoch") and not found.subscription.kind.shares:
        client.epoch = max(client.epoch, signed64(said.consumer_epoch))


def _check_there(topic: SubscribableTopic, subscription: Subscription) -> None:
    if topic.closed or topic.subscriptions.get(subscription.name) is not subscription:
        raise ServiceNotReadyError(f"subscription {subscription.name} just ended; try again")


async def _here(session: Session, consumer_id: int) -> Subscribed:
    """As ``_find``; one that is on its way to another broker stays."""

    async def join(session: Session, leaving: Leaving) -> None:
        with leaving.topic.held():
            await _join_alive(session, leaving.topic, leaving.request, leaving.kind, answered=True)

    await stay_if_leaving(session, consumer_id, join)
    return _find(session, consumer_id)


def _find(session: Session, consumer_id: int) -> Subscribed:
    found = session.consumers.get(consumer_id)
    if found is None:
        raise ConsumerNotFoundError(
            f"this connection has no consumer {consumer_id}; it was closed, or never subscribed"
        )
    return found


# -- without a subject ---------------------------------------------------------------------------


def flow(session: Session, view: memoryview, start: int, end: int) -> None:
    request = decode_flow(view, start, end)
    found = session.consumers.get(request.consumer_id)
    if found is not None:
        found.subscription.flow(found.consumer, request.permits)
    else:
        asked_for_messages(session, request.consumer_id, request.permits)


def acknowledge(session: Session, view: memoryview, start: int, end: int) -> None:
    count = 0  # that is not too many
    if end - start > ACK_BYTES_LONG:
        ack, count = decode_long_ack(view, start, end, ACK_IDS_MAX)
    else:
        ack = decode_ack(view, start, end)
    try:
        _, subscription, consumer = _find(session, ack.consumer_id)
        check_ack(count)
        if ack.txn is not None:
            raise NotAllowedError(
                f"subscription {subscription.name}: transactions are not served; acknowledge "
                "without one"
            )
        if not ack.cumulative:
            subscription.acknowledge(consumer, ack.ids)
        elif ack.ids:
            subscription.acknowledge_until(consumer, ack.ids[-1])
    except MagnetarError as error:
        if ack.request_id is not None:
            session.write(
                ack_response(ack.consumer_id, ack.request_id, server_error(error), str(error))
            )
        elif isinstance(error, NotAllowedError):  # else late, for a consumer that was closed
            refusals = session.services.connections.refusals
            refusals.say("acknowledgement refused", session.peer, error=str(error))
        return
    if ack.request_id is not None:
        subscription.answer_stored(consumer, ack.request_id)


def redeliver(session: Session, view: memoryview, start: int, end: int) -> None:
    request = decode_command(view, start, end).redeliverUnacknowledgedMessages
    found = session.consumers.get(request.consumer_id)
    leaving = session.leaving.get(request.consumer_id)
    if found is not None:
        _note_epoch(found, request)
        # Ids that are none (-1) are of nothing that is out, as numbers without a sign, too.
        positions = [Position(each.ledgerId, each.entryId) for each in request.message_ids]
        found.subscription.redeliver(found.consumer, positions)
    elif leaving is not None and request.HasField("consumer_epoch"):
        leaving.request.consumer_epoch = request.consumer_epoch  # it may be served here yet


# -- with one ---------------------------------------------------------------------------------


async def close_consumer(session: Session, command: BaseCommand) -> None:
    """Closing what is closed is fine."""
    request = command.close_consumer
    found = session.consumers.pop(request.consumer_id, None)
    if found is not None:
        found.leave()
    leaving = session.leaving.pop(request.consumer_id, None)
    if leaving is not None:
        leaving.end()
    session.sent.pop(request.consumer_id, None)
    session.write(success(request.request_id))


async def unsubscribe(session: Session, command: BaseCommand) -> None:
    request = command.unsubscribe
    found = await _here(session, request.consumer_id)
    topic, subscription, consumer = found
    if len(subscription.consumers) > 1 and not request.force:
        raise BrokerMetadataError(
            f"subscription {subscription.name} has {len(subscription.consumers)} consumers; the "
            "last one can unsubscribe"
        )
    consumer.client.forget()
    found.leave()
    if subscription.durable:
        try:
            await topic.delete_subscription(subscription.name, request.force)
        except MagnetarError as error:
            session.refuse(command, error)
            consumer.client.tell_closed()  # its client goes on with it after the refusal
            return
    session.write(success(request.request_id))


async def seek_consumer(session: Session, command: BaseCommand) -> None:
    request = command.seek
    topic, subscription, _ = await _here(session, request.consumer_id)
    if request.HasField("message_id"):
        place: Place = position_of(request.message_id)
    elif request.HasField("message_publish_time"):
        time_ms = request.message_publish_time
        # Java's clients write a time before 1970 as its signed number: that is no time to come.
        place = PublishTime(time_ms if time_ms < 1 << 63 else 0)
    else:
        raise NotAllowedError("a seek needs a message id or a publish time")
    services = session.services
    back_to = services.service_url if services.followed is not None else ""
    subscription.sought_by = session
    await seek(topic, subscription, place, back_to)
    session.write(success(request.request_id))


async def last_message_id(session: Session, command: BaseCommand) -> None:
    request = command.getLastMessageId
    topic, cursor = leaving_cursor(session, request.consumer_id) or _cursor(
        session, request.consumer_id
    )
    source = view = topic.readable
    reader = session.consumers.get(request.consumer_id)
    if reader is not None and reader.consumer.read_compacted and topic.compacted is not None:
        view = topic.compacted  # or it would wait for a message that compaction took out
    await topic.see_end()
    last = await topic.last_delivered(view)
    answer = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
    reply = answer.getLastMessageIdResponse
    reply.request_id = request.request_id
    fill_message_id(reply.last_message_id, last, topic.name.partition)
    if last.entry_id >= 0:
        reply.last_message_id.batch_index = await topic.last_index_at(last, view)
    fill_message_id(reply.consumer_mark_delete_position, cursor.mark_delete, -1)
    question = request.log_question
    await hold_log(reply.log_extent, topic, question)  # before it is said what there is
    await note_table(topic, question)
    compacted = await note_compaction(reply.log_extent, topic, question)
    delivered = last if view is source else source.positions.readable
    await fill_log_extent(reply.log_extent, source, question, delivered)
    await fill_given(reply.log_extent, topic, question)
    if reader is not None:
        fill_unread(reply.log_extent, reader.subscription.dispatcher.feed.unread)
    stored = session.services.stored_ledgers
    await fill_stored_ledgers(reply.log_extent, source, question, stored, compacted)
    session.send_command(answer)


def _cursor(session: Session, consumer_id: int) -> tuple[SubscribableTopic, Cursor]:
    topic, subscription, _ = _find(session, consumer_id)
    return topic, subscription.cursor


async def consumer_stats(session: Session, command: BaseCommand) -> None:
    request = command.consumerStats
    topic, subscription, consumer = await _here(session, request.consumer_id)
    (backlog,) = await backlogs(topic.readable, [subscription.cursor])
    now_ms = session.services.now_ms()
    reply = consumer_stats_reply(subscription, consumer, backlog, request.request_id, now_ms)
    session.send_command(reply)
