"""A read-only broker and the owner of its topics: over TCP, on logs and metadata in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from magnetar.admin.peers import PeerAnswer, PeerError
from magnetar.admin.stats_views import SubscriptionView
from magnetar.app.broker import Broker
from magnetar.cluster.brokers.reports import broker_path, decode_report, encode_report
from magnetar.cluster.policies.read_rules import ReadRules
from magnetar.cluster.topic_name import parse_topic
from magnetar.config import BrokerConfig
from magnetar.log.acknowledgements import AckImage
from magnetar.log.seam import Binding
from magnetar.model.errors import (
    BindingEndedError,
    ConsumerBusyError,
    LogError,
    MagnetarError,
    NotAllowedError,
    ServiceNotReadyError,
    TooManyConnectionsError,
    TopicNotFoundError,
)
from magnetar.model.ids import EARLIEST, LATEST, Position
from magnetar.protocols.pulsar.handlers import bound_cursors
from magnetar.protocols.pulsar.owner_links import OwnerLinks
from magnetar.topics.consuming.subscription import Kind, Subscription
from magnetar.topics.following.followed_topic import FollowedTopic
from magnetar.topics.following.remote_acks import LentCursor, NewsKind, OwnerNews
from magnetar.topics.seek import seek
from magnetar.topics.skipping import skip_messages
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandLookupTopicResponse
from tests.doubles.admin import topic_service
from tests.doubles.memory_log import MemoryCursor, MemoryLogStore
from tests.doubles.memory_metadata import MemoryMetadata
from tests.doubles.memory_values import MemoryValues
from tests.unit.protocols.pulsar.harness import EXCLUSIVE, SHARED, TOPIC, Peer, World

SESSION_MS = 30_000
NAME = parse_topic(TOPIC)


class Side(World):
    """One of two brokers."""

    def __init__(self, store: MemoryLogStore, metadata: MemoryMetadata, read_only: bool) -> None:
        self.store, self.metadata, self.values = store, metadata, MemoryValues()
        self.lost: list[str] = []
        self.read_only = read_only
        self.broker = Broker(
            replace(BrokerConfig(port=0), bound_ack_interval_ms=5, binding_idle_ms=50),
            store,
            metadata,
            self.values,
            clock=lambda: 1e9,
            shares=True,
            read_only=read_only,
        )
        self.services = self.broker.pulsar.services

    async def start(self) -> Side:
        await self.broker.start()
        await self.broker.join("", "", SESSION_MS, self.lost.append, self.read_only)
        self.admin = topic_service(self.broker)
        return self

    async def close(self) -> None:
        await self.broker.leave()
        await self.broker.close()


class Two:
    """``owner`` of all topics, and ``reading``, which serves subscriptions of them."""

    def __init__(self) -> None:
        self.store, self.metadata = MemoryLogStore(5), MemoryMetadata()
        self.owner = Side(self.store, self.metadata, False)
        self.reading = Side(self.store, self.metadata, True)

    async def publish(self, count: int, first: int = 0) -> None:
        producer = self.owner.peer()
        await producer.produce()
        producer.publish(count, first)
        await producer.heard()
        producer.lose()

    def bound(self, name: str = "s") -> Binding | None:
        found = self.owner.topic().subscription(name).bound
        return None if found is None else found.binding

    def mark(self, name: str = "s") -> Position:
        return self.owner.topic().subscription(name).cursor.mark_delete

    def links(self) -> OwnerLinks:
        links = self.reading.broker._links
        assert links is not None
        return links

    def serving_all(self) -> dict[str, Subscription]:
        assert self.reading.services.followed is not None
        topic = self.reading.services.followed.find(NAME)
        assert topic is not None
        return topic.subscriptions

    def serving(self, name: str = "s") -> Subscription:
        return self.serving_all()[name]


def with_two(scenario: Callable[[Two], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        two = Two()
        await two.owner.start()
        await two.reading.start()
        try:
            async with asyncio.timeout(60):
                await scenario(two)
        finally:
            await two.reading.close()
            await two.owner.close()

    asyncio.run(run())


async def eventually(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not what():  # noqa: ASYNC110 (several parts have to get there)
            await asyncio.sleep(0.005)


async def entries(peer: Peer, count: int) -> list[int]:
    """The numbers of the next ``count`` entries, as they come."""
    found: list[int] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += await peer.entries()
            await asyncio.sleep(0.005)
    return found


async def succeeded(peer: Peer, asked: Awaitable[BaseCommand]) -> None:
    answer = await asked
    assert answer.type == BaseCommand.SUCCESS, answer


def test_a_subscription_is_served_and_its_cursor_is_the_owners() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(7)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        peer.flow(100)
        assert await entries(peer, 7) == list(range(7))
        peer.acknowledge(0, 1, 2, 4)
        await eventually(lambda: two.mark() == Position(1, 2))
        assert two.owner.topic().subscription("s").cursor.is_acknowledged(1, 4)
        peer.acknowledge(3, request_id=9)
        answer = await peer.next()
        assert answer.type == BaseCommand.ACK_RESPONSE
        assert not answer.ackResponse.HasField("error")
        assert two.mark() == Position(1, 4), "answered when the owner has stored it"
        await two.publish(3, first=7)
        assert await entries(peer, 3) == [7, 8, 9]
        bound = two.bound()
        assert bound is not None
        assert bound.epoch == 1
        assert bound.service_url == two.reading.broker.service_url

    with_two(scenario)


def test_what_only_owners_serve_is_refused_and_lookups_are_sent_on() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(1)
        peer = two.reading.peer()
        refused = await peer.produce()
        assert refused.error.error == ServerError.SERVICE_NOT_READY
        lookup = BaseCommand(type=BaseCommand.LOOKUP)
        lookup.lookupTopic.topic, lookup.lookupTopic.request_id = TOPIC, 5
        answer = (await peer.ask(lookup)).lookupTopicResponse
        assert answer.response == CommandLookupTopicResponse.Connect
        assert answer.brokerServiceUrl == two.owner.broker.service_url
        assert len(two.reading.services.topics) == 0
        assert two.store.opens == 1

    with_two(scenario)


def test_nobody_else_serves_it_and_it_comes_back_exactly() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(6)
        before = two.owner.peer()
        await succeeded(before, before.subscribe(kind=SHARED))
        before.flow(2)
        assert await entries(before, 2) == [0, 1]
        before.acknowledge(0)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe(kind=SHARED))
        told = await before.next()
        assert told.type == BaseCommand.CLOSE_CONSUMER
        assert told.close_consumer.assignedBrokerServiceUrl == two.reading.broker.service_url
        before.tell(before.subscribe_command(kind=SHARED))
        peer.flow(100)
        assert await entries(peer, 5) == [1, 2, 3, 4, 5], "but what was acknowledged there"
        peer.acknowledge(2, 4)
        peer.lose()
        assert two.bound() is not None
        await succeeded(before, before.next())
        assert two.bound() is None, "after binding_idle_ms; who wanted it has waited"
        before.flow(100)
        assert await entries(before, 3) == [1, 3, 5]

    with_two(scenario)


def test_whoever_wants_what_is_served_elsewhere_is_refused_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.topics.bindings.FREE_S", 0.05)

    async def scenario(two: Two) -> None:
        await two.publish(1)
        peer, at_owner = two.reading.peer(), two.owner.peer()
        await succeeded(peer, peer.subscribe())
        refused = await at_owner.subscribe()
        assert refused.error.error == ServerError.SERVICE_NOT_READY
        assert two.reading.broker.service_url in refused.error.message

    with_two(scenario)


def test_what_was_given_back_is_bound_anew() -> None:
    """Nobody is served by the binding before: what he acknowledges would be sent to nobody."""

    async def scenario(two: Two) -> None:
        await two.publish(3)
        for number in range(3):
            peer = two.reading.peer()
            await succeeded(peer, peer.subscribe())
            peer.flow(1)
            assert await entries(peer, 1) == [number]
            peer.acknowledge(number, number)
            await eventually(lambda acked=number: two.mark() == Position(1, acked))
            peer.lose()
            await eventually(lambda: two.bound() is None)  # nobody uses it

    with_two(scenario)


def test_one_that_is_being_given_back_is_bound_anew_when_that_is_over() -> None:
    """With all that was acknowledged; and the owner's news of it are heard."""

    async def scenario(two: Two) -> None:
        await two.publish(6)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        peer.flow(100)
        await entries(peer, 6)
        links, gate = two.links(), asyncio.Event()
        merge = links.merge

        async def slow(cursor: LentCursor, image: AckImage, stored: bool) -> int:
            await gate.wait()
            return await merge(cursor, image, stored)

        links.merge = slow  # type: ignore[method-assign]
        peer.acknowledge(0, 2)
        held, bindings = two.bound(), two.owner.broker.bindings
        assert held is not None
        ending = asyncio.ensure_future(bindings.end(NAME, "s", held.broker_id))
        await eventually(lambda: "s" not in two.serving_all())
        other = two.reading.peer()
        joining = asyncio.ensure_future(other.subscribe())
        await asyncio.sleep(0.1)
        assert not joining.done()
        gate.set()
        await ending
        await succeeded(other, joining)
        other.flow(100)
        assert await entries(other, 4) == [1, 3, 4, 5]
        two.owner.topic().subscription("s").expire(Position(1, 4))
        await eventually(lambda: two.serving().cursor.mark_delete == Position(1, 3))

    with_two(scenario)


