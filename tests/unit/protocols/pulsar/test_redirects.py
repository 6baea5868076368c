"""Consumers that another broker is to serve: what they are told, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.policies.read_rules import ReadRules
from magnetar.cluster.steering import AVOID_S, SETTLE_S
from magnetar.log.seam import Binding
from magnetar.model.ids import EARLIEST
from magnetar.protocols.pulsar.handlers.redirects import STAYS_S
from magnetar.topics.consuming.subscription import Subscription
from magnetar.topics.opening import open_durable
from magnetar.topics.steering import LOOK_S, ReadSteering
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.commands import COMMAND_NAMES, encode_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.unit.protocols.pulsar.harness import (
    ANNOUNCEMENTS,
    EXCLUSIVE,
    FAILOVER,
    SHARED,
    TOPIC,
    Peer,
    World,
    run,
)

CPP = "Pulsar-CPP-v4.2.0"
URL = "pulsar://r1:6650"
R1 = BrokerReport("r1", 1, URL, "http://r1:8080", zone="eu", read_only=True)
R2 = replace(R1, broker_id="r2", service_url="pulsar://r2:6650", zone="us")
ANY = {"rules": [{"to": "any"}]}


class Double:
    """Of the cluster: which brokers there are, and what is bound to them."""

    def __init__(self) -> None:
        self.brokers: dict[str, BrokerReport] = {"r1": R1}

    async def reports(self) -> Mapping[str, BrokerReport]:
        return self.brokers


async def bind(world: World, name: str, broker_id: str) -> Subscription:
    """As that read-only broker's question does."""
    subscription = await open_durable(world.topic(), name, EARLIEST, {})
    async with subscription.lock:
        await subscription.bind(Binding(1, broker_id, 1, URL))
    return subscription


Scenario = Callable[[World, Double], Awaitable[None]]


def steered(scenario: Scenario, rules: Mapping[str, Any] = ANY) -> None:
    """``scenario`` at the owner of a topic with ten messages."""

    async def begin(world: World) -> None:
        double = Double()
        broker = world.broker
        steering = ReadSteering(double.reports, broker.topics.loaded, broker.bindings)
        world.services.steering = steering
        broker._scope.spawn(steering.run(), "steering")
        await say(world, rules)
        producer = world.peer()
        await producer.produce()
        producer.publish(10)
        await producer.heard()
        await scenario(world, double)

    run(begin)


async def say(world: World, rules: Mapping[str, Any] | None) -> None:
    made = None if rules is None else ReadRules.decode(rules)
    policies = world.broker.control.policies
    await policies.set_namespace("public/default", "read_only_brokers", made)
    await asyncio.sleep(0.01)


async def told(peer: Peer) -> list[BaseCommand]:
    """What has come, but for what every client gets now and then."""
    return [each for each in await peer.heard() if each.type not in ANNOUNCEMENTS]


async def kinds(peer: Peer) -> list[str]:
    return [COMMAND_NAMES[int(each.type)] for each in await told(peer)]


async def sent_to(peer: Peer, consumer_id: int = 1, **about: Any) -> str:
    """Where a consumer is sent that subscribes and asks for messages; empty: it is served here."""
    assert (await peer.subscribe(consumer_id=consumer_id, **about)).type == BaseCommand.SUCCESS
    return await url_after_flow(peer, consumer_id)


async def url_after_flow(peer: Peer, consumer_id: int = 1) -> str:
    peer.flow(100, consumer_id)
    await asyncio.sleep(STAYS_S + 0.01)
    heard = await peer.heard()
    closed = [each for each in heard if each.type == BaseCommand.CLOSE_CONSUMER]
    if not closed:
        return ""
    assert not [each for each in heard if each.type == BaseCommand.MESSAGE], "it delivered some"
    (command,) = closed
    assert command.close_consumer.consumer_id == consumer_id
    return str(command.close_consumer.assignedBrokerServiceUrl)


def test_who_is_on_the_way_counts_as_a_consumer() -> None:
    async def scenario(world: World, double: Double) -> None:
        before = world.services.attached.count
        peer = world.peer(version=CPP)
        assert (await peer.subscribe(consumer_name="c" * 100)).type == BaseCommand.SUCCESS
        assert world.services.attached.count == before + 1
        assert world.services.attached.byte_count >= 100
        assert await url_after_flow(peer) == URL
        assert world.services.attached.count == before

    steered(scenario)


