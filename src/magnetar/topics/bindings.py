"""Subscriptions of this broker's topics that read-only brokers serve: the owner's side.

``binding_rules`` decides; here it is done, under each subscription's lock, and stored before
anybody acts on it (``Subscription.bind``, ``end_binding``). What is merged is acknowledged as if a
consumer here had acknowledged it.

A look every ``LOOK_S`` ends the bindings of brokers that are gone, or silent.

Why: docs/adr/0094-read-only-brokers.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple

import structlog

from magnetar.cluster.topic_name import TopicName
from magnetar.log.acknowledgements import AckImage
from magnetar.log.seam import Binding, Cursor
from magnetar.model.errors import BindingEndedError, MagnetarError, ServiceNotReadyError
from magnetar.model.ids import Position
from magnetar.topics.consuming.binding_rules import give, holds, is_asked, why_over
from magnetar.topics.consuming.bound import BoundBroker, BoundSubscription, SeatsTaken
from magnetar.topics.consuming.subscription import Kind, Subscription, check_seats
from magnetar.topics.opening import open_durable
from magnetar.topics.subscribable import SubscribableTopic

log = structlog.get_logger(__name__)

LOOK_S: Final = 1.0
TOPICS_PER_TURN: Final = 1000
SEATS_S: Final = 1.0
FREE_S: Final = 10.0
"""Less than brokers and clients wait for an answer."""
ENDS_AT_ONCE: Final = 100
"""Each writes to the metadata store."""

Starts = Callable[[], Awaitable[Mapping[str, int]]]
"""The starts of the read-only brokers that are registered, by id. May raise ``MetadataError``."""


class Lent(NamedTuple):
    """What a broker that was bound to a subscription begins with."""

    binding: Binding
    image: AckImage
    term: int
    properties: Mapping[str, str]


class OwnerBindings:
    """See the module's text. ``topics``: those that are open here; ``find`` one of them.
    ``silence_s``: how long a bound broker may say nothing."""

    def __init__(
        self,
        topics: Callable[[], Iterable[SubscribableTopic]],
        find: Callable[[TopicName], SubscribableTopic | None],
        starts: Starts,
        silence_s: float,
    ) -> None:
        self._topics = topics
        self._find = find
        self._starts = starts
        self._silence_s = silence_s

    # -- what bound brokers ask ---------------------------------------------------------------

    async def bind(
        self,
        topic: SubscribableTopic,
        name: str,
        start: Position,
        properties: Mapping[str, str],
        asker: Binding,
        client: BoundBroker,
    ) -> Lent:
        """Give the subscription, which is made if there is none, to ``asker``. Raises
        ``ServiceNotReadyError``, and what storing it does."""
        subscription = await open_durable(topic, name, start, properties, topic.makes_subscriptions)
        await self.wait_free(subscription, asker.broker_id)
        async with subscription.lock:
            self._check_there(topic, subscription)
            if subscription.doubtful:
                await subscription.cursor.wait_stored()
                subscription.doubtful = False
            lending = subscription.cursor.lending
            assert lending is not None, "a durable cursor of ours"
            starts = await self._starts()
            self._check_there(topic, subscription)
            held = subscription.bound
            binding = give(lending.binding if held is None else held.binding, asker, starts)
            bound = await subscription.bind(binding)
            bound.heard(client)
            log.info("subscription is served elsewhere", **_who(topic, subscription, binding))
            # Not before it is bound: until then it goes on here.
            cursor = subscription.cursor
            return Lent(binding, lending.image(), lending.term, cursor.properties)

    def _check_there(self, topic: SubscribableTopic, subscription: Subscription) -> None:
        if topic.closed or topic.subscriptions.get(subscription.name) is not subscription:
            raise ServiceNotReadyError(f"subscription {subscription.name} just ended; try again")

    def _check_open(self, topic: SubscribableTopic) -> None:
        """What a cursor takes when its log is being closed is perhaps not stored any more, and the
        next owner has it without it, in the same term."""
        if topic.closed:
            raise ServiceNotReadyError(f"topic {topic.name} is closing here; try again")

    def merge(
        self,
        topic: SubscribableTopic,
        name: str,
        claimed: Binding,
        image: AckImage,
        client: BoundBroker,
    ) -> Cursor:
        """What ``image`` says is acknowledged when this returns, and is stored in the time of the
        cursor, which is returned. Raises ``BindingEndedError``, ``NotAllowedError``,
        ``ServiceNotReadyError``."""
        self._check_open(topic)
        subscription = self._held(topic, name, claimed, client)
        cursor, bound = subscription.cursor, subscription.bound
        assert cursor.lending is not None
        cursor.lending.merge(image)
        if bound is not None and cursor.mark_delete > image.mark_delete:
            # What was done here was told to nobody: its connection was broken, or it had not spoken
            # since the topic was opened here.
            epoch = cursor.lending.reset_epoch
            client.tell_moved(bound.binding, cursor.mark_delete, epoch)
        return cursor

    def keep(
        self,
        topic: SubscribableTopic,
        name: str,
        claimed: Binding,
        client: BoundBroker,
        seats: SeatsTaken | None,
    ) -> None:
        """It is served still, to those. Raises ``BindingEndedError``."""
        bound = self._held(topic, name, claimed, client).bound
        if seats is not None and bound is not None:
            bound.heard_seats(seats)

    async def release(
        self, topic: SubscribableTopic, name: str, claimed: Binding, client: BoundBroker
    ) -> None:
        """It is served here again. Raises as ``merge``."""
        subscription = self._held(topic, name, claimed, client)
        async with subscription.lock:
            bound = subscription.bound
            if bound is not None and holds(bound.binding, claimed):
                bound.heard(None)  # it knows
                await subscription.end_binding()
                log.info("subscription is given back", **_who(topic, subscription, claimed))

    async def delete(
        self, topic: SubscribableTopic, name: str, claimed: Binding, client: BoundBroker
    ) -> None:
        """Delete the subscription; one that is not there is deleted. Raises as
        ``SubscribableTopic.delete_subscription``."""
        if name not in topic.subscriptions:
            return
        bound = self._held(topic, name, claimed, client).bound
        if bound is not None:
            bound.heard(None)  # it knows
        await topic.delete_subscription(name, force=True, asker=bound)

    def _held(
        self, topic: SubscribableTopic, name: str, claimed: Binding, client: BoundBroker
    ) -> Subscription:
        """The subscription that ``claimed`` is bound to. Raises ``BindingEndedError``."""
        subscription = topic.subscriptions.get(name)
        bound = None if subscription is None else subscription.bound
        if subscription is None or bound is None or not holds(bound.binding, claimed):
            raise BindingEndedError(
                f"subscription {name} of {topic.name} is not bound to {claimed.broker_id} by "
                f"epoch {claimed.epoch} (any more)"
            )
        bound.heard(client)
        return subscription

    async def wait_free(self, subscription: Subscription, broker_id: str = "") -> None:
        """Wait a while until no other broker than that one serves it. Clients that are refused come
        again late, if at all: most are moving, or their broker has just gone."""
        bound = subscription.bound
        if bound is None or bound.binding.broker_id == broker_id:
            return
        bound.ask()
        try:
            async with asyncio.timeout(FREE_S):
                await bound.over.wait()
        except TimeoutError:
            return  # whoever wants it is refused

    async def check_room(self, topic: TopicName, name: str, broker_id: str, kind: Kind) -> None:
        """Raise ``ConsumerBusyError`` if a consumer of ``kind`` cannot join those who are connected
        to the subscription where that broker serves it. Where it is not bound, or the broker does
        not answer soon, nobody is refused: it will be there."""
        bound = self._bound(topic, name)
        if bound is None or bound.binding.broker_id != broker_id:
            return
        seats = await bound.seats(SEATS_S)
        if seats is not None:
            check_seats(f"subscription {name} on {topic.log_name}", kind, seats)

    # -- subscriptions that are wanted back ---------------------------------------------------

    async def bound_to(self, topic: TopicName, subscription: str) -> str | None:
        """The id of the broker that serves it; None: none, or the topic is not open here."""
        bound = self._bound(topic, subscription)
        return None if bound is None else bound.binding.broker_id

    async def end(self, topic: TopicName, subscription: str, broker_id: str) -> None:
        """Have that broker serve it no more: it gives it back, or it is taken. Fine if it does not
        serve it. Raises what storing the end does."""
        bound = self._bound(topic, subscription)
        if bound is None or bound.binding.broker_id != broker_id:
            return
        await bound.give_back()
        found = self._find(topic)
        if found is not None and subscription in found.subscriptions:
            await self._end(found, found.subscriptions[subscription], bound, "it is wanted back")

    def _bound(self, topic: TopicName, subscription: str) -> BoundSubscription | None:
        found = self._find(topic)
        held = None if found is None else found.subscriptions.get(subscription)
        return None if held is None else held.bound

    # -- bindings that end by themselves ------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except MagnetarError as error:
                log.info("bindings not looked at now", error=str(error))

    async def look(self) -> None:
        """End what has to end. Raises ``MetadataError``."""
        topics, found = list(self._topics()), []
        for first in range(0, len(topics), TOPICS_PER_TURN):
            if first:
                await asyncio.sleep(0)
            # Each of them every second, of which few are bound: a plain loop, no generator.
            found += [
                (topic, subscription)
                for topic in topics[first : first + TOPICS_PER_TURN]
                for subscription in topic.subscriptions.values()
                if subscription.bound is not None
            ]
        starts = await self._starts() if found else {}
        for first in range(0, len(found), ENDS_AT_ONCE):
            some = found[first : first + ENDS_AT_ONCE]
            await asyncio.gather(*(self._look_at(*each, starts) for each in some))

    async def _look_at(
        self, topic: SubscribableTopic, subscription: Subscription, starts: Mapping[str, int]
    ) -> None:
        bound = subscription.bound
        if bound is None or topic.closed:
            return
        if bound.lost():
            topic.let_go()
        why = why_over(bound.binding, starts, bound.silent_s, self._silence_s)
        if why is None:
            if is_asked(bound.silent_s, self._silence_s):
                bound.ask()
            return
        try:
            await self._end(topic, subscription, bound, why)
        except MagnetarError as error:  # others do not wait for it; it is tried again
            who = _who(topic, subscription, bound.binding)
            log.warning("binding not ended yet", error=str(error), **who)

    async def _end(
        self,
        topic: SubscribableTopic,
        subscription: Subscription,
        bound: BoundSubscription,
        why: str,
    ) -> None:
        async with subscription.lock:
            if subscription.bound is bound and not topic.closed:
                log.info("binding ended", reason=why, **_who(topic, subscription, bound.binding))
                await subscription.end_binding()


def _who(
    topic: SubscribableTopic, subscription: Subscription, binding: Binding
) -> dict[str, object]:
    return {
        "topic": str(topic.name),
        "subscription": subscription.name,
        "broker": binding.broker_id,
        "epoch": binding.epoch,
    }
