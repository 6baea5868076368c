"""Groups as their members ask for them: joins, offsets, and a coordinator that moves."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.log.whole import Whole
from magnetar.model.errors import (
    BrokerMetadataError,
    LedgerError,
    LogError,
    NotEnoughBookiesError,
    ServiceNotReadyError,
)
from magnetar.protocols.kafka.coordination import coordinator_state, offset_log
from magnetar.protocols.kafka.coordination.group_offsets import OffsetKey
from magnetar.wire.kafka.admin_messages import DeleteTopic, DeleteTopicsRequest
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.cluster_messages import FindCoordinatorRequest
from magnetar.wire.kafka.consumer_group_messages import ConsumerGroupHeartbeatRequest
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.group_messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinProtocol,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    MemberAssignment,
    SyncGroupRequest,
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
from magnetar.wire.kafka.topic_shapes import TopicPartitions
from tests.doubles.memory_log import MemoryLog
from tests.unit.protocols.kafka.harness import KafkaPeer, KafkaWorld, run

G = "group"


async def joined(
    peer: KafkaPeer, member_id: str = "", said: bytes = b"said", kind: str = "consumer"
) -> Any:
    request = JoinGroupRequest(
        group_id=G,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=5_000,
        member_id=member_id,
        protocol_type=kind,
        protocols=[JoinProtocol("range", said)],
    )
    answer = await peer.ask(ApiKey.JOIN_GROUP, request)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        return await joined(peer, answer.member_id, said, kind)
    return answer


async def synced(peer: KafkaPeer, join: Any, given: dict[str, bytes]) -> Any:
    parts = [MemberAssignment(name, part) for name, part in given.items()]
    request = SyncGroupRequest(G, join.generation, join.member_id, assignments=parts)
    return await peer.ask(ApiKey.SYNC_GROUP, request)


async def beats(peer: KafkaPeer, join: Any) -> ErrorCode:
    request = HeartbeatRequest(G, join.generation, join.member_id)
    return ErrorCode((await peer.ask(ApiKey.HEARTBEAT, request)).error_code)


async def committed(peer: KafkaPeer, offset: int, join: Any = None, topic: str = "t") -> ErrorCode:
    request = OffsetCommitRequest(
        G,
        -1 if join is None else join.generation,
        "" if join is None else join.member_id,
        topics=[CommitTopic(topic, [CommitPartition(0, offset, 3, metadata="note")])],
    )
    answer = await peer.ask(ApiKey.OFFSET_COMMIT, request)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def make_topics(world: KafkaWorld, count: int) -> None:
    """``t0``, ``t1``, ..."""
    for number in range(count):
        await world.services.control.partitioned.create(parse_topic(f"t{number}"), 1)


async def offset_of(peer: KafkaPeer, topic: str = "t") -> tuple[int, int, str]:
    request = OffsetFetchRequest(groups=[OffsetsGroup(G, topics=[TopicPartitions(topic, [0])])])
    answer = await peer.ask(ApiKey.OFFSET_FETCH, request)
    (group,) = answer.groups
    assert group.error_code == 0
    found = group.topics[0].partitions[0]
    return found.offset, found.leader_epoch, found.metadata


def test_a_group_of_two_and_its_end() -> None:
    async def scenario(world: KafkaWorld) -> None:
        one, two = world.peer(), world.peer()
        first = await joined(one)
        assert (first.error_code, first.generation, first.leader) == (0, 1, first.member_id)
        assert (await synced(one, first, {first.member_id: b"all"})).assignment == b"all"
        coming = asyncio.ensure_future(joined(two))
        while await beats(one, first) is ErrorCode.NONE:  # noqa: ASYNC110 (it is asked for)
            await asyncio.sleep(0.01)
        assert await beats(one, first) is ErrorCode.REBALANCE_IN_PROGRESS
        again = await joined(one, first.member_id)
        second = await coming
        assert again.generation == second.generation == 2
        assert {each.member_id for each in again.members} == {first.member_id, second.member_id}
        assert second.members == []
        waiting = asyncio.ensure_future(synced(two, second, {}))
        parts = {first.member_id: b"1", second.member_id: b"2"}
        assert (await synced(one, again, parts)).assignment == b"1"
        assert (await waiting).assignment == b"2"
        assert await committed(two, 5, second) is ErrorCode.NONE
        assert await committed(two, 5, first) is ErrorCode.ILLEGAL_GENERATION
        assert await committed(two, 5) is ErrorCode.UNKNOWN_MEMBER_ID
        described = (await one.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest([G]))).groups[0]
        assert (described.state, len(described.members)) == ("Stable", 2)
        deleted = await one.ask(ApiKey.DELETE_GROUPS, DeleteGroupsRequest([G]))
        assert deleted.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
        left = LeaveGroupRequest(G, members=[LeavingMember(second.member_id)])
        assert (await two.ask(ApiKey.LEAVE_GROUP, left)).members[0].error_code == 0
        await asyncio.sleep(20)  # the other is silent
        assert await beats(one, again) is ErrorCode.UNKNOWN_MEMBER_ID
        listed = await one.ask(ApiKey.LIST_GROUPS, ListGroupsRequest())
        assert [(each.group_id, each.state) for each in listed.groups] == [(G, "Empty")]
        deleted = await one.ask(ApiKey.DELETE_GROUPS, DeleteGroupsRequest([G]))
        assert deleted.results[0].error_code == 0
        assert (await one.ask(ApiKey.LIST_GROUPS, ListGroupsRequest())).groups == []
        assert await offset_of(one) == (-1, -1, "")

    run(scenario)


def test_a_group_without_members_and_offsets_is_empty_until_it_is_deleted() -> None:
    """It was Dead as soon as its last member left, if it had not committed: in Kafka it is Empty,
    and goes when it is deleted, or when the coordinator looks for groups that are over."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()

        async def state() -> tuple[str, list[str]]:
            asked = DescribeGroupsRequest([G])
            (described,) = (await peer.ask(ApiKey.DESCRIBE_GROUPS, asked)).groups
            listed = (await peer.ask(ApiKey.LIST_GROUPS, ListGroupsRequest())).groups
            return described.state, [each.state for each in listed]

        async def come_and_go() -> None:
            join = await joined(peer)
            await synced(peer, join, {})
            left = LeaveGroupRequest(G, members=[LeavingMember(join.member_id)])
            assert (await peer.ask(ApiKey.LEAVE_GROUP, left)).error_code == 0

        async def deleted() -> int:
            answer = await peer.ask(ApiKey.DELETE_GROUPS, DeleteGroupsRequest([G]))
            return int(answer.results[0].error_code)

        assert await state() == ("Dead", [])
        await come_and_go()
        assert await state() == ("Empty", ["Empty"])
        assert (await offsets_deleted(peer, "t"))[0] == ErrorCode.NONE
        assert await deleted() == ErrorCode.NONE
        assert await state() == ("Dead", [])
        assert await deleted() == ErrorCode.GROUP_ID_NOT_FOUND
        await come_and_go()
        assert await committed(peer, 5) is ErrorCode.NONE
        assert await deleted() == ErrorCode.NONE
        assert await state() == ("Dead", []), "with its offsets"
        await come_and_go()
        await asyncio.sleep(400)
        peer = world.peer()
        assert await state() == ("Empty", ["Empty"])
        await asyncio.sleep(400)
        peer = world.peer()
        assert await state() == ("Dead", [])

    run(scenario)