def test_a_binding_that_ends_before_it_is_begun_serves_nobody() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(1)
        links = two.links()
        bind = links.bind

        async def ended(topic: Any, name: str, first: Any, properties: Any, told: Any) -> Any:
            links.bind = bind  # type: ignore[method-assign]
            found = await bind(topic, name, first, properties, told)
            told(OwnerNews(NewsKind.ENDED, found.cursor.epoch))
            return found

        links.bind = ended  # type: ignore[method-assign]
        peer = two.reading.peer()
        refused = await peer.subscribe()
        assert refused.error.error == ServerError.SERVICE_NOT_READY
        await succeeded(peer, peer.subscribe())

    with_two(scenario)


def test_a_binding_that_its_broker_never_heard_of_is_disowned() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(2)
        links = two.links()
        lost = await links.bind(NAME, "s", EARLIEST, {}, lambda _: None)
        links.forget(NAME, "s")  # as if the answer had been lost
        assert two.bound() is not None
        at_owner = two.owner.peer()
        await succeeded(at_owner, at_owner.subscribe())
        assert two.bound() is None
        with pytest.raises(BindingEndedError):
            await links.keep(lost.cursor, None)

    with_two(scenario)


def test_what_is_being_bound_when_the_topic_closes_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(two: Two) -> None:
        await two.publish(2)
        links, asked, answered = two.links(), asyncio.Event(), asyncio.Event()
        bind, asks = links.bind, list[Callable[[OwnerNews], None]]()

        async def late(*wanted: Any) -> Any:
            bound = await bind(*wanted)
            asks.append(wanted[-1])
            asked.set()
            await answered.wait()
            return bound

        monkeypatch.setattr(links, "bind", late)
        peer = two.reading.peer()
        subscribing = asyncio.ensure_future(peer.subscribe())
        await asked.wait()
        followed = two.reading.services.followed
        assert followed is not None
        topic = followed.find(NAME)
        assert topic is not None
        topic.fail(ServiceNotReadyError("it cannot go on"))
        await asyncio.sleep(0.01)
        assert followed._closing, "what is just being bound is waited for"
        answered.set()
        refused = await subscribing
        assert refused.error.error == ServerError.SERVICE_NOT_READY
        assert "the topic closes here" in refused.error.message
        await eventually(lambda: two.bound() is None and not followed._closing)
        for tell in asks:
            tell(OwnerNews(NewsKind.ASKED, 1))  # as an owner does that has not heard of the end
        monkeypatch.undo()
        await succeeded(peer, peer.subscribe())
        assert two.bound() is not None

    with_two(scenario)


def test_acknowledgements_go_to_whoever_owns_the_topic() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(4)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        peer.flow(100)
        await entries(peer, 4)
        assert await two.owner.services.topics.unload(NAME)
        peer.acknowledge(0, 1, request_id=3)
        answer = await peer.next()
        assert not answer.ackResponse.HasField("error")
        assert two.mark() == Position(1, 1)
        assert two.bound() is not None, "the binding is found in the cursor's node"
        await two.publish(1, first=4)
        assert await entries(peer, 1) == [4]

    with_two(scenario)


def test_a_broken_connection_to_the_owner_loses_nothing() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(4)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        peer.flow(100)
        await entries(peer, 4)
        for session in list(two.owner.services.sessions):
            session.abort()  # type: ignore[attr-defined]
        peer.acknowledge(0, 1, 2)
        await eventually(lambda: two.mark() == Position(1, 2))
        client = two.owner.topic().subscription("s").bound
        assert client is not None
        assert client.client is not None, "it has spoken by another connection"

    with_two(scenario)


def test_a_seek_is_the_owners_too() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(5)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe(kind=EXCLUSIVE))
        peer.flow(100)
        await entries(peer, 5)
        peer.acknowledge(4, cumulative=True, request_id=1)
        await peer.next()
        assert two.mark() == Position(1, 4)
        seek = BaseCommand(type=BaseCommand.SEEK)
        seek.seek.consumer_id, seek.seek.request_id = 1, 77
        seek.seek.message_id.ledgerId, seek.seek.message_id.entryId = 1, 2
        peer.tell(seek)
        kinds = [await peer.next(), await peer.next()]
        assert {each.type for each in kinds} == {BaseCommand.CLOSE_CONSUMER, BaseCommand.SUCCESS}
        (closed,) = (each for each in kinds if each.type == BaseCommand.CLOSE_CONSUMER)
        back_to = closed.close_consumer.assignedBrokerServiceUrl
        assert back_to == two.reading.broker.service_url, "a lookup would lead to the owner"
        assert two.mark() == Position(1, 1), "before it is answered"
        await succeeded(peer, peer.subscribe(kind=EXCLUSIVE))
        peer.flow(100)
        assert await entries(peer, 3) == [2, 3, 4]

    with_two(scenario)


