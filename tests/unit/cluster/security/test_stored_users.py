"""Users in the metadata store: every broker sees the same, and nobody's change is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from magnetar.cluster.security.stored_users import BUCKETS, ROOT, StoredUsers
from magnetar.cluster.security.users import ScramCredentials, make_credentials
from magnetar.model.errors import BrokerMetadataError, NotAllowedError
from tests.doubles.memory_metadata import MemoryMetadata

KIND = "SCRAM-SHA-256"
KEYS = make_credentials(KIND, "hers", b"salt", 4096)


def run(scenario: Callable[[MemoryMetadata], Awaitable[None]]) -> None:
    asyncio.run(scenario(MemoryMetadata()))


async def put(users: StoredUsers, name: str, keys: ScramCredentials = KEYS) -> None:
    await users.change(name, lambda kinds: {**kinds, keys.mechanism: keys})


async def told() -> None:
    """The store has told everybody of its changes."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_what_one_broker_stores_another_reads() -> None:
    async def scenario(store: MemoryMetadata) -> None:
        one, other = StoredUsers(store), StoredUsers(store)
        assert await other.of("alice") == {}
        await put(one, "alice")
        assert await one.of("alice") == {KIND: KEYS}, "at once"
        await told()
        assert await other.of("alice") == {KIND: KEYS}
        names = [f"user-{number}" for number in range(40)]
        await asyncio.gather(*(put(each, name) for name in names for each in (one, other)))
        await told()
        assert set(await one.all()) == {"alice", *names}, "also when many change one node"
        await one.change("alice", lambda _: {})
        await told()
        assert await other.of("alice") == {}
        assert set(await other.all()) == set(names)

    run(scenario)


def test_no_password_is_in_the_store() -> None:
    async def scenario(store: MemoryMetadata) -> None:
        await put(StoredUsers(store), "alice")
        (number,) = await store.children(ROOT)
        value = (await store.get(f"{ROOT}/{number}")).value
        assert b"alice" in value
        assert b"hers" not in value

    run(scenario)


def test_what_a_change_refuses_changes_nothing() -> None:
    async def scenario(store: MemoryMetadata) -> None:
        users = StoredUsers(store)
        await put(users, "alice")

        def refuses(_kinds: object) -> dict[str, ScramCredentials]:
            raise NotAllowedError("no")

        with pytest.raises(NotAllowedError):
            await users.change("alice", refuses)
        assert await users.of("alice") == {KIND: KEYS}

    run(scenario)


def test_a_node_of_something_else_is_an_error_and_nobody_logs_in_by_it() -> None:
    async def scenario(store: MemoryMetadata) -> None:
        for number in range(BUCKETS):
            await store.create(f"{ROOT}/{number:02x}", b"nonsense")
        users = StoredUsers(store)
        with pytest.raises(BrokerMetadataError, match="holds no users"):
            await users.of("alice")
        with pytest.raises(BrokerMetadataError, match="holds no users"):
            await put(users, "alice")

    run(scenario)


def test_there_is_a_place_for_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: MemoryMetadata) -> None:
        monkeypatch.setattr("magnetar.cluster.stored.shared_nodes.NODE_BYTES_MAX", 500)
        users = StoredUsers(store)
        names = [f"user-{number}" for number in range(BUCKETS * 3)]
        with pytest.raises(NotAllowedError, match="no place"):
            await asyncio.gather(*(put(users, name) for name in names))

    run(scenario)
