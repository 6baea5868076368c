"""Whether the disk of this process's partitions has room for more: what appends and fetches ask.

    level       appends                                   what a follower fetches
    WRITABLE    taken                                     stored
    CROWDED     taken; a warning is logged                stored
    READ_ONLY   refused (``NoSpaceError``)                stored: its leader has taken it
    EXHAUSTED   refused                                   not asked for

Owns the level, from one look to the next. A partition itself decides nothing of this: all lie on
one disk. Reading, deletion, retention, compaction and what is stored of a partition's state go on
at every level: that, and the start of whatever else is on the disk, is what the room is kept for. A
follower that asks for nothing any more leaves the in-sync set, by its leader's clock.

Between two looks it is counted what was taken: before that can be an eighth of what is kept free it
is looked again.

Why: docs/adr/0194-partitions-keep-a-reserve.md.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import structlog

from magnetar.env.files.disk import Disk
from magnetar.env.files.disk_space import Level, SpaceRules
from magnetar.env.files.disk_watch import Taker, look_at
from magnetar.model.errors import NoSpaceError

log = structlog.get_logger(__name__)

KEPT_PART: Final = 8
"""Of a small disk that much at most is kept free."""
UNSEEN_PART: Final = 8
UNSEEN_BYTES: Final = 256 << 10
PARTITIONS: Final = Taker(
    "the broker",
    "delete topics or records (retention goes on), or add space",
    "it is too small: use a larger one, or lower partition.disk_free_bytes_least",
)


class DiskRoom:
    """Of the file system that has ``path``. ``rules`` None: whatever comes is taken, until the disk
    itself refuses."""

    def __init__(self, disk: Disk, path: Path, rules: SpaceRules | None) -> None:
        self.level = Level.WRITABLE
        self.why = ""
        """In words, what is wrong and what to do; empty: nothing."""
        self._disk = disk
        self._path = path
        self._rules = rules
        self._unseen_bytes = 0
        self._unseen_bytes_max = 0

    def look(self) -> None:
        """At the disk, now."""
        if self._rules is None:
            return
        try:
            total = self._disk.space(self._path).total_bytes
            least = min(self._rules.reserve_bytes, total // KEPT_PART)
            rules = self._rules._replace(reserve_bytes=least)
            found = look_at(self._disk, [self._path], rules, self.level, PARTITIONS)
        except OSError as error:
            # Not known is not full: the append itself tells what the disk does.
            path = str(self._path)
            log.warning("the space of a disk cannot be told", path=path, error=str(error))
            return
        self.level, why, _ = found
        self.why = why if self.level >= Level.READ_ONLY else ""
        self._unseen_bytes = 0
        self._unseen_bytes_max = max(UNSEEN_BYTES, least // UNSEEN_PART)

    async def watch(self, interval_s: float) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            self.look()

    def took(self, byte_count: int) -> None:
        """So much is about to be written."""
        self._unseen_bytes += byte_count
        if self._rules is not None and self._unseen_bytes > self._unseen_bytes_max:
            self.look()
            self._unseen_bytes = byte_count  # the disk does not know of it yet

    def check(self) -> None:
        """Before an append. Raises ``NoSpaceError``."""
        if self.why:
            raise NoSpaceError(self.why)

    @property
    def follows(self) -> bool:
        """What leaders have taken is fetched."""
        return self.level < Level.EXHAUSTED