def test_a_group_whose_log_is_begun_anew_goes_on_there_alone() -> None:
    """An append had failed, the log was replayed, and the groups from before still looked at time:
    who had waited in one was answered twice, which ended the coordinator's timer, and members that
    it missed were taken away in the log behind the back of those who go on."""

    async def scenario(world: KafkaWorld) -> None:
        raised: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: raised.append(context))
        one, two, three = world.peer(), world.peer(), world.peer()
        first = await joined(one)
        await synced(one, first, {first.member_id: b"mine"})
        coming = asyncio.ensure_future(joined(two))
        await asyncio.sleep(0.1)
        assert not coming.done(), "the first has not joined again"
        log_of(world).failing = LogError("for a test")
        assert await committed(three, 6, first) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        log_of(world).failing = None
        assert (await coming).error_code == ErrorCode.NOT_COORDINATOR
        assert await beats(one, first) is ErrorCode.NONE
        stored = len(log_of(world)._entries)
        for _ in range(4):  # past the time within which all were to join
            await asyncio.sleep(3)
            assert await beats(one, first) is ErrorCode.NONE
        assert raised == []
        assert len(log_of(world)._entries) == stored
        await moved(world)
        assert await beats(one, first) is ErrorCode.NONE

    run(scenario)


async def moved(world: KafkaWorld) -> None:
    """The coordinator ends; another one goes on from the log."""
    await world.broker.topics.unload(world.server.coordinator.topic_for(G))


async def state_of(peer: KafkaPeer) -> tuple[str, int]:
    (found,) = (await peer.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest([G]))).groups
    return found.state, len(found.members)


