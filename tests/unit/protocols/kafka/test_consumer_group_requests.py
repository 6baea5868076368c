"""Groups whose coordinator assigns, as members and admins ask for them; and a coordinator that
moves."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from magnetar.cluster.topic_name import parse_topic
from magnetar.env.metadata import Versioned
from magnetar.model.errors import BrokerMetadataError, LogError, NoSpaceError
from magnetar.protocols.kafka.handlers.group_configs import GROUP
from magnetar.protocols.kafka.topic_settings import DELETE, SET
from magnetar.wire.kafka.admin_messages import (
    ChangeResource,
    ConfigChange,
    IncrementalAlterConfigsRequest,
)
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.consumer_group_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    HeldPartitions,
)
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.group_messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    JoinGroupRequest,
    JoinProtocol,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
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
from magnetar.wire.kafka.transaction_messages import (
    AddOffsetsToTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetPartition,
    TxnOffsetTopic,
)
from tests.doubles.memory_metadata import MemoryMetadata
from tests.unit.protocols.kafka.harness import TOPIC, KafkaPeer, KafkaWorld, run
from tests.unit.protocols.kafka.test_transaction_requests import NAME
from tests.unit.protocols.kafka.test_transaction_requests import begun as transactional

G = "group"
WIDE = "wide"
PARTITIONS = 4


class Member:
    """A member that gives up at once what it is to."""

    def __init__(self, peer: KafkaPeer, name: str, **said: Any) -> None:
        self.peer, self.name, self.epoch = peer, name, 0
        self.said = {"names": [WIDE], **said}
        self.owned: list[HeldPartitions] = []
        self.answer: Any = None

    async def beat(self, **fields: Any) -> Any:
        request = ConsumerGroupHeartbeatRequest(
            G, self.name, self.epoch, names=None, owned=self.owned
        )
        if self.epoch == 0:
            request.rebalance_timeout_ms = 30_000
            for name, value in self.said.items():
                setattr(request, name, value)
        for name, value in fields.items():
            setattr(request, name, value)
        answer = self.answer = await self.peer.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, request)
        if not answer.error_code:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.owned = answer.assignment.topics
        return answer

    async def joined(self) -> Member:
        assert (await self.beat()).error_code == ErrorCode.NONE, self.answer
        return self

    @property
    def partitions(self) -> list[int]:
        return [index for topic in self.owned for index in topic.partitions]


async def member(world: KafkaWorld, name: str, **said: Any) -> Member:
    return await Member(world.peer(), name, **said).joined()


async def begun(world: KafkaWorld) -> None:
    await world.services.control.partitioned.create(parse_topic(WIDE), PARTITIONS)


async def settled(*members: Member) -> None:
    """All partitions are with somebody, and nobody waits."""
    for _ in range(4):
        for each in members:
            assert (await each.beat()).error_code == ErrorCode.NONE, each.answer
    found = sorted(index for each in members for index in each.partitions)
    assert found == list(range(PARTITIONS))


async def described(peer: KafkaPeer) -> Any:
    request = ConsumerGroupDescribeRequest([G])
    return (await peer.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, request)).groups[0]


async def committed(peer: KafkaPeer, name: str, epoch: int, version: int = 9) -> ErrorCode:
    topics = [CommitTopic(WIDE, [CommitPartition(0, 7)])]
    request = OffsetCommitRequest(G, epoch, name, topics=topics)
    answer = await peer.ask(ApiKey.OFFSET_COMMIT, request, version)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def fetched(peer: KafkaPeer, name: str | None = None, epoch: int = -1) -> Any:
    wanted = OffsetsGroup(G, name, epoch, [TopicPartitions(WIDE, [0])])
    answer = await peer.ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=[wanted]))
    (group,) = answer.groups
    return group.topics[0].partitions[0].offset if not group.error_code else group.error_code


async def classic(peer: KafkaPeer, member_id: str = "") -> Any:
    request = JoinGroupRequest(
        G, 10_000, 5_000, member_id, None, "consumer", [JoinProtocol("range", b"")]
    )
    answer = await peer.ask(ApiKey.JOIN_GROUP, request)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        return await classic(peer, answer.member_id)
    return answer


def test_members_share_the_partitions() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        one, two = await member(world, "one"), await member(world, "two")
        assert one.partitions == list(range(PARTITIONS))
        assert one.answer.heartbeat_interval_ms == 5_000
        assert two.partitions == []
        await settled(one, two)
        assert {len(one.partitions), len(two.partitions)} == {2}
        await two.beat(member_epoch=-1)
        await settled(one)
        found = await described(world.peer())
        assert (found.state, found.assignor, len(found.members)) == ("Stable", "uniform", 1)
        assert found.epoch == found.assignment_epoch == found.members[0].member_epoch
        assert found.members[0].assignment.topics[0].name == WIDE
        assert found.members[0].assignment == found.members[0].target

    run(scenario)


async def configured(world: KafkaWorld, **said: int | None) -> tuple[int, str]:
    """Of the group's settings; None: not any more."""
    changes = [
        ConfigChange(f"consumer.{name}.ms".replace("_", "."), SET if value else DELETE, str(value))
        for name, value in said.items()
    ]
    request = IncrementalAlterConfigsRequest([ChangeResource(GROUP, G, changes)])
    answer = await world.peer().ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request)
    return answer.responses[0].error_code, answer.responses[0].error_message or ""


