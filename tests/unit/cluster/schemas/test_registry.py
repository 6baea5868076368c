"""The registry over stores in memory: versions, races between brokers, what is left over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pytest

from magnetar.cluster.namespaces import Namespaces
from magnetar.cluster.policies.topic_policies import TopicPolicies
from magnetar.cluster.schemas import kept as kept_module
from magnetar.cluster.schemas import record as record_module
from magnetar.cluster.schemas import rules
from magnetar.cluster.schemas.policies import SchemaPolicies, SchemaPolicy
from magnetar.cluster.schemas.record import (
    SchemaRecord,
    StoredVersion,
    decode_record,
    decode_schema,
    encode_record,
    encode_schema,
    record_path,
)
from magnetar.cluster.schemas.registry import Schemas
from magnetar.cluster.topic_name import parse_topic
from magnetar.model.errors import (
    BrokerMetadataError,
    IncompatibleSchemaError,
    InvalidSchemaError,
    MetadataUnavailableError,
    SchemaNotFoundError,
    TopicNotFoundError,
)
from magnetar.model.schema import SchemaStrategy, SchemaType, TopicSchema
from tests.doubles.memory_metadata import MemoryMetadata
from tests.doubles.memory_values import MemoryValues
from tests.unit.cluster.schemas.kit import avro, field, plain, record

NAME = parse_topic("t")
NAMESPACE = "public/default"


def numbered(count: int) -> TopicSchema:
    """Schema 1 has one field, 2 has two ..., all with defaults: each may follow each."""
    return avro(record(*(field(f"f{n}", "int", default=0) for n in range(count))))


def wanting(*names: str) -> TopicSchema:
    return avro(record(*(field(name, "int") for name in names)))


@dataclass
class Place:
    metadata: MemoryMetadata
    values: MemoryValues

    def registry(self, policy: SchemaPolicy | None = None) -> Schemas:
        """That of one more broker."""
        namespaces = Namespaces(self.metadata)
        topics = TopicPolicies(self.metadata, namespaces)
        policies = SchemaPolicies(namespaces, topics, policy or SchemaPolicy())
        return Schemas(self.metadata, self.values, policies, lambda: 7)


def run(scenario: Callable[[Place], Awaitable[None]]) -> None:
    async def main() -> None:
        place = Place(MemoryMetadata(), MemoryValues())
        await Namespaces(place.metadata).prepare()
        await asyncio.wait_for(scenario(place), 60)

    asyncio.run(main())


def test_versions_count_from_nought_and_a_schema_that_is_known_is_its_version() -> None:
    async def scenario(place: Place) -> None:
        schemas = place.registry()
        assert await schemas.latest(NAME) is None
        assert [await schemas.bring(NAME, numbered(n)) for n in (1, 2, 1, 3, 2)] == [0, 1, 0, 2, 1]
        assert [each.version for each in await schemas.versions(NAME)] == [0, 1, 2]
        latest = await schemas.latest(NAME)
        assert latest is not None
        assert (latest.schema, latest.created_ms) == (numbered(3), 7)
        assert await schemas.at(NAME, 3) is None
        assert len(place.values.values) == 3

    run(scenario)


def test_partitions_have_the_schema_of_their_topic() -> None:
    async def scenario(place: Place) -> None:
        schemas = place.registry()
        for partition in range(3):
            assert await schemas.bring(parse_topic(f"p-partition-{partition}"), numbered(1)) == 0
        assert await schemas.latest(parse_topic("p")) is not None
        assert len(place.values.values) == 1

    run(scenario)


def test_another_broker_finds_what_is_stored() -> None:
    async def scenario(place: Place) -> None:
        schema = TopicSchema(SchemaType.AVRO, numbered(1).data, {"__alwaysAllowNull": "true"})
        await place.registry().bring(NAME, schema)
        found = await place.registry().at(NAME, 0)
        assert found is not None
        assert found.schema == schema

    run(scenario)


def test_one_that_is_warm_costs_no_read() -> None:
    async def scenario(place: Place) -> None:
        schemas = place.registry()
        await schemas.bring(NAME, numbered(1))
        await schemas.bring(NAME, numbered(1))
        await schemas.check_reader(NAME, numbered(1))
        await schemas.check_without(NAME)
        await schemas.latest(NAME)
        before = place.metadata.reads, place.values.reads
        for _ in range(10):
            assert await schemas.bring(NAME, numbered(1)) == 0
            await schemas.check_reader(NAME, numbered(1))
            await schemas.check_without(NAME)
            assert await schemas.latest(NAME) is not None
            assert await schemas.at(NAME, 0) is not None
        assert (place.metadata.reads, place.values.reads) == before

    run(scenario)


def test_a_reader_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def counted(schema: TopicSchema) -> None:
        nonlocal asked
        asked += 1
        check(schema)

    check = rules.check
    monkeypatch.setattr(rules, "check", counted)

    async def scenario(place: Place) -> None:
        schemas = place.registry()
        await schemas.bring(NAME, numbered(1))
        for _ in range(5):
            await schemas.check_reader(NAME, numbered(2))
        assert len(schemas._readers._found) == 1
        assert asked == 2, "each schema is looked at once"
        await schemas.bring(NAME, wanting())
        for _ in range(2):
            with pytest.raises(IncompatibleSchemaError):
                await schemas.check_reader(NAME, wanting("x"))
        assert len(schemas._readers._found) == 1, "a refusal is none of what stays"

    run(scenario)


def test_answers_are_kept_within_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(place: Place) -> None:
        schemas = place.registry()
        for n in range(1, 6):
            await schemas.bring(NAME, numbered(n))
        assert len(schemas._identities._found) == 2
        assert await schemas.bring(NAME, numbered(1)) == 0

    monkeypatch.setattr(kept_module, "ANSWERS_MAX", 2)
    run(scenario)


def test_definitions_are_kept_within_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(place: Place) -> None:
        schemas = place.registry()
        for n in range(1, 6):
            await schemas.bring(NAME, numbered(n))
        assert [each.version for each in await schemas.versions(NAME)] == [0, 1, 2, 3, 4]
        assert schemas._kept._bytes <= kept_module.KEPT_BYTES_MAX
        assert len(schemas._kept._found) == 2

    monkeypatch.setattr(kept_module, "KEPT_BYTES_MAX", 3000)
    run(scenario)


def test_those_who_come_at_once_with_one_schema_make_one_version() -> None:
    async def scenario(place: Place) -> None:
        brokers = [place.registry() for _ in range(4)]
        found = await asyncio.gather(
            *(each.bring(NAME, numbered(1)) for each in brokers for _ in range(10))
        )
        assert set(found) == {0}
        assert len(place.values.values) == 1, "ledgers of those who were late are deleted"
        assert all(not each._turns for each in brokers)

    run(scenario)


def test_those_who_come_at_once_with_different_ones_get_different_versions() -> None:
    async def scenario(place: Place) -> None:
        brokers = [place.registry() for _ in range(4)]
        found = await asyncio.gather(
            *(each.bring(NAME, numbered(n)) for n, each in enumerate(brokers * 3, 1))
        )
        assert sorted(found) == list(range(12))
        for number, version in enumerate(found, 1):
            stored = await place.registry().at(NAME, version)
            assert stored is not None
            assert stored.schema == numbered(number)
        assert len(place.values.values) == 12

    run(scenario)


def test_incompatible_ones_that_come_at_once_are_held_against_the_first() -> None:
    """Whoever loses the race looks again: the check must not be of what was there before."""

    async def scenario(place: Place) -> None:
        ours, theirs = place.registry(), place.registry()
        outcomes = await asyncio.gather(
            ours.bring(NAME, wanting("a")), theirs.bring(NAME, wanting("b")), return_exceptions=True
        )
        assert outcomes.count(0) == 1
        assert sum(isinstance(each, IncompatibleSchemaError) for each in outcomes) == 1
        assert len(place.values.values) == 1

    run(scenario)


def test_a_version_that_another_broker_gave_is_found() -> None:
    """Even before the store has told of it: messages may come faster."""

    async def scenario(place: Place) -> None:
        ours, theirs = place.registry(), place.registry()
        await ours.bring(NAME, numbered(1))
        path = record_path(NAME)
        stale = place.metadata.nodes[path]
        await theirs.bring(NAME, numbered(2))
        newer = place.metadata.nodes[path]
        place.metadata.nodes[path] = stale
        for _ in range(20):
            await asyncio.sleep(0)  # what the store has told is heard
        ours._records.forget(path)
        assert await ours.at(NAME, 0) is not None
        assert ours._records.known(path) is not None
        place.metadata.nodes[path] = newer  # and nobody tells
        found = await ours.at(NAME, 1)
        assert found is not None
        assert found.schema == numbered(2)

    run(scenario)


@pytest.mark.parametrize("strategy", SchemaStrategy)
def test_transitive_strategies_look_at_all_versions(strategy: SchemaStrategy) -> None:
    async def scenario(place: Place) -> None:
        schemas = place.registry(SchemaPolicy(SchemaStrategy.ALWAYS_COMPATIBLE))
        for schema in (wanting("a"), avro(record(field("a", "string"))), wanting("a")):
            await schemas.bring(NAME, schema)
        assert len(await schemas.versions(NAME)) == 2  # the third was the first
        await schemas.bring(NAME, wanting("a", "b"))
        await schemas.policies.set_strategy(NAMESPACE, strategy)
        both = avro(record(field("a", "int"), field("b", "int", default=0)))
        transitive = strategy.endswith("TRANSITIVE")
        newest_alone = not transitive and strategy is not SchemaStrategy.ALWAYS_INCOMPATIBLE
        try:
            await schemas.bring(NAME, both)
        except IncompatibleSchemaError:
            assert not newest_alone
        else:
            assert newest_alone
        reads_all = transitive and "FORWARD" not in strategy
        refused = reads_all or strategy is SchemaStrategy.ALWAYS_INCOMPATIBLE
        other = avro(record(field("b", "int", default=1), field("a", "int")))
        try:
            await schemas.check_reader(NAME, other)
        except IncompatibleSchemaError:
            assert refused
        else:
            assert not refused

    run(scenario)


def test_a_consumer_of_a_former_version_must_read_the_newest() -> None:
    async def scenario(place: Place) -> None:
        schemas = place.registry(SchemaPolicy(SchemaStrategy.BACKWARD))
        await schemas.bring(NAME, wanting("a"))
        await schemas.bring(NAME, wanting())
        with pytest.raises(IncompatibleSchemaError, match=r"version 1 .* R\.a: not written"):
            await schemas.check_reader(NAME, wanting("a"))
        await schemas.check_reader(NAME, wanting())

    run(scenario)


def test_where_schemas_do_not_change_a_former_version_reads() -> None:
    async def scenario(place: Place) -> None:
        schemas = place.registry()
        await schemas.bring(NAME, numbered(1))
        await schemas.bring(NAME, numbered(2))
        await schemas.policies.set_strategy(NAMESPACE, SchemaStrategy.ALWAYS_INCOMPATIBLE)
        await schemas.check_reader(NAME, numbered(1))
        assert await schemas.bring(NAME, numbered(1)) == 0
        with pytest.raises(IncompatibleSchemaError, match="do not change"):
            await schemas.bring(NAME, numbered(3))

    run(scenario)


def test_policies_of_a_namespace() -> None:
    async def scenario(place: Place) -> None:
        schemas, theirs = place.registry(), place.registry()
        await schemas.check_without(NAME)
        await schemas.bring(NAME, numbered(1))
        await schemas.check_without(NAME)
        await theirs.policies.set_validation_enforced(NAMESPACE, True)
        await asyncio.sleep(0.01)  # until the store has told
        with pytest.raises(IncompatibleSchemaError, match="schemaValidationEnforced"):
            await schemas.check_without(NAME)
        await schemas.check_without(parse_topic("without"))
        await theirs.policies.set_auto_update(NAMESPACE, False)
        await asyncio.sleep(0.01)
        assert await schemas.bring(NAME, numbered(1)) == 0
        with pytest.raises(IncompatibleSchemaError, match="isAllowAutoUpdateSchema"):
            await schemas.bring(NAME, numbered(2))
        assert await schemas.register(NAME, numbered(2)) == 1, "operators do"
        policy = await schemas.policies.effective(NAME)
        assert policy == SchemaPolicy(SchemaStrategy.FULL, True, False)
        with pytest.raises(TopicNotFoundError):
            await schemas.policies.set_auto_update("no/where", True)

    run(scenario)


def test_a_namespace_says_what_it_says_in_pulsars_names() -> None:
    async def scenario(place: Place) -> None:
        path = "/admin/policies/public/default"
        node = place.metadata.nodes[path]
        stored = b'{"schema_compatibility_strategy": "FORWARD", "message_ttl_in_seconds": 7}'
        place.metadata.nodes[path] = node._replace(value=stored)
        schemas = place.registry()
        assert await schemas.policies.strategy(NAMESPACE) is SchemaStrategy.FORWARD
        await schemas.policies.set_strategy(NAMESPACE, None)
        assert await schemas.policies.strategy(NAMESPACE) is None
        assert place.metadata.nodes[path].value == b'{"message_ttl_in_seconds": 7}'
        for broken in (b"[]", b"{", b'{"schema_compatibility_strategy": "X"}'):
            place.metadata.nodes[path] = node._replace(value=broken)
            with pytest.raises(BrokerMetadataError, match="default"):
                await place.registry().policies.effective(NAME)

    run(scenario)


def test_numbers_of_deleted_versions_are_not_given_again() -> None:
    async def scenario(place: Place) -> None:
        schemas = place.registry()
        await schemas.bring(NAME, wanting("a"))
        assert await schemas.delete(NAME) == 1
        assert await schemas.latest(NAME) is None
        assert await schemas.at(NAME, 0) is None
        assert not place.values.values
        assert await schemas.bring(NAME, plain(SchemaType.STRING)) == 2
        with pytest.raises(SchemaNotFoundError):
            await schemas.delete(parse_topic("another"))

    run(scenario)


def test_nothing_is_left_of_a_deleted_topic() -> None:
    async def scenario(place: Place) -> None:
        schemas = place.registry()
        await schemas.bring(NAME, numbered(1))
        await schemas.bring(NAME, numbered(2))
        await schemas.forget_topic(NAME)
        assert record_path(NAME) not in place.metadata.nodes
        assert not place.values.values
        await schemas.forget_topic(NAME)
        assert await schemas.bring(NAME, wanting("z")) == 0, "made anew"

    run(scenario)


def test_a_ledger_that_cannot_be_deleted_goes_with_the_topic() -> None:
    async def scenario(place: Place) -> None:
        schemas = place.registry()
        await schemas.bring(NAME, numbered(1))
        kept, place.values.delete = place.values.delete, failing  # type: ignore[method-assign]
        await schemas.delete(NAME)
        assert place.values.values
        with pytest.raises(MetadataUnavailableError):
            await schemas.forget_topic(NAME)
        place.values.delete = kept  # type: ignore[method-assign]
        await schemas.forget_topic(NAME)
        assert not place.values.values
        assert record_path(NAME) not in place.metadata.nodes

    run(scenario)


@pytest.mark.parametrize("value", [b"of no release", b'{"format": 99}'])
def test_a_record_that_cannot_be_read_goes_with_the_topic(value: bytes) -> None:
    """Neither the topic nor its namespace could be deleted, ever."""

    async def scenario(place: Place) -> None:
        schemas, path = place.registry(), record_path(NAME)
        await schemas.bring(NAME, numbered(1))
        await place.metadata.put(path, value, -1)
        with pytest.raises(BrokerMetadataError):
            await schemas.latest(NAME)
        await schemas.forget_namespace(NAMESPACE)
        assert path not in place.metadata.nodes
        assert len(place.values.values) == 1, "nobody knows whose it is"
        assert await schemas.bring(NAME, wanting("z")) == 0, "made anew"

    run(scenario)


async def failing(ledger_id: int) -> None:
    raise MetadataUnavailableError("gone")


@pytest.mark.parametrize("happened", [True, False])
def test_a_write_of_unknown_outcome(happened: bool) -> None:
    """The record may name the ledger: it stays, and who asks again finds the version, or makes
    it."""

    async def scenario(place: Place) -> None:
        schemas, create = place.registry(), place.metadata.create

        async def lost(path: str, value: bytes) -> str:
            if happened:
                await create(path, value)
            raise MetadataUnavailableError("no answer")

        place.metadata.create = lost  # type: ignore[method-assign, assignment]
        with pytest.raises(MetadataUnavailableError):
            await schemas.bring(NAME, numbered(1))
        place.metadata.create = create  # type: ignore[method-assign]
        assert await schemas.bring(NAME, numbered(1)) == 0
        found = await place.registry().latest(NAME)
        assert found is not None
        assert found.schema == numbered(1)

    run(scenario)


def test_versions_of_a_topic_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(place: Place) -> None:
        schemas = place.registry()
        for n in range(1, 4):
            await schemas.bring(NAME, numbered(n))
        with pytest.raises(IncompatibleSchemaError, match="has 3 versions"):
            await schemas.bring(NAME, numbered(4))
        with pytest.raises(IncompatibleSchemaError, match="has 3 versions"):
            await schemas.check_next(NAME, numbered(4))
        assert await schemas.bring(NAME, numbered(3)) == 2
        await schemas.delete(NAME)
        assert await schemas.bring(NAME, numbered(4)) == 4

    monkeypatch.setattr(record_module, "VERSIONS_MAX", 3)
    run(scenario)


def test_what_may_come_is_told_before_it_comes() -> None:
    async def scenario(place: Place) -> None:
        schemas = place.registry()
        assert await schemas.check_next(NAME, wanting("a")) is SchemaStrategy.FULL
        await schemas.bring(NAME, wanting("a"))
        assert await schemas.check_next(NAME, wanting("a")) is SchemaStrategy.FULL
        with pytest.raises(IncompatibleSchemaError):
            await schemas.check_next(NAME, wanting("b"))
        with pytest.raises(InvalidSchemaError):
            await schemas.check_next(NAME, plain(SchemaType.AVRO))
        assert len(place.values.values) == 1
        assert (await schemas.find(NAME, wanting("a")), await schemas.find(NAME, wanting("b"))) == (
            0,
            None,
        )

    run(scenario)


def test_a_consumer_of_a_topic_without() -> None:
    async def scenario(place: Place) -> None:
        with pytest.raises(SchemaNotFoundError):
            await place.registry().check_reader(NAME, numbered(1))

    run(scenario)


# -- what is stored ------------------------------------------------------------------------------


def test_the_record_there_and_back() -> None:
    stored = SchemaRecord((StoredVersion(2, 77, "ab"), StoredVersion(4, 78, "cd")), 5, (3, 9))
    assert decode_record("/x", encode_record(stored)) == stored
    assert decode_record("/x", None) == SchemaRecord()


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b'{"format": 2}', b'{"format": 1, "versions": [{}]}', b"\xff"]
)
def test_what_is_no_record(value: bytes) -> None:
    with pytest.raises(BrokerMetadataError, match="/x"):
        decode_record("/x", value)


def test_a_definition_there_and_back() -> None:
    schema = TopicSchema(SchemaType.EXTERNAL, b"a\nb\n", {"k": "v\n"})
    found = decode_schema(3, encode_schema(schema, 11))
    assert (found.version, found.schema, found.created_ms) == (3, schema, 11)


@pytest.mark.parametrize("payload", [b"", b"{}\n", b'{"type":"X","properties":{}}\n', b"\xff\n"])
def test_what_is_no_definition(payload: bytes) -> None:
    with pytest.raises(BrokerMetadataError):
        decode_schema(0, payload)


def test_where_a_record_stands() -> None:
    name = replace(NAME, local="a/b-partition-3", partition=3)
    assert record_path(name) == "/schemas/public/default/a%2Fb"
