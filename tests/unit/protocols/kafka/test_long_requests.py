"""Requests with very many elements: others are served while they are read and answered."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.env.loop_turns import THINGS_AT_ONCE, THINGS_PER_TURN
from magnetar.protocols.kafka.coordination import offset_log
from magnetar.protocols.kafka.coordination.coordinator_state import Change, encode_changes
from magnetar.protocols.kafka.coordination.offset_commits import CHANGES_AT_ONCE
from magnetar.protocols.kafka.handlers import admin
from magnetar.protocols.kafka.services import KafkaServices
from magnetar.protocols.kafka.session import ELEMENTS_AT_ONCE, KafkaSession
from magnetar.wire.kafka.admin_messages import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    NewTopic,
)
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.cluster_messages import (
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataTopic,
)
from magnetar.wire.kafka.fetch_messages import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from magnetar.wire.kafka.group_messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    LeavingMember,
)
from magnetar.wire.kafka.offset_messages import (
    CommitPartition,
    CommitTopic,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetsGroup,
)
from magnetar.wire.kafka.record_messages import (
    DeleteBefore,
    DeleteOfTopic,
    DeleteRecordsRequest,
)
from tests.unit.protocols.kafka.harness import KafkaWorld, run

MANY = ELEMENTS_AT_ONCE + 1
NAMES = [f"n/{each}" for each in range(MANY)]
"""None of them can be a topic's."""
TOPICS = [f"n-{each}" for each in range(MANY)]
"""None of them is there."""


@pytest.mark.parametrize(
    ("key", "request_"),
    [
        (ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(keys=NAMES)),
        (ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=NAMES)),
        (ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups=NAMES)),
        (ApiKey.LEAVE_GROUP, LeaveGroupRequest("g", members=[LeavingMember(n) for n in NAMES])),
        (ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[NewTopic(n, 1, 1) for n in NAMES])),
        (ApiKey.DELETE_TOPICS, DeleteTopicsRequest(names=NAMES)),
        (
            ApiKey.DESCRIBE_CONFIGS,
            DescribeConfigsRequest(resources=[DescribeConfigsResource(2, n) for n in NAMES]),
        ),
    ],
    ids=lambda found: found.name if isinstance(found, ApiKey) else "",
)
def test_others_have_their_turns(key: ApiKey, request_: Any) -> None:
    """100 000 coordinators that were asked for in one frame of 0.7 MB stopped a broker for 11 s."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        peer.tell(key, request_, 5 if key == ApiKey.DELETE_TOPICS else None)
        turns = 0
        while len(world.on_threads) < 2 and turns < 10 * MANY:
            await asyncio.sleep(0)
            turns += 1
        await peer.next()
        assert world.on_threads == ["read_request", "encoded"]
        assert turns >= MANY // THINGS_PER_TURN

    run(scenario)


def test_clients_that_all_ask_at_once_have_one_turn_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of 150 did its part in every turn of the loop: others waited for a second."""

    done = 0

    async def create(*_asked: Any) -> None:
        nonlocal done
        done += 1

    monkeypatch.setattr(admin, "_create_one", create)

    async def scenario(world: KafkaWorld) -> None:
        for peer in [world.peer() for _ in range(30)]:
            topics = [NewTopic(name, 1, 1) for name in TOPICS[:500]]
            peer.tell(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=topics))
        most = before = 0
        while done < 30 * 500:
            await asyncio.sleep(0)
            most, before = max(most, done - before), done
        assert most <= 30 * THINGS_AT_ONCE + THINGS_PER_TURN

    run(scenario)