def test_what_the_owner_did_before_it_heard_of_a_seek_does_not_undo_it() -> None:
    """What is told of it is on its way meanwhile."""

    async def scenario(two: Two) -> None:
        await two.publish(5)
        links = two.links()
        tells, merge = links._told, links.merge
        on_their_way: list[tuple[Any, Any]] = []

        def late(line: Any, news: Any) -> None:
            if links.merge == merge:
                on_their_way.append((line, news))
            else:
                tells(line, news)

        async def after_the_news(*image: Any) -> int:
            for each in on_their_way:
                tells(*each)
            on_their_way.clear()
            return await merge(*image)

        links._told = late  # type: ignore[method-assign]
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe(kind=EXCLUSIVE))
        two.owner.topic().subscription("s").expire(Position(1, 3))  # their time is over
        await eventually(lambda: bool(on_their_way))
        links.merge = after_the_news  # type: ignore[method-assign]
        seek = BaseCommand(type=BaseCommand.SEEK)
        seek.seek.consumer_id, seek.seek.request_id = 1, 77
        seek.seek.message_id.ledgerId, seek.seek.message_id.entryId = 1, 1
        peer.tell(seek)
        for _ in range(2):  # an answer, and that it is sent away
            await peer.next()
        assert (two.mark(), on_their_way) == (Position(1, 0), [])
        await succeeded(peer, peer.subscribe(kind=EXCLUSIVE))
        peer.flow(100)
        assert await entries(peer, 4) == [1, 2, 3, 4]
        two.owner.topic().subscription("s").expire(Position(1, 4))  # and what is told later counts
        followed = two.reading.services.followed
        assert followed is not None
        topic = followed.find(NAME)
        assert topic is not None
        await eventually(lambda: topic.subscription("s").cursor.mark_delete == Position(1, 3))

    with_two(scenario)


def test_what_was_asked_by_a_connection_that_broke_is_not_made_later() -> None:
    """The client was told that it failed, and may want it no more, or has deleted it."""

    async def scenario(two: Two) -> None:
        await two.publish(1)
        topics, opening, opened = two.owner.services.topics, asyncio.Event(), asyncio.Event()
        get = topics.get
        done: list[Any] = []

        async def slowly(*wanted: Any, **how: Any) -> Any:
            opening.set()
            await opened.wait()
            try:
                return await get(*wanted, **how)
            finally:
                done.append(wanted)

        links = two.links()
        await links.open_topic(NAME, create=False)
        topics.get = slowly  # type: ignore[method-assign]
        start = Position(1, 0)
        binding = asyncio.ensure_future(links.bind(NAME, "s", start, {}, lambda _: None))
        await opening.wait()
        for line in links._lines.values():
            assert line.transport is not None
            line.transport.abort()
        with pytest.raises(ServiceNotReadyError):
            await binding
        await asyncio.sleep(0.05)
        opened.set()
        await eventually(lambda: bool(done))
        await asyncio.sleep(0.05)
        assert "s" not in two.owner.topic().subscriptions

    with_two(scenario)


def test_a_seek_at_the_owner_has_it_given_back_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a consumer that was here until the other broker got it, a moment ago. That one sent
    messages until it heard that what it serves is another's."""
    end_binding, left = Subscription.end_binding, list[int]()

    async def scenario(two: Two) -> None:
        await two.publish(3)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        serving = two.serving()

        async def ended(subscription: Subscription) -> None:
            left.append(len(serving.consumers))
            await end_binding(subscription)

        monkeypatch.setattr(Subscription, "end_binding", ended)
        topic = two.owner.topic()
        subscription = topic.subscription("s")
        async with subscription.lock:
            seeking = asyncio.ensure_future(seek(topic, subscription, Position(1, 1)))
            await asyncio.sleep(0)  # it waits for the lock, as for a binding under way
        await seeking
        assert left[0] == 0
        assert (two.bound(), two.mark()) == (None, Position(1, 0))
        assert (await peer.next()).type == BaseCommand.CLOSE_CONSUMER

    with_two(scenario)


