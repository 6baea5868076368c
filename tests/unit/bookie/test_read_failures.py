"""What cannot be read of a bookie's disk is told: readers take another copy, and say nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import structlog

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.ledgers.read_failures import LISTED_MAX, TOLD_AGAIN_S, ReadFailures
from magnetar.bookie.storage.entry_log_format import log_path
from magnetar.config import BookieConfig
from magnetar.metrics import Metrics
from magnetar.model.errors import BookieIOError
from magnetar.model.ids import NO_ENTRY
from tests.unit.bookie.storage_kit import add, entry, running, settings


def counted(bookie: Bookie) -> float:
    value = bookie._metrics.registry.get_sample_value("magnetar_bookie_failed_reads_total")
    assert value is not None
    return value


async def filled(config: BookieConfig) -> Path:
    """Ten entries of ledgers 1 and 2, on the disk."""
    async with running(config) as bookie:
        await add(bookie, 1, range(10))
        await add(bookie, 2, range(10))
    return log_path(config.ledger_directories[0], 1)


def spoil(path: Path, found: bytes) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(found)
    data[at + len(found) - 1] ^= 1
    path.write_bytes(data)


def test_a_damaged_copy_is_named_until_it_is_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        path = await filled(config)
        spoil(path, entry(1, 4))
        async with running(config) as bookie:
            assert await bookie.read_entry(1, 3) == entry(1, 3)
            assert bookie.read_failures.problem == ""
            with structlog.testing.capture_logs() as logs:
                for _ in range(3):
                    with pytest.raises(BookieIOError):
                        await bookie.read_entry(1, 4)
            (told,) = [each for each in logs if each["log_level"] == "error"]
            assert told["entry"] == "1:4"
            assert "ledger verify --all --repair" in told["remedy"]
            problem = bookie.read_failures.problem
            assert "1 entries of ledgers 1 cannot be read" in problem
            assert str(path) in problem
            assert counted(bookie) == 3
            await add(bookie, 1, [4])
            assert bookie.read_failures.problem == ""
            assert await bookie.read_entry(1, 4) == entry(1, 4)

    asyncio.run(scenario())


def test_a_log_that_is_gone_is_named_until_its_ledgers_are_deleted(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        (await filled(config)).unlink()
        async with running(config) as bookie:
            for ledger_id in (1, 2):
                with pytest.raises(BookieIOError):
                    await bookie.read_entry(ledger_id, 0)
            assert "2 entries of ledgers 1, 2 cannot be read" in bookie.read_failures.problem
            await bookie.delete_ledger(1)
            assert "1 entries of ledgers 2 cannot be read" in bookie.read_failures.problem
            await bookie.delete_ledger(2)
            assert bookie.read_failures.problem == ""

    asyncio.run(scenario())


def test_an_index_that_cannot_be_asked_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        await filled(config)
        async with running(config) as bookie:
            index = bookie._storages[0].location_index
            with monkeypatch.context() as patched:

                def fails(*_: object) -> list[int]:
                    raise BookieIOError("location index: Corruption")

                patched.setattr(index, "entry_ids", fails)
                with pytest.raises(BookieIOError):
                    await bookie.list_entries(1)
            assert "location index: Corruption" in bookie.read_failures.problem
            await bookie.list_entries(1)
            assert bookie.read_failures.problem == ""

    asyncio.run(scenario())


def test_what_has_passed_is_told_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else may ever read it here again."""
    monkeypatch.setattr("magnetar.bookie.ledgers.read_failures.READ_AGAIN_S", 0.0)

    async def scenario() -> None:
        config = settings(tmp_path)
        path = await filled(config)
        hidden = path.rename(path.with_suffix(".away"))
        async with running(config) as bookie:
            for _ in range(2):
                with pytest.raises(BookieIOError):
                    await bookie.read_entry(1, 4)
                await bookie.read_failed_again()
                assert "1 entries" in bookie.read_failures.problem
            hidden.rename(path)
            await bookie.read_failed_again()
            assert bookie.read_failures.problem == ""

    asyncio.run(scenario())


def test_it_is_read_again_now_and_then() -> None:
    failures = ReadFailures(Metrics())
    assert failures.again(0.0) == []
    for entry_id in range(20):
        failures.failed(1, entry_id, BookieIOError("EIO"), 1.0)
    assert failures.again(2.0) == [(1, entry_id) for entry_id in range(8)]
    assert failures.again(3.0) == []
    assert len(failures.again(33.0)) == 8


def test_it_is_said_now_and_then_and_bounded() -> None:
    failures, error = ReadFailures(Metrics()), BookieIOError("EIO")
    with structlog.testing.capture_logs() as logs:
        for entry_id in range(NO_ENTRY, LISTED_MAX + 10):
            failures.failed(1, entry_id, error, 5.0)
        failures.failed(1, 0, error, 5.0 + TOLD_AGAIN_S)
    assert [each["event"].split()[0] for each in logs] == ["list", "entry"]
    assert failures.problem.startswith(f"at least {LISTED_MAX} entries of ledgers 1 ")
