"""Ids of topics: told in Metadata, asked for by clients that know nothing else, fetched by."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from magnetar.cluster.ownership import Here, Owner, SoleBroker
from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.env.metadata import Versioned
from magnetar.model.errors import BrokerMetadataError, MetadataFormatError
from magnetar.protocols.kafka import topic_ids
from magnetar.protocols.kafka.lines import PeerLine
from magnetar.protocols.kafka.services import KafkaServices, Node
from magnetar.protocols.kafka.topic_ids import SEARCH_S
from magnetar.wire.kafka.admin_messages import (
    CreateTopicsRequest,
    DeletedTopic,
    DeleteTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    NewTopic,
)
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.batches import split
from magnetar.wire.kafka.cluster_messages import MetadataRequest, MetadataTopic, TopicMetadata
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.fetch_messages import (
    ClientFetchRequest,
    FetchedPartition,
    FetchPartition,
    FetchTopic,
)
from magnetar.wire.kafka.produce_messages import ProducePartition, ProduceRequest, ProduceTopic
from magnetar.wire.kafka.records import read_batch
from magnetar.wire.kafka.schema import NO_UUID
from tests.doubles.memory_metadata import MemoryMetadata
from tests.doubles.ownership import ELSEWHERE
from tests.unit.protocols.kafka.harness import TOPIC, KafkaPeer, KafkaWorld, batch, run, run_in
from tests.unit.protocols.kafka.secured import SecuredWorld


async def told(peer: KafkaPeer, *topics: MetadataTopic, version: int = 12) -> list[TopicMetadata]:
    request = MetadataRequest(list(topics), allow_auto_topic_creation=False)
    answer = await peer.ask(ApiKey.METADATA, request, version)
    found = answer.topics
    assert isinstance(found, list)
    return found


async def by_name(peer: KafkaPeer, name: str) -> TopicMetadata:
    (found,) = await told(peer, MetadataTopic(name=name))
    return found


async def by_id(peer: KafkaPeer, topic_id: uuid.UUID, version: int = 12) -> TopicMetadata:
    name = None if version >= 12 else ""
    (found,) = await told(peer, MetadataTopic(topic_id, name), version=version)
    return found


def test_a_topic_is_told_with_its_id_and_found_by_it() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        known = await by_name(peer, TOPIC)
        assert known.topic_id != NO_UUID
        found = [
            await by_id(peer, known.topic_id),
            *await told(peer, MetadataTopic(known.topic_id)),
        ]
        assert {(each.name, each.topic_id) for each in found} == {(TOPIC, known.topic_id)}
        created = await peer.ask(
            ApiKey.CREATE_TOPICS, CreateTopicsRequest([NewTopic("u", partitions=2)])
        )
        assert created.topics[0].topic_id == (await by_name(peer, "u")).topic_id

    run(scenario)


def test_one_that_another_broker_has_told_is_searched_for() -> None:
    async def scenario(world: KafkaWorld) -> None:
        topic = await world.services.control.partitioned.topic(parse_topic(TOPIC))
        assert topic.topic_id is not None
        assert (await by_id(world.peer(), topic.topic_id)).name == TOPIC

    run(scenario)


def test_what_cannot_be_read_of_a_topic_hides_no_id_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search ended at the first topic whose node, or whose log's record, is damaged."""
    monkeypatch.setattr(topic_ids, "READS_AT_ONCE", 1)

    async def scenario(world: KafkaWorld) -> None:
        partitioned, topics = world.services.control.partitioned, world.broker.topics
        for name in ("a", "c"):
            await partitioned.create(parse_topic(name), 1)
            await topics.get(parse_topic(f"{name}-partition-0"), create=False)
        await topics.create(parse_topic("b"))
        wanted = (await partitioned.topic(parse_topic("c"))).topic_id
        assert wanted is not None
        metadata, stored = partitioned._metadata, world.store.stored
        assert isinstance(metadata, MemoryMetadata)
        path = "/admin/partitioned-topics/public/default/persistent/a"
        metadata.nodes[path] = Versioned(b"no json", 7)
        metadata.tell(path)

        async def damaged(name: str) -> Any:
            if name.endswith("/b"):
                raise MetadataFormatError("no record of a log")
            return await stored(name)

        monkeypatch.setattr(world.store, "stored", damaged)
        assert (await by_id(world.peer(), wanted)).name == "c"

    run(scenario)


