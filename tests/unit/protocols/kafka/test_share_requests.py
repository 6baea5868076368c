"""Share groups as clients' requests see them: members, records, acknowledgements, crashes of
coordinators and leaders, settings, admins, permissions."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

from magnetar.cluster.topic_name import parse_topic
from magnetar.log.whole import Whole
from magnetar.model.errors import BrokerMetadataError, LedgerError
from magnetar.protocols.kafka.consumers.id_partitions import TopicIdPartition
from magnetar.protocols.kafka.handlers import led_share_partition, share_fetch
from magnetar.protocols.kafka.handlers.fetch import read_batches
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.protocols.kafka.shares.share_records import ShareImage, ShareStateKey
from magnetar.wire.kafka.admin_messages import (
    ChangeResource,
    ConfigChange,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.consumer_group_messages import ConsumerGroupHeartbeatRequest
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.group_messages import (
    DeleteGroupsRequest,
    JoinGroupRequest,
    JoinProtocol,
    ListGroupsRequest,
)
from magnetar.wire.kafka.offset_messages import CommitPartition, CommitTopic, OffsetCommitRequest
from magnetar.wire.kafka.share_fetch_messages import (
    AcknowledgedBatch,
    AcknowledgeType,
    ForgottenSharedTopic,
    ShareAcknowledgeRequest,
    SharedPartition,
    SharedTopic,
    ShareFetchRequest,
)
from magnetar.wire.kafka.share_group_messages import (
    AlterShareGroupOffsetsRequest,
    AskedShareGroup,
    AskedShareTopic,
    DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    ForgottenShareTopic,
    NewShareStart,
    NewShareStartTopic,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)
from magnetar.wire.kafka.share_state_messages import (
    AskedState,
    AskedStateTopic,
    NewState,
    NewStateTopic,
    ReadShareGroupStateRequest,
    WriteShareGroupStateRequest,
)
from tests.unit.protocols.kafka.harness import TOPIC, KafkaPeer, KafkaWorld, batch, run
from tests.unit.protocols.kafka.secured import SecuredWorld, run_secured
from tests.unit.protocols.kafka.test_session import _HeldMore, producing
from tests.unit.protocols.kafka.test_transaction_requests import begun

G = "shares"
GAP, ACCEPT, RELEASE, REJECT = AcknowledgeType
GROUP_RESOURCE = 32


class Member:
    """A member of a share group, and its session with the leader."""

    def __init__(self, peer: KafkaPeer, name: str = "a", group: str = G) -> None:
        self.peer, self.name, self.group = peer, name, group
        self.epoch = 0
        self.session_epoch = 0
        self.topic_id = uuid.UUID(int=0)

    async def beat(self, **fields: Any) -> Any:
        names = [TOPIC] if self.epoch == 0 else None
        request = ShareGroupHeartbeatRequest(self.group, self.name, self.epoch, names=names)
        for name, value in fields.items():
            setattr(request, name, value)
        answer = await self.peer.ask(ApiKey.SHARE_GROUP_HEARTBEAT, request)
        if not answer.error_code:
            self.epoch = answer.member_epoch
            if answer.assignment is not None and answer.assignment.topics:
                self.topic_id = answer.assignment.topics[0].topic_id
        return answer

    def asks(self, *acknowledged: tuple[int, ...], **fields: Any) -> ShareFetchRequest:
        topics = []
        if self.session_epoch == 0 or acknowledged:
            said = [AcknowledgedBatch(each[0], each[1], list(each[2:])) for each in acknowledged]
            topics = [SharedTopic(self.topic_id, [SharedPartition(0, said)])]
        request = ShareFetchRequest(
            self.group,
            self.name,
            self.session_epoch,
            wait_ms_max=500,
            bytes_min=1,
            records_max=500,
            topics=topics,
        )
        for name, value in fields.items():
            setattr(request, name, value)
        return request

    async def fetch(self, *acknowledged: tuple[int, ...], **fields: Any) -> Any:
        """The partition's answer, or the whole one if that has an error, or None."""
        answer = await self.peer.ask(ApiKey.SHARE_FETCH, self.asks(*acknowledged, **fields))
        if answer.error_code:
            return answer
        self.session_epoch += 1
        return answer.topics[0].partitions[0] if answer.topics else None

    async def acquired(self, *acknowledged: tuple[int, ...], **fields: Any) -> list[Any]:
        """``(first, last, count)`` of what a fetch acquires."""
        said = await self.fetch(*acknowledged, **fields)
        if said is None:
            return []
        assert not said.error_code, said.error_message
        assert not said.acknowledge_error_code, said.acknowledge_error_message
        return [
            (each.first_offset, each.last_offset, each.delivery_count) for each in said.acquired
        ]

    async def acknowledge(self, *acknowledged: tuple[int, ...], epoch: int | None = None) -> int:
        said = [AcknowledgedBatch(each[0], each[1], list(each[2:])) for each in acknowledged]
        request = ShareAcknowledgeRequest(
            self.group,
            self.name,
            self.session_epoch if epoch is None else epoch,
            [SharedTopic(self.topic_id, [SharedPartition(0, said)])] if said else [],
        )
        answer = await self.peer.ask(ApiKey.SHARE_ACKNOWLEDGE, request)
        if answer.error_code:
            return int(answer.error_code)
        self.session_epoch += 1
        return int(answer.topics[0].partitions[0].error_code) if answer.topics else 0


