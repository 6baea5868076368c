"""What keeps a bookie's disks usable: looks at their space and health, compacts, makes room.

Owns the answer to "may entries be taken?" (``refusal``), which every add asks:

* by space (``env.files.disk_space``): read-only, or exhausted, while a disk is nearly full;
* by health: a journal that cannot write, or a ledger directory whose flushes fail again and again
  for another reason than a full disk, is marked failed. Ledgers are placed by their id, so the
  whole bookie turns read-only; what the failed directory still gives is served, and its flushes
  are tried on: memory and journal hold what it lacks. If one of the tasks that look after the
  disks has ended (a defect), nothing is taken any more, and the bookie's role ends.

Nothing else here needs a restart: the space is looked at every ``disk_check_interval_ms``, and a
directory is sound again when a flush succeeds.

When a flush meets a full disk, logs that are dead by deletions which are in the journal are removed
at once, which needs no space, and the reserve is given up, which gives the index some.

Why: docs/adr/0016-failing-disks.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from magnetar.bookie.journal.journal import Journal
from magnetar.bookie.space.compactor import Compactor, Pace
from magnetar.bookie.space.reserve import CHUNK_BYTES, Reserve
from magnetar.bookie.storage.compaction_plan import Schedule
from magnetar.bookie.storage.storage import LedgerStorage
from magnetar.config import BookieConfig
from magnetar.env.files.disk import Disk, Lane
from magnetar.env.files.disk_space import Level, SpaceRules, is_no_descriptor, is_no_space
from magnetar.env.files.disk_watch import Taker, look_at
from magnetar.env.tasks import TaskScope, defect, fails
from magnetar.metrics import Metrics
from magnetar.model.errors import BookieIOError, MagnetarError

log = structlog.get_logger(__name__)

FLUSH_FAILURES_MAX = 3
DESCRIPTOR_FAILURES_MAX = 30
"""Half a minute and more: connections that take all descriptors go again."""
RESERVE_PAUSE_S = 0.01
BOOKIE: Final = Taker(
    "the bookie",
    "delete topics or ledgers, or add space",
    "it is too small: use a larger one, or lower bookie.write_cache_bytes",
)


class Upkeep:
    """``changed`` is called on the loop when what ``refusal`` says may have changed; ``clock``
    gives seconds and never goes back; ``failed``: the bookie must not go on."""

    def __init__(
        self,
        storages: Sequence[LedgerStorage],
        journals: Sequence[Journal],
        config: BookieConfig,
        disk: Disk,
        metrics: Metrics,
        changed: Callable[[], None],
        clock: Callable[[], float],
        failed: Callable[[MagnetarError], None],
    ) -> None:
        self.level = Level.WRITABLE
        self._storages = storages
        self._journals = journals
        self._config = config
        self._disk = disk
        self._metrics = metrics
        self._changed = changed
        for journal in journals:
            journal.state_changed = changed
        self._clock = clock
        self._failed_by_defect = failed
        self._rules = SpaceRules(
            config.disk_warn_percent / 100,
            config.disk_full_percent / 100,
            min(config.disk_low_water_percent, config.disk_full_percent) / 100,
            2 * config.write_cache_bytes + 2 * config.journal.file_bytes,
        )
        self._tasks = TaskScope("upkeep", fails(self.task_ended))
        self._lanes: list[Lane] = []
        self._reserves: list[Reserve] = []
        self._flush_failures: dict[int, int] = {}
        self._failed: dict[int, str] = {}
        self._free_bytes = 0
        self._fullest = ""
        """The disk that the level comes from, in words."""
        self._ended: str | None = None

    def start(self) -> None:
        config = self._config
        pace = Pace(config.compaction_bytes_per_s, self._pressing, self._clock)
        self.look()
        for index, storage in enumerate(self._storages):
            lane = self._disk.lane(f"compact-{index}")
            self._lanes.append(lane)
            reserve = Reserve(self._disk, storage.path, config.disk_reserve_bytes)
            self._reserves.append(reserve)
            compactor = Compactor(storage, self._disk, lane, config.entry_log_bytes_max, pace)
            self._tasks.spawn(self._compact(compactor, storage), f"compact-{index}")
            self._tasks.spawn(self._keep_reserve(reserve, lane), f"reserve-{index}")
        self._tasks.spawn(self._watch(), "disk space")

    async def stop(self) -> None:
        await self._tasks.close()
        for lane in self._lanes:
            await lane.close()

    # -- may entries be taken? ----------------------------------------------------------------

    @property
    def read_only(self) -> bool:
        """No new entries; recovery may write, unless ``refusal(recovery=True)`` says no."""
        return self.refusal(recovery=False) is not None

    def refusal(self, recovery: bool) -> str | None:
        """Why an add is refused, or None."""
        if self.level >= (Level.EXHAUSTED if recovery else Level.READ_ONLY):
            return self._fullest
        for journal in self._journals:
            if journal.broken is not None:
                return str(journal.broken)
            if journal.out_of_space:
                return (
                    f"the disk of the journal {journal.path} has no room for a commit; free space "
                    "there, the bookie takes entries again by itself"
                )
        if self._ended is not None:
            return self._ended
        return None if recovery else next(iter(self._failed.values()), None)

    @property
    def lacks_space(self) -> bool:
        """Whether it is for want of space that entries are refused."""
        return self.level >= Level.READ_ONLY or any(each.out_of_space for each in self._journals)

    @property
    def failed_directories(self) -> list[str]:
        """The ledger directories that are marked failed."""
        return [str(self._storages[index].path) for index in sorted(self._failed)]

    # -- space --------------------------------------------------------------------------------

    def _pressing(self) -> bool:
        return self.level >= Level.READ_ONLY

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._config.disk_check_interval_ms / 1000)
            self.look()

    def look(self) -> None:
        """At the space of all disks."""
        config = self._config
        paths = [*config.ledger_directories, *config.journal.directories]
        try:
            found = look_at(self._disk, paths, self._rules, self.level, BOOKIE)
        except OSError as error:
            log.error("cannot tell the disks' space", error=str(error))
            return
        self.level, self._fullest, self._free_bytes = found
        self._metrics.bookie_read_only.set(self.read_only)
        for journal in self._journals:
            journal.try_space()
        self._changed()

    async def _keep_reserve(self, reserve: Reserve, lane: Lane) -> None:
        """Fill the reserve while there is room, and again after it was given up."""
        while reserve.byte_count:
            await asyncio.sleep(self._config.disk_check_interval_ms / 1000)
            room = self._free_bytes - self._rules.reserve_bytes * 5 // 4
            if reserve.full or self.level >= Level.READ_ONLY or room < reserve.byte_count:
                continue
            try:
                await self._fill(reserve, lane)
            except OSError as error:
                log.warning("no room for the reserve", error=str(error))

    async def _fill(self, reserve: Reserve, lane: Lane) -> None:
        steps = reserve.fill()
        for _ in range(reserve.byte_count // CHUNK_BYTES + 2):
            await lane.run(lambda: next(steps, None))
            await asyncio.sleep(RESERVE_PAUSE_S)

    # -- flushes ------------------------------------------------------------------------------

    async def flush_failed(self, index: int, error: BaseException) -> None:
        """A flush of directory ``index`` failed and is tried again after this."""
        if is_no_space(error):
            await self._make_room(index)
            return
        count = self._flush_failures[index] = self._flush_failures.get(index, 0) + 1
        # For want of a descriptor: the disk is sound, and that may pass. But an index that has met
        # it takes nothing any more until it is opened again (RocksDB calls it fatal).
        lacks = is_no_descriptor(error)
        if count < (DESCRIPTOR_FAILURES_MAX if lacks else FLUSH_FAILURES_MAX):
            return
        if index in self._failed:
            return
        path = self._storages[index].path
        advice = "replace the disk, or restart the bookie when it is sound"
        if lacks:
            advice = "restart the bookie, with a higher limit of open files (ulimit -n)"
        self._failed[index] = f"ledger directory {path} has failed ({error}); {advice}"
        log.error("ledger directory failed; the bookie is read-only", path=str(path))
        self._health_changed()

    def flush_worked(self, index: int) -> None:
        self._flush_failures.pop(index, None)
        if self._failed.pop(index, None) is not None:
            log.warning("ledger directory works again", path=str(self._storages[index].path))
            self._health_changed()

    def task_ended(self, task: str, error: BaseException) -> None:
        """The flushes of a directory, the watch of the disks, compaction or a reserve have ended,
        by a defect. Nothing is taken any more, lest it fills what nobody looks after, and the
        bookie is to end: what it has acknowledged is in the journal."""
        failure = defect(task, error)
        self._ended = str(failure)
        self._health_changed()
        self._failed_by_defect(failure)

    def _health_changed(self) -> None:
        self._metrics.bookie_failed_directories.set(len(self._failed))
        self._changed()

    async def _make_room(self, index: int) -> None:
        """Let go of what deletions have left dead, or else of the reserve."""
        storage, reserve = self._storages[index], self._reserves[index]
        try:
            await storage.free_deleted()
            freed = await self._lanes[index].run(reserve.give_up)
        except (BookieIOError, OSError) as error:
            log.error("cannot make room", path=str(storage.path), error=str(error))
            return
        if freed:
            log.warning("disk full: reserve given up", path=str(storage.path), byte_count=freed)

    # -- compaction ---------------------------------------------------------------------------

    async def _compact(self, compactor: Compactor, storage: LedgerStorage) -> None:
        config = self._config
        schedule = Schedule(
            config.compaction_minor_percent / 100,
            config.compaction_minor_interval_ms / 1000,
            config.compaction_major_percent / 100,
            config.compaction_major_interval_ms / 1000,
            self._clock(),
        )
        share: float | None = 0.0  # first of all, what a crash has left
        while True:
            if share is not None:
                copied = compactor.copied_bytes
                try:
                    removed = await compactor.compact(share, lambda: self._room_bytes(storage))
                    self._metrics.bookie_compacted_logs_total.inc(removed)
                except (BookieIOError, OSError) as error:
                    log.error("compaction failed", path=str(storage.path), error=str(error))
                finally:
                    self._metrics.bookie_compacted_bytes_total.inc(compactor.copied_bytes - copied)
            await asyncio.sleep(config.disk_check_interval_ms / 1000)
            share = schedule.due(self._clock(), self._pressing())

    def _room_bytes(self, storage: LedgerStorage) -> int:
        """For a compacted log: not all that is free, flushes go on meanwhile."""
        return self._disk.space(storage.path).free_bytes * 3 // 4