async def left(peer: KafkaPeer, join: Any) -> int:
    asked = LeaveGroupRequest(G, members=[LeavingMember(join.member_id)])
    return int((await peer.ask(ApiKey.LEAVE_GROUP, asked)).error_code)


async def deleted(peer: KafkaPeer) -> ErrorCode:
    answer = await peer.ask(ApiKey.DELETE_GROUPS, DeleteGroupsRequest([G]))
    return ErrorCode(answer.results[0].error_code)


def log_of(world: KafkaWorld) -> MemoryLog:
    return world.store.logs[world.server.coordinator.topic_for(G).log_name]


def test_offsets_and_members_outlive_a_coordinator() -> None:
    """Members were unknown after it, and joined again at generation 1: workers of Kafka Connect
    waited five minutes for those who had the ids that were forgotten."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        join = await joined(peer)
        await synced(peer, join, {join.member_id: b"all"})
        for offset in (5, 9, 7):
            assert await committed(peer, offset, join) is ErrorCode.NONE
        written = len(log_of(world)._entries)
        for _ in range(5):
            assert await beats(peer, join) is ErrorCode.NONE
        assert len(log_of(world)._entries) == written, "heartbeats write nothing"
        await moved(world)
        assert await beats(peer, join) is ErrorCode.NONE
        assert await offset_of(peer) == (7, 3, "note")
        assert await committed(peer, 8, join) is ErrorCode.NONE
        assert await state_of(peer) == ("Stable", 1)
        assert (await synced(peer, join, {})).assignment == b"all"
        again = await joined(peer, join.member_id)
        assert (again.member_id, again.generation) == (join.member_id, 2)
        await moved(world)
        assert await state_of(peer) == ("Stable", 1)
        await asyncio.sleep(20)  # it is heard of no more
        peer = world.peer()
        assert await state_of(peer) == ("Empty", 0)
        assert await beats(peer, join) is ErrorCode.UNKNOWN_MEMBER_ID

    run(scenario)


def test_a_group_that_is_empty_or_deleted_is_so_at_the_next_coordinator() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        join = await joined(peer)
        await synced(peer, join, {})
        assert await left(peer, join) == 0
        assert await state_of(peer) == ("Empty", 0)
        await moved(world)
        assert await state_of(peer) == ("Empty", 0), "it has no offsets"
        assert (await joined(peer)).generation == 3
        await moved(world)
        assert await state_of(peer) == ("Empty", 0), "that rebalance was not complete"
        assert await deleted(peer) is ErrorCode.NONE
        await moved(world)
        assert await state_of(peer) == ("Dead", 0)
        assert await deleted(peer) is ErrorCode.GROUP_ID_NOT_FOUND
        join = await joined(peer)
        assert join.generation == 1
        await synced(peer, join, {})
        assert await left(peer, join) == 0
        await asyncio.sleep(400)
        await moved(world)
        assert await state_of(world.peer()) == ("Empty", 0)
        await asyncio.sleep(400)
        assert await state_of(world.peer()) == ("Dead", 0), "of when it was left, and not loaded"
        (shard,) = world.server.coordinator.open_shards()
        assert shard.log.state.classics == {}
        await moved(world)
        assert await state_of(world.peer()) == ("Dead", 0)

    run(scenario)


def test_an_assignment_that_is_not_stored_is_told_to_nobody() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        first = await joined(peer)
        log_of(world).failing = NotEnoughBookiesError("for a test")
        refused = await synced(peer, first, {first.member_id: b"1"})
        assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await beats(peer, first) is ErrorCode.REBALANCE_IN_PROGRESS
        assert await committed(peer, 5, first) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        log_of(world).failing = None
        again = await joined(peer, first.member_id)
        assert (again.member_id, again.generation) == (first.member_id, 2)
        assert (await synced(peer, again, {first.member_id: b"2"})).assignment == b"2"
        log_of(world).failing = LogError("for a test")
        third = await joined(peer, first.member_id)
        moving = await synced(peer, third, {first.member_id: b"3"})
        assert moving.error_code == ErrorCode.NOT_COORDINATOR
        log_of(world).failing = None
        assert await beats(peer, again) is ErrorCode.NONE, "by what was stored last"
        assert (await synced(peer, again, {})).assignment == b"2"

    run(scenario)


def test_a_static_member_has_the_id_that_it_was_told_last() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()

        async def joins() -> Any:
            request = JoinGroupRequest(
                group_id=G,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=5_000,
                instance_id="one",
                protocol_type="consumer",
                protocols=[JoinProtocol("range", b"said")],
            )
            return await peer.ask(ApiKey.JOIN_GROUP, request)

        first = await joins()
        await synced(peer, first, {first.member_id: b"1"})
        second = await joins()
        assert second.member_id != first.member_id
        await moved(world)
        assert await beats(peer, second) is ErrorCode.NONE
        assert await beats(peer, first) is ErrorCode.UNKNOWN_MEMBER_ID
        third = await joins()
        assert third.generation == second.generation == 1, "no rebalance"
        assert (await synced(peer, third, {})).assignment == b"1"

    run(scenario)


def test_members_that_fit_into_no_record_go_on_and_join_again_elsewhere() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        join = await joined(peer)
        most = world.services.broker.message_bytes_max
        part = b"x" * most
        assert (await synced(peer, join, {join.member_id: part})).assignment == part
        assert await beats(peer, join) is ErrorCode.NONE
        assert await committed(peer, 5, join) is ErrorCode.NONE
        await moved(world)
        assert await beats(peer, join) is ErrorCode.UNKNOWN_MEMBER_ID
        assert (await joined(peer)).generation == 2

    run(scenario)


def test_members_are_in_a_snapshot(monkeypatch: Any) -> None:
    monkeypatch.setattr(offset_log, "SNAPSHOT_RECORDS", 20)

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        join = await joined(peer)
        await synced(peer, join, {})
        for offset in range(100):
            assert await committed(peer, offset, join) is ErrorCode.NONE
        log = log_of(world)
        marked = log.cursors.durable()["offsets"].mark_delete
        assert log.positions.entries_between(marked, log.positions.readable) < 30
        await moved(world)
        assert await beats(peer, join) is ErrorCode.NONE

    run(scenario)


def test_a_group_of_another_kind_takes_the_record_of_the_classic_one_away() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        join = await joined(peer)
        await synced(peer, join, {})
        assert await left(peer, join) == 0
        beat = ConsumerGroupHeartbeatRequest(
            G, "m", 0, rebalance_timeout_ms=10_000, names=["t"], owned=[]
        )
        assert (await peer.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, beat)).error_code == 0
        (shard,) = world.server.coordinator.open_shards()
        assert shard.log.state.classics == {}
        await moved(world)
        assert await state_of(peer) == ("Dead", 0), "as a classic group"

    run(scenario)


def test_who_waits_for_a_group_hears_that_it_has_moved() -> None:
    async def scenario(world: KafkaWorld) -> None:
        one, two = world.peer(), world.peer()
        first = await joined(one)
        await synced(one, first, {})
        coming = asyncio.ensure_future(joined(two))
        await asyncio.sleep(0.1)
        assert not coming.done(), "the first has not joined again"
        await world.broker.topics.unload(world.server.coordinator.topic_for(G))
        assert await offset_of(one) == (-1, -1, "")
        assert (await coming).error_code == ErrorCode.NOT_COORDINATOR

    run(scenario)


def test_who_waits_for_what_cannot_be_stored_asks_the_next_coordinator() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        join = await joined(peer)
        log_of(world).failing = LogError("for a test")
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, each: failures.append(each))
        answer = await synced(peer, join, {join.member_id: b"all"})
        assert answer.error_code == ErrorCode.NOT_COORDINATOR
        assert await peer.quiet()
        assert failures == [], "nobody is told twice"
        log_of(world).failing = None
        again = await joined(peer)
        assert (await synced(peer, again, {again.member_id: b"all"})).assignment == b"all"

    run(scenario)


def test_what_is_on_its_way_into_the_log_is_deleted_with_its_group() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, admin = world.peer(), world.peer()
        join = await joined(peer)
        log_of(world).held = True
        assert await left(peer, join) == 0
        deleting = asyncio.create_task(deleted(admin))
        await asyncio.sleep(0.1)
        log_of(world).held = False
        log_of(world).release()
        assert await deleting is ErrorCode.NONE
        await moved(world)
        assert await state_of(admin) == ("Dead", 0)

    run(scenario)


def test_a_commit_that_is_not_stored_is_not_known() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        assert await committed(peer, 5) is ErrorCode.NONE
        log = world.store.logs[world.server.coordinator.topic_for(G).log_name]
        log.failing = LogError("for a test")
        assert await committed(peer, 6) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        log.failing = None
        assert await offset_of(peer) == (5, 3, "note")

    run(scenario)


def test_one_that_was_begun_anew_stores_nothing_more() -> None:
    """The topic is open still: the coordinator that has read its log would not know of it."""

    async def scenario(world: KafkaWorld) -> None:
        peer, coordinator = world.peer(), world.server.coordinator
        assert await committed(peer, 5) is ErrorCode.NONE
        former = await coordinator.shard(G)
        log = world.store.logs[coordinator.topic_for(G).log_name]
        log.failing = LogError("for a test")
        assert await committed(peer, 6) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        log.failing = None
        assert await offset_of(peer) == (5, 3, "note")
        assert await coordinator.shard(G) is not former
        assert not former.log.topic.closed
        assert await committed(peer, 7) is ErrorCode.NONE
        with pytest.raises(ServiceNotReadyError):
            await coordinator.change(former, [(OffsetKey(G, "t", 0), None)])
        await world.broker.topics.unload(coordinator.topic_for(G))
        assert await offset_of(peer) == (7, 3, "note")

    run(scenario)


def test_one_that_was_begun_anew_writes_nothing_again(monkeypatch: Any) -> None:
    """What it knows is older than what the coordinator that has read its log stores since."""
    monkeypatch.setattr(offset_log, "SNAPSHOT_RECORDS", 10)

    async def scenario(world: KafkaWorld) -> None:
        peer, coordinator = world.peer(), world.server.coordinator
        for offset in range(9):
            assert await committed(peer, offset) is ErrorCode.NONE
        former = await coordinator.shard(G)
        log = world.store.logs[coordinator.topic_for(G).log_name]
        log.failing = LogError("for a test")
        assert await committed(peer, 9) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        log.failing = None
        assert await committed(peer, 20) is ErrorCode.NONE
        with pytest.raises(ServiceNotReadyError):
            await coordinator.change(former, [(OffsetKey(G, "t", 0), None)])
        await world.broker.topics.unload(coordinator.topic_for(G))
        assert await offset_of(peer) == (20, 3, "note")

    run(scenario)


def test_what_is_known_is_written_again_and_what_lies_before_it_let_go(monkeypatch: Any) -> None:
    monkeypatch.setattr(offset_log, "SNAPSHOT_RECORDS", 20)

    async def scenario(world: KafkaWorld) -> None:
        await make_topics(world, 3)
        peer = world.peer()
        for offset in range(100):
            assert await committed(peer, offset, topic=f"t{offset % 3}") is ErrorCode.NONE
        name = world.server.coordinator.topic_for(G)
        log = world.store.logs[name.log_name]
        marked = log.cursors.durable()["offsets"].mark_delete
        left = log.positions.entries_between(marked, log.positions.readable)
        assert left < 30
        await world.broker.topics.unload(name)
        for number, offset in ((0, 99), (1, 97), (2, 98)):
            assert (await offset_of(peer, f"t{number}"))[0] == offset

    run(scenario)


def test_a_snapshot_of_which_a_part_failed_lets_nothing_go(monkeypatch: Any) -> None:
    monkeypatch.setattr(offset_log, "SNAPSHOT_RECORDS", 10)
    monkeypatch.setattr(coordinator_state, "RECORDS_PER_BATCH", 2)

    async def scenario(world: KafkaWorld) -> None:
        await make_topics(world, 5)
        peer = world.peer()
        assert await committed(peer, 0, topic="t0") is ErrorCode.NONE
        name = world.server.coordinator.topic_for(G)
        log = world.store.logs[name.log_name]
        appended = log.append
        calls = 0

        def failing_once(payloads: Any, done: Any, content: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 10:  # the first batch of the snapshot
                asyncio.get_running_loop().call_soon(done, LogError("for a test"), ())
            else:
                appended(payloads, done, content)

        log.append = failing_once  # type: ignore[method-assign]
        for offset in range(1, 10):
            assert await committed(peer, offset, topic=f"t{offset % 5}") is ErrorCode.NONE
        assert await committed(peer, 10, topic="t0") is ErrorCode.NONE
        assert calls == 9 + 3 + 1, "a snapshot of three batches was written"
        await asyncio.sleep(1)
        assert log.cursors.durable()["offsets"].mark_delete < log.positions.first
        log.append = appended  # type: ignore[method-assign]
        await world.broker.topics.unload(name)
        for number, offset in ((0, 10), (1, 6), (2, 7), (3, 8), (4, 9)):
            assert (await offset_of(peer, f"t{number}"))[0] == offset

    run(scenario)


def test_a_snapshot_waits_for_what_is_stored_before_it(monkeypatch: Any) -> None:
    """What is stored and not known yet is not in it, and lies before its begin."""
    monkeypatch.setattr(offset_log, "SNAPSHOT_RECORDS", 10)

    async def scenario(world: KafkaWorld) -> None:
        await make_topics(world, 2)
        peer, late = world.peer(), world.peer()
        assert await committed(peer, 0, topic="t1") is ErrorCode.NONE
        name = world.server.coordinator.topic_for(G)
        log = world.store.logs[name.log_name]
        append, appended = log.append, asyncio.Event()

        def answered_late(payloads: Any, done: Any, content: Any) -> None:
            log.append = append  # type: ignore[method-assign]
            appended.set()
            later = asyncio.get_running_loop().call_later
            append(payloads, lambda *outcome: later(5, done, *outcome), content)

        log.append = answered_late  # type: ignore[method-assign]
        coming = asyncio.create_task(committed(late, 7, topic="t0"))
        await appended.wait()
        for offset in range(1, 20):
            assert await committed(peer, offset, topic="t1") is ErrorCode.NONE
        assert await coming is ErrorCode.NONE
        assert log.cursors.durable()["offsets"].mark_delete >= log.positions.first, "it was written"
        await world.broker.topics.unload(name)
        assert [(await offset_of(peer, topic))[0] for topic in ("t0", "t1")] == [7, 19]

    run(scenario)


def test_a_snapshot_is_written_while_commits_never_cease(monkeypatch: Any) -> None:
    monkeypatch.setattr(offset_log, "SNAPSHOT_RECORDS", 20)

    async def scenario(world: KafkaWorld) -> None:
        async def commits(peer: KafkaPeer, topic: str) -> None:
            for offset in range(100):
                assert await committed(peer, offset, topic=topic) is ErrorCode.NONE

        await make_topics(world, 5)
        await asyncio.gather(*(commits(world.peer(), f"t{number}") for number in range(5)))
        log = world.store.logs[world.server.coordinator.topic_for(G).log_name]
        marked = log.cursors.durable()["offsets"].mark_delete
        assert log.positions.entries_between(marked, log.positions.readable) < 60
        assert [(await offset_of(world.peer(), f"t{n}"))[0] for n in range(5)] == [99] * 5

    run(scenario)


def test_what_a_former_coordinator_stored_last_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replica that was just elected may not show the end of its log yet."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        assert await committed(peer, 1) is ErrorCode.NONE
        await world.broker.topics.unload(world.server.coordinator.topic_for(G))

        async def not_yet(_self: Whole) -> None:
            raise LogError("try again")

        with monkeypatch.context() as patched:
            patched.setattr(Whole, "wait_whole", not_yet)
            asked = OffsetsGroup(G, topics=[TopicPartitions("t", [0])])
            found = await peer.ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=[asked]))
        assert found.groups[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await offset_of(peer))[0] == 1

    run(scenario)


def test_what_was_refused_is_not_committed() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        assert await committed(peer, 1) is ErrorCode.NONE
        log = (await world.server.coordinator.shard(G)).log.topic.log
        assert isinstance(log, MemoryLog)
        log.failing = LedgerError("for a test")
        assert await committed(peer, 2) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await offset_of(peer))[0] == 1
        log.failing = None
        assert await committed(peer, 3, topic="t") is ErrorCode.NONE
        assert (await offset_of(peer))[0] == 3

    run(scenario)


def test_what_is_committed_while_its_group_expires_is_kept() -> None:
    """It was on its way into the log: the group was forgotten behind it, though it was told."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        assert await committed(peer, 1) is ErrorCode.NONE
        log = (await world.server.coordinator.shard(G)).log.topic.log
        assert isinstance(log, MemoryLog)
        await asyncio.sleep(490)
        log.held, later = True, world.peer()
        topic = CommitTopic("t", [CommitPartition(0, 2, 3, metadata="note")])
        later.tell(ApiKey.OFFSET_COMMIT, OffsetCommitRequest(G, -1, "", topics=[topic]))
        await asyncio.sleep(70)  # a look at what has expired is among them
        log.held = False
        log.release()
        told = (await later.next())[1].topics[0].partitions[0]
        assert told.error_code == ErrorCode.NONE
        await asyncio.sleep(10)
        assert (await offset_of(world.peer()))[0] == 2
        await asyncio.sleep(600)
        assert (await offset_of(world.peer()))[0] == -1, "when nobody has come for so long again"

    run(scenario, offsets_retention_ms=500_000)


