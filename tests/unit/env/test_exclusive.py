"""One holder of a name, as long as its session lives."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from magnetar.env.exclusive import ExclusiveClaim
from magnetar.env.metadata import CreateMode, MetadataStore, SessionState
from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore
from magnetar.env.metadata_stores.watches import Listeners
from magnetar.model.errors import NodeExistsError, NoNodeError, StartError
from magnetar_sim.world.virtual_time import run_virtual

PATH = "/magnetar/blue/broker"


def claim(
    store: MetadataStore, about: str, lost: list[str], timeout_ms: int = 50
) -> ExclusiveClaim:
    return ExclusiveClaim(store, PATH, about, timeout_ms, lost.append)


def test_a_second_is_refused_and_told_who_holds_it() -> None:
    async def run() -> None:
        store = await SqliteMetadataStore.open(":memory:")
        first, second = claim(store, "the first", []), claim(store, "the second", [])
        await first.acquire("cluster blue")
        with pytest.raises(StartError, match="cluster blue is held by the first"):
            await second.acquire("cluster blue")
        await first.release()
        await second.acquire("cluster blue")
        await second.release()
        with pytest.raises(NoNodeError):
            await store.get(PATH)
        await store.close()

    asyncio.run(run())


def test_a_claim_that_goes_meanwhile_is_taken_at_once() -> None:
    async def run() -> None:
        store = await SqliteMetadataStore.open(":memory:")
        first, second = claim(store, "1", []), claim(store, "2", [], timeout_ms=60_000)
        await first.acquire("x")
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(second.acquire("x"))
            await asyncio.sleep(0.05)
            await first.release()
        assert (await store.get(PATH)).value == b"2"
        await store.close()

    asyncio.run(run())


def test_a_crash_gives_the_claim_up(tmp_path: Path) -> None:
    async def run() -> None:
        store = await SqliteMetadataStore.open(tmp_path / "m")
        await store.create(PATH, b"crashed", CreateMode.EPHEMERAL)
        await store.close()
        store = await SqliteMetadataStore.open(tmp_path / "m")
        await claim(store, "next", []).acquire("x")
        await store.close()

    asyncio.run(run())


class SessionOnly:
    """A store whose session is in the test's hands."""

    def __init__(self) -> None:
        self.listeners: Listeners[SessionState] = Listeners()
        self.nodes: dict[str, bytes] = {}
        self.while_creating: list[SessionState] = []

    async def create(
        self, path: str, value: bytes, mode: CreateMode = CreateMode.PERSISTENT
    ) -> str:
        if path in self.nodes:
            raise NodeExistsError(path)
        self.nodes[path] = value
        for state in self.while_creating:
            self.tell(state)
            await asyncio.sleep(0.001)
        return path

    async def delete(self, path: str, version: int = -1) -> None:
        del self.nodes[path]

    def watch(self, path: str, changed: object) -> object:
        return lambda: None

    watch_value = watch

    def watch_session(self, changed: object) -> object:
        return self.listeners.add(changed)  # type: ignore[arg-type]

    def tell(self, state: SessionState) -> None:
        self.listeners.notify(asyncio.get_running_loop(), state)


def session(
    steps: list[SessionState | float],
    timeout_ms: int = 50,
    while_creating: Sequence[SessionState] = (),
) -> list[str]:
    """What a holder is told when its session goes through ``steps`` (numbers: seconds), and before
    that through ``while_creating``, until the answer to its claim has come."""
    lost: list[str] = []

    async def run() -> None:
        store = SessionOnly()
        store.while_creating += while_creating
        held = claim(store, "me", lost, timeout_ms)  # type: ignore[arg-type]
        await held.acquire("x")
        for step in steps:
            if isinstance(step, SessionState):
                store.tell(step)
                step = 0
            await asyncio.sleep(step)

    run_virtual(run())
    return lost


def test_an_expired_session_is_a_lost_claim() -> None:
    assert session([SessionState.EXPIRED]) == ["the metadata session expired"]


def test_out_of_sight_for_a_session_timeout_is_lost_too() -> None:
    told = session([SessionState.SUSPENDED, 0.2])
    assert told == ["the metadata store was out of reach for 0.05 s"]


def test_out_of_sight_for_a_moment_is_not() -> None:
    assert session([SessionState.SUSPENDED, SessionState.CONNECTED, 0.2]) == []


def test_a_session_that_ends_while_the_claim_is_answered_is_noticed() -> None:
    suspended, connected = SessionState.SUSPENDED, SessionState.CONNECTED
    assert session([0.2], while_creating=[suspended]) == [
        "the metadata store was out of reach for 0.05 s"
    ]
    assert session([0.2], while_creating=[suspended, connected]) == []
    assert session([0.2], while_creating=[suspended, SessionState.EXPIRED, connected]) == [
        "the metadata session expired"
    ]


def test_the_claim_of_another_is_left_alone() -> None:
    async def run() -> None:
        store = await SqliteMetadataStore.open(":memory:")
        held = claim(store, "first", [])
        await held.acquire("x")
        await store.delete(PATH)  # with a session that ended unheard
        await store.create(PATH, b"second", CreateMode.EPHEMERAL)
        await held.release()
        assert (await store.get(PATH)).value == b"second"
        await store.close()

    asyncio.run(run())


def test_a_loss_is_told_once() -> None:
    assert len(session([SessionState.EXPIRED, SessionState.SUSPENDED, 0.2])) == 1