def test_no_subscription_is_made_for_a_client_that_went_while_the_topic_was_opened() -> None:
    async def scenario(world: World, double: Double) -> None:
        await world.services.topics.unload(world.topic().name)
        open_log = world.store.open

        async def slow_open(*about: Any, **more: Any) -> Any:
            await asyncio.sleep(1)
            return await open_log(*about, **more)

        world.store.open = slow_open  # type: ignore[method-assign]
        peer = world.peer(version=CPP)
        await peer.heard()
        peer.tell(peer.subscribe_command())
        await asyncio.sleep(0.5)
        peer.lose()
        await asyncio.sleep(1)
        assert not world.topic().subscriptions
        assert await sent_to(world.peer(version=CPP)) == URL
        assert list(world.topic().subscriptions) == ["s"]

    steered(scenario)


def test_it_is_told_once_its_client_is_ready() -> None:
    async def scenario(world: World, double: Double) -> None:
        peer = world.peer(version=CPP)
        assert (await peer.subscribe()).type == BaseCommand.SUCCESS
        await asyncio.sleep(100)
        assert await kinds(peer) == [], "a client that is not ready would not know whom it is for"
        assert await url_after_flow(peer) == URL
        peer.flow(100)
        peer.acknowledge(0)
        await asyncio.sleep(1)
        assert await kinds(peer) == []
        assert world.topic().subscription("s").consumers == []

    steered(scenario)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER])
def test_what_is_published_while_it_is_on_its_way_is_for_it(kind: Any) -> None:
    async def scenario(world: World, double: Double) -> None:
        peer = world.peer(version=CPP)
        assert await sent_to(peer, kind=kind, earliest=False) == URL
        producer = world.peer()
        await producer.produce(name="other")
        producer.publish(3)
        await producer.heard()
        assert world.topic().subscription("s").cursor.backlog_entries() == 3

    steered(scenario)


def test_a_client_that_does_not_follow_is_served_here() -> None:
    async def scenario(world: World, double: Double) -> None:
        for version in ("Pulsar-CPP-v3.4.0", "somebody"):
            peer = world.peer(version=version)
            assert await sent_to(peer, name=version) == ""
            assert len(world.topic().subscription(version).consumers) == 1
        # Who comes later joins it.
        assert await sent_to(world.peer(version=CPP), name="somebody") == ""
        # It takes the subscription along that others have elsewhere.
        bound = await bind(world, "s", "r1")
        assert await sent_to(world.peer(), name="s") == ""
        assert bound.bound is None

    steered(scenario)


def test_rules_say_who() -> None:
    async def scenario(world: World, double: Double) -> None:
        double.brokers["r2"] = R2
        peer = world.peer(version=CPP)
        assert await sent_to(peer, name="report-1") == URL
        assert await sent_to(peer, 2, name="other") == ""
        assert await sent_to(peer, 3, name="first", kind=FAILOVER) == R2.service_url
        command = peer.subscribe_command("props", consumer_id=4)
        command.subscribe.metadata.add(key="team", value="red")
        await peer.heard()
        assert (await peer.ask(command)).type == BaseCommand.SUCCESS
        assert await url_after_flow(peer, 4) == R2.service_url

    steered(
        scenario,
        {
            "rules": [
                {"subscription": "report-*", "to": "zone:eu"},
                {"type": "Failover", "to": "zone:us"},
                {"properties": {"team": "red"}, "to": "brokers:r2"},
            ]
        },
    )


def test_who_comes_back_is_served_in_the_end() -> None:
    async def scenario(world: World, double: Double) -> None:
        double.brokers["r2"] = R2
        peer = world.peer(version=CPP)
        went = [await sent_to(peer) for _ in range(5)]
        assert {went[0], went[2]} == {URL, R2.service_url}
        assert went == [went[0]] * 2 + [went[2]] * 2 + [""]
        assert await peer.entries() == []  # they came with the answer to FLOW
        assert world.topic().subscription("s").consumers[0].messages_out == 10
        # And sent again later, in case it was for a while only.
        for number in range(10):
            peer.acknowledge(number)
        await asyncio.sleep(2 * AVOID_S)
        told = [each for each in await peer.heard() if each.type == BaseCommand.CLOSE_CONSUMER]
        assert told[0].close_consumer.assignedBrokerServiceUrl in (URL, R2.service_url)

    steered(scenario)


def test_one_that_is_not_taken_where_others_are_served_comes_again() -> None:
    async def scenario(world: World, double: Double) -> None:
        bound = await bind(world, "s", "r1")
        peer = world.peer(version=CPP)
        assert [await sent_to(peer) for _ in range(2)] == [URL, URL]
        for _ in range(3):
            refused = await peer.subscribe()
        assert refused.type == BaseCommand.ERROR
        assert refused.error.error == ServerError.SERVICE_NOT_READY
        assert "served by the read-only broker r1" in refused.error.message
        assert bound.bound is not None

    steered(scenario)


