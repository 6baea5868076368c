"""Consumers that another broker is to serve (``topics.steering``): SUCCESS for their SUBSCRIBE, and
then CLOSE_CONSUMER with that broker's address (PIP-307).

When they are told of it matters. Go's client up to 0.20 knows its consumer only once it has dealt
with SUCCESS: a CLOSE_CONSUMER right behind it is for nobody, and the consumer waits for ever.
Before SUCCESS the C++ client drops it. What every client does when it is ready is to ask for
messages: so the first FLOW is the sign. After it ``STAYS_S`` pass, in which nothing is delivered,
and what applications do right after they subscribed is done here: between the close and the arrival
elsewhere clients have no connection to do it by.

The subscription is there, durably, before SUCCESS: what is published from then on is for it,
however long its consumer is on its way.

Why: docs/adr/0093-consumers-are-sent-to-read-only-brokers.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.env.tasks import nothing
from magnetar.log.seam import Cursor
from magnetar.model.errors import MagnetarError, NotAllowedError
from magnetar.model.ids import LATEST
from magnetar.protocols.pulsar.bounds import check_subscribe, consumer_properties
from magnetar.protocols.pulsar.leaving import Leaving
from magnetar.protocols.pulsar.session import Session
from magnetar.topics.consuming.subscription import Kind
from magnetar.topics.opening import open_subscription
from magnetar.topics.positions import Place, PublishTime
from magnetar.topics.steering import Subscribing
from magnetar.topics.subscribable import SubscribableTopic
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandSubscribe
from magnetar.wire.pulsar.replies import success

STAYS_S: Final = 0.1
SENT_MAX: Final = 1000
"""Consumers of one connection of which it is known where they were sent."""

Join = Callable[[Session, Leaving], Awaitable[None]]


async def send_elsewhere(
    session: Session, topic: SubscribableTopic, request: CommandSubscribe, kind: Kind, start: Place
) -> bool:
    """Whether another broker is to serve the consumer; it is told so then. Raises as
    ``ReadSteering.place``, and ``ConsumerBusyError`` if there is no room for it there."""
    steering = session.services.steering
    if steering is None:
        return False
    properties = check_subscribe(request)
    before = session.sent.get(request.consumer_id)
    found = await steering.place(
        topic,
        Subscribing(
            request.subscription,
            kind,
            consumer_properties(request),
            session.follows_assigned_url,
            before,
            not request.durable and start == LATEST,
        ),
    )
    if found is None:
        session.sent.pop(request.consumer_id, None)
        return False
    if before is None and session.services.bindings is not None:
        # One that was there already may have left without that broker's having noticed.
        await session.services.bindings.check_room(
            topic.name, request.subscription, found.sent.broker, kind
        )
    begin = await topic.position_at(start) if isinstance(start, PublishTime) else start
    if request.durable:
        check_wanted(session, topic, request.subscription)
        await open_subscription(topic, request.subscription, True, begin, properties)
    if not session.closed:
        if len(session.sent) >= SENT_MAX:
            del session.sent[next(iter(session.sent))]
        session.sent[request.consumer_id] = found.sent
        leaving = Leaving(topic, request, kind, begin, found.service_url)
        session.leaving[request.consumer_id] = leaving
        session.write(success(request.request_id))
    return True


def check_wanted(session: Session, topic: SubscribableTopic, name: str) -> None:
    """Raise ``ServiceNotReadyError`` if the subscription would be made for a client that has gone:
    one that comes back asks for it again."""
    if name not in topic.subscriptions:
        session.check_open(f"subscription {name} of {topic.name}")


def subscribed_again(session: Session, topic: str, request: CommandSubscribe) -> bool:
    """Whether the consumer is on its way already: its client did not hear the first answer."""
    leaving = session.leaving.get(request.consumer_id)
    if leaving is None:
        return False
    if (str(leaving.topic.name), leaving.request.subscription) != (topic, request.subscription):
        raise NotAllowedError(
            f"consumer {request.consumer_id} of this connection is on {leaving.topic.name}"
        )
    session.write(success(request.request_id))
    return True


def asked_for_messages(session: Session, consumer_id: int, permits: int) -> None:
    """Its client knows the consumer by now."""
    leaving = session.leaving.get(consumer_id)
    if leaving is None:
        return
    leaving.permits += permits
    if leaving.end_wait is None:
        tell = session.services.scope.guarded(
            lambda: _tell(session, consumer_id, leaving), "send a consumer to another broker"
        )
        leaving.end_wait = asyncio.get_running_loop().call_later(STAYS_S, tell).cancel


def _tell(session: Session, consumer_id: int, leaving: Leaving) -> None:
    if session.leaving.get(consumer_id) is not leaving:
        return
    del session.leaving[consumer_id]
    leaving.end()
    command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
    command.close_consumer.consumer_id = consumer_id
    command.close_consumer.request_id = 0
    command.close_consumer.assignedBrokerServiceUrl = leaving.service_url
    tls_url = session.services.known_tls_url(leaving.service_url)
    if tls_url:
        command.close_consumer.assignedBrokerServiceUrlTls = tls_url
    session.send_command(command)


def leaving_cursor(session: Session, consumer_id: int) -> tuple[SubscribableTopic, Cursor] | None:
    """Where a consumer stands that is on its way; None if it is not."""
    leaving = session.leaving.get(consumer_id)
    if leaving is None:
        return None
    topic, request = leaving.topic, leaving.request
    found = topic.subscriptions.get(request.subscription)
    return topic, found.cursor if found is not None else topic.cursors.reader("", leaving.start)


async def stay_if_leaving(session: Session, consumer_id: int, join: Join) -> None:
    """More is asked of the consumer than messages: it is served here for now, with the permits that
    it has given, and sent on later (``topics.steering``). Raises what ``join`` does, and tells the
    consumer to go; at once if another broker serves its subscription: that is to be asked there."""
    leaving = session.leaving.get(consumer_id)
    if leaving is None:
        return
    leaving.end()
    leaving.end_wait = nothing  # a FLOW that comes while it joins is a permit, and no sign to go
    found = leaving.topic.subscriptions.get(leaving.request.subscription)
    try:
        if found is not None:
            found.check_served_here()
        await join(session, leaving)
    except MagnetarError:
        _tell(session, consumer_id, leaving)
        raise
    session.leaving.pop(consumer_id, None)
    here = session.consumers.get(consumer_id)
    if here is not None and leaving.permits:
        here.subscription.flow(here.consumer, leaving.permits)