def test_a_forced_deletion_at_the_owner_has_it_given_back_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other broker sent its consumer messages of what was deleted, until it heard so."""
    end_binding, left = Subscription.end_binding, list[int]()

    async def scenario(two: Two) -> None:
        await two.publish(3)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        serving = two.serving()

        async def ended(subscription: Subscription) -> None:
            left.append(len(serving.consumers))
            await end_binding(subscription)

        monkeypatch.setattr(Subscription, "end_binding", ended)
        topic = two.owner.topic()
        with pytest.raises(NotAllowedError, match="force it"):
            await topic.delete_subscription("s", force=False)
        await topic.delete_subscription("s", force=True)
        assert left[0] == 0
        assert "s" not in topic.subscriptions
        assert (await peer.next()).type == BaseCommand.CLOSE_CONSUMER

    with_two(scenario)


def test_what_was_acknowledged_elsewhere_is_not_skipped_once_more() -> None:
    """The broker that serves it has not told the owner yet."""

    async def scenario(two: Two) -> None:
        await two.publish(5)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        peer.flow(100)
        await entries(peer, 5)
        peer.acknowledge(0, 1)
        topic = two.owner.topic()
        await skip_messages(topic, topic.subscription("s"), 1)
        assert two.mark() == Position(1, 2)
        assert two.bound() is None
        assert (await peer.next()).type == BaseCommand.CLOSE_CONSUMER

    with_two(scenario)


def test_a_binding_ends_with_its_brokers_registration() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(3)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        links = two.links()
        assert links.me is not None
        bound = two.bound()
        assert bound is not None
        await two.metadata.delete(broker_path(links.me.broker_id))
        await asyncio.sleep(0)  # the owner is told
        await two.owner.broker.bindings.look()
        assert two.bound() is None
        ended = await peer.next()
        assert ended.type == BaseCommand.CLOSE_CONSUMER
        late = LentCursor(NAME, "s", bound.epoch)
        with pytest.raises(BindingEndedError):
            await links.merge(late, AckImage(Position(1, 2)), stored=True)
        assert two.mark() == Position(1, -1), "a delta of a binding that is over has no effect"
        at_owner = two.owner.peer()
        await succeeded(at_owner, at_owner.subscribe())
        at_owner.flow(10)
        assert await entries(at_owner, 3) == [0, 1, 2]

    with_two(scenario)


def test_what_is_said_of_an_older_binding_has_no_effect() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(3)
        links, told = two.links(), list[OwnerNews]()
        first = await links.bind(NAME, "s", EARLIEST, {"k": "v"}, told.append)
        again = await links.bind(NAME, "s", EARLIEST, {}, told.append)
        assert (first.cursor.epoch, again.cursor.epoch) == (1, 2)
        assert again.properties == {"k": "v"}
        for ask in (
            links.release(first.cursor),
            links.merge(first.cursor, again.image, stored=True),
        ):
            with pytest.raises(BindingEndedError):
                await ask
        await links.merge(
            again.cursor, replace(again.image, mark_delete=Position(1, 1)), stored=True
        )
        assert two.mark() == Position(1, 1)
        await links.release(again.cursor)
        assert two.bound() is None
        assert told == []

    with_two(scenario)


def test_a_binding_that_is_made_anew_meanwhile_is_not_ended() -> None:
    """By who waits to end the one before: its broker who gives it back, and its owner."""

    async def scenario(two: Two) -> None:
        await two.publish(3)
        links = two.links()
        first = await links.bind(NAME, "s", EARLIEST, {}, lambda _: None)
        subscription, bindings = two.owner.topic().subscription("s"), two.owner.broker.bindings
        before = two.bound()
        assert before is not None
        async with subscription.lock:
            ending = [
                asyncio.create_task(links.release(first.cursor)),
                asyncio.create_task(bindings.end(NAME, "s", before.broker_id)),
            ]
            await asyncio.sleep(0.05)
            bound = await subscription.bind(before._replace(epoch=before.epoch + 1))
            await asyncio.sleep(0.05)
        await asyncio.gather(*ending, return_exceptions=True)
        assert subscription.bound is bound
        assert not bound.over.is_set()

    with_two(scenario)


def test_what_the_owner_does_with_it_is_told() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(6)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        subscription = two.owner.topic().subscription("s")
        subscription.expire(Position(1, 3))
        await eventually(lambda: two.serving().cursor.mark_delete == Position(1, 2))
        peer.flow(100)
        assert await entries(peer, 3) == [3, 4, 5]
        with pytest.raises(NotAllowedError, match="is served by the broker at"):
            await two.owner.topic().delete_subscription("s", force=False)
        await two.owner.topic().delete_subscription("s", force=True)
        closed = await peer.next()
        assert closed.type == BaseCommand.CLOSE_CONSUMER

    with_two(scenario)


def test_what_the_owner_did_while_nobody_was_connected_is_told_later() -> None:
    """Messages that expired meanwhile are not delivered."""

    async def scenario(two: Two) -> None:
        await two.publish(6)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        subscription = two.owner.topic().subscription("s")
        for session in list(two.owner.services.sessions):
            session.abort()  # type: ignore[attr-defined]
        await eventually(lambda: subscription.bound.client is None)  # type: ignore[union-attr]
        subscription.expire(Position(1, 3))
        await eventually(lambda: two.serving().cursor.mark_delete == Position(1, 2))
        peer.flow(100)
        assert await entries(peer, 3) == [3, 4, 5]

    with_two(scenario)


def test_what_is_wanted_back_is_given_back_with_all_that_was_acknowledged() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(4)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        peer.flow(100)
        await entries(peer, 4)
        peer.acknowledge(1, 3)
        bindings = two.owner.broker.bindings
        broker_id = await bindings.bound_to(NAME, "s")
        assert broker_id is not None
        await bindings.end(NAME, "s", "another")
        assert await bindings.bound_to(NAME, "s") == broker_id
        await bindings.end(NAME, "s", broker_id)
        assert await bindings.bound_to(NAME, "s") is None
        cursor = two.owner.topic().subscription("s").cursor
        assert [cursor.is_acknowledged(1, number) for number in range(4)] == [False, True] * 2
        assert (await peer.next()).type == BaseCommand.CLOSE_CONSUMER

    with_two(scenario)


def test_unsubscribing_deletes_it_at_the_owner() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(2)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        command = BaseCommand(type=BaseCommand.UNSUBSCRIBE)
        command.unsubscribe.consumer_id, command.unsubscribe.request_id = 1, 8
        await succeeded(peer, peer.ask(command))
        assert "s" not in two.owner.topic().subscriptions
        assert two.store.logs[NAME.log_name].cursors.durable() == {}

    with_two(scenario)


def test_nobody_is_subscribed_to_what_a_deletion_without_an_answer_has_deleted() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(2)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        links = two.links()
        delete = links.delete

        async def unheard(cursor: LentCursor) -> None:
            await delete(cursor)
            raise ServiceNotReadyError("the answer was lost")

        links.delete = unheard  # type: ignore[method-assign]
        topic = two.reading.services.followed.find(NAME)  # type: ignore[union-attr]
        assert topic is not None
        with pytest.raises(ServiceNotReadyError, match="was lost"):
            await topic.delete_subscription("s", force=True)
        assert "s" not in two.owner.topic().subscriptions
        other = two.reading.peer()
        assert (await other.subscribe()).type == BaseCommand.ERROR
        await succeeded(other, other.subscribe())
        assert two.bound() is not None, "it is there, and served"
        other.flow(10)
        assert await entries(other, 2) == [0, 1]

    with_two(scenario)


def test_readers_ask_nobody_and_make_no_cursor() -> None:
    async def scenario(two: Two) -> None:
        peer = two.reading.peer()
        reader = await peer.subscribe("r", EXCLUSIVE, durable=False)
        assert reader.type == BaseCommand.SUCCESS, "the owner has made the topic"
        peer.flow(100)
        await two.publish(4)
        assert await entries(peer, 4) == [0, 1, 2, 3]
        assert two.owner.topic().subscriptions == {}

        missing = two.reading.peer()
        topic = "persistent://public/default/none"
        refused = await missing.subscribe("r", topic=topic, force_topic_creation=False)
        assert refused.error.error == ServerError.TOPIC_NOT_FOUND

    with_two(scenario)


def test_a_read_only_broker_that_ends_gives_back_what_it_has() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(5)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        peer.flow(2)
        assert await entries(peer, 2) == [0, 1]
        peer.acknowledge(1)
        await two.reading.broker.leave()
        assert (await peer.next()).type == BaseCommand.CLOSE_CONSUMER
        assert two.bound() is None
        assert two.owner.topic().subscription("s").cursor.is_acknowledged(1, 1)
        at_owner = two.owner.peer()
        await succeeded(at_owner, at_owner.subscribe())
        at_owner.flow(10)
        assert await entries(at_owner, 4) == [0, 2, 3, 4]

    with_two(scenario)


def test_a_topic_is_not_deleted_under_consumers_that_another_broker_serves() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(2)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        topics = two.owner.services.topics
        with pytest.raises(NotAllowedError, match="is served by the broker at"):
            await topics.delete(NAME, force=False)
        peer.flow(10)
        assert await entries(peer, 2) == [0, 1]
        peer.lose()
        await eventually(lambda: two.bound() is None)
        await topics.delete(NAME, force=False)
        assert not await two.store.exists(NAME.log_name)

    with_two(scenario)


def test_a_topic_that_is_deleted_is_followed_no_more() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(1)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        await two.owner.services.topics.delete(NAME, force=True)
        assert (await peer.next()).type == BaseCommand.CLOSE_CONSUMER
        assert two.reading.services.followed is not None
        await eventually(lambda: two.reading.services.followed.find(NAME) is None)  # type: ignore[union-attr]

    with_two(scenario)


def test_a_binding_that_cannot_be_stored_is_not_given() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(1)
        at_owner = two.owner.peer()
        await succeeded(at_owner, at_owner.subscribe())
        at_owner.lose()
        lending = two.owner.topic().subscription("s").cursor.lending
        lending.failing = MagnetarError("no store")  # type: ignore[union-attr]
        peer = two.reading.peer()
        refused = await peer.subscribe()
        assert refused.type == BaseCommand.ERROR
        assert two.bound() is not None, "nobody knows: it is taken to hold"
        lending.failing = None  # type: ignore[union-attr]
        await succeeded(peer, peer.subscribe())
        bound = two.bound()
        assert bound is not None
        assert bound.epoch == 2

    with_two(scenario)


def test_what_a_deletion_that_failed_has_stored_is_taken_back_before_it_is_bound() -> None:
    """Or the next owner would delete it, with all that is acknowledged where it is served."""

    async def scenario(two: Two) -> None:
        await two.publish(1)
        at_owner = two.owner.peer()
        await succeeded(at_owner, at_owner.subscribe())
        topic, log = two.owner.topic(), two.owner.log()
        log.failing = LogError("for a test")
        with pytest.raises(LogError):
            await topic.delete_subscription("s", force=True)
        log.failing = None
        subscription = topic.subscription("s")
        cursor = subscription.cursor
        assert isinstance(cursor, MemoryCursor)
        waits = cursor.waits
        await two.links().bind(NAME, "s", EARLIEST, {}, lambda _: None)
        assert cursor.waits == waits + 1
        assert not subscription.doubtful

    with_two(scenario)


def test_a_binding_whose_end_cannot_be_stored_holds() -> None:
    """What is acknowledged where it is served counts still, and who needs it here asks again."""

    async def scenario(two: Two) -> None:
        await two.publish(3)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        peer.flow(10)
        assert await entries(peer, 3) == [0, 1, 2]
        before, subscription = two.bound(), two.owner.topic().subscription("s")
        lending = subscription.cursor.lending
        lending.failing = MagnetarError("no store")  # type: ignore[union-attr]
        with pytest.raises(MagnetarError):
            async with subscription.lock:
                await subscription.end_binding()
        assert two.bound() == before
        peer.acknowledge(0, 1)
        await eventually(lambda: two.mark() == Position(1, 1))
        lending.failing = None  # type: ignore[union-attr]
        async with subscription.lock:
            await subscription.end_binding()
        assert two.bound() is None

    with_two(scenario)


def test_news_of_other_bindings_are_passed_over() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(1)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        store = two.serving().cursor.store  # type: ignore[attr-defined]
        topic = two.reading.services.followed.find(NAME)  # type: ignore[union-attr]
        topic._cursors._told("s", OwnerNews(NewsKind.ENDED, store.cursor.epoch - 1))  # type: ignore[union-attr]
        await two.publish(1, first=1)
        peer.flow(10)
        assert await entries(peer, 2) == [0, 1]

    with_two(scenario)


def test_where_a_new_subscription_begins() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(3)
        links = two.links()
        latest = await links.bind(NAME, "late", LATEST, {}, lambda _: None)
        assert latest.image.mark_delete == Position(1, 2)
        at = await links.bind(NAME, "at", Position(1, 1), {}, lambda _: None)
        assert at.image.mark_delete == Position(1, 0)

    with_two(scenario)


def test_the_owner_tells_how_far_the_log_may_be_read() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(2)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        followed = two.reading.services.followed
        assert followed is not None
        topic = followed.find(NAME)
        assert topic is not None
        told = topic.readable.told  # type: ignore[attr-defined]
        await eventually(lambda: told == [Position(1, 1)])
        await two.publish(2, first=2)
        await eventually(lambda: told[-1] == Position(1, 3))
        # Its next owner is asked, and after a broken connection the same one.
        assert await two.owner.services.topics.unload(NAME)
        await eventually(lambda: bool(two.owner.services.topics.loaded()))
        await eventually(lambda: bool(two.owner.topic().followers))
        await two.publish(1, first=4)
        await eventually(lambda: told[-1] == Position(1, 4))
        for session in list(two.owner.services.sessions):
            session.abort()  # type: ignore[attr-defined]
        await eventually(lambda: not two.owner.topic().followers)
        await eventually(lambda: bool(two.owner.topic().followers))
        await two.publish(1, first=5)
        await eventually(lambda: told[-1] == Position(2, 0))
        # When nobody is served there any more it is not told.
        peer.lose()
        await eventually(lambda: not two.owner.topic().followers)

    with_two(scenario)


def test_what_is_told_to_nobody_is_told_no_more() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(1)
        links = two.links()
        assert await links.follow(NAME, lambda _: None) == Position(1, 0)
        links._listeners.clear()  # the answer to a question that was given up
        await two.publish(1, first=1)
        await eventually(lambda: not two.owner.topic().followers)

    with_two(scenario)


def test_deltas_of_many_subscriptions_are_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[int] = []
    merge_all = bound_cursors._merge_all

    async def counted(bindings: Any, session: Any, request: Any, reply: Any) -> None:
        requests.append(len(request.images))
        await merge_all(bindings, session, request, reply)

    monkeypatch.setattr(bound_cursors, "_merge_all", counted)

    async def scenario(two: Two) -> None:
        await two.publish(5)
        names = [f"s{number}" for number in range(8)]
        peers = [two.reading.peer() for _ in names]
        for peer, name in zip(peers, names, strict=True):
            await succeeded(peer, peer.subscribe(name))
            peer.flow(100)
            await entries(peer, 5)
        for peer in peers:
            peer.acknowledge(0, 1)
        await eventually(lambda: all(two.mark(name) == Position(1, 1) for name in names))
        assert sum(requests) == len(names)
        assert len(requests) < len(names), "together"
        waits = [two.owner.topic().subscription(name).cursor.waits for name in names]  # type: ignore[attr-defined]
        assert waits == [0] * len(names), "nobody waits: the owner stores them in its own time"

    with_two(scenario)


def test_an_image_that_is_refused_keeps_no_other_back() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(4)
        links = two.links()
        lent = [await links.bind(NAME, each, EARLIEST, {}, lambda _: None) for each in "abc"]
        image = AckImage(Position(1, 1))
        wrong = lent[1].cursor._replace(epoch=99)
        cursors = [lent[0].cursor, wrong, lent[2].cursor]
        found = await asyncio.gather(
            *(links.merge(each, image, stored=False) for each in cursors),
            links.merge(lent[0].cursor, image, stored=True),
            return_exceptions=True,
        )
        assert found[0] == lent[0].term
        assert isinstance(found[1], BindingEndedError)
        assert found[2] == lent[2].term
        assert found[3] == lent[0].term
        assert [two.mark(each) for each in "abc"] == [
            Position(1, 1),
            Position(1, -1),
            Position(1, 1),
        ]

    with_two(scenario)


def test_bindings_of_a_topic_are_asked_for_side_by_side() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(1)
        first = two.reading.peer()
        await succeeded(first, first.subscribe("first"))
        links, gate = two.links(), asyncio.Event()
        asked: list[str] = []
        bind = links.bind

        async def slow(topic: Any, name: str, *args: Any) -> Any:
            asked.append(name)
            await gate.wait()
            return await bind(topic, name, *args)

        links.bind = slow  # type: ignore[method-assign]
        peers = [two.reading.peer() for _ in range(4)]
        names = ["a", "b", "c", "a"]
        pending = [
            asyncio.ensure_future(peer.subscribe(name))
            for peer, name in zip(peers, names, strict=True)
        ]
        await eventually(lambda: len(asked) == 3)
        await asyncio.sleep(0.05)
        assert sorted(asked) == ["a", "b", "c"], "each once, however many want it"
        gate.set()
        for peer, each in zip(peers, pending, strict=True):
            await succeeded(peer, each)
        assert len(two.serving("a").consumers) == 2

    with_two(scenario)


def test_the_owner_refuses_whom_there_is_no_room_for_elsewhere() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(1)
        policies = two.owner.broker.control.policies
        rules = ReadRules.decode({"rules": [{"to": "any"}]})
        await policies.set_namespace("public/default", "read_only_brokers", rules)
        first = two.reading.peer()
        await succeeded(first, first.subscribe(kind=EXCLUSIVE))
        peer = two.owner.peer(version="Pulsar-CPP-v4.2.0")
        await eventually(lambda: bool(two.owner.topic().policy.reading.rules))
        for kind in (EXCLUSIVE, SHARED):
            refused = await peer.subscribe(kind=kind)
            assert refused.type == BaseCommand.ERROR
            assert refused.error.error == ServerError.CONSUMER_BUSY, refused
        # There is room once the first one has left, and the owner knows it at once.
        leave = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        leave.close_consumer.consumer_id, leave.close_consumer.request_id = 1, 77
        await succeeded(first, first.ask(leave))
        await succeeded(peer, peer.subscribe(kind=EXCLUSIVE))
        # One that was sent there, and comes again, is not refused for its own sake.
        peer.flow(1)
        assert (await peer.next()).type == BaseCommand.CLOSE_CONSUMER
        await succeeded(first, first.subscribe(kind=EXCLUSIVE))
        await succeeded(peer, peer.subscribe(kind=EXCLUSIVE))

    with_two(scenario)


def test_a_topic_that_closes_takes_nothing() -> None:
    """Its cursors may be stored for the last time already."""

    async def scenario(two: Two) -> None:
        await two.publish(2)
        links = two.links()
        lent = await links.bind(NAME, "s", EARLIEST, {}, lambda _: None)
        topic = two.owner.topic()
        topic.stop()
        with pytest.raises(ServiceNotReadyError):
            await links.merge(lent.cursor, AckImage(Position(1, 1)), stored=False)
        assert topic.subscription("s").cursor.mark_delete == Position(1, -1)

    with_two(scenario)


def test_one_whose_connection_just_broke_gives_it_back_in_order() -> None:
    """It serves on until it hears of the end; taken at once, two would dispatch."""

    async def scenario(two: Two) -> None:
        await two.publish(4)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        peer.flow(100)
        await entries(peer, 4)
        held = two.bound()
        assert held is not None
        for session in list(two.owner.services.sessions):
            session.abort()  # type: ignore[attr-defined]
        await eventually(lambda: two.owner.topic().subscription("s").bound.client is None)  # type: ignore[union-attr]
        peer.acknowledge(0, 1, 3)
        bindings = two.owner.services.bindings
        assert bindings is not None
        await bindings.end(NAME, "s", held.broker_id)
        assert (await peer.next()).type == BaseCommand.CLOSE_CONSUMER
        assert two.bound() is None
        cursor = two.owner.topic().subscription("s").cursor
        assert cursor.mark_delete == Position(1, 1), "what was acknowledged there is not lost"
        assert cursor.is_acknowledged(1, 3)

    with_two(scenario)


def test_the_owners_stats_name_consumers_that_are_served_elsewhere() -> None:
    class Rest:
        """The read-only broker's, when ``answers``."""

        answers = True

        async def ask(self, method: str, url: str, query: object, body: object) -> PeerAnswer:
            if not self.answers:
                raise PeerError("nobody is there")
            assert url.endswith("/magnetar/v1/read-only/public/default/t/subscriptions"), url
            found = two_[0].reading.admin.followed_stats(TOPIC)
            told = {name: each.model_dump(by_alias=True) for name, each in found.items()}
            return PeerAnswer(200, told)

    two_: list[Two] = []

    async def scenario(two: Two) -> None:
        two_.append(two)
        await two.publish(3)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        peer.flow(100)
        await entries(peer, 3)
        peer.acknowledge(0)
        await eventually(lambda: two.mark() == Position(1, 0))
        path = broker_path(two.bound().broker_id)  # type: ignore[union-attr]
        node = await two.metadata.get(path)
        there = replace(decode_report(path, node.value), http_url="http://there")
        await two.metadata.put(path, encode_report(there), node.version)
        rest = Rest()
        admin = topic_service(two.owner.broker, rest)

        async def told() -> SubscriptionView:
            return (await admin.stats(TOPIC)).subscriptions["s"]

        async with asyncio.timeout(20):
            while not (view := await told()).consumers:  # noqa: ASYNC110 (reports are read)
                await asyncio.sleep(0.01)
        assert view.served_by == two.reading.broker.service_url
        (consumer,) = view.consumers
        assert (consumer.msg_out_counter, consumer.unacked_messages) == (3, 2)
        assert (view.type, view.entries_backlog, view.msg_out_counter) == ("Shared", 2, 3)
        assert view.mark_delete_position == str(Position(1, 0)), "the owner knows the cursor"
        rest.answers = False
        view = await told()
        assert (view.consumers, view.served_by) == ([], two.reading.broker.service_url)

    with_two(scenario)