def test_a_known_topic_that_is_damaged_since_hides_no_other() -> None:
    """Asked for together, none of them was found; a deletion ended its connection."""

    async def scenario(world: KafkaWorld) -> None:
        peer, partitioned = world.peer(), world.services.control.partitioned
        await partitioned.create(parse_topic("a"), 1)
        known = [(await by_name(peer, name)).topic_id for name in ("a", TOPIC)]
        metadata = partitioned._metadata
        assert isinstance(metadata, MemoryMetadata)
        path = "/admin/partitioned-topics/public/default/persistent/a"
        metadata.nodes[path] = Versioned(b"no json", 7)
        metadata.tell(path)
        found = await told(peer, *(MetadataTopic(each) for each in known))
        assert [each.name for each in found if not each.error_code] == [TOPIC]
        answers = await deleted(peer, *(DeleteTopic(None, each) for each in known))
        assert sorted(error for _, error in answers) == [0, ErrorCode.UNKNOWN_TOPIC_ID]

    run(scenario)


def test_a_topic_that_is_made_anew_has_another_id() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        partitioned = world.services.control.partitioned
        before = (await by_name(peer, TOPIC)).topic_id
        await partitioned.grow(parse_topic(TOPIC), 3)
        assert (await by_name(peer, TOPIC)).topic_id == before
        await partitioned.delete(parse_topic(TOPIC))
        gone = await by_id(peer, before)
        assert (gone.error_code, gone.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)
        await partitioned.create(parse_topic(TOPIC), 1)
        assert (await by_name(peer, TOPIC)).topic_id not in (before, NO_UUID)
        assert (await by_id(peer, before)).error_code == ErrorCode.UNKNOWN_TOPIC_ID

    run(scenario)


def test_topics_without_an_id_of_their_own_have_one_of_their_name() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        path = "/admin/partitioned-topics/public/default/persistent/old"
        metadata = world.services.control.partitioned._metadata
        await metadata.create(path, json.dumps({"partitions": 2}).encode())
        await world.broker.topics.create(parse_topic("single"))
        old, single = await by_name(peer, "old"), await by_name(peer, "single")
        assert NO_UUID not in (old.topic_id, single.topic_id)
        assert (await by_id(peer, old.topic_id)).name == "old"
        assert (await by_id(peer, single.topic_id)).name == "single"
        await world.services.control.partitioned.grow(parse_topic("old"), 3)
        assert (await by_name(peer, "old")).topic_id == old.topic_id

    run(scenario)


def test_an_id_in_a_version_without_them_is_an_invalid_request() -> None:
    async def scenario(world: KafkaWorld) -> None:
        found = await by_id(world.peer(), uuid.uuid4(), version=11)
        assert found.error_code != ErrorCode.NONE

    run(scenario)


# -- by ids ---------------------------------------------------------------------------------------


def fetching(*ids: uuid.UUID, offset: int = 0, wait_ms: int = 0, index: int = 0) -> Any:
    topics = [
        FetchTopic(
            topic_id=each,
            partitions=[FetchPartition(index, fetch_offset=offset, partition_bytes_max=1 << 20)],
        )
        for each in ids
    ]
    return ClientFetchRequest(
        wait_ms_max=wait_ms, bytes_min=1, bytes_max=1 << 20, topics=topics, session_epoch=-1
    )


def values(found: FetchedPartition) -> list[bytes | None]:
    assert isinstance(found.records, memoryview)
    return [record.value for each in split(found.records) for record in read_batch(each)[1]]


def outcomes(answer: Any) -> dict[uuid.UUID, int | list[bytes | None]]:
    """Per topic: its error, or its records."""
    assert answer.error_code == 0
    found = {}
    for topic in answer.topics:
        (part,) = topic.partitions
        found[topic.topic_id] = int(part.error_code) or values(part)
    return found


async def fetched(peer: KafkaPeer, *ids: uuid.UUID, version: int = 16, **asked: Any) -> Any:
    return outcomes(await peer.ask(ApiKey.FETCH, fetching(*ids, **asked), version))