def test_a_group_says_how_long_its_members_may_be_silent() -> None:
    """From the next lookup on, also while the store is away then; and no longer than it is said."""

    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        one = await member(world, "one")
        assert one.answer.heartbeat_interval_ms == 5_000
        said = await configured(world, session_timeout=60_000, heartbeat_interval=1_500)
        assert said == (0, "")
        await asyncio.sleep(6)
        assert (await one.beat()).heartbeat_interval_ms == 1_500
        await asyncio.sleep(59)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(world.services.control.groups, "of", no_store)
            assert (await one.beat()).heartbeat_interval_ms == 1_500, "as before"
            await asyncio.sleep(59)
            assert (await one.beat()).error_code == 0
        assert await configured(world, session_timeout=None, heartbeat_interval=None) == (0, "")
        await asyncio.sleep(6)
        assert (await one.beat()).heartbeat_interval_ms == 5_000
        await asyncio.sleep(46)
        assert (await one.beat()).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    run(scenario)


async def no_store(_group_id: str) -> dict[str, str]:
    raise BrokerMetadataError("away")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"session_timeout": 999}, "from 1000"),
        ({"session_timeout": 2_000_000}, "to 1800000"),
        ({"heartbeat_interval": 45_000}, "consumer.session.timeout.ms"),
        ({"session_timeout": 5_000}, "heartbeat.interval.ms = 5000"),
        ({"session_timeout": 100_000, "heartbeat_interval": 50_000}, "(45000)"),
        ({"max_poll": 5_000}, "consumer.heartbeat.interval.ms"),
    ],
)
def test_times_that_would_have_members_out_are_refused(said: dict[str, int], why: str) -> None:
    async def scenario(world: KafkaWorld) -> None:
        code, words = await configured(world, **said)
        assert (code, why in words) == (ErrorCode.INVALID_CONFIG, True), words
        assert await world.services.control.groups.of(G) == {}

    run(scenario)


def test_what_is_wrong_is_refused_with_its_reason() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        wrong = {
            "GroupId": {"group_id": " "},
            "MemberId": {"member_id": ""},
            "MemberEpoch": {"member_epoch": -3},
            "InstanceId is empty": {"instance_id": ""},
            "RackId": {"rack_id": " "},
            "InstanceId is missing": {"member_epoch": -2},
            "RebalanceTimeoutMs": {"rebalance_timeout_ms": -1},
            "TopicPartitions": {"owned": [HeldPartitions(uuid.uuid4(), [1])]},
            "SubscribedTopicNames and": {"names": None},
            "more than 1024": {"member_id": "m" * 1025},
            "10000 at most": {"names": ["n"] * 10_001},
        }
        for why, fields in wrong.items():
            answer = await Member(world.peer(), "m").beat(**fields)
            assert answer.error_code == ErrorCode.INVALID_REQUEST, why
            assert why in answer.error_message
        refused = await Member(world.peer(), "m").beat(assignor="mine")
        assert refused.error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
        for pattern in ("(", "a" * 5_000, "(?:a{900}){900}"):
            refused = await Member(world.peer(), "m", names=None, pattern=pattern).beat()
            assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
            assert refused.error_message
        unknown = await Member(world.peer(), "m").beat(member_epoch=3)
        assert unknown.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await described(world.peer())).error_code == ErrorCode.GROUP_ID_NOT_FOUND

    run(scenario)


