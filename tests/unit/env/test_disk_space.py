"""What a bookie may take, by the space of its disks."""

from __future__ import annotations

import errno

import pytest

from magnetar.env.files.disk import DiskSpace
from magnetar.env.files.disk_space import Level, SpaceRules, is_no_space, judge
from magnetar.model.errors import BookieIOError

RULES = SpaceRules(warn_share=0.9, full_share=0.95, low_water_share=0.93, reserve_bytes=1000)


def at(free_bytes: int, before: Level = Level.WRITABLE, total: int = 100_000) -> Level:
    return judge(RULES, [DiskSpace(total, total), DiskSpace(total, free_bytes)], before)


@pytest.mark.parametrize(
    ("free", "level"),
    [
        (10_001, Level.WRITABLE),
        (10_000, Level.CROWDED),
        (5_001, Level.CROWDED),
        (5_000, Level.READ_ONLY),
        (250, Level.READ_ONLY),
        (249, Level.EXHAUSTED),
        (0, Level.EXHAUSTED),
    ],
)
def test_the_fullest_disk_counts(free: int, level: Level) -> None:
    assert at(free) is level


def test_the_way_back_begins_at_the_low_water_mark() -> None:
    for before in (Level.READ_ONLY, Level.EXHAUSTED):
        assert at(6_999, before) is Level.READ_ONLY
        assert at(7_001, before) is Level.CROWDED


def test_a_small_disk_goes_by_the_reserve() -> None:
    assert at(1_000, total=4_000) is Level.WRITABLE
    assert at(999, total=4_000) is Level.READ_ONLY
    assert at(1_249, Level.READ_ONLY, total=4_000) is Level.READ_ONLY
    assert at(1_250, Level.READ_ONLY, total=4_000) is Level.WRITABLE
    assert judge(RULES, [], Level.WRITABLE) is Level.WRITABLE


def test_a_full_disk_is_known_by_its_error_and_its_cause() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    assert is_no_space(full)
    assert not is_no_space(OSError(errno.EIO, "Input/output error"))
    assert is_no_space(BookieIOError("index: IO error: No space left on device: While appending"))
    wrapped = BookieIOError("cannot flush")
    wrapped.__cause__ = full
    assert is_no_space(wrapped)
    assert not is_no_space(BookieIOError("cannot flush"))
