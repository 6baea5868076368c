"""Answers of megabytes, to clients that ask for many of them and do not read."""

from __future__ import annotations

import asyncio
import json

import pytest

from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.protocols.pulsar.session import WRITE_BYTES_HIGH, WRITE_BYTES_LOW
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.commands import encode_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, Schema
from tests.unit.protocols.pulsar.harness import TOPIC, FakeTransport, Peer, World, run

NAMESPACE = "public/default"
PREFIX = f"persistent://{NAMESPACE}/"
ASKED = 200
"""Less than the requests that are under way at a time."""
NUMBERS = range(1000, 1000 + ASKED)


class UnreadTransport(FakeTransport):
    """Keeps what is written until ``read``, and says so, as asyncio's do."""

    def __init__(self, peer: Peer) -> None:
        super().__init__()
        self._session = peer.session
        self._read = 0
        peer.session.transport = peer.transport = self

    def get_write_buffer_size(self) -> int:
        return len(self.data) - self._read

    def write(self, data: bytes | bytearray | memoryview) -> None:
        super().write(data)
        if self.get_write_buffer_size() > WRITE_BYTES_HIGH and self._session.writable:
            self._session.pause_writing()

    def read(self) -> int:
        """The client reads all there is; of how many bytes."""
        taken, self._read = self.get_write_buffer_size(), len(self.data)
        assert self.get_write_buffer_size() <= WRITE_BYTES_LOW
        if not self._session.writable:
            self._session.resume_writing()
        return taken


def listing(number: int = 1) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE)
    command.getTopicsOfNamespace.request_id = number
    command.getTopicsOfNamespace.namespace = NAMESPACE
    return command


def asking_schema(number: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.GET_SCHEMA)
    command.getSchema.request_id = number
    command.getSchema.topic = TOPIC
    return command


def watch(number: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST)
    request = command.watchTopicList
    request.request_id = request.watcher_id = number
    request.namespace, request.topics_pattern = NAMESPACE, ".*"
    return command


async def turns(count: int = 2000) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def have_long_list(world: World) -> None:
    """More than a client is kept in memory for."""
    names = [parse_topic(f"{PREFIX}{'n' * 900}{each}") for each in range(1500)]
    assert sum(len(str(each)) for each in names) > WRITE_BYTES_HIGH

    async def found(namespace: str) -> list[TopicName]:
        return names

    world.services.topics.names = found  # type: ignore[method-assign]


async def greeted(world: World) -> Peer:
    peer = world.peer()
    await peer.heard()
    return peer


def test_lists_are_made_as_their_client_reads_them() -> None:
    """All that is asked for in one chunk was made at once: 800 MB for a client, 8 GB for ten."""

    async def scenario(world: World) -> None:
        have_long_list(world)
        peer = await greeted(world)
        transport = UnreadTransport(peer)
        peer.feed(b"".join(encode_command(listing(each)) for each in NUMBERS))
        await turns()
        one = transport.read()
        assert one < 2 * WRITE_BYTES_HIGH, "one list"
        for _ in range(ASKED - 1):
            await turns(20)
            assert transport.read() == one
        asked = [each.getTopicsOfNamespaceResponse.request_id for each in await peer.heard()]
        assert asked == list(NUMBERS)

    run(scenario)


def test_a_list_is_not_made_for_a_client_that_left() -> None:
    async def scenario(world: World) -> None:
        ended, never = list[str](), asyncio.Event()

        async def found(namespace: str) -> list[TopicName]:
            try:
                await never.wait()
            finally:
                ended.append(namespace)
            return []

        world.services.topics.names = found  # type: ignore[method-assign]
        peer = await greeted(world)
        peer.feed(b"".join(encode_command(listing(each)) for each in range(3)))
        await turns(20)
        peer.lose()
        await turns(20)
        assert ended == [NAMESPACE], "and none of those behind it is begun"

    run(scenario)