async def produced(peer: KafkaPeer, topic: str, count: int, first: int = 0) -> None:
    part = ProducePartition(0, batch(count, first))
    request = ProduceRequest(acks=-1, timeout_ms=1_000, topics=[ProduceTopic(topic, [part])])
    answer = await peer.ask(ApiKey.PRODUCE, request)
    assert answer.topics[0].partitions[0].error_code == 0


async def deleted(peer: KafkaPeer, *topics: DeleteTopic) -> list[tuple[str | None, int]]:
    answer = await peer.ask(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(list(topics)), 6)
    return [(each.name, each.error_code) for each in answer.topics]


UNKNOWN = int(ErrorCode.UNKNOWN_TOPIC_ID)


@pytest.mark.parametrize("version", range(13, 17))
def test_a_topic_is_fetched_by_its_id(version: int) -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await world.services.control.partitioned.create(parse_topic("u"), 1)
        await world.broker.topics.create(parse_topic("single"))
        ids = [(await by_name(peer, name)).topic_id for name in (TOPIC, "u", "single")]
        for first, name in enumerate((TOPIC, "u", "single")):
            await produced(peer, name, 1, first)
        nobody = uuid.uuid4()
        found = await fetched(peer, *ids, nobody, NO_UUID, version=version)
        assert [found[each] for each in ids] == [[b"0"], [b"1"], [b"2"]]
        assert found[nobody] == found[NO_UUID] == UNKNOWN
        no_such = await fetched(peer, ids[1], index=3, version=version)
        assert no_such == {ids[1]: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    run(scenario)


@pytest.mark.parametrize("name", [TOPIC, "single"])
def test_who_fetches_by_the_id_of_a_former_topic_gets_nothing_of_the_new_one(name: str) -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, other = world.peer(), world.peer()
        partitioned = name == TOPIC
        if not partitioned:
            await world.broker.topics.create(parse_topic(name))
        before = (await by_name(peer, name)).topic_id
        await produced(peer, name, 3)
        assert await fetched(peer, before) == {before: [b"0", b"1", b"2"]}
        # One that waits when the topic is deleted and made anew, too.
        other.tell(ApiKey.FETCH, fetching(before, offset=3, wait_ms=5_000), 16)
        assert await other.quiet()
        assert await deleted(peer, DeleteTopic(name)) == [(name, 0)]
        assert await fetched(peer, before) == {before: UNKNOWN}
        if partitioned:
            await world.services.control.partitioned.create(parse_topic(name), 1)
        else:
            await world.broker.topics.create(parse_topic(name))
        after = (await by_name(peer, name)).topic_id
        assert after != before
        await produced(peer, name, 5, first=10)
        found = await fetched(peer, before, after)
        assert found == {before: UNKNOWN, after: [b"10", b"11", b"12", b"13", b"14"]}
        (_, answer) = await other.next()
        assert outcomes(answer) in ({before: UNKNOWN}, {before: []}), "not the new one's at 3"
        assert (await by_id(peer, before)).error_code == UNKNOWN

    run(scenario)


def test_a_log_that_outlives_its_topics_node_is_not_fetched_by_the_former_id() -> None:
    """As when the topic is deleted by another broker while a client opens a partition here."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        partitioned = world.services.control.partitioned
        before = (await by_name(peer, TOPIC)).topic_id
        await produced(peer, TOPIC, 1)
        assert await fetched(peer, before) == {before: [b"0"]}
        await partitioned.delete(parse_topic(TOPIC))
        await partitioned.create(parse_topic(TOPIC), 1)
        assert await fetched(peer, before) == {before: UNKNOWN}
        after = (await by_name(peer, TOPIC)).topic_id
        assert await fetched(peer, after) == {after: [b"0"]}
        assert await fetched(peer, before) == {before: UNKNOWN}

    run(scenario)


def test_a_fetch_by_id_asks_the_store_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await world.broker.topics.create(parse_topic("single"))
        ids = [(await by_name(peer, name)).topic_id for name in (TOPIC, "single")]
        await produced(peer, TOPIC, 1)
        await produced(peer, "single", 1)
        found = await fetched(peer, *ids)

        async def refused(*_: object) -> None:
            raise AssertionError("the store is asked")

        metadata = world.services.control.partitioned._metadata
        monkeypatch.setattr(metadata, "get", refused)
        monkeypatch.setattr(metadata, "children", refused)
        monkeypatch.setattr(world.store, "stored", refused)
        monkeypatch.setattr(world.store, "exists", refused)
        assert await fetched(peer, *ids) == found

    run(scenario)


def test_ids_that_nobody_has_are_not_searched_for_all_the_time() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        searches = 0
        names = world.broker.topics.names

        async def counted(namespace: str) -> list[TopicName]:
            nonlocal searches
            searches += namespace == "public/default"
            return await names(namespace)

        world.broker.topics.names = counted  # type: ignore[method-assign]
        for _ in range(20):
            unknown = [uuid.uuid4() for _ in range(10)]
            assert set((await fetched(peer, *unknown)).values()) == {UNKNOWN}
        assert searches == 1
        await asyncio.sleep(2 * SEARCH_S)
        topic = await world.services.control.partitioned.topic(parse_topic(TOPIC))
        assert topic.topic_id is not None
        assert await fetched(peer, topic.topic_id) == {topic.topic_id: []}

    run(scenario)


def test_an_id_that_is_gone_is_looked_for_less_and_less_and_a_new_one_is_found() -> None:
    """A search reads all topics: clients of one that was deleted ask as often as they can."""

    async def scenario(world: KafkaWorld) -> None:
        peer, searches, names = world.peer(), 0, world.broker.topics.names

        async def counted(namespace: str) -> list[TopicName]:
            nonlocal searches
            searches += namespace == "public/default"
            await asyncio.sleep(5)  # there are very many
            return await names(namespace)

        world.broker.topics.names = counted  # type: ignore[method-assign]
        gone = [uuid.uuid4(), uuid.uuid4()]
        for _ in range(150):
            assert set((await fetched(peer, *gone)).values()) == {UNKNOWN}
            await asyncio.sleep(4)
        assert searches <= 16
        topic = await world.services.control.partitioned.topic(parse_topic(TOPIC))
        assert topic.topic_id is not None
        await asyncio.sleep(10)  # one that was under way is over, and has rested
        assert await fetched(peer, topic.topic_id) == {topic.topic_id: []}

    run(scenario)


def test_an_id_is_found_among_more_topics_than_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_ids, "IDS_KEPT_MAX", 2)
    monkeypatch.setattr(topic_ids, "READS_AT_ONCE", 1)

    async def scenario(world: KafkaWorld) -> None:
        partitioned = world.services.control.partitioned
        for number in range(6):
            await partitioned.create(parse_topic(f"a{number}"), 1)
        topic = await partitioned.topic(parse_topic("a1"))
        assert topic.topic_id is not None
        assert await fetched(world.peer(), topic.topic_id) == {topic.topic_id: []}

    run(scenario)


def test_topics_of_other_namespaces_are_found_by_ids_that_another_broker_has_told() -> None:
    async def scenario(world: KafkaWorld) -> None:
        namespaces = world.services.control.namespaces
        await namespaces.create_tenant("other")
        await namespaces.create_namespace("other/space")
        await world.services.control.partitioned.create(parse_topic("other/space/t"), 1)
        topic = await world.services.control.partitioned.topic(parse_topic("other/space/t"))
        assert topic.topic_id is not None
        assert await fetched(world.peer(), topic.topic_id) == {topic.topic_id: []}

    run(scenario)


def test_topics_are_deleted_by_their_ids() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        known = await by_name(peer, TOPIC)
        await produced(peer, TOPIC, 1)
        by_its_id = DeleteTopic(None, known.topic_id)
        assert await deleted(peer, by_its_id) == [(TOPIC, 0)]
        assert (await by_name(peer, TOPIC)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await world.services.control.partitioned.create(parse_topic(TOPIC), 1)
        assert await deleted(peer, by_its_id) == [(None, UNKNOWN)]
        assert (await by_name(peer, TOPIC)).error_code == 0

    run(scenario)


INVALID = int(ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize("single", [False, True])
def test_a_topic_that_is_there_twice_in_one_request_stays(single: bool) -> None:
    """It was deleted, and its second name was told that there is no such topic."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        if single:
            await world.services.control.partitioned.delete(parse_topic(TOPIC))
            await world.broker.topics.create(parse_topic(TOPIC))
        name, its_id = DeleteTopic(TOPIC), DeleteTopic(None, (await by_name(peer, TOPIC)).topic_id)
        other, nobody = DeleteTopic(f"public/default/{TOPIC}"), DeleteTopic(None, uuid.uuid4())
        gone = DeleteTopic("gone")
        for asked, told in (
            ((name, name, name), [(TOPIC, INVALID)]),
            ((its_id, its_id), [(None, INVALID)]),
            ((name, its_id), [(TOPIC, INVALID)]),
            ((its_id, name, name), [(TOPIC, INVALID), (TOPIC, 0)]),
            ((name, other), [(TOPIC, INVALID), (other.name, INVALID)]),
            ((gone, gone, nobody, nobody), [("gone", INVALID), (None, INVALID)]),
        ):
            assert await deleted(peer, *asked) == told, asked
            if (TOPIC, 0) not in told:
                assert (await by_name(peer, TOPIC)).topic_id == its_id.topic_id
            elif single:
                await world.broker.topics.create(parse_topic(TOPIC))
                its_id.topic_id = (await by_name(peer, TOPIC)).topic_id
            else:
                await world.services.control.partitioned.create(parse_topic(TOPIC), 1)
                its_id.topic_id = (await by_name(peer, TOPIC)).topic_id
        request = DeleteTopicsRequest(names=[TOPIC, TOPIC])
        (found,) = (await peer.ask(ApiKey.DELETE_TOPICS, request, 5)).topics
        assert (found.name, found.error_code) == (TOPIC, INVALID)
        assert await deleted(peer, name) == [(TOPIC, 0)]

    run(scenario)


def test_a_topic_is_deleted_by_its_name_or_by_its_id() -> None:
    """With both it was deleted by its name, whatever the id."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        its_id = (await by_name(peer, TOPIC)).topic_id
        for topic_id in (its_id, uuid.uuid4()):
            assert await deleted(peer, DeleteTopic(TOPIC, topic_id)) == [(TOPIC, INVALID)]
        assert await deleted(peer, DeleteTopic(None, NO_UUID)) == [(None, INVALID)]
        assert (await by_name(peer, TOPIC)).topic_id == its_id
        both = DeleteTopic(TOPIC, its_id)  # refused by itself
        assert await deleted(peer, both, DeleteTopic(TOPIC)) == [(TOPIC, INVALID), (TOPIC, 0)]

    run(scenario)


@pytest.mark.parametrize("where", ["looked up", "on its way"])
@pytest.mark.parametrize("single", [False, True])
def test_a_deletion_by_id_leaves_the_topic_that_is_made_anew_meanwhile(
    monkeypatch: pytest.MonkeyPatch, single: bool, where: str
) -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, services = world.peer(), world.services
        partitioned, topics = services.control.partitioned, world.broker.topics
        if single:
            await partitioned.delete(parse_topic(TOPIC))
            await topics.create(parse_topic(TOPIC))
        before = (await by_name(peer, TOPIC)).topic_id
        await produced(peer, TOPIC, 1)
        names, nodes, calls = services.topic_ids.names, KafkaServices.nodes, 0

        async def made_anew() -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                assert await deleted(world.peer(), DeleteTopic(TOPIC)) == [(TOPIC, 0)]
                if single:
                    await topics.create(parse_topic(TOPIC))
                else:
                    await partitioned.create(parse_topic(TOPIC), 1)
                await produced(world.peer(), TOPIC, 3)

        async def late_names(ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, str]:
            found = await names(ids)
            if found:
                await made_anew()
            return found

        async def late_nodes(of: KafkaServices) -> Any:
            await made_anew()
            return await nodes(of)

        if where == "looked up":
            monkeypatch.setattr(services.topic_ids, "names", late_names)
        else:
            monkeypatch.setattr(KafkaServices, "nodes", late_nodes)
        ((name, error),) = await deleted(peer, DeleteTopic(None, before))
        assert (name, error != 0) == (TOPIC, True)
        assert error == UNKNOWN or (where, single) == ("on its way", False)
        after = (await by_name(peer, TOPIC)).topic_id
        assert after not in (before, NO_UUID)
        assert await fetched(peer, after) == {after: [b"0", b"1", b"2"]}

    run(scenario)


@pytest.mark.parametrize("index", ["", "-partition-0"])
def test_the_owner_of_a_topic_compares_the_id_that_another_broker_deletes(
    monkeypatch: pytest.MonkeyPatch, index: str
) -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, services, other = world.peer(), world.services, Node(2, "other", 9092)
        if not index:
            await services.control.partitioned.delete(parse_topic(TOPIC))
            await world.broker.topics.create(parse_topic(TOPIC))
        its_id = (await by_name(peer, TOPIC)).topic_id
        await produced(peer, TOPIC, 1)
        asked = list[tuple[int, DeleteTopicsRequest]]()
        error = int(ErrorCode.UNKNOWN_TOPIC_ID)

        async def leader_of(*_: object) -> Node:
            return other

        async def ask(_: object, node: Node, key: int, version: int, request: Any) -> Any:
            assert (node, key) == (other, ApiKey.DELETE_TOPICS)
            asked.append((version, request))
            return DeleteTopicsResponse(topics=[DeletedTopic(None, NO_UUID, error)])

        with monkeypatch.context() as patched:
            patched.setattr(KafkaServices, "leader_of", leader_of)
            patched.setattr(KafkaServices, "ask", ask)
            found = await deleted(peer, DeleteTopic(None, its_id))
        # Of a partition that is another topic's by now this topic has nothing more.
        assert found == [(TOPIC, 0 if index else UNKNOWN)]
        if index:
            await services.control.partitioned.create(parse_topic(TOPIC), 1)
            its_id = (await by_name(peer, TOPIC)).topic_id
        ((version, request),) = asked
        peer.client_id = PeerLine.client_id
        (told,) = (await peer.ask(ApiKey.DELETE_TOPICS, request, version)).topics
        assert (told.name, told.error_code) == (TOPIC + index, UNKNOWN if index else 0)
        if index:
            assert len(world.store.logs) == 1
            request.topics[0].topic_id = its_id
            (told,) = (await peer.ask(ApiKey.DELETE_TOPICS, request, version)).topics
            assert told.error_code == 0
        assert list(world.store.logs) == []

    run(scenario)


class Unowned(SoleBroker):
    """Nobody owns anything: another broker is chosen, which would choose this one."""

    async def locate(self, name: TopicName, authoritative: bool = False) -> Owner:
        return Here() if authoritative else ELSEWHERE


def test_what_another_broker_asks_to_be_deleted_is_not_asked_of_a_third() -> None:
    """They would ask one another: the one that is chosen takes what nobody owns."""

    async def scenario(world: KafkaWorld) -> None:
        peer, control = world.peer(), world.services.control
        await by_name(peer, TOPIC)
        await produced(peer, TOPIC, 1)
        object.__setattr__(control, "ownership", Unowned(control.namespaces))
        [(name, error)] = await deleted(peer, DeleteTopic(TOPIC))
        assert (name, error != 0) == (TOPIC, True)  # the other is not there
        peer.client_id = PeerLine.client_id
        assert await deleted(peer, DeleteTopic(TOPIC)) == [(TOPIC, 0)]
        assert await world.services.topics.names("public/default") == []

    run(scenario)


def test_ids_are_as_secret_as_names(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol = await world.known("carol")
        topic = await world.services.control.partitioned.topic(parse_topic(TOPIC))
        assert topic.topic_id is not None
        nobody = uuid.uuid4()
        no_topic = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        found = await fetched(carol, topic.topic_id, nobody)
        assert found == {topic.topic_id: no_topic, nobody: UNKNOWN}
        refused = await deleted(carol, DeleteTopic(None, topic.topic_id), DeleteTopic(TOPIC))
        assert refused == [(None, no_topic), (TOPIC, no_topic)]
        await world.grant("carol", "consume")
        assert await fetched(carol, topic.topic_id) == {topic.topic_id: []}

    run_in(lambda: SecuredWorld(tmp_path), scenario)


def test_a_fetch_that_cannot_be_served_now_is_no_end_for_consumers_in_java(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They know no LEADER_NOT_AVAILABLE there, and end with an ``IllegalStateException``."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        found = (await by_name(peer, TOPIC)).topic_id

        async def out_of_reach(*_: object, **__: object) -> None:
            raise BrokerMetadataError("the store is out of reach")

        monkeypatch.setattr(world.services.topics, "get", out_of_reach)
        assert await fetched(peer, found) == {found: ErrorCode.NOT_LEADER_OR_FOLLOWER}

    run(scenario)
