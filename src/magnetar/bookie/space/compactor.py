"""Compaction of a ledger directory's entry logs: gives back the space of deleted ledgers that
share a log with living ones. When, and which logs: ``compaction_plan.py``.

    step                                                  a crash behind it leaves
    1  begin the new log; its header names the sources    a log without footer: removed at a start
    2  copy what the index has in the sources             the same
    3  sync, footer, sync: the new log is whole           an unfinished one: taken up again at 4
    4  point the index to the new log, batch by batch     the same; a batch is moved once only
    5  sync the index                                     the same
    6  remove the sources                                 what sources are left are removed

Invariants:

* The index points to whole, durable records at every moment: to the sources until 4, to either
  in between, to the new log after.
* The sources are closed, and every record in them that anybody may read is in the index already:
  so 2 misses nothing. Index changes happen in the flush lane only, each against what the index
  says then.
* A source with damage in it is not compacted: the damage stays where the index says it is, so its
  entry is answered with an error and not forgotten. Damage is bytes that are wrong; a read that
  fails may pass, so such a log is tried again (``log_trouble.py``).

What has been copied, and what has been written and verified, leaves the kernel's page cache at
once: nobody reads it soon, and what readers and flushes have there stays. The copying has a lane
of its own, takes ``WALK_BYTES`` at a time and rests between, so that all reading and writing stays
below ``compaction_bytes_per_s``; not while the disk is nearly full, when no adds are taken.

If there is no room to copy to, the sources give back in place what is dead in them (``holes.py``),
a log at a time, the one with most of it first, until one fits.

Why: docs/adr/0014-compaction.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog

from magnetar.bookie.space.log_counts import LogCounts
from magnetar.bookie.space.log_trouble import (
    DamagedLogError,
    LogTroubles,
    UnreadableLogError,
    damage,
    unreadable,
)
from magnetar.bookie.space.puncher import Puncher
from magnetar.bookie.storage.compaction_plan import Compaction, plan
from magnetar.bookie.storage.entry_log import EntryLogWriter, LogIds, log_bytes_limit
from magnetar.bookie.storage.entry_log_format import (
    HEADER_BYTES,
    SOURCES_MAX,
    Footer,
    RecordPlace,
    RecordWalk,
    log_path,
    record_at,
    seed_of,
)
from magnetar.bookie.storage.location_index import BATCH_MAX, LocationIndex
from magnetar.bookie.storage.location_runs import NearbyPlaces
from magnetar.bookie.storage.log_usage import LogUse
from magnetar.bookie.storage.reclaim import ClosedLog, Reclaimer, inspect_log
from magnetar.env.files.disk import Disk, DiskFile, Lane
from magnetar.env.files.disk_space import is_no_space
from magnetar.model.errors import BookieIOError

log = structlog.get_logger(__name__)

SYNC_BYTES = 1 << 20
"""Written between syncs: one large sync would hold up the journal's on the same device."""


class CompactedStorage(Protocol):
    """The ledger directory, as far as this is concerned."""

    path: Path
    flush_lane: Lane
    location_index: LocationIndex
    reclaimer: Reclaimer
    log_ids: LogIds
    settled_id: int

    def end_log(self, share: float) -> None: ...


class Pace(NamedTuple):
    """``bytes_per_s``: read and written together; ``pressing`` says that space matters more;
    ``now_s`` never goes back; ``sleep`` takes seconds."""

    bytes_per_s: int
    pressing: Callable[[], bool]
    now_s: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class _Source:
    """One log being copied. In the compaction lane."""

    def __init__(
        self, disk: Disk, directory: Path, log_id: int, dead: Container[int], end: int
    ) -> None:
        """``dead``: its deleted ledgers; ``end``: where its records end."""
        self.log_id = log_id
        self.dead = dead
        self.seed = seed_of(log_id)
        self.file: DiskFile = disk.open(log_path(directory, log_id))
        self.walk = RecordWalk(self.file, log_id, end)

    def damaged(self, offset: int) -> DamagedLogError:
        return damage(self.file.path, self.log_id, offset)