def test_a_regular_expression_stands_for_the_whole_names() -> None:
    async def scenario(world: KafkaWorld) -> None:
        for name in ("orders-eu", "orders-us", "no-orders-eu"):
            await world.services.control.partitioned.create(parse_topic(name), 1)
        one = await member(world, "one", names=[], pattern="orders-.*")
        assert len(one.owned) == 2
        await world.services.control.partitioned.create(parse_topic("orders-de"), 1)
        for _ in range(4):
            await asyncio.sleep(2)
            await one.beat()
        assert len(one.owned) == 3
        found = (await described(world.peer())).members[0]
        assert (found.names, found.pattern) == ([], "orders-.*")
        names = {topic.name for topic in found.assignment.topics}
        assert names == {"orders-eu", "orders-us", "orders-de"}

    run(scenario)


def test_a_member_may_say_later_what_it_subscribes_to() -> None:
    """Java's client does that looks for topics itself."""

    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        one = await member(world, "one", names=[])
        assert (one.epoch, one.partitions) == (1, [])
        await one.beat(names=[WIDE])
        assert (one.epoch, one.partitions) == (2, list(range(PARTITIONS)))

    run(scenario)


def test_topics_that_are_made_and_grow_are_found() -> None:
    async def scenario(world: KafkaWorld) -> None:
        one = await member(world, "one")
        assert one.partitions == []
        await begun(world)
        await asyncio.sleep(1.1)
        await one.beat()
        assert one.partitions == list(range(PARTITIONS))
        await world.services.control.partitioned.grow(parse_topic(WIDE), 6)
        await asyncio.sleep(5.1)
        await one.beat()
        assert one.partitions == list(range(6))

    run(scenario)


@pytest.mark.parametrize("was_read", [False, True])
@pytest.mark.parametrize("by", ["names", "pattern"])
def test_a_topic_that_cannot_be_read_keeps_no_group_from_the_others(
    by: str, was_read: bool
) -> None:
    """Nobody could join a group that reads it, be it by a regular expression that matches it."""

    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        await world.services.control.partitioned.create(parse_topic("wide2"), 2)
        await world.broker.topics.get(parse_topic("wide2-partition-0"), create=False)
        said = {"names": [WIDE, "wide2"]} if by == "names" else {"names": None, "pattern": "wide.*"}
        members = [await member(world, "a", **said)] if was_read else []
        metadata = world.services.control.partitioned._metadata
        assert isinstance(metadata, MemoryMetadata)
        path = "/admin/partitioned-topics/public/default/persistent/wide2"
        metadata.nodes[path] = Versioned(b"no json", 7)
        metadata.tell(path)
        members += [await member(world, name, **said) for name in ("b", "c")]
        for _ in range(6):
            for each in members:
                assert (await each.beat()).error_code == ErrorCode.NONE
        found = sorted(index for each in members for index in each.partitions)
        assert found == ([0, 0, 1, 1, 2, 3] if was_read else [0, 1, 2, 3])

    run(scenario)


def test_offsets_are_those_of_members_with_their_epoch() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        peer = world.peer()
        assert await committed(peer, "", -1) == ErrorCode.NONE, "before there is a member"
        one = await member(world, "one")
        assert await committed(peer, "one", one.epoch) == ErrorCode.NONE
        assert await committed(peer, "one", one.epoch, 8) == ErrorCode.UNSUPPORTED_VERSION
        assert await committed(peer, "one", one.epoch + 1) == ErrorCode.STALE_MEMBER_EPOCH
        assert await committed(peer, "two", one.epoch) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await committed(peer, "", -1) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await fetched(peer) == 7
        assert await fetched(peer, "one", one.epoch) == 7
        assert await fetched(peer, "one", one.epoch - 1) == ErrorCode.STALE_MEMBER_EPOCH
        assert await fetched(peer, "two", 1) == ErrorCode.UNKNOWN_MEMBER_ID

    run(scenario)


def test_producers_commit_for_members_with_their_epoch() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        one = await member(world, "one")
        producer = await transactional(world)
        asked = AddOffsetsToTxnRequest(NAME, *producer.own, G)
        assert (await producer.peer.ask(ApiKey.ADD_OFFSETS_TO_TXN, asked)).error_code == 0

        async def kept(epoch: int, name: str) -> ErrorCode:
            topics = [TxnOffsetTopic(WIDE, [TxnOffsetPartition(0, 5)])]
            request = TxnOffsetCommitRequest(NAME, G, *producer.own, epoch, name, topics=topics)
            answer = await producer.peer.ask(ApiKey.TXN_OFFSET_COMMIT, request)
            return ErrorCode(answer.topics[0].partitions[0].error_code)

        assert await kept(one.epoch + 1, "one") == ErrorCode.ILLEGAL_GENERATION
        assert await kept(one.epoch, "two") == ErrorCode.UNKNOWN_MEMBER_ID
        assert await kept(one.epoch, "one") == ErrorCode.NONE
        assert await producer.end(True) == ErrorCode.NONE
        assert await fetched(world.peer(), "one", one.epoch) == 5

    run(scenario)


