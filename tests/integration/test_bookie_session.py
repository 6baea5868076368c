"""A bookie whose ZooKeeper session expires: it serves on, and is seen again (docs/adr/0017)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.app.fate import Fate
from magnetar.app.outside import real
from magnetar.app.process import Process
from magnetar.app.storage import Cluster, open_cluster, start_bookie
from magnetar.bookie.bookie import Bookie
from magnetar.bookie.serving.local import LocalBookie
from magnetar.config import BookieConfig, Config, MetadataConfig
from magnetar.env.metadata import CreateMode
from magnetar.env.metadata_stores.zookeeper_metadata import ZooKeeperMetadataStore
from magnetar.ledger.bookies import AddFlag
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.model.errors import BookieRegisteredError, MagnetarError
from magnetar.model.ids import BookieId
from magnetar.wire.bookie.metadata_service import BookieServiceInfo, encode_service_info
from tests.integration.test_zookeeper_metadata import end_session_of, opened
from tests.unit.bookie.storage_kit import KEY, entry, settings
from tests.unit.env.metadata_contract import PATIENCE_S, eventually

pytestmark = pytest.mark.zookeeper

ID = BookieId("b-1")


@asynccontextmanager
async def started(
    store: ZooKeeperMetadataStore, root: Path, stopped: asyncio.Event
) -> AsyncIterator[tuple[LocalBookie, Fate, Cluster]]:
    config: BookieConfig = replace(settings(root), bookie_id=ID, port=0)
    fate = Fate(stopped)
    async with AsyncExitStack() as stack:
        whole = Config(metadata=MetadataConfig(session_timeout_ms=3_000))
        process = Process(whole, real(), stack, fate)
        cluster = await open_cluster(store, process.outside)
        bookie = await start_bookie(process, cluster, config, root)
        yield bookie.client, fate, cluster


class Writer:
    """Adds to a ledger, one entry after the other, until told to stop."""

    def __init__(self, bookie: LocalBookie, ledger_id: int) -> None:
        self.bookie = bookie
        self.ledger_id = ledger_id
        self.added = 0
        self.slowest_s = 0.0
        self.stop = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.stop:
            started_s = loop.time()
            answer: asyncio.Future[None] = loop.create_future()

            def done(
                error: MagnetarError | None, _ids: object, answer: asyncio.Future[None] = answer
            ) -> None:
                answer.set_result(None) if error is None else answer.set_exception(error)

            data = [entry(self.ledger_id, self.added)]
            self.bookie.add_entries(self.ledger_id, KEY, [self.added], data, AddFlag(0), done)
            await answer
            self.added += 1
            self.slowest_s = max(self.slowest_s, loop.time() - started_s)
            await asyncio.sleep(0.005)


async def sides(client: ZooKeeperMetadataStore) -> tuple[bool, bool]:
    registry = BookieRegistry(client, cached=False)
    return ID in await registry.available(), ID in await registry.read_only()


def test_adds_and_reads_go_on_and_the_bookie_registers_again(
    zookeeper_url: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with (
            opened(zookeeper_url) as store,
            opened(zookeeper_url) as client,
            started(store, tmp_path, asyncio.Event()) as (bookie, _, _cluster),
        ):
            assert await sides(client) == (True, False)
            writer = Writer(bookie, 1)
            writing = asyncio.create_task(writer.run())
            for _ in range(3):
                before = writer.added
                session = store.session
                await asyncio.to_thread(end_session_of, store)
                await eventually(lambda: store.session not in (None, session), "a new session")  # noqa: B023
                await seen(client, (True, False))
                await eventually(
                    lambda: writing.done() or writer.added > before + 20,  # noqa: B023
                    "adds went on",
                )
                assert not writing.done(), writing.exception()
            writer.stop = True
            await writing
            assert writer.slowest_s < PATIENCE_S
            for entry_id in range(writer.added):
                assert await bookie.read_entry(1, entry_id) == entry(1, entry_id)

    asyncio.run(main())


def test_one_that_turns_read_only_meanwhile_comes_back_as_such(
    zookeeper_url: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with (
            opened(zookeeper_url) as store,
            opened(zookeeper_url) as client,
            started(store, tmp_path, asyncio.Event()) as (bookie, _, _cluster),
        ):
            core = bookie._core
            assert isinstance(core, Bookie)
            ending = asyncio.create_task(asyncio.to_thread(end_session_of, store))
            core.refuse_writes(True)
            await ending
            await seen(client, (False, True))
            core.refuse_writes(False)
            await seen(client, (True, False))

    asyncio.run(main())


def test_one_whose_id_was_taken_ends(zookeeper_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        stopped = asyncio.Event()
        async with (
            opened(zookeeper_url) as store,
            opened(zookeeper_url) as thief,
            started(store, tmp_path, stopped) as (_, fate, cluster),
        ):
            path = f"{cluster.manager.root}/available/{ID}"
            other = encode_service_info(BookieServiceInfo.of_address("127.0.0.1", 1))
            thief.watch(path, lambda _path: None)

            async def steal() -> None:
                while True:
                    with contextlib.suppress(MagnetarError):
                        await thief.create(path, other, CreateMode.EPHEMERAL)
                        return

            stealing = asyncio.create_task(steal())
            while not stealing.done():  # the bookie may be the faster one
                await asyncio.to_thread(end_session_of, store)
                await asyncio.wait([stealing], timeout=5)
            await stealing
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(BookieRegisteredError, match="another process"):
                    await fate.wait()

    asyncio.run(main())


async def seen(client: ZooKeeperMetadataStore, wanted: tuple[bool, bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await sides(client) != wanted:  # noqa: ASYNC110 - asks anew each time
            await asyncio.sleep(0.05)
