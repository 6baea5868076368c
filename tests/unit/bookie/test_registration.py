"""Registering a bookie, and what the ledger client sees of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from magnetar.bookie.registration import BookieRegistration
from magnetar.env.metadata import CreateMode, SessionState
from magnetar.env.metadata_stores.sqlite_metadata import MEMORY, SqliteMetadataStore
from magnetar.ledger.bookies import ReadOnlyReason
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.model.errors import BookieRegisteredError, MetadataUnavailableError
from magnetar.model.ids import BookieId
from magnetar.wire.bookie.metadata_service import (
    REFUSAL_PROPERTY,
    BookieServiceInfo,
    Endpoint,
    decode_service_info,
    encode_service_info,
)
from tests.unit.env.lossy_metadata import LossyStore
from tests.unit.env.metadata_contract import eventually

ID = BookieId("b-1")
INFO = BookieServiceInfo.of_address("127.0.0.1", 3181)
HERE = {ID: ("127.0.0.1", 3181)}


def with_store(scenario: Callable[[LossyStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = LossyStore(await SqliteMetadataStore.open(MEMORY))
        try:
            async with asyncio.timeout(120):
                await scenario(store)
        finally:
            store.losses = {}
            await store.close()

    asyncio.run(main())


async def sides(store: LossyStore) -> tuple[bool, bool]:
    """Whether the bookie is registered as writable, as read-only."""
    fresh = BookieRegistry(store, cached=False)
    return ID in await fresh.available(), ID in await fresh.read_only()


# -- registering ----------------------------------------------------------------------------------


def test_a_bookie_comes_changes_sides_and_goes() -> None:
    async def scenario(store: LossyStore) -> None:
        registration = BookieRegistration(store, ID, INFO)
        await registration.register()
        assert await sides(store) == (True, False)
        node = await store.get("/ledgers/available/b-1")
        assert decode_service_info(ID, node.value).endpoints == INFO.endpoints
        await registration.set_read_only(True)
        assert await sides(store) == (False, True)
        await registration.set_read_only(True)
        await registration.set_read_only(False)
        assert await sides(store) == (True, False)
        await registration.close()
        await registration.close()
        assert await sides(store) == (False, False)

    with_store(scenario)


def test_why_it_is_read_only_is_told_with_it() -> None:
    async def scenario(store: LossyStore) -> None:
        registration = BookieRegistration(store, ID, INFO)
        await registration.register()
        for reason in ("full", "fuller"):
            await registration.set_read_only(True, ((REFUSAL_PROPERTY, reason),))
            told = await BookieRegistry(store, cached=False).refusals()
            assert told == {ID: ReadOnlyReason(reason, False)}
            await registration.set_read_only(False)
            assert await BookieRegistry(store, cached=False).refusals() == {}
            assert await sides(store) == (True, False)
        await registration.close()

    with_store(scenario)


def test_a_read_only_start() -> None:
    async def scenario(store: LossyStore) -> None:
        registration = BookieRegistration(store, ID, INFO)
        await registration.register(read_only=True)
        assert await sides(store) == (False, True)
        await registration.close()

    with_store(scenario)


def test_registering_twice_is_harmless() -> None:
    async def scenario(store: LossyStore) -> None:
        registration = BookieRegistration(store, ID, INFO)
        await registration.register()
        await registration.register()
        assert await sides(store) == (True, False)
        await registration.close()

    with_store(scenario)


def test_a_lost_answer_is_known_for_ours() -> None:
    async def scenario(store: LossyStore) -> None:
        registration = BookieRegistration(store, ID, INFO, session_timeout_ms=60_000)
        store.losses["create"] = ["answer"]
        with pytest.raises(MetadataUnavailableError):
            await registration.register()
        await registration.register()
        assert await sides(store) == (True, False)
        await registration.close()

    with_store(scenario)


# -- somebody else under our id -------------------------------------------------------------------


@pytest.mark.parametrize("side", ["available", "available/readonly"])
def test_a_node_of_before_a_crash_is_waited_for(side: str) -> None:
    async def scenario(store: LossyStore) -> None:
        foreign = f"/ledgers/{side}/b-1"
        await store.create(foreign, encode_service_info(INFO), CreateMode.EPHEMERAL)
        registration = BookieRegistration(store, ID, INFO, session_timeout_ms=20_000)
        registering = asyncio.create_task(registration.register())
        await asyncio.sleep(0.1)
        assert not registering.done()
        await store.delete(foreign)
        await registering
        assert await sides(store) == (True, False)
        await registration.close()

    with_store(scenario)


def test_a_living_twin_is_an_error() -> None:
    async def scenario(store: LossyStore) -> None:
        twin = BookieRegistration(store, ID, INFO)
        await twin.register()
        registration = BookieRegistration(store, ID, INFO, session_timeout_ms=100)
        with pytest.raises(BookieRegisteredError, match="b-1 cannot register: another process"):
            await registration.register()
        await registration.close()
        assert await sides(store) == (True, False), "the twin's node is not touched"
        await twin.close()

    with_store(scenario)


# -- an expired session ---------------------------------------------------------------------------


def test_an_expired_session_registers_again() -> None:
    async def scenario(store: LossyStore) -> None:
        registration = BookieRegistration(store, ID, INFO)
        await registration.register()
        await registration.set_read_only(True)
        await store.delete("/ledgers/available/readonly/b-1")  # what an expiry does
        store.losses["create"] = ["request"]  # the first attempt fails; the next is a second on
        store.tell_session(SessionState.SUSPENDED, SessionState.EXPIRED, SessionState.CONNECTED)
        registry = BookieRegistry(store)
        back = asyncio.Event()
        registry.watch(back.set)
        async with asyncio.timeout(60):
            await back.wait()
        assert await sides(store) == (False, True)
        await registration.close()

    with_store(scenario)


def test_a_reconnection_of_the_same_session_changes_nothing() -> None:
    async def scenario(store: LossyStore) -> None:
        registration = BookieRegistration(store, ID, INFO)
        await registration.register()
        before = await store.get("/ledgers/available/b-1")
        store.tell_session(SessionState.SUSPENDED, SessionState.CONNECTED)
        await asyncio.sleep(0.05)
        assert await store.get("/ledgers/available/b-1") == before
        await registration.close()

    with_store(scenario)


def test_an_id_that_was_taken_meanwhile_is_told() -> None:
    async def scenario(store: LossyStore) -> None:
        lost: list[BookieRegisteredError] = []
        registration = BookieRegistration(
            store, ID, INFO, session_timeout_ms=100, on_lost=lost.append
        )
        await registration.register()
        await store.delete("/ledgers/available/b-1")
        twin = BookieRegistration(store, ID, INFO)
        await twin.register()
        store.tell_session(SessionState.EXPIRED, SessionState.CONNECTED)
        await eventually(lambda: bool(lost), "the loss was told")
        await registration.close()
        assert await sides(store) == (True, False)
        await twin.close()

    with_store(scenario)


def test_a_change_of_sides_without_a_store_is_made_later() -> None:
    async def scenario(store: LossyStore) -> None:
        registration = BookieRegistration(store, ID, INFO)
        await registration.register()
        store.losses["create"] = ["request", "request"]
        await registration.set_read_only(True)
        assert await sides(store) == (True, False)
        moved = asyncio.Event()
        BookieRegistry(store).watch(moved.set)
        while await sides(store) != (False, True):
            async with asyncio.timeout(60):
                await moved.wait()
            moved.clear()
        await registration.close()

    with_store(scenario)


def test_a_twin_that_is_in_the_way_of_a_change_of_sides_and_goes_is_outlasted() -> None:
    """A process started under our id by mistake holds a side until it gives up."""

    async def scenario(store: LossyStore) -> None:
        lost: list[BookieRegisteredError] = []
        registration = BookieRegistration(
            store, ID, INFO, session_timeout_ms=100, on_lost=lost.append
        )
        await registration.register(read_only=True)
        await store.create("/ledgers/available/b-1", b"another's")
        await registration.set_read_only(False)
        assert await sides(store) == (False, True)  # nobody can read the other's
        await store.delete("/ledgers/available/b-1")
        async with asyncio.timeout(60):
            while await sides(store) != (True, False):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.05)
        assert not lost
        await registration.close()
        assert await sides(store) == (False, False)

    with_store(scenario)


# -- the client's view ----------------------------------------------------------------------------


def test_an_empty_cluster_has_no_bookies() -> None:
    async def scenario(store: LossyStore) -> None:
        registry = BookieRegistry(store)
        assert await registry.available() == {}
        assert await registry.read_only() == {}
        registry.close()

    with_store(scenario)


def test_the_registry_asks_once_and_sees_every_change() -> None:
    async def scenario(store: LossyStore) -> None:
        registry = BookieRegistry(store)
        changes: list[None] = []
        end = registry.watch(lambda: changes.append(None))
        assert await registry.available() == {}
        first = BookieRegistration(store, ID, INFO)
        await first.register()
        await eventually(lambda: bool(changes), "the arrival was told")
        assert await registry.available() == HERE
        store.losses["get"] = store.losses["children"] = ["request"] * 10
        assert await registry.available() == HERE, "known without asking"
        store.losses.clear()
        second = BookieRegistration(
            store, BookieId("a-2"), BookieServiceInfo.of_address("127.0.0.2", 1)
        )
        await second.register()
        await eventually(lambda: len(changes) > 1, "the second arrival was told")
        assert [*await registry.available()] == ["a-2", "b-1"]
        await second.set_read_only(True)
        await eventually(lambda: len(changes) > 2, "the change of sides was told")
        assert await registry.available() == HERE
        assert await registry.read_only() == {BookieId("a-2"): ("127.0.0.2", 1)}
        assert [*await registry.all()] == ["a-2", "b-1"]
        end()
        registry.close()
        await first.close()
        await second.close()

    with_store(scenario)


def test_a_change_while_reading_is_not_missed() -> None:
    class SlowStore(LossyStore):
        gate = asyncio.Event()
        has_read = asyncio.Event()

        async def children(self, path: str) -> list[str]:
            names = await super().children(path)
            self.has_read.set()
            await self.gate.wait()
            return names

    async def main() -> None:
        store = SlowStore(await SqliteMetadataStore.open(MEMORY))
        await store.create("/ledgers/available/readonly", b"")
        registry = BookieRegistry(store)
        reading = asyncio.create_task(registry.available())
        await store.has_read.wait()  # the empty list; it is held up
        registration = BookieRegistration(store, ID, INFO)
        await registration.register()
        store.gate.set()
        assert await reading == {}
        assert await registry.available() == HERE
        registry.close()
        await registration.close()
        await store.close()

    asyncio.run(main())


def test_what_is_handed_out_is_the_callers() -> None:
    async def scenario(store: LossyStore) -> None:
        registration = BookieRegistration(store, ID, INFO)
        await registration.register()
        registry = BookieRegistry(store)
        (await registry.available()).clear()
        (await registry.available()).clear()
        assert await registry.available() == HERE
        registry.close()
        await registration.close()

    with_store(scenario)


def test_bookies_that_cannot_be_reached_are_left_out() -> None:
    async def scenario(store: LossyStore) -> None:
        other_service = BookieServiceInfo((Endpoint("h", "h", 1, "http"),))
        for name, value in {
            "old:3181": b"",
            "broken": b"garbage",
            "silent": b"",
            "web": encode_service_info(other_service),
            "readonly/r:1": b"",
        }.items():
            await store.create(f"/ledgers/available/{name}", value)
        registry = BookieRegistry(store)
        assert await registry.available() == {BookieId("old:3181"): ("old", 3181)}
        assert await registry.read_only() == {BookieId("r:1"): ("r", 1)}
        registry.close()

    with_store(scenario)