async def joined(world: KafkaWorld, name: str = "a", group: str = G) -> Member:
    member = Member(world.peer(), name, group)
    answer = await member.beat()
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    return member


async def produced(world: KafkaWorld, count: int) -> None:
    answer = await world.peer().ask(ApiKey.PRODUCE, producing(batch(count)))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE


async def configured(world: KafkaWorld, group: str = G, **said: str) -> int:
    changes = [ConfigChange(name.replace("_", "."), 0, value) for name, value in said.items()]
    request = IncrementalAlterConfigsRequest([ChangeResource(GROUP_RESOURCE, group, changes)])
    answer = await world.peer().ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request)
    return int(answer.responses[0].error_code)


async def earliest(world: KafkaWorld, group: str = G) -> None:
    assert await configured(world, group, share_auto_offset_reset="earliest") == 0


def test_members_share_a_partition() -> None:
    async def scenario(world: KafkaWorld) -> None:
        a, b = await joined(world, "a"), await joined(world, "b")
        assert a.topic_id == b.topic_id
        assert await a.acquired(wait_ms_max=0) == []
        assert await b.acquired(wait_ms_max=0) == []
        await produced(world, 3)
        await produced(world, 2)
        assert await a.acquired(records_max=3) == [(0, 2, 1)]
        assert await b.acquired() == [(3, 4, 1)]
        assert await a.acquired((0, 0, ACCEPT), (1, 2, RELEASE), wait_ms_max=0) == [(1, 2, 2)]
        assert await b.acknowledge((3, 4, ACCEPT)) == ErrorCode.NONE

    run(scenario)


def test_a_group_begins_with_what_comes_next() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await produced(world, 3)
        a = await joined(world)
        assert await a.acquired(wait_ms_max=0) == []
        await produced(world, 1)
        assert await a.acquired() == [(3, 3, 1)]
        await earliest(world, "other")
        other = await joined(world, "o", "other")
        assert await other.acquired() == [(0, 3, 1)]

    run(scenario)


def test_what_was_produced_since_a_group_began_is_its_own_after_a_crash() -> None:
    """Also if nothing was ever acknowledged: the begin is kept before anybody reads."""

    async def scenario(world: KafkaWorld) -> None:
        a = await joined(world)
        assert await a.acquired(wait_ms_max=0) == []
        await produced(world, 2)
        await forgotten(world)
        a = await joined(world)
        assert await a.acquired() == [(0, 1, 1)]

    run(scenario)


async def forgotten(world: KafkaWorld) -> None:
    """All that is in memory only, as if the brokers had died that coordinate and that lead."""
    for session in list(world.services.sessions):
        assert isinstance(session, KafkaSession)
        session.connection_lost(None)
    await asyncio.sleep(1)
    await world.broker.topics.unload(world.server.coordinator.topic_for(G))
    await world.broker.topics.unload(parse_topic(f"{TOPIC}-partition-0"))


def test_what_was_accepted_never_comes_again() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await earliest(world)
        await produced(world, 6)
        a = await joined(world)
        assert await a.acquired() == [(0, 5, 1)]
        assert await a.acknowledge((0, 1, ACCEPT), (3, 3, ACCEPT), (4, 4, REJECT)) == 0
        await forgotten(world)
        b = await joined(world, "b")
        assert await b.acquired() == [(2, 2, 2), (5, 5, 2)]
        assert (await starts(world)).topics[0].partitions[0].start_offset == 2

    run(scenario)


def test_a_fetch_waits_for_records() -> None:
    async def scenario(world: KafkaWorld) -> None:
        a = await joined(world)
        await a.fetch(wait_ms_max=0)
        a.peer.tell(ApiKey.SHARE_FETCH, a.asks(wait_ms_max=30_000))
        assert await a.peer.quiet()
        await produced(world, 1)
        _, answer = await a.peer.next()
        assert answer.topics[0].partitions[0].acquired[0].last_offset == 0
        assert answer.lock_timeout_ms == 30_000

    run(scenario)


