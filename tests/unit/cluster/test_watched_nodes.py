"""Nodes kept in memory: when the store is asked, and when what is in memory must not be served."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from magnetar.cluster.stored.watched_nodes import WatchedNodes
from magnetar.env.metadata import SessionState, Versioned
from magnetar.env.metadata_stores.sqlite_metadata import MEMORY, SqliteMetadataStore
from magnetar.model.errors import MetadataUnavailableError
from tests.doubles.memory_metadata import MemoryMetadata


class SlowMetadata(MemoryMetadata):
    """Answers reads when it is told to; may be away."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.away = False

    async def get(self, path: str) -> Versioned:
        self.reads += 1
        found = self.nodes.get(path)
        await self.gate.wait()
        if self.away:
            raise MetadataUnavailableError("the store is away")
        return found or self._find(path)


def text(_path: str, value: bytes | None) -> str:
    return "nothing" if value is None else value.decode()


def run(scenario: Callable[[SlowMetadata, WatchedNodes[str]], Awaitable[None]]) -> None:
    async def main() -> None:
        store = SlowMetadata()
        nodes = WatchedNodes(store, text, nodes_max=3)
        await scenario(store, nodes)
        nodes.close()
        assert store._watches.paths() == []

    asyncio.run(main())


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_node_is_read_once_and_again_after_a_change() -> None:
    async def scenario(store: SlowMetadata, nodes: WatchedNodes[str]) -> None:
        assert [await nodes.get("/a") for _ in range(3)] == ["nothing"] * 3
        assert store.reads == 1
        await store.create("/a", b"1")
        await turn()
        assert [await nodes.get("/a") for _ in range(3)] == ["1"] * 3
        await store.put("/a", b"2", -1)
        await turn()
        assert await nodes.get("/a") == "2"
        await store.delete("/a")
        await turn()
        assert await nodes.get("/a") == "nothing"
        assert store.reads == 4

    run(scenario)


def test_what_was_written_here_is_seen_here_at_once() -> None:
    async def scenario(store: SlowMetadata, nodes: WatchedNodes[str]) -> None:
        await nodes.get("/a")
        store.nodes["/a"] = Versioned(b"1", 0)  # nobody is told yet
        nodes.forget("/a")
        assert await nodes.get("/a") == "1"

    run(scenario)


def test_many_askers_are_one_read() -> None:
    async def scenario(store: SlowMetadata, nodes: WatchedNodes[str]) -> None:
        store.gate.clear()
        asking = [asyncio.create_task(nodes.get("/a")) for _ in range(50)]
        await turn()
        store.gate.set()
        assert await asyncio.gather(*asking) == ["nothing"] * 50
        assert store.reads == 1

    run(scenario)


def test_an_error_is_told_to_all_who_wait_and_not_kept() -> None:
    async def scenario(store: SlowMetadata, nodes: WatchedNodes[str]) -> None:
        store.gate.clear()
        store.away = True
        asking = [asyncio.create_task(nodes.get("/a")) for _ in range(5)]
        await turn()
        store.gate.set()
        for outcome in await asyncio.gather(*asking, return_exceptions=True):
            assert isinstance(outcome, MetadataUnavailableError)
        assert store.reads == 1
        store.away = False
        assert await nodes.get("/a") == "nothing"

    run(scenario)


def test_whoever_waits_for_a_reader_that_is_cancelled_reads_itself() -> None:
    async def scenario(store: SlowMetadata, nodes: WatchedNodes[str]) -> None:
        store.gate.clear()
        first, second = (asyncio.create_task(nodes.get("/a")) for _ in range(2))
        await turn()
        first.cancel()
        await turn()
        store.gate.set()
        assert await second == "nothing"
        with pytest.raises(asyncio.CancelledError):
            await first

    run(scenario)


def test_a_read_that_a_change_overtook_is_neither_kept_nor_given_to_later_askers() -> None:
    async def scenario(store: SlowMetadata, nodes: WatchedNodes[str]) -> None:
        await store.create("/a", b"old")
        store.gate.clear()
        early = asyncio.create_task(nodes.get("/a"))
        await turn()
        await store.put("/a", b"new", -1)
        await turn()
        late = asyncio.create_task(nodes.get("/a"))
        await turn()
        store.gate.set()
        assert await early == "old"  # it asked before the change
        assert await late == "new"
        assert await nodes.get("/a") == "new"

    run(scenario)


@pytest.mark.parametrize("state", [SessionState.SUSPENDED, SessionState.EXPIRED])
def test_without_a_session_nothing_is_served_from_memory(state: SessionState) -> None:
    async def scenario(store: SlowMetadata, nodes: WatchedNodes[str]) -> None:
        await store.create("/a", b"1")
        assert await nodes.get("/a") == "1"
        store.end_session(state)
        store.nodes["/a"] = Versioned(b"2", 1)  # a change that is never told of
        await turn()
        assert await nodes.get("/a") == "2"
        store.nodes["/a"] = Versioned(b"3", 2)
        assert await nodes.get("/a") == "3"
        store.end_session(SessionState.CONNECTED)
        await turn()
        reads = store.reads
        assert [await nodes.get("/a") for _ in range(3)] == ["3"] * 3
        assert store.reads == reads + 1

    run(scenario)


def test_memory_is_bounded_and_the_longest_unused_goes_first() -> None:
    async def scenario(store: SlowMetadata, nodes: WatchedNodes[str]) -> None:
        for path in ("/a", "/b", "/c"):
            await nodes.get(path)
        await nodes.get("/a")
        await nodes.get("/d")
        assert len(nodes) == 3
        assert sorted(store._watches.paths()) == ["/a", "/c", "/d"]
        reads = store.reads
        await nodes.get("/a")
        assert store.reads == reads
        await nodes.get("/b")
        assert store.reads == reads + 1

    run(scenario)


def test_over_sqlite_a_change_is_seen_after_it_was_made() -> None:
    async def main() -> None:
        store = await SqliteMetadataStore.open(MEMORY)
        nodes = WatchedNodes(store, text)
        assert await nodes.get("/a") == "nothing"
        for number in range(50):
            if number:
                await store.put("/a", str(number).encode(), -1)
            else:
                await store.create("/a", b"0")
            await store.sync()  # the watch was told by then
            assert await nodes.get("/a") == str(number)
        nodes.close()
        await store.close()

    asyncio.run(main())
