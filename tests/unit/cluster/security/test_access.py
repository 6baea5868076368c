"""What roles may do, by what the metadata store says now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from magnetar.cluster.namespaces import Namespaces
from magnetar.cluster.security.access import Access
from magnetar.cluster.security.authenticator import Authenticator
from magnetar.cluster.security.permissions import (
    Action,
    decode_actions,
    decode_auth_policies,
    decode_roles,
    granted,
    permitted,
    with_grant,
)
from magnetar.cluster.security.principals import Principal
from magnetar.cluster.topic_name import parse_topic
from magnetar.config import SecurityConfig
from magnetar.model.errors import (
    AuthorizationError,
    InvalidPolicyError,
    InvalidTopicNameError,
    TopicNotFoundError,
)
from tests.doubles.memory_metadata import MemoryMetadata
from tests.unit.cluster.security.files import write_secret

NAMESPACE = "public/default"
TOPIC = parse_topic("t")
ROOT, ALICE, BOB = Principal("root"), Principal("alice"), Principal("bob")


class Site:
    def __init__(self, directory: Path) -> None:
        config = SecurityConfig(
            token_secret_key_file=str(write_secret(directory)), super_users="root, ops"
        )
        self.store = MemoryMetadata()
        self.namespaces = Namespaces(self.store)
        self.access = Access(Authenticator(config, lambda: 0.0), self.namespaces)

    async def grant(self, role: str, *actions: str, topic: str = "") -> None:
        await self.namespaces.change(
            NAMESPACE, lambda said: with_grant(said, role, list(actions) or None, topic)
        )

    async def allowed(self, who: Principal, name: str = "t") -> set[str]:
        topic = parse_topic(name)
        return {str(action) for action in Action if await self.access.allows(who, action, topic)}


def run(directory: Path, scenario: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        site = Site(directory)
        await site.namespaces.prepare()
        await scenario(site)

    asyncio.run(main())


def test_nobody_but_super_users_may_do_anything_at_first(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        assert await site.allowed(ALICE) == set()
        assert await site.allowed(ROOT) == await site.allowed(Principal("ops")) == set(Action)

    run(tmp_path, scenario)


def test_what_is_granted_counts_at_once_and_until_it_is_taken(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        await site.grant("alice", "produce")
        assert await site.allowed(ALICE) == {"produce", "lookup"}
        assert await site.allowed(BOB) == set()
        await site.grant("alice", "consume", "functions")
        assert await site.allowed(ALICE) == {"consume", "lookup"}
        await site.grant("alice")
        assert await site.allowed(ALICE) == set()

    run(tmp_path, scenario)


def test_a_topic_may_be_granted_alone_with_its_partitions(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        await site.grant("alice", "consume", topic=str(TOPIC))
        assert await site.allowed(ALICE) == {"consume", "lookup"}
        assert await site.allowed(ALICE, "t-partition-3") == {"consume", "lookup"}
        assert await site.allowed(ALICE, "u") == set()
        assert not await site.access.allows(ALICE, Action.CONSUME, NAMESPACE)

    run(tmp_path, scenario)


def test_admins_of_a_tenant_may_do_everything_with_it(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        await site.namespaces.create_tenant("other", {"adminRoles": ["bob"]})
        await site.namespaces.change_tenant("public", {"adminRoles": ["alice"]})
        assert await site.allowed(ALICE) == set(Action)
        assert await site.allowed(BOB) == set()
        assert await site.access.administers(BOB, "other")
        assert not await site.access.administers(ALICE, "other")
        assert not await site.access.administers(ALICE, "gone")
        with pytest.raises(TopicNotFoundError):
            await site.namespaces.change_tenant("gone", {})

    run(tmp_path, scenario)


def test_refusals_say_who_what_and_where(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        with pytest.raises(AuthorizationError, match="alice may not produce persistent://public"):
            await site.access.check(ALICE, Action.PRODUCE, TOPIC)
        # Its advice was a grant of what cannot be granted.
        with pytest.raises(AuthorizationError, match=r"tenant's adminRoles$"):
            await site.access.check(ALICE, Action.ADMIN, TOPIC)
        with pytest.raises(AuthorizationError, match="super-users"):
            site.access.check_super_user(ALICE, "list brokers")
        with pytest.raises(TopicNotFoundError):  # as with everybody: it is not there
            await site.access.check(ALICE, Action.PRODUCE, "public/none")

    run(tmp_path, scenario)


def test_a_question_reads_the_store_once(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        await site.allowed(ALICE)
        reads = site.store.reads
        await site.allowed(ALICE)
        await site.allowed(BOB, "another")
        assert site.store.reads == reads

    run(tmp_path, scenario)


def test_nodes_that_others_wrote_permit_nothing_by_accident() -> None:
    for said in (
        None,
        1,
        [],
        {"namespace_auth": ["alice"]},
        {"namespace_auth": {"alice": "produce"}},
    ):
        assert not permitted("alice", Action.PRODUCE, {"auth_policies": said}, (), "t")
    assert granted({"auth_policies": {"namespace_auth": {"a": ["produce"]}}}) == {"a": ["produce"]}


def test_bodies_are_held_to_what_can_be_granted() -> None:
    assert decode_actions(["produce", "consume", "produce"]) == ["consume", "produce"]
    assert decode_roles(["b", "a", "a"]) == ["a", "b"]
    topic, about = "persistent://public/default/t", {"b": ["consume"]}
    whole = {"namespace_auth": {"a": ["produce"]}, "destination_auth": {topic: about}}
    assert decode_auth_policies(whole) == whole
    short = {**whole, "destination_auth": {"t-partition-1": about}}
    assert decode_auth_policies(short) == whole, "as topics are asked for"
    with pytest.raises(InvalidTopicNameError):
        decode_auth_policies({"destination_auth": {"a/b": about}})
    for bad in ([], ["all"], "produce", [1], {"produce": 1}):
        with pytest.raises(InvalidPolicyError):
            decode_actions(bad)
    for bad in (["a\n"], [""], "a", [1]):
        with pytest.raises(InvalidPolicyError):
            decode_roles(bad)
