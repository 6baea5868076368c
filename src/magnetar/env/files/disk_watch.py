"""A look at the space of disks, and what it means for whoever stores there: bookies, partitions.

Owns the words of a refusal and of the log; ``disk_space`` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import structlog

from magnetar.env.files.disk import Disk, DiskSpace
from magnetar.env.files.disk_space import Level, SpaceRules, judge, needed_bytes

log = structlog.get_logger(__name__)


class Taker(NamedTuple):
    """Whoever takes entries, in words: who it is, what gives it room, and what to do with a disk
    that is smaller than what it needs."""

    name: str
    room: str
    too_small: str


class Looked(NamedTuple):
    """``why``: of the disk that the level comes from, what is wrong there and what to do.
    ``free_bytes``: of the disk that has least."""

    level: Level
    why: str
    free_bytes: int


def look_at(
    disk: Disk, paths: Sequence[Path], rules: SpaceRules, before: Level, taker: Taker
) -> Looked:
    """The disks of ``paths`` now; ``before``: the level until now. Another one is logged. Raises
    ``OSError``."""
    spaces = [disk.space(path) for path in paths]
    judged = [judge(rules, [space], before) for space in spaces]
    level = max(judged)
    worst = min(
        (space.free_bytes, index) for index, space in enumerate(spaces) if judged[index] is level
    )[1]
    if level is not before:
        tell = log.info if level is Level.WRITABLE else log.warning
        tell(
            "disk space",
            of=taker.name,
            level=level.name,
            path=str(paths[worst]),
            free_bytes=spaces[worst].free_bytes,
            needed_bytes=needed_bytes(rules, spaces[worst].total_bytes),
            was=before.name,
        )
    why = in_words(level, paths[worst], spaces[worst], rules, taker)
    return Looked(level, why, min(space.free_bytes for space in spaces))


def in_words(level: Level, path: Path, space: DiskSpace, rules: SpaceRules, taker: Taker) -> str:
    """Why entries are refused at that level, and what to do."""
    needed = needed_bytes(rules, space.total_bytes)
    left = "is full" if level is Level.EXHAUSTED else "is nearly full"
    advice = taker.too_small if needed > space.total_bytes else taker.room
    return (
        f"the disk of {path} {left}: {space.free_bytes} of {space.total_bytes} bytes are free and "
        f"{needed} are needed; {advice}; {taker.name} takes entries again by itself"
    )