def test_offsets_expire_after_their_group_has_ended() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        join = await joined(peer)
        await synced(peer, join, {})
        assert await committed(peer, 5, join) is ErrorCode.NONE
        for _ in range(200):  # a member keeps them
            assert await beats(peer, join) is ErrorCode.NONE
            await asyncio.sleep(5)
        assert (await offset_of(peer))[0] == 5
        await asyncio.sleep(1_000)
        assert peer.session.closed, "it was silent for too long"
        assert (await offset_of(world.peer()))[0] == -1

    run(scenario, offsets_retention_ms=500_000)


def test_the_coordinator_is_found_and_that_of_share_groups_is_none() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        found = await peer.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(keys=[G, "x"]))
        node = world.services.node
        for each in found.coordinators:
            assert (each.error_code, each.node_id, each.port) == (0, node.node_id, node.port)
        old = await peer.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(G), version=1)
        assert (old.error_code, old.node_id) == (0, node.node_id)
        asked = FindCoordinatorRequest(key_type=2, keys=["x"])
        refused = (await peer.ask(ApiKey.FIND_COORDINATOR, asked)).coordinators[0]
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert "not served" in (refused.error_message or "")

    run(scenario)


def test_groups_that_are_only_asked_about_are_not_kept() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        names = [f"nobody's{number}" for number in range(50)]
        described = await peer.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(names))
        assert {each.state for each in described.groups} == {"Dead"}
        beat = await peer.ask(ApiKey.HEARTBEAT, HeartbeatRequest("nobody's", 1, "m"))
        assert beat.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        shards = world.server.coordinator.open_shards()
        assert shards
        assert not any(shard.groups for shard in shards)

    run(scenario)


