"""What producers and consumers with schemas are answered, on the wire."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.cluster.topic_name import parse_topic
from magnetar.model.errors import MetadataUnavailableError
from magnetar.model.schema import SchemaStrategy, TopicSchema
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, Schema
from magnetar.wire.pulsar.schemas import decode_wire_schema, encode_version, fill_wire_schema
from tests.unit.cluster.schemas.kit import avro, field, record
from tests.unit.protocols.pulsar.harness import EXCLUSIVE, TOPIC, Peer, World, run

A = avro(record(field("a", "int")))
B = avro(record(field("a", "int"), field("b", "int", default=0)))
WRONG = avro(record(field("a", "string")))
NAMESPACE = "public/default"
V0, V1 = encode_version(0), encode_version(1)


def wire(schema: TopicSchema) -> Schema:
    made = Schema()
    fill_wire_schema(made, "thing", schema)
    return made


async def produce(
    peer: Peer, schema: TopicSchema | None, number: int = 1, topic: str = TOPIC
) -> BaseCommand:
    await peer.heard()
    command = peer.produce_command(topic, number)
    if schema is not None:
        command.producer.schema.CopyFrom(wire(schema))
    return await peer.ask(command)


async def subscribe(
    peer: Peer, schema: TopicSchema | Schema | None, number: int = 1
) -> BaseCommand:
    await peer.heard()
    command = peer.subscribe_command(f"s{number}", EXCLUSIVE, number)
    if schema is not None:
        made = schema if isinstance(schema, Schema) else wire(schema)
        command.subscribe.schema.CopyFrom(made)
    return await peer.ask(command)


async def get(peer: Peer, version: bytes | None = None, topic: str = TOPIC) -> BaseCommand:
    await peer.heard()
    command = BaseCommand(type=BaseCommand.GET_SCHEMA)
    command.getSchema.request_id, command.getSchema.topic = 9, topic
    if version is not None:
        command.getSchema.schema_version = version
    return await peer.ask(command)


async def get_or_create(
    peer: Peer, schema: TopicSchema | Schema, topic: str = TOPIC
) -> BaseCommand:
    await peer.heard()
    command = BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA)
    command.getOrCreateSchema.request_id, command.getOrCreateSchema.topic = 8, topic
    made = schema if isinstance(schema, Schema) else wire(schema)
    command.getOrCreateSchema.schema.CopyFrom(made)
    return await peer.ask(command)


def refused(answer: BaseCommand, words: str) -> None:
    assert answer.type == BaseCommand.ERROR
    assert answer.error.error == ServerError.INCOMPATIBLE_SCHEMA
    assert words in answer.error.message


def bytes_schema() -> Schema:
    """How clients say "plain bytes"."""
    return Schema(name="", schema_data=b"", type=Schema.Type.Value("None"))


def auto_consume() -> Schema:
    return Schema(name="", schema_data=b"", type=Schema.AutoConsume)


def test_a_producer_is_told_the_version_of_its_schema() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        versions = [
            (await produce(peer, schema, number)).producer_success.schema_version
            for number, schema in enumerate((A, B, A, None), 1)
        ]
        assert versions == [V0, V1, V0, b""]
        again = peer.produce_command(TOPIC, 1)
        again.producer.schema.CopyFrom(wire(A))
        answer = await peer.ask(again)
        assert answer.producer_success.schema_version == V0, "asked again: the same"

    run(scenario)


def test_one_that_does_not_fit_is_refused_with_the_place_and_nothing_is_connected() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await produce(peer, A)
        refused(await produce(peer, WRONG, 2), "version 0 of the topic's schema (AVRO, FULL): R.a")
        refused(await produce(peer, avro({}), 3), "invalid definition of a schema of type AVRO")
        refused(await subscribe(peer, WRONG), "R.a: int cannot be read as string")
        assert set(peer.session.producers) == {1}
        assert not world.topic().subscriptions, "not even the subscription is made"
        assert not peer.session.closed

    run(scenario)


def test_a_type_that_is_not_known_is_refused() -> None:
    """As a number: protobuf keeps those of later releases apart, and says the default."""

    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.heard()
        command = peer.produce_command()
        command.producer.schema.CopyFrom(wire(A))
        command.producer.schema.type = Schema.External
        command.producer.schema.schema_data = b"anything"
        assert (await peer.ask(command)).producer_success.schema_version == V0

    run(scenario)


def test_consumers_of_a_topic_with_a_schema() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await produce(peer, A)
        for number, schema in enumerate((A, B, None, auto_consume(), bytes_schema()), 1):
            assert (await subscribe(peer, schema, number)).type == BaseCommand.SUCCESS
        assert len(world.values.values) == 1, "a consumer's schema is not the topic's next"

    run(scenario)


def test_a_consumer_gives_a_topic_its_schema_where_nobody_has_written() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        assert (await subscribe(peer, None, 1)).type == BaseCommand.SUCCESS
        assert (await subscribe(peer, A, 2)).type == BaseCommand.SUCCESS
        assert (await get(peer)).getSchemaResponse.schema_version == V0
        refused(await produce(peer, WRONG), "R.a")

    run(scenario)


@pytest.mark.parametrize("left", [True, False], ids=["producer left", "producer there"])
def test_a_consumer_gives_none_where_there_are_plain_bytes(left: bool) -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await produce(peer, None)
        if left:
            peer.publish(1)
            await peer.heard()
            world.topic().remove_producer(peer.session.producers.pop(1))
        refused(await subscribe(peer, A), "has no schema, but producers or messages without one")
        assert (await subscribe(peer, None, 2)).type == BaseCommand.SUCCESS

    run(scenario)


def test_schemas_by_version_and_the_newest() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await produce(peer, A, 1)
        await produce(peer, B, 2)
        for version, schema in ((None, B), (V0, A), (V1, B)):
            reply = (await get(peer, version)).getSchemaResponse
            assert decode_wire_schema(reply.schema) == schema
            assert reply.schema_version == (version or V1)
            assert (reply.request_id, reply.schema.name) == (9, "public/default/t")
            assert not reply.HasField("error_code")
        missing = (await get(peer, encode_version(2))).getSchemaResponse
        assert missing.error_code == ServerError.TOPIC_NOT_FOUND
        for version in (b"123", bytes(64)):
            odd = (await get(peer, version)).getSchemaResponse
            assert odd.error_code == ServerError.INCOMPATIBLE_SCHEMA

    run(scenario)


def test_the_empty_version_is_that_of_messages_without_a_schema() -> None:
    """Go's client asks for the schema of whatever version a message has, and its producers of
    bytes write the empty one, which they were told."""

    async def scenario(world: World) -> None:
        peer = world.peer()
        answer = await produce(peer, None, 1)
        version = answer.producer_success.schema_version
        reply = (await get(peer, version)).getSchemaResponse
        assert not reply.HasField("error_code")
        assert (reply.schema.type, reply.schema.schema_data) == (Schema.Type.Value("None"), b"")
        assert (reply.schema_version, reply.request_id) == (b"", 9)

    run(scenario)


def test_partitions_share_one() -> None:
    async def scenario(world: World) -> None:
        await world.services.control.partitioned.create(parse_topic("p"), 3)
        peer = world.peer()
        for number in range(3):
            answer = await produce(peer, A, number, f"p-partition-{number}")
            assert answer.producer_success.schema_version == V0
        answer = await produce(peer, B, 4, "p-partition-2")
        assert answer.producer_success.schema_version == V1
        assert (await get(peer, V0, "p")).getSchemaResponse.schema_version == V0
        assert (await get(peer, None, "p-partition-0")).getSchemaResponse.schema_version == V1
        assert (await get(peer, None, "p")).getSchemaResponse.schema.name == "public/default/p"
        await world.admin.delete_partitioned("p", force=True)
        assert not world.values.values

    run(scenario)


def test_a_deleted_topic_begins_anew() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await produce(peer, A)
        await world.admin.delete(TOPIC, force=True)
        assert not world.values.values
        await peer.heard()
        assert (await produce(peer, WRONG, 2)).producer_success.schema_version == V0

    run(scenario)


def test_a_deleted_partition_takes_nothing_with_it() -> None:
    async def scenario(world: World) -> None:
        await world.services.control.partitioned.create(parse_topic("p"), 2)
        peer = world.peer()
        await produce(peer, A, 1, "p-partition-0")
        await world.admin.delete("p-partition-0", force=True)
        assert (await get(peer, None, "p")).getSchemaResponse.schema_version == V0

    run(scenario)


def test_a_producer_sends_with_another_schema() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await produce(peer, A)
        reply = (await get_or_create(peer, B)).getOrCreateSchemaResponse
        assert (reply.request_id, reply.schema_version) == (8, V1)
        assert not reply.HasField("error_code")
        plain = (await get_or_create(peer, bytes_schema())).getOrCreateSchemaResponse
        assert plain.HasField("schema_version")
        assert plain.schema_version == b""

    run(scenario)


@pytest.mark.parametrize(
    ("schema", "topic"), [(WRONG, TOPIC), (avro({}), TOPIC), (B, TOPIC + "-not-there")]
)
def test_what_is_final_is_told_java_in_the_word_that_it_takes_for_that(
    schema: TopicSchema, topic: str
) -> None:
    """On any other it asks again, at once and without end."""

    async def scenario(world: World) -> None:
        peer = world.peer()
        await produce(peer, A)
        reply = (await get_or_create(peer, schema, topic)).getOrCreateSchemaResponse
        assert reply.error_code == ServerError.INCOMPATIBLE_SCHEMA

    run(scenario)


def test_what_passes_is_told_after_a_while() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await produce(peer, A)

        async def away(path: str) -> None:
            raise MetadataUnavailableError("no answer")

        world.metadata.get = away  # type: ignore[method-assign, assignment]
        begun = asyncio.get_running_loop().time()
        reply = (await get_or_create(peer, B)).getOrCreateSchemaResponse
        assert reply.error_code == ServerError.SERVICE_NOT_READY
        assert asyncio.get_running_loop().time() - begun >= 1

    run(scenario)


def test_namespaces_may_want_schemas_of_all_and_new_ones_of_none() -> None:
    async def scenario(world: World) -> None:
        peer, policies = world.peer(), world.services.control.schemas.policies
        await produce(peer, A)
        await policies.set_validation_enforced(NAMESPACE, True)
        refused(await produce(peer, None, 2), "schemaValidationEnforced")
        assert (await produce(peer, A, 3)).type == BaseCommand.PRODUCER_SUCCESS
        await policies.set_auto_update(NAMESPACE, False)
        refused(await produce(peer, B, 4), "isAllowAutoUpdateSchema")
        refused_reply = (await get_or_create(peer, B)).getOrCreateSchemaResponse
        assert refused_reply.error_code == ServerError.INCOMPATIBLE_SCHEMA
        other = await produce(peer, A, 5, TOPIC + "2")
        refused(other, "has no such schema")
        await policies.set_auto_update(NAMESPACE, True)
        await policies.set_strategy(NAMESPACE, SchemaStrategy.ALWAYS_COMPATIBLE)
        assert (await produce(peer, WRONG, 6)).producer_success.schema_version == V1

    run(scenario)


def test_the_brokers_defaults_hold_where_a_namespace_says_nothing() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        assert (await produce(peer, A)).producer_success.schema_version == V0
        refused(await produce(peer, B, 2), "do not change")
        refused(await produce(peer, None, 3), "schemaValidationEnforced")

    run(
        scenario,
        schema_compatibility_strategy="ALWAYS_INCOMPATIBLE",
        schema_validation_enforced=True,
    )


def test_a_producer_with_a_known_schema_costs_no_read() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await produce(peer, A, 1)
        await subscribe(peer, A, 1)
        await produce(peer, A, 2)
        before = world.metadata.reads, world.values.reads
        for number in range(3, 10):
            assert (await produce(peer, A, number)).producer_success.schema_version == V0
            assert (await subscribe(peer, A, number)).type == BaseCommand.SUCCESS
        assert (world.metadata.reads, world.values.reads) == before

    run(scenario)