@pytest.mark.parametrize("ends", ["topic", "broker"])
def test_what_is_being_given_back_when_the_topic_closes_is_given_back(ends: str) -> None:
    """With all that was acknowledged: it would be delivered again."""

    async def scenario(two: Two) -> None:
        await two.publish(3)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        peer.flow(100)
        await entries(peer, 3)
        followed, links, gate = two.reading.services.followed, two.links(), asyncio.Event()
        assert followed is not None
        topic = followed.find(NAME)
        assert topic is not None
        merge = links.merge

        async def slow(cursor: LentCursor, image: AckImage, stored: bool) -> int:
            await gate.wait()
            return await merge(cursor, image, stored)

        links.merge = slow  # type: ignore[method-assign]
        peer.acknowledge(0, 1)
        await eventually(lambda: two.serving().cursor.mark_delete == Position(1, 1))
        topic._wanted_back("s")
        await eventually(lambda: "s" in topic._cursors._closing)
        if ends == "topic":
            topic.fail(ServiceNotReadyError("it cannot go on"))
            closing = asyncio.ensure_future(asyncio.sleep(0))
        else:
            closing = asyncio.ensure_future(followed.close())
        await asyncio.sleep(0.02)
        assert followed._closing, "what is being given back is waited for"
        gate.set()
        await eventually(lambda: two.bound() is None and not followed._closing)
        await closing
        assert two.mark() == Position(1, 1)
        assert (await peer.next()).type == BaseCommand.CLOSE_CONSUMER

    with_two(scenario)