@pytest.mark.parametrize("key", [ApiKey.METADATA, ApiKey.LIST_OFFSETS, ApiKey.DELETE_RECORDS])
def test_a_request_ends_with_its_client(key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    """30 000 topics were gone through to the last one, for nobody."""
    listed = [ListOffsetsTopic(each, [ListOffsetsPartition(0)]) for each in TOPICS]
    deleted = [DeleteOfTopic(each, [DeleteBefore(0, 1)]) for each in TOPICS]
    asked: dict[int, Any] = {
        ApiKey.METADATA: metadata_of(MANY),
        ApiKey.LIST_OFFSETS: ListOffsetsRequest(topics=listed),
        ApiKey.DELETE_RECORDS: DeleteRecordsRequest(topics=deleted),
    }

    async def scenario(world: KafkaWorld) -> None:
        done = asked_for(monkeypatch)
        peer = world.peer()
        peer.tell(key, asked[key])
        for _ in range(MANY):
            if not done:
                await asyncio.sleep(0)
        # It is not read while its request is under way: the system alone knows that it hung up.
        monkeypatch.setattr(KafkaSession, "is_gone", lambda _session: True)
        for _ in range(10 * MANY):
            await asyncio.sleep(0)
        assert len(done) <= THINGS_AT_ONCE + THINGS_PER_TURN
        assert peer.transport.closed

    run(scenario)


def test_a_client_that_has_hung_up_is_gone_though_nothing_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: KafkaWorld) -> None:
        ours, theirs = socket.socketpair()
        peer = world.peer()
        monkeypatch.setattr(KafkaSession, "descriptor", ours.fileno())
        with ours:
            assert not peer.session.is_gone()
            theirs.sendall(b"x")
            assert not peer.session.is_gone()
            theirs.close()
            assert peer.session.is_gone()
        peer.session.abort()
        assert peer.session.is_gone()

    run(scenario)


def test_a_long_answer_to_a_short_request_is_made_on_a_thread() -> None:
    """All topics are asked for in 12 bytes; the answer has been made in one turn of the loop."""

    async def scenario(world: KafkaWorld) -> None:
        for number in range(ELEMENTS_AT_ONCE // 4 + 1):  # each has a partition, with two lists
            name = parse_topic(f"n-{number}")
            await world.services.control.partitioned.create(name, 1)
        answer = await world.peer().ask(ApiKey.METADATA, MetadataRequest(topics=None))
        assert len(answer.topics) > ELEMENTS_AT_ONCE // 4
        assert world.on_threads == ["encoded"]

    run(scenario)


def test_many_offsets_are_stored_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """30 000 were written as records in one turn of the loop, of 0.26 s."""
    encoded: list[int] = []

    def counted(changes: Sequence[Change], now_ms: int, bytes_max: int) -> list[bytes]:
        encoded.append(len(changes))
        return encode_changes(changes, now_ms, bytes_max)

    monkeypatch.setattr(offset_log, "encode_changes", counted)

    async def scenario(world: KafkaWorld) -> None:
        count = 2 * CHANGES_AT_ONCE + 1
        await world.services.control.partitioned.create(parse_topic("wide"), count)
        parts = [CommitPartition(index, index) for index in range(count)]
        asked = OffsetCommitRequest("g", -1, topics=[CommitTopic("wide", parts)])
        said = await world.peer().ask(ApiKey.OFFSET_COMMIT, asked, 8)
        assert {part.error_code for part in said.topics[0].partitions} == {0}
        assert encoded == [CHANGES_AT_ONCE, CHANGES_AT_ONCE, 1]
        asked_for = OffsetFetchRequest(groups=[OffsetsGroup("g", topics=None)])
        (group,) = (await world.peer().ask(ApiKey.OFFSET_FETCH, asked_for, 8)).groups
        assert [part.offset for part in group.topics[0].partitions] == list(range(count))

    run(scenario)


def asked_for(monkeypatch: pytest.MonkeyPatch) -> list[TopicName]:
    """The topics that were looked at, as they are."""
    done: list[TopicName] = []
    counted = KafkaServices.count_of

    async def count_of(services: KafkaServices, topic: TopicName) -> int:
        done.append(topic)
        return await counted(services, topic)

    monkeypatch.setattr(KafkaServices, "count_of", count_of)
    return done


def metadata_of(count: int) -> MetadataRequest:
    topics = [MetadataTopic(name=name) for name in TOPICS[:count]]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def test_a_long_request_that_is_broken_ends_its_connection() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        frame = peer.frame(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=NAMES))
        peer.feed(frame[:-40] + b"\xff" * 40)
        for _ in range(20):
            await asyncio.sleep(0)
        assert peer.transport.closed

    run(scenario)


def test_a_request_of_usual_length_needs_no_thread() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        some = DescribeGroupsRequest(groups=NAMES[:1000])
        assert len((await peer.ask(ApiKey.DESCRIBE_GROUPS, some)).groups) == 1000
        assert world.on_threads == []

    run(scenario)
