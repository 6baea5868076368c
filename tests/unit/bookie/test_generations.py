"""A directory that was put back from an older copy is known for one, and denies nothing."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.app.fate import Fate
from magnetar.app.outside import real
from magnetar.app.process import Process
from magnetar.app.storage import open_cluster, start_bookie
from magnetar.bookie import generations
from magnetar.bookie.bookie import Bookie
from magnetar.bookie.directory_names import CURRENT, GENERATION
from magnetar.bookie.generations import Generations
from magnetar.config import Config
from magnetar.env.files.disk import RealDisk
from magnetar.env.metadata import MetadataStore
from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore
from magnetar.model.errors import NoNodeError, UnknownLedgerStateError
from magnetar.model.ids import BookieId
from magnetar.repair.switches import Switches
from magnetar.wire.bookie.metadata_cookie import GENERATIONS
from tests.unit.bookie.storage_kit import add, entry, settings

ID = BookieId("b-1")


@asynccontextmanager
async def started(
    store: MetadataStore, root: Path, leave_limbo: bool = False
) -> AsyncIterator[Bookie]:
    config = replace(settings(root, ledgers=2), bookie_id=ID, port=0)
    async with AsyncExitStack() as stack:
        process = Process(Config(), real(), stack, Fate(asyncio.Event()))
        cluster = await open_cluster(store, process.outside)
        yield (await start_bookie(process, cluster, config, root, leave_limbo)).core


def run(tmp_path: Path, scenario: Callable[[MetadataStore, Path], Awaitable[None]]) -> None:
    async def main() -> None:
        store = await SqliteMetadataStore.open(tmp_path / "m.db")
        try:
            await scenario(store, tmp_path / "bookie")
        finally:
            await store.close()

    asyncio.run(main())


def test_a_bookie_put_back_from_an_older_copy_denies_nothing_until_it_is_told(
    tmp_path: Path,
) -> None:
    async def scenario(store: MetadataStore, root: Path) -> None:
        older = tmp_path / "older"
        async with started(store, root) as bookie:
            await add(bookie, 2, range(5))
        shutil.copytree(root, older)
        async with started(store, root) as bookie:
            assert not bookie.info().limbo
            await add(bookie, 2, range(5, 9))
        shutil.rmtree(root)
        shutil.copytree(older, root)
        for _ in range(2):  # also after a restart
            async with started(store, root) as bookie:
                assert bookie.info().limbo
                assert await bookie.read_entry(2, 4) == entry(2, 4)
                with pytest.raises(UnknownLedgerStateError):
                    await bookie.read_entry(2, 7)
        async with started(store, root, leave_limbo=True) as bookie:
            assert not bookie.info().limbo

    run(tmp_path, scenario)


def test_one_directory_of_two_is_enough(tmp_path: Path) -> None:
    async def scenario(store: MetadataStore, root: Path) -> None:
        older = tmp_path / "older"
        async with started(store, root) as bookie:
            await add(bookie, 2, range(5))
            await add(bookie, 3, range(5))
        shutil.copytree(root / "ledgers1", older)
        async with started(store, root):
            pass
        shutil.rmtree(root / "ledgers1")
        shutil.copytree(older, root / "ledgers1")
        async with started(store, root) as bookie:
            assert bookie.directories()[1].limbo

    run(tmp_path, scenario)


def numbers(root: Path) -> list[bytes]:
    return [(root / f"ledgers{n}" / CURRENT / GENERATION).read_bytes() for n in range(2)]


def test_it_grows_with_each_start_and_goes_with_the_cookie(tmp_path: Path) -> None:
    async def scenario(store: MetadataStore, root: Path) -> None:
        node = f"{GENERATIONS}/{ID}"
        for number in (b"1\n", b"2\n"):
            async with started(store, root):
                assert numbers(root) == [number] * 2
                assert (await store.get(node)).value == number
        await store.delete(node)  # of a version that kept none, or a store that lost it
        async with started(store, root) as bookie:
            assert not bookie.info().limbo
            assert numbers(root) == [b"3\n"] * 2
        await Switches(store).forget_generation(ID)
        with pytest.raises(NoNodeError):
            await store.get(node)

    run(tmp_path, scenario)


def test_a_crash_between_the_directories_and_the_store_is_no_loss(tmp_path: Path) -> None:
    async def scenario(store: MetadataStore, root: Path) -> None:
        async with started(store, root):
            pass
        (root / "ledgers0" / CURRENT / GENERATION).write_bytes(b"2\n")
        async with started(store, root) as bookie:
            assert not bookie.info().limbo
            assert numbers(root) == [b"3\n"] * 2

    run(tmp_path, scenario)


def test_it_grows_now_and_then_while_something_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generations, "INTERVAL_S", 0.01)

    async def scenario(store: MetadataStore, root: Path) -> None:
        kept = Generations(store, ID, [root / "ledgers0", root / "ledgers1"], RealDisk())
        for name in ("ledgers0", "ledgers1"):
            (root / name).mkdir(parents=True)
        assert await kept.check(known=False) == frozenset()
        await kept.advance()
        written = 0
        task = asyncio.create_task(kept.run(lambda: written))
        await asyncio.sleep(0.1)
        assert numbers(root) == [b"1\n"] * 2
        written = 1
        async with asyncio.timeout(10):
            while numbers(root) != [b"2\n"] * 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    run(tmp_path, scenario)
