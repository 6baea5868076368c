"""Has entry logs give back in place what is dead in them, when what lives cannot be copied.

Which log: ``compaction_plan.wasteful``; how: ``holes.py``. A log that has done so is chosen again
when more of it is dead; one that could not be read or written to stays to be done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from pathlib import Path

import structlog

from magnetar.bookie.space.holes import DeadRanges, can_punch, punch
from magnetar.bookie.space.log_trouble import damage, unreadable
from magnetar.bookie.storage.compaction_plan import wasteful
from magnetar.bookie.storage.entry_log_format import HEADER_BYTES, log_path
from magnetar.bookie.storage.log_usage import LogUse
from magnetar.env.files.disk import CANNOT_PUNCH, Disk, Lane

log = structlog.get_logger(__name__)


class Puncher:
    """Of one ledger directory. ``rest`` is told the bytes of the work just done."""

    def __init__(
        self, directory: Path, disk: Disk, lane: Lane, rest: Callable[[int], Awaitable[None]]
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._lane = lane
        self._rest = rest
        self._done: dict[int, int] = {}
        """Log id -> what was live in it when it gave back the rest; -1: it has not."""
        self._cannot = False

    def choose(self, sound: Sequence[LogUse], share: float) -> LogUse | None:
        """Of the logs that may be touched, the next with a live share under ``share``."""
        if self._cannot:
            return None
        self._done = {use.log_id: self._done.get(use.log_id, -1) for use in sound}
        return wasteful(sound, share, self._done)

    async def punch(self, use: LogUse, dead: Container[int], byte_count: int) -> int:
        """Returns the bytes that are holes now. ``dead``: the ledgers in it that were deleted;
        ``byte_count``: of its records. Raises ``DamagedLogError``, ``UnreadableLogError``."""
        path = log_path(self._directory, use.log_id)
        try:
            freed = await self._punch(path, use.log_id, dead, HEADER_BYTES + byte_count)
        except FileNotFoundError:
            self._done[use.log_id] = use.live_bytes  # not chosen again, should it still be counted
            return 0  # its last ledger has been deleted meanwhile
        except OSError as error:
            if error.errno not in CANNOT_PUNCH:
                raise unreadable(path, (use.log_id,), error) from error
            self._cannot = True
            log.warning(
                "the file system cannot free parts of a file; a disk without a byte gets room "
                "from entry logs in which all is deleted only",
                path=str(self._directory),
            )
            return 0
        self._done[use.log_id] = use.live_bytes
        log.warning("no room to compact: freed in place", log=use.log_id, byte_count=freed)
        return freed

    async def _punch(self, path: Path, log_id: int, dead: Container[int], end: int) -> int:
        freed = 0
        file = await self._lane.run(lambda: self._disk.open(path))
        ranges = DeadRanges(file, log_id, end, dead)
        try:
            await self._lane.run(lambda: can_punch(file, self._disk.size(path)))
            while not ranges.whole:
                read, damaged_at = await self._lane.run(ranges.step)
                if damaged_at is not None:
                    raise damage(path, log_id, damaged_at)
                if ranges.full:
                    freed += await self._lane.run(lambda: punch(file, log_id, ranges.take()))
                await self._rest(read)
        finally:
            self._lane.submit(file.close)
        await self._lane.run(lambda: self._disk.drop_cached(path, 0, end))  # it opens the file
        return freed
