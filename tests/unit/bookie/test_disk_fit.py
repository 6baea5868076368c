"""What a bookie keeps for itself is a share of a small disk, and what was set on a large one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from magnetar.bookie.disk_fit import fitted
from magnetar.config import BookieConfig
from magnetar.env.files.disk import DiskSpace, RealDisk
from magnetar.env.files.disk_space import Level, SpaceRules, judge, needed_bytes
from tests.unit.bookie.storage_kit import running, settings


def on(total_bytes: int, journal_bytes: int | None = None) -> BookieConfig:
    journal = DiskSpace(journal_bytes or total_bytes, 0)
    return fitted(BookieConfig(), [DiskSpace(1 << 40, 0), DiskSpace(total_bytes, 0)], [journal])


def reserve(config: BookieConfig) -> int:
    return 2 * config.write_cache_bytes + 2 * config.journal.file_bytes


def test_a_large_disk_changes_nothing() -> None:
    assert on(8 << 30) == BookieConfig()


@pytest.mark.parametrize("mib", [120, 200, 400, 700, 1500])
def test_a_small_disk_is_mostly_for_entries(mib: int) -> None:
    total, config = mib << 20, on(mib << 20)
    assert reserve(config) <= total // 6
    kept = config.journal.file_bytes * (2 + config.journal.recycled_files_max)
    assert reserve(config) + kept + config.disk_reserve_bytes < total // 3
    assert config.entry_log_bytes_max <= total // 8
    assert config.journal.file_bytes > config.entry_bytes_max
    rules = SpaceRules(0.9, 0.95, 0.93, reserve(config))
    assert judge(rules, [DiskSpace(total, total * 99 // 100)], Level.WRITABLE) is Level.WRITABLE
    free = needed_bytes(rules, total)
    assert judge(rules, [DiskSpace(total, free)], Level.READ_ONLY) < Level.READ_ONLY
    assert judge(rules, [DiskSpace(total, free - 2)], Level.READ_ONLY) is Level.READ_ONLY


def test_each_kind_of_directory_goes_by_its_own_disks() -> None:
    config = on(200 << 20, journal_bytes=8 << 30)
    assert config.journal == BookieConfig().journal
    assert config.write_cache_bytes < BookieConfig().write_cache_bytes


def test_a_refusal_names_the_disk_and_what_is_needed(tmp_path: Path) -> None:
    class Small(RealDisk):
        def space(self, path: Path) -> DiskSpace:
            small = path.name.startswith("ledgers")
            return DiskSpace(6_000_000 if small else 1 << 40, 100_000 if small else 1 << 39)

    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config, Small()) as bookie:
            assert bookie.read_only
            assert bookie.lacks_space
            assert bookie.refusal is not None
            assert str(config.ledger_directories[0]) in bookie.refusal
            assert "100000 of 6000000 bytes are free" in bookie.refusal
            assert "are needed" in bookie.refusal

    asyncio.run(scenario())