def test_what_is_bound_when_the_topic_closes_before_it_is_seen_is_given_back() -> None:
    """Its store would be ended by nobody."""

    async def scenario(two: Two) -> None:
        await two.publish(2)
        followed = two.reading.services.followed
        assert followed is not None
        topic = await followed.get(NAME, create=False)
        assert isinstance(topic, FollowedTopic)
        source, gate, asked = two.store.followed[NAME.log_name], asyncio.Event(), asyncio.Event()

        async def late(_position: Position) -> None:
            asked.set()
            await gate.wait()

        source.cursors._wait_seen = late  # type: ignore[attr-defined]
        peer = two.reading.peer()
        subscribing = asyncio.ensure_future(peer.subscribe())
        await asked.wait()
        topic.fail(ServiceNotReadyError("it cannot go on"))
        gate.set()
        refused = await subscribing
        assert refused.error.error == ServerError.SERVICE_NOT_READY
        await eventually(lambda: two.bound() is None and not followed._closing)
        assert topic._cursors._stores == {}

    with_two(scenario)


@pytest.mark.parametrize("news", [NewsKind.MOVED, NewsKind.WANTED])
def test_what_is_told_before_the_subscription_is_there_counts(news: NewsKind) -> None:
    """The owner tells it once."""

    async def scenario(two: Two) -> None:
        await two.publish(4)
        links = two.links()
        bind, asked, answered = links.bind, asyncio.Event(), asyncio.Event()

        async def late(*wanted: Any) -> Any:
            links.bind = bind  # type: ignore[method-assign]
            bound = await bind(*wanted)
            asked.set()
            await answered.wait()
            return bound

        links.bind = late  # type: ignore[method-assign]
        peer = two.reading.peer()
        subscribing = asyncio.ensure_future(peer.subscribe())
        await asked.wait()
        subscription = two.owner.topic().subscription("s")
        bound = subscription.bound
        assert bound is not None
        if news is NewsKind.MOVED:
            subscription.expire(Position(1, 2))
        else:
            ending = asyncio.ensure_future(bound.give_back())
        await asyncio.sleep(0.05)
        answered.set()
        if news is NewsKind.MOVED:
            await succeeded(peer, subscribing)
            peer.flow(100)
            assert await entries(peer, 2) == [2, 3]
        else:
            refused = await subscribing
            assert refused.error.error == ServerError.SERVICE_NOT_READY
            async with asyncio.timeout(4):
                await ending
            assert two.bound() is None

    with_two(scenario)


