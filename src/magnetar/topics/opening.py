"""Opening subscriptions: where a new one starts, and whether an existing one fits."""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.model.errors import NotAllowedError, ServiceNotReadyError, SubscriptionNotFoundError
from magnetar.model.ids import Position
from magnetar.topics.consuming.subscription import Subscription
from magnetar.topics.positions import Place, PublishTime
from magnetar.topics.subscribable import SubscribableTopic
from magnetar.topics.topic import NO_SUBSCRIPTIONS

NAME_CHARACTERS_MAX = 512


async def open_durable(
    topic: SubscribableTopic,
    name: str,
    start: Position,
    properties: Mapping[str, str],
    make: bool = True,
) -> Subscription:
    """The durable subscription of that name, made so that ``start`` is read first if there is
    none, and with ``make``; durable when it returns. Raises ``NotAllowedError`` if there is one of
    a reader, and for a name that cannot be, or is another cursor's; ``TooManyConnectionsError``,
    ``SubscriptionNotFoundError``."""
    _check_name(name)
    if name in NO_SUBSCRIPTIONS:
        raise NotAllowedError(f"{name} is not a subscription's name; choose another")
    async with topic.opening(name):
        found = topic.subscriptions.get(name)
        if found is not None:
            _check_durable(topic, found, True)  # a reader of that name may have come meanwhile
            return found
        if not make:
            raise SubscriptionNotFoundError(
                f"topic {topic.name} has no subscription {name}, and none is made by its first "
                "consumer (autoSubscriptionCreation); create it first"
            )
        topic.check_subscriptions()  # before there is a cursor, which nobody would have
        cursor = await topic.cursors.open(name, start, properties)
        if topic.closed:
            raise ServiceNotReadyError(f"topic {topic.name} is closing here; look it up again")
        return topic.add_subscription(cursor)


async def open_subscription(
    topic: SubscribableTopic, name: str, durable: bool, start: Place, properties: Mapping[str, str]
) -> Subscription:
    """The subscription of that name; one that is new reads ``start`` first. Raises
    ``NotAllowedError`` for a name that cannot be, and if there is one of the other kind."""
    _check_name(name)
    found = topic.subscriptions.get(name)
    if found is not None:
        _check_durable(topic, found, durable)
        return found
    if isinstance(start, PublishTime):
        await topic.see_end()
        start = await topic.position_at(start)
    if durable:
        return await open_durable(topic, name, start, properties, topic.makes_subscriptions)
    found = topic.subscriptions.get(name)  # others may have come while the position was found
    if found is not None:
        _check_durable(topic, found, durable)
        return found
    return topic.add_subscription(topic.cursors.reader(name, start))


def _check_name(name: str) -> None:
    """Whoever makes it: one that is longer could be stored, and no consumer could come to it."""
    if not name or len(name) > NAME_CHARACTERS_MAX:
        raise NotAllowedError(
            f"a subscription's name has 1 to {NAME_CHARACTERS_MAX} characters, not {len(name)}"
        )


def _check_durable(topic: SubscribableTopic, found: Subscription, durable: bool) -> None:
    if found.durable != durable:
        kind = "durable" if found.durable else "not durable"
        raise NotAllowedError(
            f"subscription {found.name} of {topic.name} exists and is {kind}; use another name"
        )