def test_offsets_of_what_does_not_exist_are_not_kept() -> None:
    """A name that was mistyped is told, and what is right in the same request is kept."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        part = CommitPartition
        asked = OffsetCommitRequest(
            G,
            -1,
            "",
            topics=[
                CommitTopic("t", [part(0, 5), part(1, 6), part(-1, 7)]),
                CommitTopic("tt", [part(0, 8)]),
                CommitTopic("none/none/t", [part(0, 9)]),
                CommitTopic("..", [part(0, 9)]),
            ],
        )
        answer = await peer.ask(ApiKey.OFFSET_COMMIT, asked)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        found = [[each.error_code for each in topic.partitions] for topic in answer.topics]
        assert found == [[ErrorCode.NONE, unknown, unknown], [unknown], [unknown], [unknown]]
        assert (await offset_of(peer))[0] == 5
        assert (await offset_of(peer, "tt"))[0] == -1

    run(scenario)


async def all_offsets(peer: KafkaPeer) -> dict[str, int]:
    """Of the first partitions of all topics of which there are any."""
    answer = await peer.ask(
        ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=[OffsetsGroup(G, topics=None)])
    )
    return {each.name: each.partitions[0].offset for each in answer.groups[0].topics}


def test_offsets_of_a_topic_that_was_deleted_are_not_those_of_the_next_of_its_name() -> None:
    """A group passed over the first records of a topic that was made anew, and nobody was told."""

    async def scenario(world: KafkaWorld) -> None:
        peer, partitioned = world.peer(), world.services.control.partitioned
        await make_topics(world, 2)
        for name in ("t0", "t1"):
            assert await committed(peer, 7, topic=name) is ErrorCode.NONE
        await partitioned.delete(parse_topic("t0"))
        assert (await offset_of(peer, "t0"))[0] == -1
        await partitioned.create(parse_topic("t0"), 1)
        assert (await offset_of(peer, "t0"))[0] == -1
        assert await all_offsets(peer) == {"t1": 7}
        await moved(world)
        peer = world.peer()
        assert await all_offsets(peer) == {"t1": 7}
        assert await committed(peer, 3, topic="t0") is ErrorCode.NONE
        assert await all_offsets(peer) == {"t0": 3, "t1": 7}

    run(scenario)


def test_offsets_of_older_releases_are_told(monkeypatch: Any) -> None:
    """They have no ids. What is committed while ids cannot be known has none either."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        ids = world.services.topic_ids

        async def out_of_reach(_: TopicName) -> uuid.UUID:
            raise BrokerMetadataError("the store is out of reach")

        await make_topics(world, 1)
        with monkeypatch.context() as patched:
            patched.setattr(ids, "of", out_of_reach)
            assert await committed(peer, 5, topic="t0") is ErrorCode.NONE
        assert (await offset_of(peer, "t0"))[0] == 5
        assert await committed(peer, 6, topic="t0") is ErrorCode.NONE
        with monkeypatch.context() as patched:
            patched.setattr(ids, "of", out_of_reach)
            assert (await offset_of(peer, "t0"))[0] == 6

    run(scenario)