def test_a_fetch_waits_for_what_others_give_back() -> None:
    async def scenario(world: KafkaWorld) -> None:
        a, b = await joined(world, "a"), await joined(world, "b")
        await a.fetch(wait_ms_max=0)
        await produced(world, 1)
        assert await a.acquired() == [(0, 0, 1)]
        b.peer.tell(ApiKey.SHARE_FETCH, b.asks(wait_ms_max=60_000))
        assert await b.peer.quiet()
        assert await a.acknowledge((0, 0, RELEASE)) == 0
        _, answer = await b.peer.next()
        assert answer.topics[0].partitions[0].acquired[0].delivery_count == 2

    run(scenario)


def test_what_comes_between_a_look_and_the_watch_is_found(monkeypatch: Any) -> None:
    async def scenario(world: KafkaWorld) -> None:
        a = await joined(world)
        await a.fetch(wait_ms_max=0)
        look = share_fetch.ShareFetchHandlers._round

        async def and_then(*asked: Any) -> Any:
            found = await look(*asked)
            monkeypatch.setattr(share_fetch.ShareFetchHandlers, "_round", look)
            await produced(world, 2)
            return found

        monkeypatch.setattr(share_fetch.ShareFetchHandlers, "_round", and_then)
        begun = asyncio.get_running_loop().time()
        assert await a.acquired(wait_ms_max=5_000) == [(0, 1, 1)]
        assert asyncio.get_running_loop().time() - begun < 5

    run(scenario)


def test_nobody_acquires_what_was_read_for_a_connection_that_is_over(monkeypatch: Any) -> None:
    async def scenario(world: KafkaWorld) -> None:
        a, b = await joined(world, "a"), await joined(world, "b")
        await a.fetch(wait_ms_max=0)
        await b.fetch(wait_ms_max=0)
        await produced(world, 2)

        async def and_then(*asked: Any) -> Any:
            found = await read_batches(*asked)
            monkeypatch.setattr(led_share_partition, "read_batches", read_batches)
            a.peer.session.connection_lost(None)
            await asyncio.sleep(0.1)
            return found

        monkeypatch.setattr(led_share_partition, "read_batches", and_then)
        a.peer.tell(ApiKey.SHARE_FETCH, a.asks(wait_ms_max=500))
        await asyncio.sleep(1)
        assert await b.acquired() == [(0, 1, 1)]

    run(scenario)


def test_what_another_leader_may_have_given_is_not_acquired(monkeypatch: Any) -> None:
    """The state was lost while the log was read."""

    async def scenario(world: KafkaWorld) -> None:
        a = await joined(world)
        await a.fetch(wait_ms_max=0)
        await produced(world, 2)

        async def and_then(*asked: Any) -> Any:
            found = await read_batches(*asked)
            monkeypatch.setattr(led_share_partition, "read_batches", read_batches)
            (led,) = world.server.coordinated_groups.share_leader._led.values()
            led.lose()
            return found

        monkeypatch.setattr(led_share_partition, "read_batches", and_then)
        said = await a.fetch()
        assert (bool(said.error_code), said.acquired) == (True, [])
        assert await a.acquired() == [(0, 1, 1)]

    run(scenario)


def test_a_group_begins_behind_what_a_new_leader_cannot_show_yet() -> None:
    """It was there before the group was."""

    async def scenario(world: KafkaWorld) -> None:
        await produced(world, 1)
        log = world.log()
        log.opening = _HeldMore()
        a = await joined(world)
        assert await a.acquired(wait_ms_max=0) == []
        for _ in range(5):
            await produced(world, 1)
        log.opening = Whole()
        assert await a.acquired() == [(5, 5, 1)]

    run(scenario)


def test_an_error_is_told_at_once() -> None:
    async def scenario(world: KafkaWorld) -> None:
        a = await joined(world)
        await a.fetch(wait_ms_max=0)
        log = world.log(str(world.server.coordinator.topic_for(G)))
        log.failing = LedgerError("for a test")
        (led,) = world.server.coordinated_groups.share_leader._led.values()
        led.lose()
        begun = asyncio.get_running_loop().time()
        assert (await a.fetch(wait_ms_max=5_000)).error_code
        assert asyncio.get_running_loop().time() - begun < 1

    run(scenario)


