"""What every answer must have."""

from __future__ import annotations

import pytest

from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandLookupTopicResponse, Schema
from tests.unit.protocols.pulsar.harness import TOPIC, Peer, World, run
from tests.unit.protocols.pulsar.needed_fields import NEEDED, lacking

NOT_THERE = "persistent://nobody/nowhere/t"


def asked(topic: str) -> list[BaseCommand]:
    """One request of each kind that clients read answers of; consumer 1 and producer 1 exist."""
    partitions = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
    partitions.partitionMetadata.topic = topic
    partitions.partitionMetadata.request_id = 1
    lookup = BaseCommand(type=BaseCommand.LOOKUP)
    lookup.lookupTopic.topic = topic
    lookup.lookupTopic.request_id = 2
    last = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
    last.getLastMessageId.consumer_id = 1
    last.getLastMessageId.request_id = 3
    stats = BaseCommand(type=BaseCommand.CONSUMER_STATS)
    stats.consumerStats.consumer_id = 1
    stats.consumerStats.request_id = 4
    get = BaseCommand(type=BaseCommand.GET_SCHEMA)
    get.getSchema.topic = topic
    get.getSchema.request_id = 5
    return [partitions, lookup, last, stats, get, with_schema(topic)]


def with_schema(topic: str) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA)
    request = command.getOrCreateSchema
    request.request_id, request.topic = 6, topic
    request.schema.name, request.schema.type = "thing", Schema.Avro
    request.schema.schema_data = b'"int"'
    return command


@pytest.mark.parametrize("topic", [TOPIC, NOT_THERE], ids=["served", "unknown"])
def test_answers_have_what_clients_read_unasked(topic: str) -> None:
    async def scenario(world: World) -> None:
        peer = Peer(world, hello=True)
        heard = await peer.heard()
        heard.append(await peer.produce())
        heard.append(await peer.subscribe())
        peer.flow(10)
        peer.publish(2)
        peer.acknowledge(0, request_id=7)
        heard += await peer.heard()
        for command in asked(topic):
            heard.append(await peer.ask(command))
        assert [missing for answer in heard for missing in lacking(answer)] == []
        kinds = {int(answer.type) for answer in heard}
        wanted = set(NEEDED) - {BaseCommand.SEND_ERROR}
        assert wanted - kinds == set(), "an answer did not come"

    run(scenario)


def test_a_topic_has_no_schema() -> None:
    async def scenario(world: World) -> None:
        command = next(c for c in asked(TOPIC) if c.type == BaseCommand.GET_SCHEMA)
        peer = world.peer()
        await peer.heard()
        reply = (await peer.ask(command)).getSchemaResponse
        assert (reply.request_id, reply.error_code) == (5, ServerError.TOPIC_NOT_FOUND)
        assert "no schema" in reply.error_message

    run(scenario)


def test_a_lookup_that_is_refused_says_so_in_its_own_way() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.heard()
        lookup = asked(NOT_THERE)[1]
        reply = (await peer.ask(lookup)).lookupTopicResponse
        assert reply.response == CommandLookupTopicResponse.Failed
        assert reply.error == ServerError.TOPIC_NOT_FOUND

    run(scenario)