def test_offsets_are_committed_and_told_while_the_store_is_silent(monkeypatch: Any) -> None:
    """Each commit waited for it, for up to 15 s, and with it all that came behind."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await make_topics(world, 1)
        assert await committed(peer, 5, topic="t0") is ErrorCode.NONE

        async def silent(*_: object) -> None:
            await asyncio.sleep(15)
            raise BrokerMetadataError("the store is out of reach")

        with monkeypatch.context() as patched:
            patched.setattr(type(world.services.control.partitioned), "topic", silent)
            begun_s = asyncio.get_running_loop().time()
            assert (await offset_of(peer, "t0"))[0] == 5
            parts = [CommitPartition(number, 6) for number in range(20)]
            asked = OffsetCommitRequest(G, topics=[CommitTopic("t0", parts)])
            await peer.ask(ApiKey.OFFSET_COMMIT, asked)
            assert asyncio.get_running_loop().time() - begun_s < 3
        assert (await offset_of(peer, "t0"))[0] == 6

    run(scenario)


async def offsets_deleted(peer: KafkaPeer, *topics: str) -> tuple[int, dict[str, int]]:
    """The error of all, and that of each topic."""
    parts = [OffsetDeleteTopic(name, [OffsetDeleteRequestPartition(0)]) for name in topics]
    answer = await peer.ask(ApiKey.OFFSET_DELETE, OffsetDeleteRequest(G, parts))
    return answer.error_code, {each.name: each.partitions[0].error_code for each in answer.topics}


def test_offsets_of_a_partition_that_is_not_there_are_not_deleted() -> None:
    """Whoever had mistaken a name was told that they were; those of a topic that is gone can go."""

    async def scenario(world: KafkaWorld) -> None:
        await make_topics(world, 2)
        peer, unknown = world.peer(), int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        for topic in ("t", "t0", "t1"):
            assert await committed(peer, 5, topic=topic) is ErrorCode.NONE
        deleted = DeleteTopicsRequest([DeleteTopic("t0")])
        assert (await peer.ask(ApiKey.DELETE_TOPICS, deleted)).topics[0].error_code == 0
        found = await offsets_deleted(peer, "t", "t0", "nowhere")
        assert found == (0, {"t": 0, "t0": 0, "nowhere": unknown})
        assert await offsets_deleted(peer, "t0") == (0, {"t0": unknown})

    run(scenario)


def test_offsets_of_what_members_read_are_not_deleted() -> None:
    """While a group had members nothing could be deleted: what they read was not looked at."""
    reads_t = b"\0\1" + b"\0\0\0\1" + b"\0\1t" + b"\xff" * 4  # and no user data

    async def scenario(world: KafkaWorld) -> None:
        await make_topics(world, 1)
        peer = world.peer()
        assert await offsets_deleted(peer, "t") == (ErrorCode.GROUP_ID_NOT_FOUND, {})
        join = await joined(peer, said=reads_t)
        await synced(peer, join, {})
        subscribed = int(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
        assert await offsets_deleted(peer, "t") == (0, {"t": subscribed})
        assert await committed(peer, 5, join) is ErrorCode.NONE
        assert await committed(peer, 6, join, topic="t0") is ErrorCode.NONE
        assert await offsets_deleted(peer, "t", "t0") == (0, {"t": subscribed, "t0": 0})
        assert (await offset_of(peer))[0] == 5
        assert (await offset_of(peer, "t0"))[0] == -1
        await peer.ask(
            ApiKey.LEAVE_GROUP, LeaveGroupRequest(G, "", [LeavingMember(join.member_id)])
        )
        assert await offsets_deleted(peer, "t") == (0, {"t": 0})
        assert (await offset_of(peer))[0] == -1

    run(scenario)


def test_offsets_are_kept_of_members_who_do_not_say_what_they_read() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        for said in (b"", b"said", b"\0\1\0\0\0\2\0\1x"):
            join = await joined(peer, said=said)
            await synced(peer, join, {})
            assert await committed(peer, 5, join) is ErrorCode.NONE
            subscribed = int(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            assert await offsets_deleted(peer, "t") == (0, {"t": subscribed})
            left = LeaveGroupRequest(G, "", [LeavingMember(join.member_id)])
            await peer.ask(ApiKey.LEAVE_GROUP, left)
        await synced(peer, await joined(peer, kind="connect"), {})
        assert await offsets_deleted(peer, "t") == (ErrorCode.NON_EMPTY_GROUP, {})
        assert (await offset_of(peer))[0] == 5

    run(scenario)