def test_what_cannot_be_served_now_is_no_end_for_consumers_in_java(monkeypatch: Any) -> None:
    async def scenario(world: KafkaWorld) -> None:
        a = await joined(world)

        async def out_of_reach(*_: object, **__: object) -> None:
            raise BrokerMetadataError("the store is out of reach")

        monkeypatch.setattr(world.services.topics, "get", out_of_reach)
        said = await a.fetch(wait_ms_max=0)
        assert said.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(scenario)


def test_locks_are_over_in_time() -> None:
    async def scenario(world: KafkaWorld) -> None:
        a, b = await joined(world, "a"), await joined(world, "b")
        await a.fetch(wait_ms_max=0)
        await produced(world, 1)
        begun = asyncio.get_running_loop().time()
        assert await a.acquired() == [(0, 0, 1)]
        b.peer.tell(ApiKey.SHARE_FETCH, b.asks(wait_ms_max=60_000))
        await asyncio.sleep(29)
        assert await b.peer.quiet()
        await asyncio.sleep(2)
        _, answer = await b.peer.next()
        assert answer.topics[0].partitions[0].acquired[0].delivery_count == 2
        assert asyncio.get_running_loop().time() >= begun + 30
        assert await a.acknowledge((0, 0, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE

    run(scenario)


def test_what_a_broken_connection_held_is_free_at_once() -> None:
    async def scenario(world: KafkaWorld) -> None:
        a, b = await joined(world, "a"), await joined(world, "b")
        await a.fetch(wait_ms_max=0)
        await b.fetch(wait_ms_max=0)
        await produced(world, 2)
        assert await a.acquired() == [(0, 1, 1)]
        a.peer.session.connection_lost(None)
        assert await b.acquired() == [(0, 1, 2)]
        assert len(world.server.coordinated_groups.share_leader.sessions) == 1

    run(scenario)


def test_a_fetch_ends_with_its_connection() -> None:
    async def scenario(world: KafkaWorld) -> None:
        member, other = await joined(world), await joined(world, "b")
        await member.fetch(wait_ms_max=0)
        await other.fetch(wait_ms_max=0)  # so that the partition's state is kept
        member.peer.tell(ApiKey.SHARE_FETCH, member.asks(wait_ms_max=50_000))
        assert await member.peer.quiet()
        tasks = [each.get_name() for each in asyncio.all_tasks()]
        assert any("SHARE_FETCH" in name for name in tasks)
        member.peer.session.connection_lost(None)
        assert await member.peer.quiet()
        tasks = [each.get_name() for each in asyncio.all_tasks()]
        assert not any("SHARE_FETCH" in name for name in tasks)

    run(scenario)


def test_a_session_is_closed_also_where_settings_cannot_be_read(monkeypatch: Any) -> None:
    """It was gone, and what its member held was not given back, nor its partitions forgotten."""

    async def scenario(world: KafkaWorld) -> None:
        a, b = await joined(world, "a"), await joined(world, "b")
        await a.fetch(wait_ms_max=0)
        await produced(world, 2)
        assert await a.acquired() == [(0, 1, 1)]
        leader = world.server.coordinated_groups.share_leader

        async def away(group_id: str) -> None:
            raise BrokerMetadataError("no answer")

        with monkeypatch.context() as patched:
            patched.setattr(leader, "settings", away)
            closing = a.asks()
            closing.session_epoch = -1
            answer = await a.peer.ask(ApiKey.SHARE_FETCH, closing)
            assert answer.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert (leader._users, leader._led, len(leader.sessions)) == ({}, {}, 0)
        assert await b.acquired() == [(0, 1, 1)]

    run(scenario)


def test_a_request_makes_few_tasks_whatever_it_names(monkeypatch: Any) -> None:
    async def scenario(world: KafkaWorld) -> None:
        member = await joined(world)
        await member.fetch(wait_ms_max=0)
        most, one = 0, share_fetch.ShareFetchHandlers._acknowledge

        async def counted(self: Any, *said: Any) -> Any:
            nonlocal most
            most = max(most, len(asyncio.all_tasks()))
            return await one(self, *said)

        monkeypatch.setattr(share_fetch.ShareFetchHandlers, "_acknowledge", counted)
        said = [AcknowledgedBatch(0, 0, [ACCEPT])]
        parts = [SharedPartition(index, said) for index in range(3_000)]
        request = ShareAcknowledgeRequest(G, "a", 1, [SharedTopic(member.topic_id, parts)])
        answer = await member.peer.ask(ApiKey.SHARE_ACKNOWLEDGE, request)
        errors = [each.error_code for each in answer.topics[0].partitions]
        assert errors[0] == ErrorCode.INVALID_RECORD_STATE
        assert set(errors[1:]) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert most < 200

    run(scenario)


def test_a_session_that_is_closed_gives_back_what_was_not_looked_at() -> None:
    async def scenario(world: KafkaWorld) -> None:
        a, b = await joined(world, "a"), await joined(world, "b")
        await a.fetch(wait_ms_max=0)
        await b.fetch(wait_ms_max=0)
        await produced(world, 2)
        assert await a.acquired() == [(0, 1, 1)]
        assert await a.acknowledge((0, 0, ACCEPT), epoch=-1) == 0
        assert await b.acquired() == [(1, 1, 1)]
        assert await a.acknowledge((1, 1, ACCEPT)) == ErrorCode.SHARE_SESSION_NOT_FOUND

    run(scenario)


def test_sessions_and_their_epochs() -> None:
    async def scenario(world: KafkaWorld) -> None:
        a = await joined(world)
        a.session_epoch = 1
        assert (await a.fetch()).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        a.session_epoch = 0
        said = await a.fetch((0, 0, ACCEPT))
        assert said.error_code == ErrorCode.INVALID_REQUEST
        await a.fetch(wait_ms_max=0)
        a.session_epoch = 7
        assert (await a.fetch()).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        a.session_epoch = 1
        gone = [ForgottenSharedTopic(a.topic_id, [0])]
        assert await a.fetch(forgotten=gone, wait_ms_max=0) is None
        await produced(world, 1)
        assert await a.acquired(wait_ms_max=100) == []
        a.session_epoch = 0
        assert await a.acknowledge((0, 0, ACCEPT)) == ErrorCode.INVALID_SHARE_SESSION_EPOCH

    run(scenario)


def test_a_topic_that_is_gone_is_an_error_of_its_own() -> None:
    async def scenario(world: KafkaWorld) -> None:
        a = await joined(world)
        a.topic_id = uuid.uuid4()
        said = await a.fetch(wait_ms_max=0)
        assert said.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert await a.acknowledge((0, 0, ACCEPT)) == ErrorCode.UNKNOWN_TOPIC_ID

    run(scenario)


def test_who_never_joined_gets_nothing() -> None:
    async def scenario(world: KafkaWorld) -> None:
        a = await joined(world)
        stranger = Member(world.peer(), "s", "nobody's")
        stranger.topic_id = a.topic_id
        said = await stranger.fetch(wait_ms_max=0)
        assert said.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER  # which its client knows
        assert said.error_message == "there is no share group nobody's"

    run(scenario)


def test_an_acknowledgement_that_cannot_be_kept_is_none() -> None:
    """The coordinator's log fails: the member is told, and the records come again."""

    async def scenario(world: KafkaWorld) -> None:
        a = await joined(world)
        await a.fetch(wait_ms_max=0)
        await produced(world, 2)
        assert await a.acquired() == [(0, 1, 1)]
        log = world.log(str(world.server.coordinator.topic_for(G)))
        log.failing = LedgerError("for a test")
        assert await a.acknowledge((0, 1, ACCEPT)) == ErrorCode.KAFKA_STORAGE_ERROR
        log.failing = None
        assert await a.acknowledge((0, 1, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE
        assert await a.acquired() == [(0, 1, 1)]

    run(scenario)


# -- groups ---------------------------------------------------------------------------------------


def test_a_share_group_is_no_other() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await joined(world)
        peer = world.peer()
        consumer = ConsumerGroupHeartbeatRequest(
            G, "c", 0, rebalance_timeout_ms=1_000, names=[TOPIC]
        )
        answer = await peer.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, consumer)
        assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        classic = JoinGroupRequest(
            G, 10_000, 10_000, protocol_type="consumer", protocols=[JoinProtocol("range", b"")]
        )
        answer = await peer.ask(ApiKey.JOIN_GROUP, classic)
        assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        topics = [CommitTopic(TOPIC, [CommitPartition(0, 5)])]
        answer = await peer.ask(ApiKey.OFFSET_COMMIT, OffsetCommitRequest(G, -1, topics=topics))
        assert answer.topics[0].partitions[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
        answer = await peer.ask(
            ApiKey.OFFSET_COMMIT, OffsetCommitRequest("classic", -1, topics=topics)
        )
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        other = Member(peer, "m", "classic")
        assert (await other.beat()).error_code == ErrorCode.GROUP_ID_NOT_FOUND

    run(scenario)


def test_admins_see_and_delete_groups() -> None:
    async def scenario(world: KafkaWorld) -> None:
        a = await joined(world)
        peer = world.peer()
        listed = await peer.ask(ApiKey.LIST_GROUPS, ListGroupsRequest(types=["share"]))
        assert [(g.group_id, g.state, g.group_type) for g in listed.groups] == [
            (G, "Stable", "share")
        ]
        told = await peer.ask(ApiKey.SHARE_GROUP_DESCRIBE, ShareGroupDescribeRequest([G, "none"]))
        first, second = told.groups
        assert (first.state, first.assignor) == ("Stable", "simple")
        assert first.members[0].assignment.topics[0].name == TOPIC
        assert second.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        deleted = await peer.ask(ApiKey.DELETE_GROUPS, DeleteGroupsRequest([G]))
        assert deleted.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
        await a.beat(member_epoch=-1)
        deleted = await peer.ask(ApiKey.DELETE_GROUPS, DeleteGroupsRequest([G]))
        assert deleted.results[0].error_code == ErrorCode.NONE
        listed = await peer.ask(ApiKey.LIST_GROUPS, ListGroupsRequest())
        assert listed.groups == []

    run(scenario)


async def delete(world: KafkaWorld) -> int:
    answer = await world.peer().ask(ApiKey.DELETE_GROUPS, DeleteGroupsRequest([G]))
    return int(answer.results[0].error_code)


def test_a_group_that_somebody_joins_while_it_is_to_be_deleted_stays() -> None:
    async def scenario(world: KafkaWorld) -> None:
        name = world.server.coordinator.topic_for(G)
        await world.server.coordinator.shard(G)
        log = world.log(str(name))
        log.held = True
        a = Member(world.peer())
        coming = asyncio.create_task(a.beat())
        await asyncio.sleep(0.1)
        gone = Member(world.peer())
        leaving = asyncio.create_task(gone.beat(member_epoch=-1))
        await asyncio.sleep(0.1)
        deleting = asyncio.create_task(delete(world))
        await asyncio.sleep(0.1)
        joining = asyncio.create_task(joined(world, "b"))
        await asyncio.sleep(0.1)
        log.held = False
        log.release()
        assert [(await each).error_code for each in (coming, leaving)] == [0, 0]
        assert await deleting == ErrorCode.NON_EMPTY_GROUP
        assert (await (await joining).beat()).error_code == ErrorCode.NONE

    run(scenario)


def test_a_member_is_answered_when_the_log_has_its_group() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await world.server.coordinator.shard(G)
        log = world.log(str(world.server.coordinator.topic_for(G)))
        log.held = True
        joining = []
        for name in ("a", "b"):
            joining.append(asyncio.create_task(joined(world, name)))
            await asyncio.sleep(0.1)
        assert [each.done() for each in joining] == [False, False]
        log.held = False
        log.release()
        for each in joining:
            await each

    run(scenario)


def test_an_empty_group_is_known_by_the_next_coordinator() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await joined(world)
        await forgotten(world)
        member = Member(world.peer())
        member.epoch = 1
        assert (await member.beat()).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        listed = await world.peer().ask(ApiKey.LIST_GROUPS, ListGroupsRequest())
        assert [(g.group_id, g.state) for g in listed.groups] == [(G, "Empty")]

    run(scenario)


async def starts(world: KafkaWorld, topics: list[AskedShareTopic] | None = None) -> Any:
    request = DescribeShareGroupOffsetsRequest([AskedShareGroup(G, topics)])
    answer = await world.peer().ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, request)
    return answer.groups[0]


def test_admins_see_and_set_where_a_partition_starts() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await earliest(world)
        await produced(world, 5)
        a = await joined(world)
        assert await a.acquired() == [(0, 4, 1)]
        assert await a.acknowledge((0, 2, ACCEPT)) == 0
        said = await starts(world)
        assert (said.topics[0].name, said.topics[0].partitions[0].start_offset) == (TOPIC, 3)
        said = await starts(world, [AskedShareTopic(TOPIC, [0]), AskedShareTopic("none", [0])])
        assert {each.partitions[0].error_code for each in said.topics} == {0, 3}
        alter = AlterShareGroupOffsetsRequest(
            G, [NewShareStartTopic(TOPIC, [NewShareStart(0, 1), NewShareStart(9, 1)])]
        )
        peer = world.peer()
        answer = await peer.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, alter)
        assert answer.error_code == ErrorCode.NON_EMPTY_GROUP
        await a.acknowledge(epoch=-1)
        await a.beat(member_epoch=-1)
        answer = await peer.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, alter)
        assert [each.error_code for each in answer.topics[0].partitions] == [0, 3]
        b = await joined(world, "b")
        assert await b.acquired() == [(1, 4, 1)]
        await b.acknowledge(epoch=-1)
        await b.beat(member_epoch=-1)
        delete = DeleteShareGroupOffsetsRequest(G, [ForgottenShareTopic(TOPIC)])
        answer = await peer.ask(ApiKey.DELETE_SHARE_GROUP_OFFSETS, delete)
        assert answer.topics[0].error_code == ErrorCode.NONE
        assert (await starts(world)).topics == []
        c = await joined(world, "c")
        assert await c.acquired() == [(0, 4, 1)]

    run(scenario)


def test_nothing_is_left_of_a_group_by_who_writes_while_it_is_deleted() -> None:
    """Or one that is made anew would begin where the deleted one was."""

    async def scenario(world: KafkaWorld) -> None:
        a = await joined(world)
        await a.fetch(wait_ms_max=0)
        await a.beat(member_epoch=-1)
        states = world.server.coordinated_groups.share_states
        key = ShareStateKey(G, TopicIdPartition(a.topic_id, 0))
        kept = (await states.read_here(key, 5)).record
        other = ShareStateKey(G, TopicIdPartition(a.topic_id, 1))
        assert kept is not None
        log = world.log(str(world.server.coordinator.topic_for(G)))
        log.held = True
        before = asyncio.create_task(states.set_start(other, 3))
        await asyncio.sleep(0.1)
        deleting = asyncio.create_task(delete(world))
        await asyncio.sleep(0.1)
        late = asyncio.create_task(states.write_here(key, kept._replace(image=ShareImage(7))))
        await asyncio.sleep(0.1)
        log.held = False
        log.release()
        assert (await before).error is ErrorCode.NONE
        assert await deleting == ErrorCode.NONE
        assert (await late).error is ErrorCode.GROUP_ID_NOT_FOUND
        await forgotten(world)
        await joined(world)
        for each in (key, other):
            record = (await states.read_here(each, 6)).record
            assert record is not None
            assert record.image.start == -1

    run(scenario)


def test_settings_of_a_group() -> None:
    async def scenario(world: KafkaWorld) -> None:
        assert await configured(world, share_auto_offset_reset="sometimes") == (
            ErrorCode.INVALID_CONFIG
        )
        assert await configured(world, consumer_max_poll_ms="45000") == ErrorCode.INVALID_CONFIG
        assert await configured(world, share_record_lock_duration_ms="1000") == 0
        request = DescribeConfigsRequest([DescribeConfigsResource(GROUP_RESOURCE, G, None)])
        answer = await world.peer().ask(ApiKey.DESCRIBE_CONFIGS, request)
        said = {each.name: (each.value, each.source) for each in answer.results[0].configs}
        assert said["share.record.lock.duration.ms"] == ("1000", 8)
        assert said["share.auto.offset.reset"] == ("latest", 5)
        for kinds, names in (
            ([], [TOPIC, "0", G]),
            ([GROUP_RESOURCE], [G]),
            ([2], [TOPIC]),
            ([4], ["0"]),
            ([8, 16], []),
        ):
            answer = await world.peer().ask(
                ApiKey.LIST_CONFIG_RESOURCES, ListConfigResourcesRequest(kinds)
            )
            assert [each.name for each in answer.resources] == names
        odd = await world.peer().ask(ApiKey.LIST_CONFIG_RESOURCES, ListConfigResourcesRequest([3]))
        assert odd.error_code == ErrorCode.UNSUPPORTED_VERSION
        metrics = ListConfigResourcesRequest([])  # Java's client 3.7 to 4.0 asks so
        answer = await world.peer().ask(ApiKey.LIST_CONFIG_RESOURCES, metrics, version=0)
        assert (answer.error_code, answer.resources) == (0, [])
        a, b = await joined(world, "a"), await joined(world, "b")
        await a.fetch(wait_ms_max=0)
        await b.fetch(wait_ms_max=0)
        await produced(world, 1)
        assert await a.acquired() == [(0, 0, 1)]
        assert await b.acquired(wait_ms_max=2_000) == [(0, 0, 2)]

    run(scenario)


def test_who_reads_what_is_committed_gets_nothing_else() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await earliest(world)
        await earliest(world, "all")
        assert await configured(world, share_isolation_level="read_committed") == 0
        careful, quick = await joined(world), await joined(world, "q", "all")
        producer = await begun(world)
        await producer.transaction(False, 1)  # its marker is at offset 1
        await producer.open_with(2, 3)
        assert await quick.acquired() == [(0, 0, 1), (2, 3, 1)]
        assert await careful.acquired() == [], "it is aborted, or has no outcome"
        assert await producer.end(True) is ErrorCode.NONE
        assert await careful.acquired() == [(2, 3, 1)]
        await produced(world, 1)
        assert await careful.acquired((2, 3, ACCEPT)) == [(5, 5, 1)]
        await producer.transaction(False, 4)
        assert await careful.acquired((5, 5, ACCEPT)) == []

    run(scenario)


def test_what_is_set_for_a_group_holds_for_who_has_a_session_already() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await earliest(world)
        await produced(world, 2)
        a, b = await joined(world, "a"), await joined(world, "b")
        assert await a.acquired(records_max=1, wait_ms_max=0) in ([(0, 0, 1)], [(0, 1, 1)])
        assert await configured(world, share_record_lock_duration_ms="1000") == 0
        await produced(world, 1)
        (first, *_) = await b.acquired()
        assert first == (2, 2, 1)
        await asyncio.sleep(2)
        assert (2, 2, 2) in await a.acquired()

    run(scenario)


def test_a_group_says_how_long_its_members_may_be_silent() -> None:
    async def scenario(world: KafkaWorld) -> None:
        times = {"share_session_timeout_ms": "10000", "share_heartbeat_interval_ms": "2000"}
        assert await configured(world, **times) == 0
        a = await joined(world, "a")
        assert (await a.beat()).heartbeat_interval_ms == 2000
        await asyncio.sleep(9)
        assert (await a.beat()).error_code == 0
        await asyncio.sleep(11)
        assert (await a.beat()).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    run(scenario)


def test_states_are_written_by_who_has_read_them_last() -> None:
    async def scenario(world: KafkaWorld) -> None:
        a = await joined(world)
        peer = world.peer()

        async def read(leader_epoch: int) -> Any:
            asked = [AskedStateTopic(a.topic_id, [AskedState(0, leader_epoch)])]
            request = ReadShareGroupStateRequest(G, asked)
            answer = await peer.ask(ApiKey.READ_SHARE_GROUP_STATE, request)
            return answer.topics[0].partitions[0]

        async def write(state_epoch: int, leader_epoch: int) -> int:
            state = NewState(0, state_epoch, leader_epoch, 7)
            request = WriteShareGroupStateRequest(G, [NewStateTopic(a.topic_id, [state])])
            answer = await peer.ask(ApiKey.WRITE_SHARE_GROUP_STATE, request)
            return int(answer.topics[0].partitions[0].error_code)

        first = await read(5)
        assert (first.error_code, first.start_offset) == (0, -1)
        assert await write(first.state_epoch, 5) == 0
        second = await read(6)
        assert second.start_offset == 7
        assert await write(first.state_epoch, 5) == ErrorCode.FENCED_STATE_EPOCH
        assert (await read(5)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert await write(second.state_epoch, 6) == 0
        await a.beat(member_epoch=-1)
        states = world.server.coordinated_groups.share_states
        key = ShareStateKey(G, TopicIdPartition(a.topic_id, 0))
        assert (await states.set_start(key, 3)).error is ErrorCode.NONE
        assert await write(second.state_epoch, 6) == ErrorCode.FENCED_STATE_EPOCH
        third = await read(6)
        assert third.start_offset == 3
        assert (await states.forget(key)).error is ErrorCode.NONE
        assert await write(third.state_epoch, 6) == ErrorCode.FENCED_STATE_EPOCH
        assert (await read(6)).start_offset == -1

    run(scenario)


def test_what_a_role_may_not_consume_it_does_not_share(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        await world.grant("reader", "consume")
        reader = Member(await world.known("reader"))
        assert (await reader.beat()).error_code == ErrorCode.NONE
        assert await reader.acquired(wait_ms_max=0) == []
        other = Member(await world.known("other"))
        assert (await other.beat()).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        other.topic_id = reader.topic_id
        assert (await other.fetch()).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        changes = [ConfigChange("share.auto.offset.reset", 0, "earliest")]
        alter = IncrementalAlterConfigsRequest([ChangeResource(GROUP_RESOURCE, G, changes)])
        for member, error in ((other, 30), (reader, 0)):
            answer = await member.peer.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, alter)
            assert answer.responses[0].error_code == error
        asked = [AskedStateTopic(reader.topic_id, [AskedState(0, 1)])]
        answer = await reader.peer.ask(
            ApiKey.READ_SHARE_GROUP_STATE, ReadShareGroupStateRequest(G, asked)
        )
        assert answer.topics[0].partitions[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    run_secured(tmp_path, scenario)
