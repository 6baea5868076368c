"""Entry logs that a crash left without a footer are counted, compacted and removed like others."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from magnetar.bookie.storage.entry_log_format import HEADER_BYTES, log_path, read_footer
from magnetar.bookie.storage.location_index import LocationIndex, UsageChange
from magnetar.config import BookieConfig
from magnetar.env.disk import RealDisk
from magnetar.model.errors import BookieIOError
from tests.unit.bookie.storage_kit import entry, running
from tests.unit.bookie.test_compaction import (
    LIVES,
    PER_LIFE,
    check_whole,
    eventually,
    fill,
    idle,
    logs,
    quick,
)

HALF_A_RECORD = struct.pack(">II", 500, 77) + bytes(100)
TAILS = [
    pytest.param(b"", id="nothing"),
    pytest.param(HALF_A_RECORD, id="half a record"),
    pytest.param(bytes(3000), id="zeros"),
    pytest.param(b"\xa5" * 1000, id="noise"),
]


def cut_off(config: BookieConfig, log_id: int, tail: bytes) -> Path:
    """The log as a crash leaves it: ``tail`` instead of a footer."""
    path = log_path(config.ledger_directories[0], log_id)
    file = RealDisk().open(path)
    footer = read_footer(file, log_id, path.stat().st_size)
    file.close()
    assert footer is not None
    path.write_bytes(path.read_bytes()[: footer.offset] + tail)
    unsettle(config, log_id)
    return path


def unsettle(config: BookieConfig, log_id: int) -> None:
    """The index says nothing of the log: a crash came before it was settled, or an older version
    wrote it."""
    index = LocationIndex(config.ledger_directories[0] / "index")
    index.change_usage(UsageChange(no_logs=[log_id]))
    index.close()


@pytest.mark.parametrize("tail", TAILS)
def test_a_log_that_was_cut_off_is_compacted(tmp_path: Path, tail: bytes) -> None:
    async def scenario() -> None:
        await fill(idle(tmp_path))
        config = quick(tmp_path)
        before = logs(config)
        for log_id in before:
            cut_off(config, log_id, tail)
        async with running(config) as bookie:
            await eventually(lambda: not set(logs(config)) & set(before))
            await check_whole(bookie)

    asyncio.run(scenario())


def test_a_log_that_was_cut_off_goes_with_its_ledgers(tmp_path: Path) -> None:
    async def scenario() -> None:
        await fill(idle(tmp_path))
        config = quick(tmp_path, percent=0)
        before = logs(config)
        cut_off(config, before[1], HALF_A_RECORD)
        async with running(config) as bookie:
            await bookie.delete_ledger(1)
            await eventually(lambda: not set(logs(config)) & set(before))

    asyncio.run(scenario())


def test_a_log_whose_records_are_hidden_is_kept_as_long_as_it_is_of_use(tmp_path: Path) -> None:
    """The first record's length is damaged: the walk over the log finds nothing."""

    async def scenario() -> None:
        await fill(idle(tmp_path))
        config = quick(tmp_path)
        hidden, *sound = logs(config)
        path = cut_off(config, hidden, b"")
        data = path.read_bytes()
        path.write_bytes(data[:HEADER_BYTES] + b"\xff" * 4 + data[HEADER_BYTES + 4 :])
        async with running(config) as bookie:
            await eventually(lambda: not set(logs(config)) & set(sound))
            assert hidden in logs(config)
            with pytest.raises(BookieIOError, match="damaged"):
                await bookie.read_entry(1, 0)
            for entry_id in range(1, LIVES * PER_LIFE):
                assert await bookie.read_entry(1, entry_id) == entry(1, entry_id)
            await bookie.delete_ledger(1)
            await eventually(lambda: hidden not in logs(config))

    asyncio.run(scenario())
