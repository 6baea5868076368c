"""Groups whose coordinator assigns, where clients must show who they are."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from magnetar.cluster.topic_name import parse_topic
from magnetar.env.loop_turns import THINGS_PER_TURN
from magnetar.protocols.kafka.coordination.consumer_groups import ConsumerGroups
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.cluster_messages import MetadataRequest, MetadataTopic
from magnetar.wire.kafka.consumer_group_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.share_group_messages import (
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)
from tests.unit.protocols.kafka.secured import SecuredPeer, SecuredWorld, run_secured

OWN, HIDDEN = "own-1", "own-2"
NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED


async def joined(peer: SecuredPeer, group: str, names: list[str], pattern: str = "") -> Any:
    request = ConsumerGroupHeartbeatRequest(group, "m", 0, None, None, 1_000, names, pattern)
    return await peer.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, request)


async def described(peer: SecuredPeer, *groups: str) -> dict[str, Any]:
    request = ConsumerGroupDescribeRequest(list(groups))
    answer = await peer.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, request)
    return {each.group_id: each for each in answer.groups}


def test_what_a_member_may_not_consume_it_does_not_get(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        for name in (OWN, HIDDEN):
            await world.services.control.partitioned.create(parse_topic(name), 1)
        carol = await world.known("carol")
        assert (await joined(carol, "g", [OWN])).error_code == NO_GROUP
        assert (await described(carol, "g"))["g"].error_code == NO_GROUP
        await world.grant("carol", "consume")
        found = await joined(carol, "g", [OWN])
        assert len(found.assignment.topics) == 1
        assert (await joined(carol, "other/space/g", [OWN])).error_code == NO_GROUP
        refused = await joined(carol, "g", [OWN, "other/space/t"])
        assert (refused.error_code, refused.assignment) == (NO_TOPIC, None)
        answers = await described(carol, "g", "other/space/g")
        assert (answers["g"].state, answers["g"].error_code) == ("Stable", 0)
        assert answers["other/space/g"].error_code == NO_GROUP

    run_secured(tmp_path, scenario)


def test_a_regular_expression_stands_for_what_its_member_may_consume(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        for name in (OWN, HIDDEN):
            await world.services.control.partitioned.create(parse_topic(name), 1)
        root, carol = await world.known("root"), await world.known("carol")
        await world.grant("carol", "consume")
        seen = carol.session.grants.topic

        async def but_hidden(action: Any, name: str) -> bool:
            return name != HIDDEN and await seen(action, name)

        carol.session.grants.topic = but_hidden  # type: ignore[method-assign]
        found = await joined(carol, "g", [], "own-.*")
        assert len(found.assignment.topics) == 1
        everything = await joined(root, "all", [], "own-.*")
        assert len(everything.assignment.topics) == 2
        hidden = (await described(carol, "all"))["all"]
        assert (hidden.error_code, hidden.members) == (NO_TOPIC, [])

        ids = {each.topic_id for each in everything.assignment.topics}
        request = MetadataRequest([MetadataTopic(each, None) for each in ids])
        answer = await carol.ask(ApiKey.METADATA, request, 12)
        assert sorted((each.name or "", each.error_code) for each in answer.topics) == [
            ("", ErrorCode.UNKNOWN_TOPIC_ID),
            (OWN, ErrorCode.NONE),
        ]

    run_secured(tmp_path, scenario)


def test_an_expression_of_two_users_stands_for_what_both_may_consume(tmp_path: Path) -> None:
    """Whoever's heartbeat has it looked up: else it would mean now this, now that."""

    async def scenario(world: SecuredWorld) -> None:
        for name in (OWN, HIDDEN):
            await world.services.control.partitioned.create(parse_topic(name), 1)
        root, carol = await world.known("root"), await world.known("carol")
        await world.grant("carol", "consume")
        seen = carol.session.grants.topic

        async def but_hidden(action: Any, name: str) -> bool:
            return name != HIDDEN and await seen(action, name)

        carol.session.grants.topic = but_hidden  # type: ignore[method-assign]
        epochs: dict[str, int] = {}
        held: dict[str, Any] = {}

        async def beat(peer: SecuredPeer, name: str, pattern: str) -> None:
            joins = name not in epochs
            request = ConsumerGroupHeartbeatRequest(
                "g", name, epochs.get(name, 0), names=None, owned=held.get(name, [])
            )
            if joins:
                request.rebalance_timeout_ms, request.names, request.pattern = 30_000, [], pattern
            said = await peer.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, request)
            assert said.error_code == ErrorCode.NONE, said.error_message
            epochs[name] = said.member_epoch
            if said.assignment is not None:
                held[name] = said.assignment.topics

        for pattern, of_root, of_carol in (("own-.*", 1, 0), ("own-[0-9]", 2, 0)):
            await beat(root, "r", "own-.*")
            await beat(carol, "c", pattern)
            for _ in range(12):
                await asyncio.sleep(2)
                await beat(carol, "c", pattern)
                await beat(root, "r", "own-.*")
            found = (await described(root, "g"))["g"]
            before = found.epoch
            assert sum(map(len, held.values())) == of_root + of_carol, held
            for _ in range(6):
                await asyncio.sleep(3)
                await beat(carol, "c", pattern)
                await beat(root, "r", "own-.*")
            assert (await described(root, "g"))["g"].epoch == before, "it means the same for ever"
            leaving = ConsumerGroupHeartbeatRequest("g", "c", -1)
            await carol.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, leaving)
            del epochs["c"]
            held.pop("c", None)

    run_secured(tmp_path, scenario)


