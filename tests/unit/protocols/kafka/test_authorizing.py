"""What a client may do, request by request: what is granted is served, and the rest is refused in
Kafka's own way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from magnetar.cluster.security.principals import Principal
from magnetar.cluster.topic_name import parse_topic
from magnetar.protocols.kafka.handlers.table import RULES, RequestTable
from magnetar.protocols.kafka.names import namespace_of
from magnetar.protocols.kafka.security.grants import KEPT_S, Grants
from magnetar.wire.kafka.admin_messages import (
    ChangeResource,
    ConfigChange,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopic,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    GrowTopic,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    NewTopic,
)
from magnetar.wire.kafka.apis import APIS, ApiKey
from magnetar.wire.kafka.cluster_messages import (
    DescribeClusterRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataTopic,
)
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.fetch_messages import (
    ClientFetchRequest,
    EpochPartition,
    EpochTopic,
    FetchPartition,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
)
from magnetar.wire.kafka.group_messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from magnetar.wire.kafka.log_dir_messages import (
    AlterReplicaLogDirsRequest,
    DescribeLogDirsRequest,
    MovesToDir,
)
from magnetar.wire.kafka.offset_messages import (
    CommitPartition,
    CommitTopic,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteTopic,
    OffsetFetchRequest,
    OffsetsGroup,
)
from magnetar.wire.kafka.partition_messages import (
    AlterPartitionReassignmentsRequest,
    DescribeTopicName,
    DescribeTopicPartitionsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    PartitionsOfTopic,
)
from magnetar.wire.kafka.produce_messages import (
    InitProducerIdRequest,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from magnetar.wire.kafka.record_messages import DeleteBefore, DeleteOfTopic, DeleteRecordsRequest
from magnetar.wire.kafka.topic_shapes import TopicPartitions
from magnetar.wire.kafka.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TransactionMarker,
    TxnOffsetCommitRequest,
    TxnOffsetPartition,
    TxnOffsetTopic,
    WriteTxnMarkersRequest,
)
from tests.unit.protocols.kafka.harness import batch
from tests.unit.protocols.kafka.secured import ROOT, SecuredPeer, SecuredWorld, run_secured

T, OTHER = "t", "other/space/t"
"""One topic is there in each namespace."""
NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
NO_TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def prepared(world: SecuredWorld) -> SecuredPeer:
    """A client of the role ``carol``, which has no permission yet; a second namespace with a
    topic."""
    namespaces = world.services.control.namespaces
    await namespaces.create_tenant("other")
    await namespaces.create_namespace("other/space")
    await world.services.control.partitioned.create(parse_topic(OTHER), 1)
    return await world.known("carol")


def producing(*topics: str, acks: int = -1, transactional_id: str | None = None) -> ProduceRequest:
    parts = [ProduceTopic(each, [ProducePartition(0, batch(1))]) for each in topics]
    return ProduceRequest(transactional_id, acks, 1_000, parts)


def fetching(*topics: str, wait_ms: int = 0) -> ClientFetchRequest:
    parts = [FetchTopic(each, partitions=[FetchPartition(0)]) for each in topics]
    for each in parts:
        each.partitions[0].partition_bytes_max = 1 << 20
    return ClientFetchRequest(
        wait_ms_max=wait_ms, bytes_min=1, bytes_max=1 << 20, topics=parts, session_epoch=-1
    )


def errors(answer: Any) -> dict[str, int]:
    """By topic, of its first partition, or its own."""
    return {
        topic.name: topic.partitions[0].error_code if topic.partitions else topic.error_code
        for topic in answer.topics
    }


def test_every_request_has_a_rule() -> None:
    assert set(RULES) == set(APIS)
    assert RequestTable is not None


def test_records_are_produced_where_that_is_granted(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol = await prepared(world)
        assert errors(await carol.ask(ApiKey.PRODUCE, producing(T))) == {T: NO_TOPIC}
        await world.grant("carol", "consume")
        assert errors(await carol.ask(ApiKey.PRODUCE, producing(T))) == {T: NO_TOPIC}
        await world.grant("carol", "produce")
        both = await carol.ask(ApiKey.PRODUCE, producing(OTHER, T, "nowhere/at/all"))
        assert errors(both) == {T: 0, OTHER: NO_TOPIC, "nowhere/at/all": NO_TOPIC}
        root = await world.known(ROOT)
        assert errors(await root.ask(ApiKey.PRODUCE, producing(T))) == {T: 0}
        assert len(world.stored()) == 2

    run_secured(tmp_path, scenario)


def test_other_names_of_a_topic_are_asked_alike(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol = await prepared(world)
        await world.grant("carol", "produce")
        for name in ("persistent://other/space/t", "other/space/t-partition-0"):
            assert errors(await carol.ask(ApiKey.PRODUCE, producing(name))) == {name: NO_TOPIC}
        name = "persistent://public/default/t"
        assert errors(await carol.ask(ApiKey.PRODUCE, producing(name))) == {name: 0}

    run_secured(tmp_path, scenario)


def test_produce_requests_do_not_wait_for_one_another_once_it_was_granted(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol = await prepared(world)
        await world.grant("carol", "produce")
        await carol.ask(ApiKey.PRODUCE, producing(T))
        world.log().held = True
        carol.feed(b"".join(carol.frame(ApiKey.PRODUCE, producing(T)) for _ in range(3)))
        assert len(world.log()._pending) == 3
        world.log().held = False
        world.log().release()
        assert [errors((await carol.next())[1]) for _ in range(3)] == [{T: 0}] * 3

    run_secured(tmp_path, scenario)


def test_what_is_taken_away_is_gone_soon(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol = await prepared(world)
        await world.grant("carol", "produce")
        await carol.ask(ApiKey.PRODUCE, producing(T))
        await world.grant("dave", "produce")
        await asyncio.sleep(KEPT_S + 1)
        assert errors(await carol.ask(ApiKey.PRODUCE, producing(T))) == {T: NO_TOPIC}

    run_secured(tmp_path, scenario)


def test_without_acks_the_connection_says_it(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol = await prepared(world)
        carol.tell(ApiKey.PRODUCE, producing(T, acks=0))
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert carol.session.closed
        assert not carol.transport.data

    run_secured(tmp_path, scenario)


def test_records_are_read_where_that_is_granted(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol = await prepared(world)
        began = asyncio.get_running_loop().time()
        refused = await carol.ask(ApiKey.FETCH, fetching(T, wait_ms=30_000))
        assert errors(refused) == {T: NO_TOPIC}
        assert asyncio.get_running_loop().time() - began < 1, "an error does not wait for records"
        await world.grant("carol", "consume")
        assert errors(await carol.ask(ApiKey.FETCH, fetching(T, OTHER))) == {T: 0, OTHER: NO_TOPIC}
        listing = ListOffsetsRequest(
            topics=[
                ListOffsetsTopic(name, [ListOffsetsPartition(0, timestamp_ms=-1)])
                for name in (T, OTHER)
            ]
        )
        listed = await carol.ask(ApiKey.LIST_OFFSETS, listing)
        assert errors(listed) == {T: 0, OTHER: NO_TOPIC}
        epochs = OffsetForLeaderEpochRequest(
            topics=[EpochTopic(name, [EpochPartition(0)]) for name in (T, OTHER)]
        )
        ends = await carol.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, epochs)
        assert errors(ends)[OTHER] == NO_TOPIC
        assert errors(ends)[T] != NO_TOPIC

    run_secured(tmp_path, scenario)


def test_nobody_but_a_broker_fetches_as_a_follower(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol = await prepared(world)
        await world.grant("carol", "consume")
        request = fetching(T)
        request.replica_id = 3
        answer = await carol.ask(ApiKey.FETCH, request)
        assert (answer.error_code, answer.topics) == (NO_CLUSTER, [])

    run_secured(tmp_path, scenario)


def test_metadata_shows_what_may_be_seen(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol = await prepared(world)

        async def seen(*names: str, version: int | None = None) -> dict[str, int]:
            topics = [MetadataTopic(name=name) for name in names] or None
            request = MetadataRequest(topics, allow_auto_topic_creation=False)
            answer = await carol.ask(ApiKey.METADATA, request, version)
            return {topic.name: topic.error_code for topic in answer.topics}

        assert await seen() == {}
        assert await seen(T) == {T: NO_TOPIC}
        assert await seen("not-there") == {"not-there": NO_TOPIC}
        assert await seen(T, version=0) == {T: NO_TOPIC}
        for action in ("produce", "consume"):
            await world.grant("carol", action)
            assert await seen() == {T: 0}
            assert await seen(T, OTHER) == {T: 0, OTHER: NO_TOPIC}
        said = await carol.ask(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            DescribeTopicPartitionsRequest([DescribeTopicName(T), DescribeTopicName(OTHER)]),
        )
        assert {each.name: each.error_code for each in said.topics} == {T: 0, OTHER: NO_TOPIC}
        await world.services.control.partitioned.create(parse_topic("u"), 1)
        all_, others = DescribeTopicPartitionsRequest(), [DescribeTopicName(OTHER)]
        said = await carol.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, all_)
        assert [each.name for each in said.topics] == [T, "u"]
        dave = await world.known("dave")
        assert not (await dave.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, all_)).topics
        said = await carol.ask(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS, DescribeTopicPartitionsRequest(others)
        )
        assert [each.name for each in said.topics] == [OTHER], "not all of them"
        listed = ListConfigResourcesRequest()
        for peer, kinds in ((carol, {2}), (dave, set()), (await world.known(ROOT), {2, 4})):
            answer = await peer.ask(ApiKey.LIST_CONFIG_RESOURCES, listed)
            assert {each.kind for each in answer.resources} == kinds
        assert (await carol.ask(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest())).brokers

    run_secured(tmp_path, scenario)


def test_topics_are_made_and_changed_by_admins_of_the_tenant(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol = await prepared(world)
        await world.grant("carol", "produce", "consume")

        async def told(key: int, request: Any) -> int:
            answer = await carol.ask(key, request)
            parts = next(
                getattr(answer, name)
                for name in ("topics", "results", "responses")
                if hasattr(answer, name)
            )
            part = parts[0] if hasattr(parts[0], "error_code") else parts[0].partitions[0]
            return int(part.error_code)

        change = ConfigChange("retention.ms", 0, "60000")

        def requests() -> Iterable[tuple[int, Any]]:
            yield (
                ApiKey.CREATE_TOPICS,
                CreateTopicsRequest([NewTopic("new", 1, 1)], validate_only=True),
            )
            yield ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest([GrowTopic(T, 3, None)])
            yield (
                ApiKey.INCREMENTAL_ALTER_CONFIGS,
                IncrementalAlterConfigsRequest([ChangeResource(2, T, [change])]),
            )
            yield (
                ApiKey.DELETE_RECORDS,
                DeleteRecordsRequest([DeleteOfTopic(T, [DeleteBefore(0, 0)])]),
            )
            yield ApiKey.DELETE_TOPICS, DeleteTopicsRequest([DeleteTopic("new")])

        for key, request in requests():
            assert await told(key, request) == NO_TOPIC, key
        await world.services.control.namespaces.change_tenant("public", {"adminRoles": ["carol"]})
        for key, request in requests():
            assert await told(key, request) != NO_TOPIC, key
        elsewhere = CreateTopicsRequest([NewTopic(OTHER, 1, 1)])
        assert await told(ApiKey.CREATE_TOPICS, elsewhere) == NO_TOPIC

    run_secured(tmp_path, scenario)


def test_by_its_old_name_a_topic_is_not_deleted_either(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol = await prepared(world)
        request = DeleteTopicsRequest(names=[T, OTHER])
        answer = await carol.ask(ApiKey.DELETE_TOPICS, request, 5)
        assert [each.error_code for each in answer.topics] == [NO_TOPIC, NO_TOPIC]

    run_secured(tmp_path, scenario)


def test_what_is_refused_of_many_topics_is_not_looked_for_among_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was compared with each: a request of two megabytes kept the broker for half an hour."""

    async def scenario(world: SecuredWorld) -> None:
        carol = await prepared(world)
        compared = 0

        def counted(self: object, other: object) -> bool:
            nonlocal compared
            compared += 1
            return self is other

        monkeypatch.setattr(DeleteTopic, "__eq__", counted)
        request = DeleteTopicsRequest([DeleteTopic(f"{T}{number}") for number in range(300)])
        answer = await carol.ask(ApiKey.DELETE_TOPICS, request)
        assert [each.error_code for each in answer.topics] == [NO_TOPIC] * 300
        assert compared < 1000

    run_secured(tmp_path, scenario)