def test_questions_are_answered_while_it_is_on_its_way() -> None:
    async def scenario(world: World, double: Double) -> None:
        peer = world.peer(version=CPP)
        for consumer_id, durable in ((1, True), (2, False)):
            await peer.subscribe(f"s{consumer_id}", consumer_id=consumer_id, durable=durable)
            peer.flow(10, consumer_id)
            command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
            command.getLastMessageId.consumer_id = consumer_id
            command.getLastMessageId.request_id = 7
            answer = (await peer.ask(command)).getLastMessageIdResponse
            assert (answer.last_message_id.ledgerId, answer.last_message_id.entryId) == (2, 4)
            await asyncio.sleep(STAYS_S + 0.01)
            assert await kinds(peer) == ["CLOSE_CONSUMER"]

    steered(scenario)


def test_more_than_a_question_keeps_it_here_for_now() -> None:
    async def scenario(world: World, double: Double) -> None:
        peer = world.peer(version=CPP)
        await peer.subscribe()
        peer.flow(10)
        seek = BaseCommand(type=BaseCommand.SEEK)
        seek.seek.consumer_id, seek.seek.request_id = 1, 9
        seek.seek.message_id.ledgerId, seek.seek.message_id.entryId = 2, 3
        peer.tell(seek)
        await asyncio.sleep(0.05)
        heard = await peer.heard()
        names = [
            COMMAND_NAMES[int(each.type)] for each in heard if each.type != BaseCommand.MESSAGE
        ]
        assert names == ["CLOSE_CONSUMER", "SUCCESS"], "as every seek is answered"
        assert world.topic().subscription("s").cursor.backlog_entries() == 2
        assert await sent_to(peer) == URL

    steered(scenario)


def test_questions_side_by_side_keep_one_consumer() -> None:
    async def scenario(world: World, double: Double) -> None:
        peer = world.peer(version=CPP)
        await peer.subscribe(kind=SHARED)
        peer.flow(10)
        await peer.heard()
        stats = BaseCommand(type=BaseCommand.CONSUMER_STATS)
        stats.consumerStats.consumer_id, stats.consumerStats.request_id = 1, 9
        async with world.topic().subscription("s").lock:
            peer.feed(encode_command(stats) * 3)
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        assert (await kinds(peer)).count("CONSUMER_STATS_RESPONSE") == 3
        assert len(world.topic().subscription("s").consumers) == 1
        peer.lose()
        assert world.topic().subscription("s").consumers == []

    steered(scenario)


def test_what_is_served_elsewhere_is_to_be_asked_there() -> None:
    async def scenario(world: World, double: Double) -> None:
        await bind(world, "s", "r1")
        peer = world.peer(version=CPP)
        await peer.subscribe()
        seek = BaseCommand(type=BaseCommand.SEEK)
        seek.seek.consumer_id, seek.seek.request_id = 1, 9
        seek.seek.message_id.ledgerId, seek.seek.message_id.entryId = 2, 3
        peer.tell(seek)
        await asyncio.sleep(0.01)
        assert await kinds(peer) == ["CLOSE_CONSUMER", "ERROR"], "at once"

    steered(scenario)


def test_a_client_that_did_not_hear_or_goes_away() -> None:
    async def scenario(world: World, double: Double) -> None:
        peer = world.peer(version=CPP)
        await peer.subscribe()
        assert (await peer.subscribe()).type == BaseCommand.SUCCESS, "it asks again"
        other = await peer.subscribe("other")
        assert other.error.error == ServerError.NOT_ALLOWED
        close = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        close.close_consumer.consumer_id, close.close_consumer.request_id = 1, 5
        assert (await peer.ask(close)).type == BaseCommand.SUCCESS
        assert await url_after_flow(peer) == ""
        await peer.subscribe(consumer_id=2)
        peer.flow(10, 2)
        peer.lose()
        await asyncio.sleep(1)
        assert peer.session.leaving == {}

    steered(scenario)


def test_readers_are_sent_when_their_clients_say_where_they_are() -> None:
    async def scenario(world: World, double: Double) -> None:
        peer = world.peer(version=CPP)
        assert await sent_to(peer, name="r-1", kind=EXCLUSIVE, durable=False) == URL
        assert "r-1" not in world.topic().subscriptions
        # From now on: only here it is known what now is.
        command = peer.subscribe_command("r-2", EXCLUSIVE, 2, earliest=False, durable=False)
        assert (await peer.ask(command)).type == BaseCommand.SUCCESS
        assert await url_after_flow(peer, 2) == ""
        await asyncio.sleep(10 * SETTLE_S)
        assert await kinds(peer) == []
        producer = world.peer()
        await producer.produce(name="other")
        producer.publish(1)
        await asyncio.sleep(SETTLE_S + 3 * LOOK_S)
        assert await kinds(peer) == ["MESSAGE", "CLOSE_CONSUMER"]
        assert "r-2" not in world.topic().subscriptions

    steered(scenario)