def test_one_that_is_wanted_twice_is_given_back_once() -> None:
    """The second time it may be another binding, that somebody has asked for meanwhile."""

    async def scenario(two: Two) -> None:
        await two.publish(1)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        followed = two.reading.services.followed
        assert followed is not None
        topic = followed.find(NAME)
        assert topic is not None
        serving = two.serving()
        topic._wanted_back("s")
        topic._wanted_back("s")
        assert (await peer.next()).type == BaseCommand.CLOSE_CONSUMER
        await eventually(lambda: two.bound() is None)
        await succeeded(peer, peer.subscribe())
        await topic._give_back(serving, only_unused=False)
        assert two.bound() is not None
        assert await peer.heard() == []

    with_two(scenario)


def test_one_is_given_back_when_nobody_has_used_it_for_a_while() -> None:
    """Each time for itself: what it was unused before somebody came does not count."""

    class Clock:
        ahead_s = 0.0

        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            self._loop = loop

        def time(self) -> float:
            return self._loop.time() + self.ahead_s

        def __getattr__(self, name: str) -> Any:
            return getattr(self._loop, name)

    async def scenario(two: Two) -> None:
        await two.publish(1)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        topic = two.reading.services.followed.find(NAME)  # type: ignore[union-attr]
        assert isinstance(topic, FollowedTopic)
        clock = Clock(asyncio.get_running_loop())
        topic._loop, topic._idle_s = clock, 1000.0  # type: ignore[assignment]

        async def look(later_s: float) -> bool:
            """Whether it is served here still, after a look so much later."""
            clock.ahead_s += later_s
            topic._look_for_unused()
            await asyncio.sleep(0.1)
            return "s" in topic.subscriptions

        assert await look(5000)
        peer.lose()
        assert await look(100)
        assert not topic.idle, "it is bound"
        assert await look(990)
        other = two.reading.peer()
        await succeeded(other, other.subscribe())
        assert await look(990)
        other.lose()
        assert await look(0)
        assert await look(990)
        assert not await look(11)
        await eventually(lambda: two.bound() is None)
        assert topic.idle

    with_two(scenario)


def test_what_the_owner_acknowledges_is_no_longer_out() -> None:
    """A consumer that has as much unacknowledged as it may is served again."""

    async def scenario(two: Two) -> None:
        await two.publish(6)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe("r", EXCLUSIVE, durable=False))
        topic = two.reading.services.followed.find(NAME)  # type: ignore[union-attr]
        assert isinstance(topic, FollowedTopic)
        limits = topic.policy.limits._replace(unacked_each=3)
        topic.set_policy(topic.policy._replace(limits=limits))
        other = two.reading.peer()
        await succeeded(other, other.subscribe())
        other.flow(100)
        assert await entries(other, 3) == [0, 1, 2]
        two.owner.topic().subscription("s").expire(Position(1, 3))
        assert await entries(other, 3) == [3, 4, 5]

    with_two(scenario)


def test_nobody_is_refused_for_the_sake_of_one_who_is_dead_elsewhere() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(1)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe(kind=EXCLUSIVE))
        bindings, held = two.owner.broker.bindings, two.bound()
        assert held is not None

        async def dead(_client: object) -> bool:
            return False

        with pytest.raises(ConsumerBusyError):
            await bindings.check_room(NAME, "s", held.broker_id, Kind.EXCLUSIVE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(two.serving().consumers[0].client), "is_alive", dead)
            await bindings.check_room(NAME, "s", held.broker_id, Kind.EXCLUSIVE)
        assert two.serving().consumers == []

    with_two(scenario)


def test_consumers_are_told_when_what_they_acknowledged_is_stored() -> None:
    """They come back at once, and whoever serves them then is to know of it."""

    async def scenario(two: Two) -> None:
        await two.publish(2)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        peer.flow(10)
        await entries(peer, 2)
        links, gate, asked = two.links(), asyncio.Event(), asyncio.Event()
        release = links.release

        async def slow(cursor: LentCursor) -> None:
            asked.set()
            await gate.wait()
            await release(cursor)

        links.release = slow  # type: ignore[method-assign]
        leaving = asyncio.ensure_future(two.reading.broker.leave())
        await asked.wait()
        await asyncio.sleep(0.1)
        before = await peer.kinds()
        gate.set()
        await leaving
        assert "CLOSE_CONSUMER" not in before
        assert "CLOSE_CONSUMER" in await peer.kinds()

    with_two(scenario)


def test_a_deletion_that_failed_leaves_a_subscription_that_hears_of_its_owner() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(6)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        links = two.links()
        delete = links.delete

        async def away(_cursor: LentCursor) -> None:
            raise ServiceNotReadyError("nobody is there")

        links.delete = away  # type: ignore[method-assign]
        topic = two.reading.services.followed.find(NAME)  # type: ignore[union-attr]
        assert topic is not None
        with pytest.raises(ServiceNotReadyError, match="nobody is there"):
            await topic.delete_subscription("s", force=True)
        links.delete = delete  # type: ignore[method-assign]
        other = two.reading.peer()
        await succeeded(other, other.subscribe())
        two.owner.topic().subscription("s").expire(Position(1, 3))
        await eventually(lambda: two.serving().cursor.mark_delete == Position(1, 2))
        other.flow(10)
        assert await entries(other, 3) == [3, 4, 5]
        await topic.delete_subscription("s", force=True)
        assert "s" not in two.owner.topic().subscriptions

    with_two(scenario)


def test_a_topic_that_nobody_subscribed_to_is_not_followed_for_ever() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(1)
        followed = two.reading.services.followed
        assert followed is not None
        followed._config = replace(followed._config, idle_topic_unload_ms=20)
        await followed.get(NAME, create=False)
        assert len(followed) == 1
        await eventually(lambda: len(followed) == 0)

    with_two(scenario)


def test_no_more_topics_are_followed_than_are_allowed() -> None:
    """Those that are just being opened count."""

    async def scenario(two: Two) -> None:
        await two.publish(1)
        followed = two.reading.services.followed
        assert followed is not None
        followed._config = replace(followed._config, open_topics_max=1)
        names = [NAME, parse_topic("another")]
        asked = [followed.get(name, create=True) for name in names]
        first, second = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(first, FollowedTopic)
        assert isinstance(second, TooManyConnectionsError)

    with_two(scenario)