def test_configurations_are_read_by_who_sees_the_topic_and_a_brokers_by_super_users(
    tmp_path: Path,
) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol = await prepared(world)
        node = str(world.services.node.node_id)

        async def told(peer: SecuredPeer, kind: int, name: str) -> int:
            request = DescribeConfigsRequest([DescribeConfigsResource(kind, name, None)])
            answer = await peer.ask(ApiKey.DESCRIBE_CONFIGS, request)
            return int(answer.results[0].error_code)

        assert await told(carol, 2, T) == NO_TOPIC
        await world.grant("carol", "consume")
        assert await told(carol, 2, T) == 0
        assert await told(carol, 4, node) == NO_CLUSTER
        assert await told(await world.known(ROOT), 4, node) == 0

    run_secured(tmp_path, scenario)


def test_groups_are_of_their_namespace(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol = await prepared(world)

        def requests(group: str) -> Iterable[tuple[int, Any]]:
            yield ApiKey.JOIN_GROUP, JoinGroupRequest(group, 10_000, 10_000, "", None, "consumer")
            yield ApiKey.SYNC_GROUP, SyncGroupRequest(group, 1, "m")
            yield ApiKey.HEARTBEAT, HeartbeatRequest(group, 1, "m")
            yield ApiKey.LEAVE_GROUP, LeaveGroupRequest(group)
            yield ApiKey.OFFSET_DELETE, OffsetDeleteRequest(group)

        for group in ("g", "other/space/g", "nowhere/at/all"):
            for key, request in requests(group):
                assert (await carol.ask(key, request)).error_code == NO_GROUP, key
        await world.grant("carol", "produce")
        for key, request in requests("g"):
            assert (await carol.ask(key, request)).error_code == NO_GROUP, key
        await world.grant("carol", "consume")
        for key, request in requests("g"):
            assert (await carol.ask(key, request)).error_code != NO_GROUP, key
        for key, request in requests("other/space/g"):
            assert (await carol.ask(key, request)).error_code == NO_GROUP, key
        found = await carol.ask(
            ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(keys=["g", "other/space/g"])
        )
        assert [each.error_code for each in found.coordinators] == [0, NO_GROUP]
        one = await carol.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest("other/space/g"), 2)
        assert one.error_code == NO_GROUP

    run_secured(tmp_path, scenario)


