"""Who is connected to a topic, as REST shows it."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.admin.lent_stats import ServedThere, merged
from magnetar.admin.stats_views import SubscriptionView
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.unit.admin.test_api import P, Platform, serve
from tests.unit.protocols.pulsar.harness import EXCLUSIVE, FAILOVER

NEW = ("clientVersion", "metadata")


def test_stats_say_who_is_connected_and_when_they_were_last_active() -> None:
    """What Pulsar's admin clients read of producers and consumers."""

    async def scenario(p: Platform) -> None:
        peer = p.world.peer(version="Pulsar-Go-version-0.21.0")
        produce, subscribe = peer.produce_command(), peer.subscribe_command()
        produce.producer.metadata.add(key="team", value="a")
        subscribe.subscribe.metadata.add(key="team", value="b")
        peer.tell(produce)
        peer.tell(subscribe)
        await peer.heard()
        stats = (await p.client.get(f"{P}/t/stats")).json()
        producer, found = stats["publishers"][0], stats["subscriptions"]["s"]
        consumer = found["consumers"][0]
        assert producer["clientVersion"] == consumer["clientVersion"] == "Pulsar-Go-version-0.21.0"
        assert (producer["metadata"], consumer["metadata"]) == ({"team": "a"}, {"team": "b"})
        assert found["subscriptionProperties"] == found["consumersAfterMarkDeletePosition"] == {}
        times = ("lastConsumedFlowTimestamp", "lastConsumedTimestamp", "lastAckedTimestamp")
        for view in (found, consumer):
            assert [view[each] for each in times] == [0, 0, 0]
        peer.publish(1)
        peer.flow(1)
        await peer.heard()
        now_ms = 1_000_000_000_000
        for view in ((again := await subscription_stats(p)), again["consumers"][0]):
            assert [view[each] for each in times] == [now_ms, now_ms, 0]
        peer.acknowledge(0)
        await peer.heard()
        for view in ((again := await subscription_stats(p)), again["consumers"][0]):
            assert [view[each] for each in times] == [now_ms, now_ms, now_ms]

    serve(scenario)


async def subscription_stats(p: Platform) -> dict[str, Any]:
    found: dict[str, Any] = (await p.client.get(f"{P}/t/stats")).json()["subscriptions"]["s"]
    return found


def test_stats_name_who_becomes_active_while_it_passes_to_another() -> None:
    """As Pulsar's do at once, and its admins read a name there."""

    async def scenario(p: Platform) -> None:
        first, second = p.world.peer(), p.world.peer()
        await first.subscribe(kind=FAILOVER, consumer_name="b")
        assert (await subscription_stats(p))["activeConsumerName"] == "b"
        await second.subscribe(kind=FAILOVER, consumer_name="a")
        assert (await subscription_stats(p))["activeConsumerName"] == "a"

    serve(scenario)


def test_cursors_of_readers_are_shown_while_they_read() -> None:
    """Of its internal stats, as Pulsar shows them: `ReaderTest` of its own suite looks there."""

    async def scenario(p: Platform) -> None:
        peer = p.world.peer()
        await peer.subscribe("kept")
        await peer.subscribe("reader-1", EXCLUSIVE, consumer_id=2, durable=False)

        async def cursors() -> dict[str, Any]:
            found: dict[str, Any] = (await p.client.get(f"{P}/t/internalStats")).json()["cursors"]
            return found

        assert sorted(found := await cursors()) == ["kept", "reader-1"]
        assert found["reader-1"]["state"] == "Open"
        close = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        close.close_consumer.consumer_id, close.close_consumer.request_id = 2, 9
        assert (await peer.ask(close)).type == BaseCommand.SUCCESS
        assert list(await cursors()) == ["kept"]

    serve(scenario)


@pytest.mark.parametrize("path", ["t/stats", "f/partitioned-stats"])
def test_stats_leave_out_who_is_connected_when_asked_to(path: str) -> None:
    async def scenario(p: Platform) -> None:
        await p.status("PUT", f"{P}/f/partitions", json=2)
        peer = p.world.peer()
        for number, topic in enumerate(("t", "f-partition-0", "f-partition-1"), 1):
            await peer.produce(topic, producer_id=number)
            await peer.subscribe("s", topic=topic, consumer_id=number)

        async def connected(**query: bool) -> tuple[set[bool], set[bool]]:
            stats = (await p.client.get(f"{P}/{path}", params=query)).json()
            every = [stats, *stats.get("partitions", {}).values()]
            producers = {bool(each["publishers"]) for each in every}
            return producers, {bool(each["subscriptions"]["s"]["consumers"]) for each in every}

        assert await connected() == ({True}, {True})
        assert await connected(excludePublishers=True) == ({False}, {True})
        assert await connected(excludeConsumers=True) == ({True}, {False})
        both = {"excludePublishers": True, "excludeConsumers": True}
        assert await connected(**both) == ({False}, {False})

    serve(scenario)


def test_times_are_those_of_the_broker_that_serves_a_subscription() -> None:
    """Which may be older, and not tell of any."""

    async def scenario(p: Platform) -> None:
        await p.world.peer().subscribe()
        told = await subscription_stats(p)
        here = SubscriptionView.model_validate(told)
        times = ("lastConsumedFlowTimestamp", "lastConsumedTimestamp", "lastAckedTimestamp")
        there = SubscriptionView.model_validate({**told, **dict.fromkeys(times, 7)})
        found = merged(here, ServedThere("pulsar://there:6650", there)).model_dump(by_alias=True)
        assert [found[each] for each in times] == [7, 7, 7]
        consumer = {k: v for k, v in told["consumers"][0].items() if k not in (*times, *NEW)}
        older = {k: v for k, v in told.items() if k not in (*times, "subscriptionProperties")}
        assert SubscriptionView.model_validate({**older, "consumers": [consumer]})

    serve(scenario)


def test_stats_say_when_a_topic_was_made_and_last_published_to() -> None:
    async def scenario(p: Platform) -> None:
        await p.status("PUT", f"{P}/f/partitions", json=2)

        async def told(path: str) -> tuple[int, int]:
            stats = (await p.client.get(f"{P}/{path}")).json()
            return stats["topicCreationTimeStamp"], stats["lastPublishTimestamp"]

        peer = p.world.peer()
        for number, made_ms in ((0, 7_000), (1, 5_000)):
            await peer.produce(f"f-partition-{number}", producer_id=number)
            p.world.log(f"f-partition-{number}").made_ms = made_ms
        assert await told("f/partitioned-stats") == (5_000, 0)
        peer.publish(1, producer_id=1)
        await peer.heard()
        assert await told("f-partition-0/stats") == (7_000, 0)
        assert await told("f-partition-1/stats") == (5_000, 1_000_000_000_000)
        assert await told("f/partitioned-stats") == (5_000, 1_000_000_000_000)

    serve(scenario)
