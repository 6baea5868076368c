"""Opening subscriptions: where a new one starts, and whether an existing one fits."""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.model.errors import NotAllowedError, ServiceNotReadyError
from magnetar.model.ids import EARLIEST, LATEST, Position
from magnetar.topics.positions import reader_start
from magnetar.topics.seek import position_at_time
from magnetar.topics.subscription import Subscription
from magnetar.topics.topic import Topic
from magnetar.wire.pulsar.pulsar_pb2 import CommandSubscribe

NAME_CHARACTERS_MAX = 512


async def open_durable(
    topic: Topic, name: str, start: Position, properties: Mapping[str, str]
) -> Subscription:
    """The durable subscription of that name, made so that ``start`` is read first if there is
    none; durable when it returns."""
    async with topic.lock:
        found = topic.subscriptions.get(name)
        if found is not None:
            return found
        cursor = await topic.log.open_cursor(name, start, properties)
        if topic.closed:
            raise ServiceNotReadyError(f"topic {topic.name} is closing here; look it up again")
        return topic.add_subscription(cursor)


async def open_subscription(topic: Topic, request: CommandSubscribe, now_ms: int) -> Subscription:
    """The subscription that a SUBSCRIBE asks for. Raises ``NotAllowedError``."""
    name = request.subscription
    if not name or len(name) > NAME_CHARACTERS_MAX:
        raise NotAllowedError(
            f"a subscription's name has 1 to {NAME_CHARACTERS_MAX} characters, not {len(name)}"
        )
    found = topic.subscriptions.get(name)
    if found is not None:
        _check_durable(topic, found, request.durable)
        return found
    start = await _start(topic, request, now_ms)
    if request.durable:
        properties = {item.key: item.value for item in request.subscription_properties}
        return await open_durable(topic, name, start, properties)
    return topic.subscriptions.get(name) or topic.add_subscription(
        topic.log.reader_cursor(name, start)
    )


def _check_durable(topic: Topic, found: Subscription, durable: bool) -> None:
    if found.durable != durable:
        kind = "durable" if found.durable else "not durable"
        raise NotAllowedError(
            f"subscription {found.name} of {topic.name} exists and is {kind}; use another name"
        )


async def _start(topic: Topic, request: CommandSubscribe, now_ms: int) -> Position:
    """The next position that a new subscription reads."""
    if request.start_message_rollback_duration_sec:
        back_ms = request.start_message_rollback_duration_sec * 1000
        return await position_at_time(topic.log, max(0, now_ms - back_ms))
    if not request.durable and request.HasField("start_message_id"):
        return reader_start(topic.log, request.start_message_id)
    earliest = request.initialPosition == CommandSubscribe.Earliest
    return EARLIEST if earliest else LATEST