def test_while_very_many_topics_are_looked_at_others_have_their_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol = await world.known("carol")
        await world.grant("carol", "consume")
        of_one, turns, over = list[int](), 0, False

        async def sees(action: Any, name: str) -> bool:
            of_one.append(turns)
            return False

        async def many(_: object) -> list[str]:
            return [f"n-{number}" for number in range(1_000)]

        async def others() -> None:
            nonlocal turns
            while not over:
                turns += 1
                await asyncio.sleep(0)

        carol.session.grants.topic = sees  # type: ignore[method-assign]
        monkeypatch.setattr(ConsumerGroups, "_all_names", many)
        ticking = asyncio.ensure_future(others())
        assert (await joined(carol, "g", [], "n-.*")).error_code == 0
        over = True
        await ticking
        assert len(of_one) == 1_000
        assert max(Counter(of_one).values()) <= THINGS_PER_TURN

    run_secured(tmp_path, scenario)


def test_topics_that_members_only_ask_for_are_not_told_either(tmp_path: Path) -> None:
    """One that is not there, or whose partitions others have: nobody has it assigned."""

    async def scenario(world: SecuredWorld) -> None:
        namespaces = world.services.control.namespaces
        await namespaces.create_tenant("other")
        await namespaces.create_namespace("other/space")
        root, carol = await world.known("root"), await world.known("carol")
        await world.grant("carol", "consume")
        assert (await joined(root, "g", ["other/space/secret"])).error_code == 0
        heartbeat = ShareGroupHeartbeatRequest("s", "m", 0, names=["other/space/secret"])
        assert (await root.ask(ApiKey.SHARE_GROUP_HEARTBEAT, heartbeat)).error_code == 0
        assert (await described(root, "g"))["g"].members[0].names == ["other/space/secret"]
        found = (await described(carol, "g"))["g"]
        assert (found.error_code, found.members) == (NO_TOPIC, [])
        for peer, error, count in ((root, 0, 1), (carol, NO_TOPIC, 0)):
            asked = ShareGroupDescribeRequest(["s"])
            (share,) = (await peer.ask(ApiKey.SHARE_GROUP_DESCRIBE, asked)).groups
            assert (share.error_code, len(share.members)) == (error, count)

    run_secured(tmp_path, scenario)
