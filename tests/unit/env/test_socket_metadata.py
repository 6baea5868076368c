"""The metadata store of another process: the common suite, and sessions that are connections."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.env.loop_thread import LoopThread
from magnetar.env.metadata import CreateMode, MetadataStore, SessionState
from magnetar.env.metadata_stores.socket_metadata import SCHEME, SocketMetadataStore
from magnetar.env.metadata_stores.socket_metadata_server import MetadataServer
from magnetar.env.metadata_stores.socket_metadata_wire import encode, read_frame
from magnetar.env.metadata_stores.sqlite_metadata import MEMORY, SqliteMetadataStore
from magnetar.model.errors import MetadataUnavailableError, SessionExpiredError
from tests.unit.env.metadata_contract import MetadataContract, Tree, eventually

TIMEOUT_MS = 200


def unexpected(task: str, error: BaseException) -> None:
    raise AssertionError(task) from error


class Served:
    """A store and its server, in the loop that runs. ``url`` is where."""

    def __init__(self, folder: Path) -> None:
        self.url = f"{SCHEME}{folder / 's'}"
        self._path = folder / "s"

    async def __aenter__(self) -> Served:
        self.store = await SqliteMetadataStore.open(MEMORY)
        self.server = MetadataServer(self.store, unexpected)
        await self.server.start(self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()
        await self.store.close()

    async def client(self) -> SocketMetadataStore:
        return await SocketMetadataStore.open(self.url, session_timeout_ms=TIMEOUT_MS)

    async def children(self, path: str) -> list[str]:
        return await self.store.children(path)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A path of a socket is short."""
    with tempfile.TemporaryDirectory(prefix="magnetar-") as made:
        yield Path(made)


class TestSocketContract(MetadataContract):
    @pytest.fixture
    def tree(self, folder: Path) -> Iterator[Tree]:
        thread = LoopThread("metadata server", "the server")
        served = Served(folder)
        thread.run(served.__aenter__())
        yield Tree(lambda: SocketMetadataStore.open(served.url))
        thread.end(served.__aexit__())


def run(folder: Path, scenario: Callable[[Served], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with Served(folder) as served:
            await scenario(served)

    asyncio.run(asyncio.wait_for(main(), 60))


async def gone(served: Served, path: str) -> None:
    async with asyncio.timeout(30):
        while await served.children(path):  # noqa: ASYNC110 - it has no event to set
            await asyncio.sleep(0.005)


def test_nodes_go_with_a_connection_that_breaks(folder: Path) -> None:
    async def scenario(served: Served) -> None:
        one, two = await served.client(), await served.client()
        await one.create("/e/one", b"", CreateMode.EPHEMERAL)
        await two.create("/e/two", b"", CreateMode.EPHEMERAL)
        told: list[SessionState] = []
        changed = asyncio.Event()
        one.watch_session(told.append)
        two.watch("/e", lambda _path: changed.set())
        await two.sync()
        one._writer.transport.abort()  # its process has died
        await changed.wait()
        assert await two.children("/e") == ["two"]
        await eventually(lambda: told == [SessionState.EXPIRED], "the session's end was told")
        with pytest.raises(SessionExpiredError):
            await one.get("/e")
        await one.close()
        await two.close()
        assert await served.children("/e") == []

    run(folder, scenario)


def test_what_is_made_while_the_connection_ends_goes_too(folder: Path) -> None:
    async def scenario(served: Served) -> None:
        for count in range(20):
            one = await served.client()
            asked = [
                asyncio.ensure_future(one.create(f"/e/{count}-{n}", b"", CreateMode.EPHEMERAL))
                for n in range(20)
            ]
            await asyncio.sleep(0)
            one._writer.close()  # what was asked is on its way
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(each, str | MetadataUnavailableError) for each in outcomes)
            await one.close()
        await served.store.create("/e/looked", b"")
        await served.store.delete("/e/looked")
        await gone(served, "/e")
        assert served.server.owners == {}

    run(folder, scenario)


def test_a_node_that_another_has_made_anew_stays(folder: Path) -> None:
    async def scenario(served: Served) -> None:
        one, two = await served.client(), await served.client()
        await one.create("/e/n", b"one", CreateMode.EPHEMERAL)
        await two.delete("/e/n")
        await two.create("/e/n", b"two", CreateMode.EPHEMERAL)
        await one.close()
        assert (await two.get("/e/n")).value == b"two"
        await two.close()
        await gone(served, "/e")

    run(folder, scenario)


def test_a_silent_one_loses_its_session(folder: Path) -> None:
    async def scenario(served: Served) -> None:
        reader, writer = await asyncio.open_unix_connection(served.url.removeprefix(SCHEME))
        writer.write(encode({"do": "hello", "timeout_ms": TIMEOUT_MS}))
        made = {"id": 0, "do": "create", "path": "/e/n", "mode": CreateMode.EPHEMERAL.value}
        writer.write(encode(made, b""))
        assert (await read_frame(reader)).head == {"id": 0, "path": "/e/n"}
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await read_frame(reader)
        await gone(served, "/e")
        writer.close()

    run(folder, scenario)


def test_who_only_listens_keeps_its_session(folder: Path) -> None:
    async def scenario(served: Served) -> None:
        one = await served.client()
        await one.create("/e/n", b"", CreateMode.EPHEMERAL)
        await asyncio.sleep(3 * TIMEOUT_MS / 1000)
        assert await served.children("/e") == ["n"]
        await one.close()

    run(folder, scenario)


def test_the_end_of_the_server_is_told(folder: Path) -> None:
    async def scenario(served: Served) -> None:
        one = await served.client()
        told: list[SessionState] = []
        one.watch_session(told.append)
        await one.sync()
        await served.server.close()
        await eventually(lambda: told == [SessionState.EXPIRED], "the session's end was told")
        await one.close()
        with pytest.raises(MetadataUnavailableError, match="cannot be reached"):
            await served.client()

    run(folder, scenario)


def test_one_that_speaks_nonsense_is_sent_away(folder: Path) -> None:
    async def scenario(served: Served) -> None:
        one: MetadataStore = await served.client()
        for nonsense in (b"\xff" * 64, encode({"no": "hello"}), b"\0\0\0\x06\0\0\0\x02[]"):
            reader, writer = await asyncio.open_unix_connection(served.url.removeprefix(SCHEME))
            writer.write(nonsense)
            assert await reader.read() == b""
            writer.close()
        assert await one.create("/n", b"") == "/n"
        await one.close()

    run(folder, scenario)
