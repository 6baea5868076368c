"""Subscriptions are sent to read-only brokers, as their topics' policy says (``cluster.steering``
decides), and away from them.

The owner of a topic asks ``place`` for every consumer that subscribes. ``run`` looks after those
who are served here already: when rules or brokers have changed for long enough, all consumers of a
subscription are sent to its new place together, by the address of the broker that serves it next.
A read-only broker sends them back to the owner, which alone decides.

Rules:

* Nothing is delivered by the owner to whom it sends on.
* What consumers have acknowledged is stored before they are sent away: where they go to reads it.
* Where any consumer would not follow, the subscription stays with the owner.
* A reader that begins at the end of the log begins at the owner, which knows the end; it is sent on
  once it has got a message, by which its client says where to go on. Elsewhere the end comes later,
  and what was published meanwhile would be missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import structlog

from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.policies.read_rules import Asked
from magnetar.cluster.steering import Move, Seeker, Sent, Sought, Steering
from magnetar.cluster.topic_name import TopicName
from magnetar.model.errors import MagnetarError, ServiceNotReadyError
from magnetar.topics.consuming.subscription import Kind, Subscription
from magnetar.topics.subscribable import SubscribableTopic
from magnetar.topics.topic import Topic

log = structlog.get_logger(__name__)

LOOK_S: Final = 1.0
TOPICS_PER_TURN: Final = 100
NOWHERE: Final = ""


class Bindings(Protocol):
    """Which subscriptions of this owner's topics read-only brokers serve (``topics.bindings``)."""

    async def bound_to(self, topic: TopicName, subscription: str) -> str | None:
        """The id of the broker; None: none."""
        ...

    async def end(self, topic: TopicName, subscription: str, broker_id: str) -> None:
        """Have that broker serve it no more; fine if it does not. Raises ``MagnetarError`` if it
        may do so still."""
        ...


class Subscribing(NamedTuple):
    """A consumer that subscribes; ``sent`` as ``cluster.steering.Seeker`` has it. ``at_end``: a
    reader that is to get what is published from now on."""

    subscription: str
    kind: Kind
    properties: Mapping[str, str]
    follows: bool
    sent: Sent | None = None
    at_end: bool = False


class Elsewhere(NamedTuple):
    """Another broker is to serve the consumer: the one at ``service_url``."""

    service_url: str
    sent: Sent


