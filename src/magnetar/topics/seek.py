"""Moving a subscription to another place.

Clients take a bare SUCCESS for a seek without asking for more messages, and their permits leak. So
a seek sends every consumer of the subscription away (CLOSE_CONSUMER) before it is answered: they
subscribe again, with empty queues and new permits. From the moment the seek begins nothing is
dispatched and acknowledgements of the consumers that were there have no effect.

Why: docs/adr/0063-seeks-send-consumers-away.md.
"""

from __future__ import annotations

from magnetar.log.seam import Log
from magnetar.model.entry import Entry
from magnetar.model.errors import NotAllowedError, ProtocolError
from magnetar.model.ids import Position
from magnetar.topics.positions import position_of, seek_target
from magnetar.topics.subscription import Subscription
from magnetar.topics.topic import Topic
from magnetar.wire.pulsar.metadata import publish_time_ms
from magnetar.wire.pulsar.pulsar_pb2 import CommandSeek


async def position_at_time(source: Log, time_ms: int) -> Position:
    """The first position published at ``time_ms`` (milliseconds since 1970) or later; the place
    after the last entry if there is none."""

    def is_late(entry: Entry) -> bool:
        try:
            return publish_time_ms(entry.payload) >= time_ms
        except ProtocolError:
            return False  # unreadable entries are skipped by dispatch as well

    return await source.find_first(is_late)


async def seek(topic: Topic, subscription: Subscription, request: CommandSeek) -> None:
    """Move ``subscription`` so that what ``request`` names comes next; durable on return. Its
    consumers are sent away, whether it works out or not."""
    async with subscription.lock:
        subscription.hold()
        consumers = subscription.detach_all()
        try:
            await subscription.cursor.reset(await _target(topic, request))
        finally:
            for consumer in consumers:
                consumer.client.tell_consumer_closed(consumer)
            subscription.release()
            topic.linger(subscription)


async def _target(topic: Topic, request: CommandSeek) -> Position:
    if request.HasField("message_id"):
        return seek_target(topic.log, position_of(request.message_id))
    if request.HasField("message_publish_time"):
        return await position_at_time(topic.log, request.message_publish_time)
    raise NotAllowedError("a seek needs a message id or a publish time")