def committing(group: str, *topics: str) -> OffsetCommitRequest:
    parts = [CommitTopic(name, [CommitPartition(0, 7)]) for name in topics]
    return OffsetCommitRequest(group, -1, topics=parts)


def test_offsets_are_of_the_groups_and_of_topics(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol = await prepared(world)
        refused = await carol.ask(ApiKey.OFFSET_COMMIT, committing("g", T))
        assert errors(refused) == {T: NO_GROUP}
        root = await world.known(ROOT)
        assert errors(await root.ask(ApiKey.OFFSET_COMMIT, committing("g", OTHER))) == {OTHER: 0}
        await world.grant("carol", "consume")
        done = await carol.ask(ApiKey.OFFSET_COMMIT, committing("g", T, OTHER))
        assert errors(done) == {T: 0, OTHER: NO_TOPIC}

        named = [TopicPartitions(T, [0]), TopicPartitions(OTHER, [0])]
        groups = [OffsetsGroup("g", topics=named), OffsetsGroup("other/space/g", topics=None)]
        found = await carol.ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=groups))
        mine, theirs = found.groups
        assert errors(mine) == {T: 0, OTHER: NO_TOPIC}
        assert (theirs.group_id, theirs.error_code) == ("other/space/g", NO_GROUP)
        every = [OffsetsGroup("g", topics=None)]
        found = await carol.ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=every))
        assert errors(found.groups[0]) == {T: 0}, "the other's is not shown"
        old = await carol.ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest("g", named), 5)
        assert errors(old) == {T: 0, OTHER: NO_TOPIC}
        old = await carol.ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest("other/space/g", named), 5)
        assert old.error_code == NO_GROUP
        parts = [OffsetDeleteRequestPartition(0)]
        deleting = OffsetDeleteRequest(
            "g", [OffsetDeleteTopic(T, parts), OffsetDeleteTopic(OTHER, parts)]
        )
        assert errors(await carol.ask(ApiKey.OFFSET_DELETE, deleting)) == {T: 0, OTHER: NO_TOPIC}

    run_secured(tmp_path, scenario)