def test_nobody_is_served_by_the_owner_when_the_next_binding_may_be_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From then on the other broker may serve it; and whoever waits for the end of the binding
    before it is told of that."""

    async def scenario(two: Two) -> None:
        await two.publish(3)
        at_owner = two.owner.peer()
        await succeeded(at_owner, at_owner.subscribe())
        subscription = two.owner.topic().subscription("s")
        lending, gate, storing = subscription.cursor.lending, asyncio.Event(), asyncio.Event()
        assert lending is not None
        bind = lending.bind

        async def slow(binding: Binding) -> None:
            storing.set()
            await gate.wait()
            await bind(binding)

        monkeypatch.setattr(lending, "bind", slow)
        binding = asyncio.ensure_future(two.links().bind(NAME, "s", EARLIEST, {}, lambda _: None))
        await storing.wait()
        told = await at_owner.kinds()
        at_owner.flow(10)
        await asyncio.sleep(0.05)
        after = await at_owner.kinds()
        gate.set()
        await binding
        assert (told, after) == (["CLOSE_CONSUMER"], [])
        before = subscription.bound
        assert before is not None
        await two.links().bind(NAME, "s", EARLIEST, {}, lambda _: None)
        assert before.over.is_set()
        assert subscription.bound is not before

    with_two(scenario)


def other_broker(two: Two, monkeypatch: pytest.MonkeyPatch) -> Binding:
    """A second read-only broker, as it would ask."""
    bindings = two.owner.broker.bindings
    starts = bindings._starts

    async def both() -> dict[str, int]:
        return {**await starts(), "other": 7}

    monkeypatch.setattr(bindings, "_starts", both)
    return Binding(0, "other", 7, "pulsar://other:6650")


class Deaf:
    """A broker that is told nothing that it minds."""

    connected = True

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def test_a_broker_that_wants_what_another_serves_waits_until_it_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(two: Two) -> None:
        await two.publish(1)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        bindings, held, topic = two.owner.broker.bindings, two.bound(), two.owner.topic()
        assert held is not None
        asker = other_broker(two, monkeypatch)
        asking = bindings.bind(topic, "s", EARLIEST, {}, asker, Deaf())
        binding = asyncio.ensure_future(asking)
        await asyncio.sleep(0.1)
        assert not binding.done()
        await bindings.end(NAME, "s", held.broker_id)
        assert (await binding).binding.broker_id == "other"
        assert two.bound() == (await binding).binding

    with_two(scenario)


@pytest.mark.parametrize("when", ["it waits for its turn", "it asks who is registered"])
def test_what_ends_while_a_broker_asks_for_it_is_not_bound(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(two: Two) -> None:
        await two.publish(1)
        at_owner = two.owner.peer()
        await succeeded(at_owner, at_owner.subscribe())
        bindings, topic = two.owner.broker.bindings, two.owner.topic()
        asker, gate = other_broker(two, monkeypatch), asyncio.Event()
        starts, lent = bindings._starts, topic.subscription("s").cursor.lending

        async def slow() -> Any:
            await gate.wait()
            return await starts()

        async def ask() -> object:
            return await bindings.bind(topic, "s", EARLIEST, {}, asker, Deaf())

        if when == "it waits for its turn":
            async with topic.subscription("s").lock:
                deleting = asyncio.ensure_future(topic.delete_subscription("s", force=True))
                await asyncio.sleep(0)
                asking = asyncio.ensure_future(ask())
                await asyncio.sleep(0.05)
            await deleting
        else:
            monkeypatch.setattr(bindings, "_starts", slow)
            asking = asyncio.ensure_future(ask())
            await asyncio.sleep(0.05)
            topic.stop()
            gate.set()
        with pytest.raises(ServiceNotReadyError, match="just ended"):
            await asking
        assert lent is not None
        assert not lent.binding

    with_two(scenario)


def test_one_that_somebody_comes_to_is_not_given_back_as_unused() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(1)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        followed = two.reading.services.followed
        assert followed is not None
        topic = followed.find(NAME)
        assert topic is not None
        await topic._give_back(two.serving(), only_unused=True)
        peer.flow(1)
        assert await entries(peer, 1) == [0]

    with_two(scenario)


def test_a_topic_that_is_just_being_followed_when_its_broker_ends_is_not() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(1)
        followed, store, gate = two.reading.services.followed, two.store, asyncio.Event()
        assert followed is not None
        follow = store.follow

        async def slow(name: str) -> Any:
            await gate.wait()
            return await follow(name)

        store.follow = slow  # type: ignore[method-assign]
        getting = asyncio.ensure_future(followed.get(NAME, create=False))
        await asyncio.sleep(0.01)
        closing = asyncio.ensure_future(followed.close())
        await asyncio.sleep(0.01)
        gate.set()
        with pytest.raises(ServiceNotReadyError, match="look it up again"):
            await getting
        await closing
        assert len(followed) == 0
        assert store.followed == {}

    with_two(scenario)


def test_a_topic_that_closes_is_followed_again_when_that_is_over() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(1)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        followed, links, gate = two.reading.services.followed, two.links(), asyncio.Event()
        assert followed is not None
        release = links.release

        async def slow(cursor: LentCursor) -> None:
            await gate.wait()
            await release(cursor)

        links.release = slow  # type: ignore[method-assign]
        former = followed.find(NAME)
        assert former is not None
        former.fail(ServiceNotReadyError("it cannot go on"))
        getting = asyncio.ensure_future(followed.get(NAME, create=False))
        await asyncio.sleep(0.02)
        assert not getting.done()
        gate.set()
        found = await getting
        assert found is not former
        followed._retire(former)  # whoever finds once more that it has ended
        assert followed.find(NAME) is found

    with_two(scenario)


def test_who_may_have_a_topic_made_does_not_fail_with_who_may_not() -> None:
    async def scenario(two: Two) -> None:
        followed = two.reading.services.followed
        assert followed is not None
        found = await asyncio.gather(
            followed.get(NAME, create=False),
            followed.get(NAME, create=True),
            followed.get(NAME, create=True),
            return_exceptions=True,
        )
        assert isinstance(found[0], TopicNotFoundError)
        assert found[1] is found[2] is followed.find(NAME)

    with_two(scenario)


def test_a_topic_that_gives_something_back_is_not_idle() -> None:
    """Closed then, it would leave consumers whom nobody tells that they are served no more."""

    async def scenario(two: Two) -> None:
        await two.publish(1)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        followed = two.reading.services.followed
        assert followed is not None
        topic = followed.find(NAME)
        assert topic is not None
        links, gate, asked = two.links(), asyncio.Event(), asyncio.Event()
        release = links.release

        async def slow(cursor: LentCursor) -> None:
            asked.set()
            await gate.wait()
            await release(cursor)

        links.release = slow  # type: ignore[method-assign]
        topic._wanted_back("s")
        await asked.wait()
        followed._look(topic)
        assert followed.find(NAME) is topic
        gate.set()
        assert (await peer.next()).type == BaseCommand.CLOSE_CONSUMER

    with_two(scenario)


def test_a_topic_that_went_elsewhere_is_not_kept_for_who_followed_it() -> None:
    """Who follows it asks its next owner, by another connection, and never says so by this one."""

    async def scenario(two: Two) -> None:
        await two.publish(1)
        follower = two.owner.peer()
        await follower.heard()
        follow = BaseCommand(type=BaseCommand.BOUND_CURSOR)
        follow.bound_cursor.action, follow.bound_cursor.topic = follow.bound_cursor.FOLLOW, TOPIC
        for request_id in (1, 2):
            follow.bound_cursor.request_id = request_id
            answer = await follower.ask(follow)
            assert not answer.bound_cursor_response.HasField("error")
            assert list(follower.session.following.values()) == [two.owner.topic()]
            await two.owner.services.topics.unload(NAME)
            assert follower.session.following == {}
            (news,) = await follower.heard()
            assert news.binding_news.what == news.binding_news.CLOSED
        follower.lose()

    with_two(scenario)
