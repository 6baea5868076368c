"""Requests with very many elements: others are served while they are read and answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.protocols.kafka.session import ELEMENTS_AT_ONCE
from magnetar.protocols.kafka.turns import THINGS_PER_TURN
from magnetar.wire.kafka.admin_messages import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    NewTopic,
)
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.cluster_messages import FindCoordinatorRequest
from magnetar.wire.kafka.group_messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    LeavingMember,
)
from tests.unit.protocols.kafka.harness import KafkaWorld, run

MANY = ELEMENTS_AT_ONCE + 1
NAMES = [f"n/{each}" for each in range(MANY)]
"""None of them can be a topic's."""


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