class ReadSteering:
    """See the module's text. ``reports``: of all brokers. ``topics``: those that are served here.
    ``here``: this broker's id if it is read-only; nobody asks it for a place then."""

    def __init__(
        self,
        reports: Callable[[], Awaitable[Mapping[str, BrokerReport]]],
        topics: Callable[[], Sequence[SubscribableTopic]],
        bindings: Bindings,
        here: str | None = None,
    ) -> None:
        self._reports = reports
        self._topics = topics
        self._bindings = bindings
        self._here = here
        self._steering = Steering()
        self._loop = asyncio.get_running_loop()

    # -- who comes ----------------------------------------------------------------------------

    async def place(self, topic: SubscribableTopic, asks: Subscribing) -> Elsewhere | None:
        """Where the consumer is to go; None: it is served here. Raises ``ServiceNotReadyError``
        for one that has to come again, ``MetadataError``."""
        found = topic.subscriptions.get(asks.subscription)
        # Those who are here keep it here; so does a reader's place, which nobody else knows.
        if asks.at_end or (found is not None and (found.consumers or not found.durable)):
            return None
        rules = topic.policy.reading
        if not rules.rules or not _followable(topic):
            return None
        bound = await self._bindings.bound_to(topic.name, asks.subscription)
        sought = Sought(str(topic.name), asks.subscription)
        asked = Asked(asks.subscription, _type(asks.kind), asks.properties)
        reports = await self._reports()
        seeker = Seeker(sought, asked, asks.follows, asks.sent)
        place = self._steering.place(seeker, rules, reports, bound, self._loop.time())
        if place.waits:
            raise ServiceNotReadyError(
                f"subscription {asks.subscription} of {topic.name} is served by the read-only "
                f"broker {bound}, which has not taken this consumer; it can come again"
            )
        _note_return(sought, asks.sent, place.sent)
        if place.instead_of is not None:
            await self._bindings.end(topic.name, asks.subscription, place.instead_of)
        if place.sent is None:
            return None
        return Elsewhere(reports[place.sent.broker].service_url, place.sent)

    # -- who is here --------------------------------------------------------------------------

    async def run(self) -> None:
        """Send on whom another place is for, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except MagnetarError as error:
                log.warning("consumers stay where they are", error=str(error))

    async def look(self) -> None:
        """Raises ``MetadataError``."""
        reports = await self._reports()
        if self._here is None and not any(each.read_only for each in reports.values()):
            return
        async for topic in self._steered():
            for subscription in list(topic.subscriptions.values()):
                if subscription.consumers and not topic.closed:
                    await self._look_at(topic, subscription, reports)

    async def _steered(self) -> AsyncIterator[SubscribableTopic]:
        """Topics whose subscriptions may have to go, some in each turn of the loop."""
        for number, topic in enumerate(self._topics()):
            if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            if topic.closed or not _followable(topic):
                continue
            if self._here is not None or topic.policy.reading.rules:
                yield topic

    async def _look_at(
        self,
        topic: SubscribableTopic,
        subscription: Subscription,
        reports: Mapping[str, BrokerReport],
    ) -> None:
        if self._here is None and not _can_go(subscription):
            return
        # The first that came speaks for all: they may bring different properties.
        properties = subscription.consumers[0].properties
        move = self._steering.move(
            Sought(str(topic.name), subscription.name),
            Asked(subscription.name, _type(subscription.kind), properties),
            topic.policy.reading,
            reports,
            self._here,
            self._loop.time(),
        )
        if move is not None:
            await self._send_away(topic, subscription, self._address(move, reports))

    def _address(self, move: Move, reports: Mapping[str, BrokerReport]) -> str:
        """Whom the consumers are told to go to. The owner decides again who comes from here."""
        if self._here is not None or move.broker is None:
            return NOWHERE
        return reports[move.broker].service_url

    async def _send_away(
        self, topic: SubscribableTopic, subscription: Subscription, url: str
    ) -> None:
        with topic.held():
            async with subscription.lock:
                if topic.closed or topic.subscriptions.get(subscription.name) is not subscription:
                    return
                try:
                    await subscription.cursor.wait_stored()
                except MagnetarError as error:
                    log.warning(
                        "consumers stay: what they acknowledged is not stored",
                        **_about(topic, subscription),
                        error=str(error),
                    )
                    return
                log.info(
                    "consumers are sent to another broker",
                    **_about(topic, subscription),
                    to=url or "the owner",
                )
                topic.send_away(subscription, url)


def _note_return(sought: Sought, before: Sent | None, now: Sent | None) -> None:
    if before is None or before.sought != sought or (now and now.broker == before.broker):
        return
    log.warning(
        "a consumer comes back from the read-only broker that it was sent to",
        topic=sought.topic,
        subscription=sought.subscription,
        broker=before.broker,
        next=now.broker if now else "the owner",
    )


def _can_go(subscription: Subscription) -> bool:
    """Its clients go where they are sent, and say there what they have got."""
    begun = subscription.durable or all(each.messages_out for each in subscription.consumers)
    return begun and all(each.follows for each in subscription.consumers)


def _type(kind: Kind) -> str:
    """In Pulsar's words, as rules have them."""
    return kind.name.title()


def _about(topic: SubscribableTopic, subscription: Subscription) -> dict[str, str]:
    return {"topic": str(topic.name), "subscription": subscription.name}


def _followable(topic: SubscribableTopic) -> bool:
    """Whether others could serve it: not every engine's logs can be followed."""
    return not isinstance(topic, Topic) or topic.log.followable