def test_schemas_are_told_as_their_client_reads_them() -> None:
    async def scenario(world: World) -> None:
        peer = await greeted(world)
        record = {"type": "record", "name": "r", "doc": "d" * 500_000, "fields": []}
        command = peer.produce_command()
        schema = Schema(name="s", type=Schema.Json, schema_data=json.dumps(record).encode())
        command.producer.schema.CopyFrom(schema)
        assert (await peer.ask(command)).type == BaseCommand.PRODUCER_SUCCESS
        transport = UnreadTransport(peer)
        peer.feed(b"".join(encode_command(asking_schema(each)) for each in NUMBERS))
        await turns()
        assert WRITE_BYTES_HIGH < transport.read() < 2 * WRITE_BYTES_HIGH

    run(scenario)


def test_one_list_is_made_in_a_turn() -> None:
    """Thousands of clients may ask at once; what one does not read counts before the next asks."""

    async def scenario(world: World) -> None:
        have_long_list(world)
        peers = [await greeted(world) for _ in range(10)]
        transports = [UnreadTransport(each) for each in peers]
        for peer in peers:
            peer.tell(listing())
        most = seen = 0
        while seen < len(peers):
            await asyncio.sleep(0)
            now = sum(each.get_write_buffer_size() > 0 for each in transports)
            most, seen = max(most, now - seen), now
        assert most == 1

    run(scenario)


def test_without_memory_for_it_a_list_is_refused() -> None:
    async def scenario(world: World) -> None:
        have_long_list(world)
        connections = world.services.connections
        slow, other = await greeted(world), await greeted(world)
        connections.fell_behind(slow.session, connections.unsent_bytes_max)
        refused = await other.ask(listing())
        assert refused.error.error == ServerError.SERVICE_NOT_READY
        assert "ask again later" in refused.error.message
        connections.caught_up(slow.session)
        answer = await other.ask(listing())
        assert answer.type == BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE

    run(scenario)


def test_who_goes_while_its_list_waits_gets_none() -> None:
    async def scenario(world: World) -> None:
        have_long_list(world)
        peer, other = await greeted(world), await greeted(world)
        UnreadTransport(peer)
        peer.feed(encode_command(listing()) * 3)
        await turns()
        peer.lose()
        answer = await other.ask(listing())
        assert answer.type == BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE
        await turns()
        assert not world.services.listings.locked()

    run(scenario)


@pytest.mark.parametrize("watches", [1, 30])
def test_watches_catch_up_as_their_client_reads(watches: int) -> None:
    """A client has thousands of them, and each may have missed a list of megabytes."""

    async def scenario(world: World) -> None:
        peer = await greeted(world)
        for number in range(watches):
            await peer.ask(watch(number))
        transport = UnreadTransport(peer)
        peer.session.pause_writing()
        for each in range(1500):
            await world.services.topics.get(parse_topic(f"{PREFIX}{'n' * 900}{each}"), create=True)
        await asyncio.sleep(5)
        assert transport.read() == 0
        told = 0
        for _ in range(watches):
            await turns(50)
            taken = transport.read()
            assert taken < 2 * WRITE_BYTES_HIGH
            told += taken
        assert told > watches * WRITE_BYTES_HIGH
        updates = [each.watchTopicUpdate for each in await peer.heard()]
        assert {each.watcher_id for each in updates} == set(range(watches))
        assert sum(len(each.new_topics) for each in updates) == 1500 * watches

    run(scenario)


def test_no_schema_waits_for_a_list() -> None:
    """A list waits for the metadata store, and may for long."""

    async def scenario(world: World) -> None:
        lister, other = await greeted(world), await greeted(world)
        command = other.produce_command()
        command.producer.schema.CopyFrom(Schema(name="s", type=Schema.String, schema_data=b""))
        assert (await other.ask(command)).type == BaseCommand.PRODUCER_SUCCESS
        answered = asyncio.Event()

        async def late(namespace: str) -> list[TopicName]:
            await answered.wait()
            return []

        world.services.topics.names = late  # type: ignore[method-assign]
        lister.tell(listing())
        await turns(20)
        assert world.services.listings.locked()
        answer = await other.ask(asking_schema(2))
        assert answer.getSchemaResponse.schema.type == Schema.String
        answered.set()
        assert (await lister.heard())[-1].type == BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE

    run(scenario)
