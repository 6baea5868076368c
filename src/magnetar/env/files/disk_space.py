"""Decides what may still be taken by whoever stores on disks: bookies, brokers with partitions.

    level       when (the worst disk counts)                        taken
    WRITABLE    else                                                everything
    CROWDED     used >= warn_share                                  everything; a warning is logged
    READ_ONLY   used >= full_share, or free < reserve_bytes         recovery's adds, fences, reads
    EXHAUSTED   free < a quarter of reserve_bytes                   fences, reads

What is taken is said for a bookie; for partitions ``log.partition.room`` has it. Who is READ_ONLY
comes back at ``low_water_share`` and five quarters of the reserve, so that it does not flap.
``reserve_bytes`` covers what is promised already: what memory and journals hold must fit into entry
logs and index.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol


class Space(Protocol):
    """Of one file system."""

    @property
    def total_bytes(self) -> int: ...

    @property
    def free_bytes(self) -> int: ...


class Level(IntEnum):
    WRITABLE = 0
    CROWDED = 1
    READ_ONLY = 2
    EXHAUSTED = 3


class SpaceRules(NamedTuple):
    """Shares of 1, used of total; ``low_water_share`` at most ``full_share``."""

    warn_share: float
    full_share: float
    low_water_share: float
    reserve_bytes: int


def needed_bytes(rules: SpaceRules, total_bytes: int) -> int:
    """What must be free of a file system of that size before who is READ_ONLY takes entries
    again."""
    by_share = int(total_bytes * (1 - rules.low_water_share)) + 1
    return max(rules.reserve_bytes * 5 // 4, by_share)


def judge(rules: SpaceRules, spaces: Sequence[Space], before: Level) -> Level:
    """The level now; ``before`` is the one until now."""
    return max((_judge_one(rules, space, before) for space in spaces), default=Level.WRITABLE)


def _judge_one(rules: SpaceRules, space: Space, before: Level) -> Level:
    stays = before >= Level.READ_ONLY
    reserve = rules.reserve_bytes * 5 // 4 if stays else rules.reserve_bytes
    full_share = rules.low_water_share if stays else rules.full_share
    used_share = 1 - space.free_bytes / space.total_bytes if space.total_bytes else 1.0
    if space.free_bytes < rules.reserve_bytes // 4:
        return Level.EXHAUSTED
    if space.free_bytes < reserve or used_share >= full_share:
        return Level.READ_ONLY
    return Level.CROWDED if used_share >= rules.warn_share else Level.WRITABLE


def is_no_descriptor(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is that no more files can be opened: of the process or
    the machine, and no fault of the disk. RocksDB says it in words only."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        if "Too many open files" in str(error):
            return True
        error = error.__cause__
    return False


def is_no_space(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is a full disk. RocksDB says it in words only."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if "No space left on device" in str(error):
            return True
        error = error.__cause__
    return False
