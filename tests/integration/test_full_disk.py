"""A bookie on a small file system of its own, filled to the last byte. (A cluster of such, as
processes under a writer's load: ``tests/scenarios/test_full_disk.py``.)

Needs the right to mount; skipped without it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.space.reserve import RESERVE_NAME
from magnetar.config import BookieConfig, JournalConfig
from magnetar.model.errors import MagnetarError, NoLedgerError, ReadOnlyBookieError
from tests.small_disk import KINDS, fill_up, free_bytes, small_disk
from tests.unit.bookie.storage_kit import add, entry, running

pytestmark = pytest.mark.slow

FILE_SYSTEM_BYTES = 96 << 20
ENTRY_BYTES = 20_000
BATCH = 8


@pytest.fixture(params=KINDS)
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    with small_disk(tmp_path, request.param, FILE_SYSTEM_BYTES) as mounted_at:
        yield mounted_at


def config_on(disk: Path) -> BookieConfig:
    return BookieConfig(
        ledger_directories=(disk / "ledgers",),
        journal=JournalConfig(directories=(disk / "journal",), file_bytes=2 << 20),
        write_cache_bytes=4 << 20,
        entry_log_bytes_max=4 << 20,
        flush_interval_ms=100,
        disk_check_interval_ms=50,
        disk_reserve_bytes=2 << 20,
        compaction_minor_interval_ms=3_600_000,
    )


def batch(ledger_id: int, first: int) -> list[bytes]:
    return [entry(ledger_id, i, size=ENTRY_BYTES) for i in range(first, first + BATCH)]


async def load_until_refused(bookie: Bookie, ledgers: range) -> dict[int, int]:
    """Ledger id -> how many entries were acknowledged, the ledgers mixed in every log."""
    counts = dict.fromkeys(ledgers, 0)
    while True:
        for ledger_id in ledgers:
            first = counts[ledger_id]
            try:
                ids = range(first, first + BATCH)
                await add(bookie, ledger_id, ids, entries=batch(ledger_id, first))
            except ReadOnlyBookieError:
                return counts
            counts[ledger_id] += BATCH


async def check(bookie: Bookie, counts: dict[int, int]) -> None:
    for ledger_id, count in counts.items():
        for i in range(count):
            found = await bookie.read_entry(ledger_id, i)
            assert found == entry(ledger_id, i, size=ENTRY_BYTES)


async def until_writable(bookie: Bookie, ledger_id: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await add(bookie, ledger_id, range(BATCH), entries=batch(ledger_id, 0))
                return
            except MagnetarError:
                await asyncio.sleep(0.1)


def test_filled_by_its_own_load(disk: Path) -> None:
    """Refused clearly, served, nothing lost; the space of deleted ledgers that share their logs
    with living ones comes back by compaction, without a restart."""

    async def scenario() -> None:
        config = config_on(disk)
        async with running(config) as bookie:
            counts = await load_until_refused(bookie, range(1, 7))
            assert sum(counts.values()) * ENTRY_BYTES > FILE_SYSTEM_BYTES // 2
            with pytest.raises(ReadOnlyBookieError, match="nearly full"):
                await add(bookie, 50, [0])
            await check(bookie, counts)
            for ledger_id in (2, 3, 4, 5, 6):
                await bookie.delete_ledger(ledger_id)
                del counts[ledger_id]
            await until_writable(bookie, 60)
            counts[60] = BATCH
            await check(bookie, counts)
            await until_free(disk, FILE_SYSTEM_BYTES // 2)
            more = await load_until_refused(bookie, range(70, 72))
            assert sum(more.values()) * ENTRY_BYTES > FILE_SYSTEM_BYTES // 4
            counts.update(more)
            await check(bookie, counts)
        async with running(config) as bookie:
            assert bookie.report is not None
            assert bookie.report.damages == ()
            await check(bookie, counts)
            with pytest.raises(NoLedgerError):
                await bookie.read_entry(2, 0)

    asyncio.run(scenario())


def test_filled_to_the_last_byte_by_others_under_load(disk: Path) -> None:
    async def scenario() -> None:
        config = config_on(disk)
        async with running(config) as bookie:
            first = await load_some(bookie, range(1, 5))
            loading = asyncio.create_task(load_until_refused(bookie, range(5, 8)))
            await asyncio.sleep(0.2)
            filler = await asyncio.to_thread(fill_up, disk)
            counts = first | await loading
            assert free_bytes(disk) < 4 << 20
            await asyncio.sleep(1)
            await asyncio.to_thread(fill_up, disk)  # the reserve too, if it was given up
            with pytest.raises(ReadOnlyBookieError, match=r"full|room"):
                await add(bookie, 50, [0])
            await check(bookie, counts)
            for ledger_id in (1, 2, 3, 4):
                await bookie.delete_ledger(ledger_id)
                del counts[ledger_id]
            await until_free(disk, 6 << 20)  # the filler is still there
            await check(bookie, counts)
            filler.unlink()
            await until_writable(bookie, 60)
            counts[60] = BATCH
            await check(bookie, counts)
        async with running(config) as bookie:
            assert bookie.report is not None
            assert bookie.report.damages == ()
            await check(bookie, counts)

    asyncio.run(scenario())


def test_filled_to_the_last_byte_with_every_log_mixed(disk: Path) -> None:
    """No log is without a living entry and there is nowhere to copy those to: what is dead is
    freed in place, the filler stays, and logs are compacted with the room that this gave."""

    async def scenario() -> None:
        config = replace(
            config_on(disk), compaction_minor_percent=80, compaction_minor_interval_ms=1000
        )
        async with running(config) as bookie:
            counts = await load_until_refused(bookie, range(1, 7))
            await fill_to_the_last_byte(disk)
            with pytest.raises(ReadOnlyBookieError, match=r"full|room"):
                await add(bookie, 50, [0])
            before = log_names(disk)
            for ledger_id in (2, 3, 4, 5, 6):
                await bookie.delete_ledger(ledger_id)
                del counts[ledger_id]
            await until_writable(bookie, 60)
            counts[60] = BATCH
            await check(bookie, counts)
            await until_free(disk, FILE_SYSTEM_BYTES // 3)
            await check(bookie, counts)
            async with asyncio.timeout(60):
                while log_names(disk) & before:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.05)
            await check(bookie, counts)
        async with running(config) as bookie:
            assert bookie.report is not None
            assert bookie.report.damages == ()
            await check(bookie, counts)
            with pytest.raises(NoLedgerError):
                await bookie.read_entry(2, 0)

    asyncio.run(scenario())


async def fill_to_the_last_byte(disk: Path) -> None:
    """With the bookie's reserve, as if it had been given up and somebody else had taken it."""
    (disk / "ledgers" / RESERVE_NAME).unlink(missing_ok=True)
    for _ in range(10):
        await asyncio.to_thread(fill_up, disk)
        await asyncio.sleep(0.1)
    assert free_bytes(disk) < 64 << 10


def log_names(disk: Path) -> set[str]:
    return {path.name for path in (disk / "ledgers").glob("*.log")}


async def load_some(bookie: Bookie, ledgers: range) -> dict[int, int]:
    counts = dict.fromkeys(ledgers, 0)
    for _ in range(15):
        for ledger_id in ledgers:
            first = counts[ledger_id]
            await add(
                bookie,
                ledger_id,
                range(first, first + BATCH),
                entries=batch(ledger_id, first),
            )
            counts[ledger_id] += BATCH
    return counts


async def until_free(disk: Path, wanted_bytes: int) -> None:
    async with asyncio.timeout(60):
        while free_bytes(disk) < wanted_bytes:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.05)