def test_all_of_a_subscription_are_sent_when_rules_change() -> None:
    async def scenario(world: World, double: Double) -> None:
        first, second = world.peer(version=CPP), world.peer(version=CPP)
        for peer in (first, second):
            assert await sent_to(peer) == ""
        first.acknowledge(0, 2)
        await say(world, {"rules": [{"subscription": "s", "to": "any"}]})
        await asyncio.sleep(SETTLE_S / 2)
        assert await kinds(first) == []
        await asyncio.sleep(SETTLE_S)
        for peer in (first, second):
            (command,) = await told(peer)
            assert command.close_consumer.assignedBrokerServiceUrl == URL
        subscription = world.topic().subscription("s")
        assert subscription.consumers == []
        assert subscription.cursor.backlog_entries() == 8
        first.acknowledge(4)
        assert subscription.cursor.backlog_entries() == 8, "they are not heard any more"
        # Somebody else may be served here meanwhile, as after every move.
        assert await sent_to(world.peer(), earliest=False) == ""

    steered(scenario, {"rules": []})


def test_one_who_would_not_follow_keeps_all_of_them() -> None:
    async def scenario(world: World, double: Double) -> None:
        old, new = world.peer(), world.peer(version=CPP)
        for peer in (old, new):
            assert await sent_to(peer) == ""
        await say(world, ANY)
        await asyncio.sleep(10 * SETTLE_S)
        assert await kinds(new) == []
        old.lose()
        await asyncio.sleep(2 * SETTLE_S)
        assert await kinds(new) == ["MESSAGE"] * 10 + ["CLOSE_CONSUMER"]

    steered(scenario, {"rules": []})


def test_no_broker_no_redirect() -> None:
    async def scenario(world: World, double: Double) -> None:
        double.brokers.clear()
        assert await sent_to(world.peer(version=CPP)) == ""
        double.brokers["r1"] = replace(R1, draining=True)
        assert await sent_to(world.peer(version=CPP), name="t") == ""
        double.brokers["r1"] = replace(R1, read_only=False)
        assert await sent_to(world.peer(version=CPP), name="u") == ""
        assert str(world.topic().name) == TOPIC

    steered(scenario)


def test_a_read_only_broker_sends_back_whom_it_may_not_serve() -> None:
    async def begin(world: World) -> None:
        double = Double()
        steering = ReadSteering(
            double.reports, world.broker.topics.loaded, world.broker.bindings, "r1"
        )
        peer = world.peer(version=CPP)
        await peer.subscribe()  # it was sent here
        world.broker._scope.spawn(steering.run(), "steering")
        await say(world, ANY)
        await asyncio.sleep(10 * SETTLE_S)
        assert await kinds(peer) == []
        await say(world, {"rules": [{"subscription": "other", "to": "any"}]})
        await asyncio.sleep(SETTLE_S + 3 * LOOK_S)
        (command,) = await told(peer)
        assert command.type == BaseCommand.CLOSE_CONSUMER
        assert not command.close_consumer.HasField("assignedBrokerServiceUrl")

    run(begin)


def test_one_that_asks_again_on_its_way_and_stays_gets_messages_that_it_takes() -> None:
    """Java's client passes messages of an earlier epoch than its own over, until it has none."""

    async def scenario(world: World, double: Double) -> None:
        peer = world.peer(version=CPP)
        await peer.subscribe(kind=EXCLUSIVE, consumer_epoch=0)
        again = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        again.redeliverUnacknowledgedMessages.consumer_id = 1
        again.redeliverUnacknowledgedMessages.consumer_epoch = 1
        peer.tell(again)
        stats = BaseCommand(type=BaseCommand.CONSUMER_STATS)
        stats.consumerStats.consumer_id, stats.consumerStats.request_id = 1, 1
        answer = await peer.ask(stats)
        assert answer.type == BaseCommand.CONSUMER_STATS_RESPONSE
        peer.flow(100)
        found = [each.message for each in await peer.heard() if each.type == BaseCommand.MESSAGE]
        assert [each.consumer_epoch for each in found] == [1] * 10

    steered(scenario)


def test_one_that_asks_for_messages_as_it_is_to_stay_is_not_sent_on() -> None:
    """It had messages out, and kept the subscription from others, and its client had gone."""

    async def scenario(world: World, double: Double) -> None:
        peer = world.peer(version=CPP)
        await peer.subscribe(kind=EXCLUSIVE)
        stats = BaseCommand(type=BaseCommand.CONSUMER_STATS)
        stats.consumerStats.consumer_id, stats.consumerStats.request_id = 1, 1
        async with world.topic().subscriptions["s"].lock:
            peer.tell(stats)
            await asyncio.sleep(0.01)
            peer.flow(100)
            await asyncio.sleep(2 * STAYS_S)
        assert await kinds(peer) == ["CONSUMER_STATS_RESPONSE", *["MESSAGE"] * 10]

    steered(scenario)