def test_lists_of_groups_have_those_of_the_clients_namespaces(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol, root = await prepared(world), await world.known(ROOT)
        for group in ("g", "other/space/g"):
            await root.ask(ApiKey.OFFSET_COMMIT, committing(group, T))

        async def listed() -> list[str]:
            answer = await carol.ask(ApiKey.LIST_GROUPS, ListGroupsRequest())
            return [each.group_id for each in answer.groups]

        assert await listed() == []
        await world.grant("carol", "consume")
        assert await listed() == ["g"]
        said = await carol.ask(
            ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(["g", "other/space/g"])
        )
        assert [each.error_code for each in said.groups] == [0, NO_GROUP]
        gone = await carol.ask(ApiKey.DELETE_GROUPS, DeleteGroupsRequest(["g", "other/space/g"]))
        assert [each.error_code for each in gone.results] == [0, NO_GROUP]

    run_secured(tmp_path, scenario)


def test_transactions_are_of_their_namespace(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol = await prepared(world)

        def requests(name: str) -> Iterable[tuple[int, Any]]:
            yield ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(name, 60_000)
            yield ApiKey.ADD_OFFSETS_TO_TXN, AddOffsetsToTxnRequest(name, 1, 0, "g")
            yield ApiKey.END_TXN, EndTxnRequest(name, 1, 0, True)

        for name in ("x", "other/space/x"):
            for key, request in requests(name):
                assert (await carol.ask(key, request)).error_code == NO_TRANSACTION, key
        await world.grant("carol", "produce")
        outcomes = [(await carol.ask(key, each)).error_code for key, each in requests("x")]
        assert outcomes[0] == 0
        assert outcomes[1] == NO_GROUP
        assert outcomes[2] not in (NO_GROUP, NO_TRANSACTION)
        own = await carol.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(None))
        assert own.error_code == 0, "a number of its own is anybody's"

        async def added(name: str, *topics: str) -> dict[str, int]:
            parts = [TopicPartitions(each, [0]) for each in topics]
            request = AddPartitionsToTxnRequest(name, 1, 0, parts)
            return errors(await carol.ask(ApiKey.ADD_PARTITIONS_TO_TXN, request))

        assert await added("other/space/x", T) == {T: NO_TRANSACTION}
        assert await added("x", T, OTHER) == {
            T: ErrorCode.OPERATION_NOT_ATTEMPTED,
            OTHER: NO_TOPIC,
        }
        assert (await added("x", T))[T] not in (NO_TOPIC, NO_TRANSACTION)
        offsets = [TxnOffsetTopic(T, [TxnOffsetPartition(0, 1)])]
        sent = TxnOffsetCommitRequest("x", "g", 1, 0, topics=offsets)
        assert errors(await carol.ask(ApiKey.TXN_OFFSET_COMMIT, sent)) == {T: NO_GROUP}
        stolen = producing(T, transactional_id="other/space/x")
        assert errors(await carol.ask(ApiKey.PRODUCE, stolen)) == {T: NO_TRANSACTION}

    run_secured(tmp_path, scenario)


def test_lists_of_transactions_have_those_of_the_clients_namespaces(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol, root = await prepared(world), await world.known(ROOT)
        for name in ("x", "other/space/x"):
            await root.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(name, 60_000))
        await world.grant("carol", "produce")
        listed = await carol.ask(ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest())
        assert [each.transactional_id for each in listed.transactions] == ["x"]
        said = await carol.ask(
            ApiKey.DESCRIBE_TRANSACTIONS, DescribeTransactionsRequest(["x", "other/space/x"])
        )
        assert [each.error_code for each in said.transactions] == [0, NO_TRANSACTION]

    run_secured(tmp_path, scenario)


def test_a_transactions_topics_are_told_to_who_may_see_them(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol, root = await prepared(world), await world.known(ROOT)
        begun = await root.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest("x", 60_000))
        parts = [TopicPartitions(each, [0]) for each in (T, OTHER)]
        number = begun.producer_id, begun.producer_epoch
        added = AddPartitionsToTxnRequest("x", *number, parts)
        answer = await root.ask(ApiKey.ADD_PARTITIONS_TO_TXN, added)
        assert errors(answer) == {T: 0, OTHER: 0}
        await world.grant("carol", "produce")
        for peer, told in ((root, {T, OTHER}), (carol, {T})):
            asked = DescribeTransactionsRequest(["x"])
            (said,) = (await peer.ask(ApiKey.DESCRIBE_TRANSACTIONS, asked)).transactions
            assert {each.name for each in said.topics} == told

    run_secured(tmp_path, scenario)


def test_what_concerns_the_cluster_is_for_super_users(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol, root = await prepared(world), await world.known(ROOT)
        await world.grant("carol", "produce", "consume")
        marker = TransactionMarker(1, 0, True, [TopicPartitions(T, [0])])
        for peer, refused in ((carol, True), (root, False)):
            said = await peer.ask(ApiKey.ELECT_LEADERS, ElectLeadersRequest())
            assert (said.error_code == NO_CLUSTER) == refused
            said = await peer.ask(
                ApiKey.LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsRequest()
            )
            assert (said.error_code == NO_CLUSTER) == refused
            said = await peer.ask(
                ApiKey.ALTER_PARTITION_REASSIGNMENTS, AlterPartitionReassignmentsRequest()
            )
            assert (said.error_code == NO_CLUSTER) == refused
            said = await peer.ask(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(None))
            assert (said.error_code == NO_CLUSTER) == refused
            assert bool(said.results) != refused
            moves = MovesToDir("ledgers", [PartitionsOfTopic(T, [0])])
            said = await peer.ask(
                ApiKey.ALTER_REPLICA_LOG_DIRS, AlterReplicaLogDirsRequest([moves])
            )
            assert (said.results[0].partitions[0].error_code == NO_CLUSTER) == refused
            said = await peer.ask(ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest([marker]))
            assert (errors(said.markers[0])[T] == NO_CLUSTER) == refused

    run_secured(tmp_path, scenario)


def test_what_coordinators_keep_is_of_no_tenants_admins(tmp_path: Path) -> None:
    """Offsets and transactions of all tenants lie in a namespace of ``public``, whose admins could
    read and write them."""

    async def scenario(world: SecuredWorld) -> None:
        carol, root = await prepared(world), await world.known(ROOT)
        done = await root.ask(ApiKey.OFFSET_COMMIT, committing("other/space/g", OTHER))
        assert errors(done) == {OTHER: 0}
        await world.services.control.namespaces.change_tenant("public", {"adminRoles": ["carol"]})
        number = world.server.coordinator.topic_for("other/space/g")
        kept = f"{number.namespace}/{number.local}"
        assert errors(await carol.ask(ApiKey.PRODUCE, producing(T))) == {T: 0}, "it administers it"
        for key, request in (
            (ApiKey.PRODUCE, producing(kept)),
            (ApiKey.FETCH, fetching(kept)),
            (ApiKey.METADATA, MetadataRequest([MetadataTopic(name=kept)])),
        ):
            assert errors(await carol.ask(key, request)) == {kept: NO_TOPIC}, key
        gone = await carol.ask(ApiKey.DELETE_TOPICS, DeleteTopicsRequest([DeleteTopic(kept)]), 6)
        assert [each.error_code for each in gone.topics] == [NO_TOPIC]
        asked = DescribeGroupsRequest(["public/kafka-groups/g"])
        assert (await carol.ask(ApiKey.DESCRIBE_GROUPS, asked)).groups[0].error_code == NO_GROUP

    run_secured(tmp_path, scenario)


def test_names_that_no_namespace_has_are_refused_before_they_are_looked_up() -> None:
    class Asked:
        async def allows(self, *_: object) -> bool:
            raise AssertionError("it is asked for")

        def is_super_user(self, *_: object) -> bool:
            return False

    async def scenario() -> None:
        asked: Any = Asked()
        grants = Grants(asked, Principal("carol"), lambda: 0.0)
        for name in ("../x/g", "a/./g", "a/\0/g", "a/b c/g", "x" * 5000 + "/b/g"):
            assert not await grants.group(name)
            assert not await grants.transactional_id(name)

    asyncio.run(scenario())


def test_namespaces_of_groups_and_transactions() -> None:
    assert namespace_of("g") == "public/default"
    assert namespace_of("a/b/g") == "a/b"
    assert namespace_of("a/b/g/h") == "a/b"
    for odd in ("", "a/g", "/b/g", "a//g", "a/b/"):
        assert namespace_of(odd) == "public/default"