def test_an_empty_group_becomes_what_comes_first() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        peer = world.peer()
        join = await classic(peer)
        assert join.error_code == ErrorCode.NONE
        refused = await Member(world.peer(), "one").beat()
        assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert "classic protocol" in refused.error_message
        assert await committed(peer, join.member_id, join.generation) in (
            ErrorCode.NONE,
            ErrorCode.REBALANCE_IN_PROGRESS,
        )
        await peer.ask(
            ApiKey.LEAVE_GROUP, LeaveGroupRequest(G, "", [LeavingMember(join.member_id)])
        )
        assert await committed(peer, "", -1) == ErrorCode.NONE

        one = await member(world, "one")
        assert await fetched(peer, "one", one.epoch) == 7, "offsets are the group's"
        assert (await classic(peer)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        (old,) = (await peer.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest([G]))).groups
        assert old.state == "Dead"
        await one.beat(member_epoch=-1)
        assert (await described(peer)).state == "Empty"

        assert (await classic(peer)).error_code == ErrorCode.NONE
        assert (await described(peer)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert await fetched(peer) == 7

    run(scenario)


def test_admins_list_remove_and_delete() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        peer = world.peer()
        one = await member(world, "one", instance_id="i")
        await committed(peer, "one", one.epoch)

        async def listed(**fields: Any) -> list[tuple[str, str, str]]:
            answer = await peer.ask(ApiKey.LIST_GROUPS, ListGroupsRequest(**fields))
            return [(each.group_id, each.group_type, each.state) for each in answer.groups]

        assert await listed() == [(G, "consumer", "Stable")]
        assert await listed(types=["Consumer"], states=["stable"]) == await listed()
        assert await listed(types=["classic"]) == []
        assert await listed(states=["Empty"]) == []

        deletes = OffsetDeleteRequest(
            G,
            [OffsetDeleteTopic(name, [OffsetDeleteRequestPartition(0)]) for name in (WIDE, TOPIC)],
        )
        answer = await peer.ask(ApiKey.OFFSET_DELETE, deletes)
        codes = [topic.partitions[0].error_code for topic in answer.topics]
        assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]

        async def deleted() -> ErrorCode:
            answer = await peer.ask(ApiKey.DELETE_GROUPS, DeleteGroupsRequest([G]))
            return ErrorCode(answer.results[0].error_code)

        assert await deleted() == ErrorCode.NON_EMPTY_GROUP
        leave = LeaveGroupRequest(G, "", [LeavingMember("", "i"), LeavingMember("x")])
        left = await peer.ask(ApiKey.LEAVE_GROUP, leave)
        assert [each.error_code for each in left.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
        assert (await one.beat()).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert await deleted() == ErrorCode.NONE
        assert await deleted() == ErrorCode.GROUP_ID_NOT_FOUND
        assert await listed() == []

    run(scenario)


async def moved(world: KafkaWorld) -> None:
    """The coordinator's log is closed here, and opened again at the next request."""
    topic = world.server.coordinator.topic_for(G)
    await world.broker.topics.unload(topic)


def test_a_group_that_somebody_joins_while_it_is_to_be_deleted_stays() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        a = await member(world, "a")
        await settled(a)
        assert await committed(a.peer, "a", a.epoch) is ErrorCode.NONE
        log = world.log(str(world.server.coordinator.topic_for(G)))
        log.held = True
        leaving = asyncio.create_task(a.beat(member_epoch=-1))
        await asyncio.sleep(0.1)
        admin = world.peer().ask(ApiKey.DELETE_GROUPS, DeleteGroupsRequest([G]))
        deleting = asyncio.create_task(admin)
        await asyncio.sleep(0.1)
        joining = asyncio.create_task(member(world, "b"))
        await asyncio.sleep(0.1)
        log.held = False
        log.release()
        assert (await leaving).error_code == ErrorCode.NONE
        assert (await deleting).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
        b = await joining
        assert (await b.beat()).error_code == ErrorCode.NONE
        assert await fetched(b.peer, "b", b.epoch) == 7

    run(scenario)


def test_a_coordinator_that_moves_keeps_members_and_what_they_have() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        one, two = await member(world, "one"), await member(world, "two")
        await settled(one, two)
        three = await member(world, "three")  # others are to give something up to it
        await one.beat()
        before = await described(world.peer())
        await moved(world)
        newcomer = await member(world, "four")
        held = one.partitions + two.partitions
        assert not set(newcomer.partitions) & set(held), "it is with others"
        await settled(one, two, three, newcomer)
        after = await described(world.peer())
        assert after.epoch > before.epoch
        assert len(after.members) == 4

    run(scenario)


def test_a_settled_group_goes_on_at_another_coordinator_as_it_was() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        one, two = await member(world, "one"), await member(world, "two")
        await settled(one, two)
        before = [(each.epoch, each.partitions) for each in (one, two)]
        await moved(world)
        await settled(one, two)
        assert [(each.epoch, each.partitions) for each in (one, two)] == before
        assert (await described(world.peer())).state == "Stable"

    run(scenario)


def test_a_member_that_is_silent_is_out_also_after_a_move() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        one, two = await member(world, "one"), await member(world, "two")
        await settled(one, two)
        await moved(world)
        await settled(one, two)
        for _ in range(10):
            await asyncio.sleep(5)
            assert (await one.beat()).error_code == ErrorCode.NONE
        assert one.partitions == list(range(PARTITIONS))
        await moved(world)
        assert (await two.beat()).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    run(scenario)


def test_what_is_not_stored_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        one = await member(world, "one")
        shard = await world.server.coordinator.shard(G)

        async def change(*_: object) -> None:
            raise LogError("the log is gone")

        with monkeypatch.context() as patch:
            patch.setattr(shard.log, "change", change)
            answer = await Member(world.peer(), "two").beat()
        again = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert answer.error_code in again
        assert answer.assignment is None
        assert [each.member_id for each in (await described(world.peer())).members] == ["one"]
        await settled(one)

    run(scenario)


def test_nobody_is_told_what_is_on_its_way_into_the_log() -> None:
    """Also who asks once more, and changes nothing by it."""

    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        one = await member(world, "one")
        await settled(one)
        await member(world, "two")
        again = Member(world.peer(), "one")
        again.epoch, again.owned = one.epoch, one.owned
        log = world.log(str(world.server.coordinator.topic_for(G)))
        log.held = True
        asking = []
        for each in (one, again):
            asking.append(asyncio.create_task(each.beat()))
            await asyncio.sleep(0.1)
        assert [each.done() for each in asking] == [False, False]
        log.held = False
        log.release()
        assert [(await each).error_code for each in asking] == [0, 0]

    run(scenario)


def test_a_group_that_cannot_be_deleted_stays_what_it_was() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        one = await member(world, "one")
        assert (await one.beat(member_epoch=-1)).error_code == ErrorCode.NONE
        peer = world.peer()
        log = world.log(str(world.server.coordinator.topic_for(G)))
        log.failing = NoSpaceError("for a test")
        answer = await peer.ask(ApiKey.DELETE_GROUPS, DeleteGroupsRequest([G]))
        assert answer.results[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        log.failing = None
        assert (await described(peer)).state == "Empty"

    run(scenario)


def test_what_there_is_no_space_for_is_stored_before_the_next_answer() -> None:
    """The log stays open here, and so does the group: it must not say what only it knows."""

    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        one, two = await member(world, "one"), Member(world.peer(), "two")
        shard = await world.server.coordinator.shard(G)
        log = world.store.logs[shard.log.topic.name.log_name]
        log.failing = NoSpaceError("no space")
        assert (await two.beat()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        for _ in range(2):
            assert (await one.beat()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        log.failing = None
        assert (await one.beat()).error_code == ErrorCode.NONE
        assert world.server.coordinator.has(shard), "others have noticed nothing"
        await moved(world)
        await settled(one, two)

    run(scenario)


def test_what_is_too_large_to_be_kept_is_refused_and_nobody_else_notices() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        one = await member(world, "one")
        shard = await world.server.coordinator.shard(G)
        names = [f"{'n' * 400_000}{each}" for each in range(2)]
        refused = await Member(world.peer(), "two", names=names).beat()
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert "characters" in refused.error_message
        many = await Member(world.peer(), "three", names=["ä" * 499_000]).beat()
        assert many.error_code == ErrorCode.NONE
        request = OffsetCommitRequest(
            "g" * 40_000, topics=[CommitTopic(WIDE, [CommitPartition(0, 7)])]
        )
        answer = await world.peer().ask(ApiKey.OFFSET_COMMIT, request)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST
        assert world.server.coordinator.has(shard)
        assert (await one.beat()).error_code == ErrorCode.NONE

    run(scenario)


def test_a_classic_member_waits_for_what_comes_while_the_group_makes_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        one, two = await member(world, "one"), Member(world.peer(), "two")
        await one.beat(member_epoch=-1)
        coordinator, forget = world.server.coordinator, world.server.coordinator.forget

        async def overtaken(*forgotten: Any) -> None:
            await forget(*forgotten)
            assert (await two.beat()).error_code == ErrorCode.NONE

        monkeypatch.setattr(coordinator, "forget", overtaken)
        joining = JoinGroupRequest(
            G, 30_000, 30_000, protocol_type="consumer", protocols=[JoinProtocol("range", b"")]
        )
        answer = await world.peer().ask(ApiKey.JOIN_GROUP, joining)
        assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        await settled(two)

    run(scenario)


def test_a_group_with_classic_members_takes_no_others_whatever_it_was() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        one = await member(world, "one")
        await one.beat(member_epoch=-1)
        # As if its coordinator's log had begun anew while the group made way.
        live = (await world.server.coordinator.shard(G)).consumers[G]
        joining = JoinGroupRequest(
            G, 30_000, 30_000, protocol_type="consumer", protocols=[JoinProtocol("range", b"")]
        )
        peer = world.peer()
        told = await peer.ask(ApiKey.JOIN_GROUP, joining)
        if told.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            joining.member_id = told.member_id
            told = await peer.ask(ApiKey.JOIN_GROUP, joining)
        assert told.error_code == ErrorCode.NONE
        (await world.server.coordinator.shard(G)).consumers[G] = live
        late = await Member(world.peer(), "two").beat()
        assert late.error_code == ErrorCode.GROUP_ID_NOT_FOUND

    run(scenario)


def test_the_longer_a_lookup_takes_the_longer_it_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is not there is looked for each second; thousands of them are not."""

    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        looks = 0

        async def exists(*_: object) -> bool:
            nonlocal looks
            looks += 1
            await asyncio.sleep(0.01)
            return False

        monkeypatch.setattr(world.services.topics, "exists", exists)
        missing = [f"missing{number}" for number in range(1280)]
        one = await member(world, "one", names=[WIDE, *missing])  # 0.2 s
        for _ in range(50):
            await asyncio.sleep(0.2)
            await one.beat()
        assert looks < 5 * len(missing)
        assert one.partitions == list(range(PARTITIONS))

    run(scenario)


def test_topics_that_cannot_be_looked_up_have_clients_ask_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        one = await member(world, "one")

        async def unknown(*_: object) -> int:
            raise BrokerMetadataError("the store is out of reach")

        with monkeypatch.context() as patch:
            patch.setattr(type(world.services), "count_of", unknown)
            refused = await Member(world.peer(), "two", names=["other"]).beat()
            assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            await asyncio.sleep(6)
            assert (await one.beat()).error_code == ErrorCode.NONE
            assert one.partitions == list(range(PARTITIONS))

    run(scenario)


@pytest.mark.parametrize("full", [False, True])
def test_members_are_answered_while_the_store_is_silent(
    monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """Heartbeats waited for it, for up to 15 s, which librdkafka takes for a lost coordinator."""

    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        one = await member(world, "one")

        async def silent(*_: object) -> int:
            await asyncio.sleep(15)
            raise BrokerMetadataError("the store is out of reach")

        with monkeypatch.context() as patch:
            patch.setattr(type(world.services), "count_of", silent)
            patch.setattr(type(world.services.control.groups), "of", silent)
            for _ in range(3):
                await asyncio.sleep(6)
                begun_s = asyncio.get_running_loop().time()
                said = {"names": [WIDE], "rebalance_timeout_ms": 30_000} if full else {}
                assert (await one.beat(**said)).error_code == ErrorCode.NONE
                assert asyncio.get_running_loop().time() - begun_s < 3
            assert one.partitions == list(range(PARTITIONS))

    run(scenario)


def test_groups_that_nobody_needs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: KafkaWorld) -> None:
        await begun(world)
        one = await member(world, "one")
        await one.beat(member_epoch=-1)
        shard = await world.server.coordinator.shard(G)
        assert shard.consumer(G) is not None
        await asyncio.sleep(200)
        assert shard.consumer(G) is None
        assert not shard.log.state.consumers.groups

    run(scenario)