class Compactor:
    """Of one ledger directory. Methods are called on the loop, one at a time."""

    def __init__(
        self, storage: CompactedStorage, disk: Disk, lane: Lane, log_bytes_max: int, pace: Pace
    ) -> None:
        self._storage = storage
        self._disk = disk
        self._lane = lane
        self._log_bytes_max = log_bytes_limit(log_bytes_max)
        self._pace = pace
        self._troubles = LogTroubles()
        self._discarded: list[int] = []
        """Logs that were begun in vain and could not be removed yet. The compaction lane's."""
        self._puncher = Puncher(storage.path, disk, lane, self._rest)
        self._counts = LogCounts(storage, disk, lane, self._rest)
        self.copied_bytes = 0

    # -- after a start ------------------------------------------------------------------------

    async def settle(self) -> None:
        """Take up what a crash has cut short, and count logs that have no footer; those that could
        not be read before, when it is time to try again. Raises ``BookieIOError``, ``OSError``."""
        reclaimer = self._storage.reclaimer
        if self._discarded:
            await self._lane.run(self._remove_discarded)
        for unfinished in [*reclaimer.unfinished]:
            if not self._waits(unfinished.log_id):
                await self._settle_one(unfinished)
        learned = []
        for log_id in [*reclaimer.unknown]:
            if not self._waits(log_id) and await self._learn(log_id):
                learned.append(log_id)
        told = await self._counts.settle()
        self._troubles.damaged(told.damaged)
        self._unreadable(told.unread)
        reclaimer.unknown += [each for each in told.unread if each not in reclaimer.unknown]
        self._troubles.readable(each for each in learned if each not in told.unread)
        await self._storage.flush_lane.run(self._reclaim)

    def _reclaim(self) -> None:
        """In the flush lane: logs that were counted are like any other."""
        storage = self._storage
        storage.reclaimer.settle(storage.settled_id)
        storage.reclaimer.remove_dead(storage.settled_id)

    def _waits(self, log_id: int) -> bool:
        return self._troubles.waits(log_id, self._pace.now_s())

    def _unreadable(self, log_ids: Iterable[int]) -> None:
        self._troubles.unreadable(log_ids, self._pace.now_s())

    async def _settle_one(self, unfinished: ClosedLog) -> None:
        reclaimer = self._storage.reclaimer
        if await self._guarded(self._take_up(unfinished)) is not None:
            reclaimer.unfinished.remove(unfinished)
            return
        for source in unfinished.sources:  # meanwhile they go if all of their ledgers are deleted
            if source not in reclaimer.usage:
                await self._counts.count(source)

    async def _learn(self, log_id: int) -> bool:
        """Of a log without a footer, or with a part that could not be read. False: header or
        footer cannot be read now."""
        reclaimer, disk, path = self._storage.reclaimer, self._disk, self._storage.path
        try:
            found = await self._lane.run(lambda: inspect_log(disk, path, log_id))
        except FileNotFoundError:  # all of its ledgers were deleted meanwhile
            reclaimer.unknown.remove(log_id)
            return True
        if found.unread is not None:
            self._unreadable([log_id])
            if log_id not in reclaimer.usage:
                await self._counts.count(log_id)
            return False
        if reclaimer.replaces_any(found):  # its header could not be read before
            reclaimer.unfinished.append(found)
        else:
            await self._counts.count(log_id)
        reclaimer.unknown.remove(log_id)  # behind what may fail: else it is counted by nobody
        return True

    async def _take_up(self, unfinished: ClosedLog) -> int:
        log_id, sources = unfinished.log_id, unfinished.sources
        path = log_path(self._storage.path, log_id)
        if unfinished.unread is not None:  # as found at the start; it may be readable by now
            unfinished = await self._lane.run(
                lambda: inspect_log(self._disk, self._storage.path, log_id)
            )
        if unfinished.unread is not None:
            raise unreadable(path, (log_id, *sources), unfinished.unread)
        if unfinished.footer is not None:
            log.info("compaction is taken up again", log=log_id, sources=sources)
            return await self._finish(unfinished, unfinished.footer)
        if await self._lane.run(lambda: self._referenced(unfinished)):
            log.error(
                "a compacted entry log has no whole footer though the index refers to it; it and "
                "its sources are kept",
                path=str(path),
            )
            self._troubles.damaged((log_id, *sources))
        else:
            log.info("compaction was cut short; it will be done anew", log=log_id)
            await self._storage.flush_lane.run(lambda: self._storage.reclaimer.remove([log_id]))
        for source in sources:
            await self._counts.count(source)
        return 0

    def _referenced(self, unfinished: ClosedLog) -> bool:
        """Whether the index points into a log that was not finished: it must not."""
        index, log_id = self._storage.location_index, unfinished.log_id
        path = log_path(self._storage.path, log_id)
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return False  # removed by a try that failed behind that
        find = NearbyPlaces(index.run).location
        try:
            for place in RecordWalk(file, log_id, unfinished.byte_count):
                location = find(place.ledger_id, place.entry_id)
                if location is not None and location[0] == log_id:
                    return True
        except OSError as error:
            raise unreadable(path, (log_id, *unfinished.sources), error) from error
        finally:
            file.close()
        return False

    # -- passes -------------------------------------------------------------------------------

    async def compact(self, share: float, room_bytes: Callable[[], int]) -> int:
        """Compact every log with a live share under ``share``, as far as there is room. Returns
        how many logs were removed. Raises ``BookieIOError``, ``OSError``."""
        storage = self._storage
        if self._pace.pressing():
            await storage.flush_lane.run(lambda: storage.end_log(share))
        removed = 0
        while True:
            try:
                await self.settle()
                work = await self._next(share, room_bytes())
                if work is not None:
                    removed += await self._guarded(self._compact(work)) or 0
                    continue
            except (BookieIOError, OSError) as error:
                if not is_no_space(error) or not await self._punch(share):
                    raise
                continue
            if not await self._punch(share):
                return removed

    async def _guarded(self, work: Awaitable[int]) -> int | None:
        """What meets damage is not tried again in this life of the bookie; what cannot be read is
        tried again later (None)."""
        try:
            return await work
        except DamagedLogError as error:
            log.error("entry logs are not compacted", logs=error.log_ids, error=str(error))
            self._troubles.damaged(error.log_ids)
            return 0
        except UnreadableLogError as error:
            log.error("entry logs are not compacted now", logs=error.log_ids, error=str(error))
            self._unreadable(error.log_ids)
            return None

    async def _punch(self, share: float) -> bool:
        """Have a log with a live share under ``share`` give back in place what is dead in it.
        False: none is left to, or the disk is not nearly full."""
        if not self._pace.pressing():
            return False
        reclaimer, flush_lane = self._storage.reclaimer, self._storage.flush_lane
        worst = self._puncher.choose(await self._sound(), share)
        if worst is None:
            return False
        size = await flush_lane.run(lambda: reclaimer.usage.byte_count(worst.log_id))
        await self._guarded(self._puncher.punch(worst, reclaimer.dead_ledgers(), size))
        return True

    async def _next(self, share: float, room_bytes: int) -> Compaction | None:
        return plan(await self._sound(), share, room_bytes, self._log_bytes_max, SOURCES_MAX)

    async def _sound(self) -> list[LogUse]:
        """The logs that may be compacted."""
        storage = self._storage
        # Settled ones only. A flush whose mark could not be stored is repeated from behind its
        # entries: it points the index to where it wrote them, and a compaction in between would
        # have moved them from there and removed the log.
        uses = await storage.flush_lane.run(
            lambda: storage.reclaimer.usage.uses(storage.settled_id)
        )
        reclaimer, now_s = storage.reclaimer, self._pace.now_s()
        held = {log_id for each in reclaimer.unfinished for log_id in (each.log_id, *each.sources)}
        self._troubles.keep({use.log_id for use in uses} | held | {*reclaimer.unknown})
        return [
            use
            for use in uses
            if use.log_id not in held and not self._troubles.left_alone(use.log_id, now_s)
        ]

    async def _compact(self, work: Compaction) -> int:
        storage = self._storage
        writer = EntryLogWriter(
            self._disk, storage.path, self._log_bytes_max, storage.log_ids, sources=work.sources
        )
        try:
            for source in work.sources:
                await self._copy(source, writer)
            await self._lane.run(writer.sync)
            await self._lane.run(writer.finish)
            found = await self._written(writer, work.sources) if writer.log_id else None
        except BaseException:
            await asyncio.shield(self._lane.run(lambda: self._discard(writer)))
            raise
        if (
            found is None or found.footer is None
        ):  # the index has nothing in them: written twice, or deleted since
            return len(await storage.flush_lane.run(lambda: self._remove(work.sources)))
        storage.reclaimer.unfinished.append(found)
        removed = await self._finish(found, found.footer)
        storage.reclaimer.unfinished.remove(found)
        return removed

    async def _written(self, writer: EntryLogWriter, sources: tuple[int, ...]) -> ClosedLog:
        """The new log as it is on the disk. Raises ``BookieIOError`` if it is not whole."""
        path = self._storage.path
        found = await self._lane.run(lambda: inspect_log(self._disk, path, writer.log_id))
        if found.footer is None or found.sources != sources:
            raise BookieIOError(f"entry log {writer.log_id} of {path} was not written")
        return found

    def _remove(self, sources: tuple[int, ...]) -> list[int]:
        # First: that the index has nothing in them may be the word of a flush under way, or one
        # that has failed. Lost behind their removal, entries would be named that are nowhere.
        self._storage.location_index.sync()
        return self._storage.reclaimer.remove(sources)

    def _discard(self, writer: EntryLogWriter) -> None:
        """Nothing refers to what was copied so far. What a failing disk keeps is removed later."""
        writer.abandon()
        if writer.log_id:
            self._discarded.append(writer.log_id)
        with suppress(OSError):  # why the copying failed is told
            self._remove_discarded()

    def _remove_discarded(self) -> None:
        """In the compaction lane. Raises ``OSError``."""
        names = self._disk.list(self._storage.path) if self._discarded else []
        while self._discarded:
            path = log_path(self._storage.path, self._discarded[-1])
            if path.name in names:
                self._disk.remove(path)
            self._discarded.pop()

    # -- copying ------------------------------------------------------------------------------

    async def _copy(self, log_id: int, writer: EntryLogWriter) -> None:
        storage, reclaimer = self._storage, self._storage.reclaimer
        size = await storage.flush_lane.run(lambda: reclaimer.usage.byte_count(log_id))
        dead = reclaimer.dead_ledgers()
        try:
            source = await self._lane.run(
                lambda: _Source(self._disk, storage.path, log_id, dead, HEADER_BYTES + size)
            )
        except FileNotFoundError:
            return  # its last ledger has been deleted since the plan was made
        except OSError as error:
            raise unreadable(log_path(storage.path, log_id), (log_id,), error) from error
        unsynced_bytes = 0
        try:
            while not source.walk.whole:
                read, written = await self._lane.run(lambda: self._copy_some(source, writer))
                unsynced_bytes += written
                if unsynced_bytes >= SYNC_BYTES:
                    await self._lane.run(writer.sync)
                    unsynced_bytes = 0
                await self._rest(read + written)
        finally:
            self._lane.submit(source.file.close)  # behind a job that outlives a cancellation

    def _copy_some(self, source: _Source, writer: EntryLogWriter) -> tuple[int, int]:
        """In the compaction lane; (bytes read, bytes written)."""
        try:
            data, start, places = source.walk.step()
        except OSError as error:
            raise unreadable(source.file.path, (source.log_id,), error) from error
        if not places and not source.walk.whole:  # it may have ended with a hole
            raise source.damaged(source.walk.pos)
        # A row may be taken apart meanwhile. What is copied for nothing is not moved to (4).
        location = NearbyPlaces(self._storage.location_index.run).location
        rows = []
        for ledger_id, entry_id, offset, _ in places:
            if ledger_id in source.dead:  # the index may not know it yet, for want of room
                continue
            if location(ledger_id, entry_id) != (source.log_id, offset):
                continue
            entry = record_at(data, offset - start, source.seed)
            if entry is None:
                raise source.damaged(offset)
            rows.append((ledger_id, entry_id, entry))
        written = sum(len(row[2]) for row in rows)
        for begin in range(0, len(rows), BATCH_MAX):
            writer.append(rows[begin : begin + BATCH_MAX])
        self.copied_bytes += written
        self._disk.drop_cached(source.file.path, start, source.walk.pos)
        return len(data), written

    # -- from the sources to the new log ------------------------------------------------------

    async def _finish(self, unfinished: ClosedLog, footer: Footer) -> int:
        """Steps 4 to 6. What fails here is taken up again by the next pass."""
        storage, log_id, sources = self._storage, unfinished.log_id, unfinished.sources
        path = log_path(storage.path, log_id)
        try:
            file = await self._lane.run(lambda: self._disk.open(path))
        except OSError as error:
            raise unreadable(path, (log_id, *sources), error) from error
        walk = RecordWalk(file, log_id, footer.offset)
        moving = frozenset(sources)
        try:
            while not walk.whole:
                places = await self._lane.run(lambda: self._verify_some(walk, unfinished))
                for begin in range(0, len(places), BATCH_MAX):
                    await self._move(log_id, places[begin : begin + BATCH_MAX], moving)
        finally:
            self._lane.submit(file.close)
        gone = await storage.flush_lane.run(
            lambda: storage.reclaimer.replace(log_id, footer, sources)
        )
        log.info("entry logs compacted", log=log_id, sources=sources, byte_count=footer.offset)
        return len(gone)

    def _verify_some(self, walk: RecordWalk, unfinished: ClosedLog) -> list[RecordPlace]:
        """In the compaction lane; as ``_verified``."""
        start = walk.pos
        path = log_path(self._storage.path, unfinished.log_id)
        places = _verified(walk, unfinished, path)
        self._disk.drop_cached(path, start, walk.pos)
        return places

    async def _move(self, log_id: int, places: list[RecordPlace], sources: frozenset[int]) -> None:
        reclaimer = self._storage.reclaimer
        await self._storage.flush_lane.run(lambda: reclaimer.move(log_id, places, sources))
        await self._rest(sum(place.length for place in places))

    async def _rest(self, byte_count: int) -> None:
        pressing = self._pace.pressing()
        await self._pace.sleep(0 if pressing else byte_count / self._pace.bytes_per_s)


def _verified(walk: RecordWalk, unfinished: ClosedLog, path: Path) -> list[RecordPlace]:
    """The next records of a compacted log, all whole. Raises ``DamagedLogError``,
    ``UnreadableLogError``."""
    log_ids = (unfinished.log_id, *unfinished.sources)
    try:
        data, start, places = walk.step()
    except OSError as error:
        raise unreadable(path, log_ids, error) from error
    seed = seed_of(unfinished.log_id)
    bad = [one.offset for one in places if record_at(data, one.offset - start, seed) is None]
    if bad or not places:
        raise DamagedLogError(
            log_ids,
            f"compacted entry log {unfinished.log_id} is damaged at {bad[0] if bad else walk.pos}; "
            f"it and what it replaces ({unfinished.sources}) are kept",
        )
    return places
