"""What the control plane costs a broker that is warm, and what another process changes."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.partitioned_topics import PARTITIONED
from magnetar.cluster.schemas.policies import SchemaPolicy
from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.model.errors import BrokerMetadataError, ServiceNotReadyError, TopicNotFoundError
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    ServerError,
)
from tests.doubles.memory_metadata import MemoryMetadata
from tests.doubles.memory_values import MemoryValues
from tests.doubles.ownership import ELSEWHERE, divide
from tests.unit.protocols.pulsar.harness import TOPIC, Peer, World, run


def control_plane(metadata: MemoryMetadata) -> ControlPlane:
    return ControlPlane.over(metadata, MemoryValues(), "c", SchemaPolicy(), lambda: 0)


def lookup(topic: str) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.LOOKUP)
    command.lookupTopic.topic = topic
    command.lookupTopic.request_id = 7
    return command


def partitions(topic: str) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
    command.partitionMetadata.topic = topic
    command.partitionMetadata.request_id = 8
    command.partitionMetadata.metadata_auto_creation_enabled = True
    return command


async def use(peer: Peer, topic: str, number: int) -> None:
    """All that a client asks about names before it sends or receives."""
    await peer.heard()
    assert (await peer.ask(lookup(topic))).lookupTopicResponse.brokerServiceUrl
    assert (await peer.ask(partitions(topic))).type == BaseCommand.PARTITIONED_METADATA_RESPONSE
    produced = await peer.produce(topic, producer_id=number)
    assert produced.type == BaseCommand.PRODUCER_SUCCESS
    subscribed = await peer.subscribe(f"s{number}", consumer_id=number, topic=topic)
    assert subscribed.type == BaseCommand.SUCCESS


@pytest.mark.parametrize("topic", [TOPIC, "persistent://public/default/p-partition-1"])
def test_clients_cost_no_metadata_read_once_the_names_are_known(topic: str) -> None:
    async def scenario(world: World) -> None:
        await world.services.control.partitioned.create(parse_topic("p"), 2)
        peer = world.peer()
        await peer.heard()
        await use(peer, topic, 1)
        reads = world.metadata.reads
        for number in range(2, 10):
            await use(peer, topic, number)
        assert world.metadata.reads == reads

    run(scenario)


def test_what_another_process_changes_is_seen() -> None:
    async def main() -> None:
        store = MemoryMetadata()
        ours, theirs = control_plane(store), control_plane(store)
        await ours.namespaces.prepare()
        name = parse_topic("t")
        await ours.namespaces.check(name)
        assert await ours.partitioned.partitions(name) == 0
        assert await theirs.partitioned.create(name, 4)
        await asyncio.sleep(0)
        assert await ours.partitioned.partitions(name) == 4
        await theirs.partitioned.grow(name, 6)
        await asyncio.sleep(0)
        assert await ours.partitioned.partitions(name) == 6
        with pytest.raises(TopicNotFoundError, match="namespace public/n does not exist"):
            await ours.namespaces.check_namespace("public/n")
        assert await theirs.namespaces.create_namespace("public/n")
        await asyncio.sleep(0)
        await ours.namespaces.check_namespace("public/n")
        ours.close()
        theirs.close()

    asyncio.run(main())


def test_what_is_done_here_is_seen_here_without_waiting() -> None:
    async def main() -> None:
        control = control_plane(MemoryMetadata())
        name = parse_topic("acme/n/t")
        with pytest.raises(TopicNotFoundError, match="tenant acme does not exist"):
            await control.namespaces.create_namespace("acme/n")
        assert await control.namespaces.create_tenant("acme")
        assert not await control.namespaces.create_tenant("acme")
        assert await control.namespaces.create_namespace("acme/n")
        assert not await control.namespaces.create_namespace("acme/n")
        await control.namespaces.check(name)
        assert await control.partitioned.create(name, 2)
        assert not await control.partitioned.create(name, 2)
        await control.partitioned.grow(name, 3)
        assert await control.partitioned.partition_names("acme/n") == [
            name.of_partition(index) for index in range(3)
        ]
        await control.partitioned.delete(name)
        await control.partitioned.delete(name)
        assert await control.partitioned.partitions(name) == 0

    asyncio.run(main())


def test_a_partitioned_topic_that_cannot_be_read_does_not_hide_the_others() -> None:
    """A namespace's topics were listed by nobody, and watched by no expression."""

    async def main() -> None:
        store = MemoryMetadata()
        control = control_plane(store)
        await control.namespaces.prepare()
        sound, damaged = parse_topic("a"), parse_topic("b")
        assert await control.partitioned.create(sound, 2)
        await store.create(f"{PARTITIONED}/public/default/persistent/b", b"of no release")
        found = await control.partitioned.partition_names("public/default")
        assert found == [sound.of_partition(0), sound.of_partition(1)]
        assert await control.partitioned.names("public/default") == [sound, damaged]
        with pytest.raises(BrokerMetadataError, match="no partition metadata"):
            await control.partitioned.partitions(damaged)

    asyncio.run(main())


def begins_with_x(name: TopicName) -> bool:
    return name.local.startswith("x")


def test_a_topic_of_another_broker_is_neither_loaded_nor_looked_up_here() -> None:
    async def scenario(world: World) -> None:
        divided = divide(world.services.control, begins_with_x)
        peer = world.peer()
        await peer.heard()
        reply = (await peer.ask(lookup("x1"))).lookupTopicResponse
        assert reply.response == CommandLookupTopicResponse.Connect  # to its owner
        assert reply.brokerServiceUrl == ELSEWHERE.service_url
        assert reply.authoritative
        assert reply.HasField("proxy_through_service_url")
        assert not reply.proxy_through_service_url
        assert divided.claims == []
        reply = (await peer.ask(lookup("t"))).lookupTopicResponse
        assert reply.response == CommandLookupTopicResponse.Connect
        refused = await peer.produce("persistent://public/default/x1")
        assert "served by pulsar://other:6650" in refused.error.message
        assert "public/default/persistent/x1" not in world.store.logs
        assert refused.error.error == ServerError.ServiceNotReady
        with pytest.raises(ServiceNotReadyError):
            await world.broker.topics.create(parse_topic("x2"))
        with pytest.raises(ServiceNotReadyError):
            await world.broker.topics.delete(parse_topic("x2"), force=True)

    run(scenario)


def test_whoever_is_to_own_a_topic_is_asked_again() -> None:
    async def scenario(world: World) -> None:
        divide(world.services.control, begins_with_x, ELSEWHERE._replace(candidate=True))
        peer = world.peer()
        await peer.heard()
        reply = (await peer.ask(lookup("x1"))).lookupTopicResponse
        assert reply.response == CommandLookupTopicResponse.Redirect
        assert reply.brokerServiceUrl == ELSEWHERE.service_url
        assert reply.authoritative

    run(scenario)
