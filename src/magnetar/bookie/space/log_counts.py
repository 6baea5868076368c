"""Entry logs that a crash left without a footer: which ledgers are in them, and where they end.

A log whose records end where the file does is counted by going over them. One that does not was
cut off by a loss of power in the middle of an append, or a length in it is damaged (or cannot be
read) and hides what follows. The index tells which: it points to durable records only, so if it
points to nothing behind the last record that the walk found, the rest was never of use, and the
log ends there. If it does, what the log holds is what the index says, and it goes when all of its
ledgers are deleted. It is not compacted: never, if its bytes are wrong; not before it can be
counted, if a read of it failed, which may pass.

Blocking work is done in the compaction's lane, a piece at a time. Logs that are closed take no
new records, and the index only ever points to less of them; so nothing has to stand still.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog

from magnetar.bookie.storage.entry_log_format import (
    HEADER_BYTES,
    RECORD_HEADER_BYTES,
    RecordWalk,
    log_path,
)
from magnetar.bookie.storage.location_index import LocationIndex
from magnetar.bookie.storage.location_runs import NearbyPlaces
from magnetar.bookie.storage.reclaim import Reclaimer, inspect_log
from magnetar.env.files.disk import Disk, Lane

log = structlog.get_logger(__name__)

ROWS_AT_ONCE = 4000
INDEX_ROW_BYTES = 64
"""What a look at a row of the index counts as, to whoever sets the pace."""


class CountedStorage(Protocol):
    """The ledger directory, as far as this is concerned."""

    path: Path
    flush_lane: Lane
    location_index: LocationIndex
    reclaimer: Reclaimer


class CountedLog(NamedTuple):
    """``end``: where the records end, as far as is known; ``whole``: it is certain; ``ledgers``:
    ledger id -> [entries, bytes]; ``unread``: a sync or a read failed on the way there."""

    log_id: int
    byte_count: int
    end: int
    whole: bool
    ledgers: dict[int, list[int]]
    unread: bool = False


class Settled(NamedTuple):
    """What the index had to be asked about: logs with wrong bytes, and logs that could not be read
    to their end."""

    damaged: list[int]
    unread: list[int]


class _Held(NamedTuple):
    """What the index has in one log. ``entries``: by ledger; ``last``: the highest offset."""

    entries: dict[int, int]
    last: int


class LogCounts:
    """Of one ledger directory. ``rest`` is told the bytes of the work just done."""

    def __init__(
        self,
        storage: CountedStorage,
        disk: Disk,
        lane: Lane,
        rest: Callable[[int], Awaitable[None]],
    ) -> None:
        self._storage = storage
        self._disk = disk
        self._lane = lane
        self._rest = rest
        self._cut: dict[int, CountedLog] = {}

    async def count(self, log_id: int) -> None:
        """Learn what a log holds, from its footer or else by going over it. Raises ``OSError``."""
        try:
            counted = await self._counted(log_id)
        except FileNotFoundError:
            return  # a source that was removed before the crash, or dead meanwhile
        if counted.whole:
            await self._add(counted)
        else:
            self._cut[log_id] = counted

    async def _counted(self, log_id: int) -> CountedLog:
        disk, path = self._disk, self._storage.path
        durable = await self._lane.run(lambda: _made_durable(disk, log_path(path, log_id)))
        closed = await self._lane.run(lambda: inspect_log(disk, path, log_id))
        if not durable:
            return CountedLog(log_id, closed.byte_count, HEADER_BYTES, False, {}, unread=True)
        if closed.footer is not None:
            ledgers = {ledger_id: [*row] for ledger_id, row in closed.footer.ledgers.items()}
            return CountedLog(log_id, closed.byte_count, closed.footer.offset, True, ledgers)
        file = await self._lane.run(lambda: disk.open(log_path(path, log_id)))
        try:
            walk = RecordWalk(file, log_id, closed.byte_count)
            ledgers = {}
            unread = True
            with suppress(OSError):  # what cannot be read hides what follows, as damage does
                while read := await self._lane.run(partial(_count_some, walk, ledgers)):
                    await self._rest(read)
                unread = closed.unread is not None  # then a footer may lie where the records end
            return CountedLog(log_id, closed.byte_count, walk.pos, walk.whole, ledgers, unread)
        finally:
            self._lane.submit(file.close)  # behind a job that outlives a cancellation

    async def settle(self) -> Settled:
        """Ask the index about the logs that were not whole. Goes over the whole index, a ledger at
        a time. Raises ``BookieIOError``."""
        told = Settled([], [])
        if not self._cut:
            return told
        held = await self._held()
        for log_id, counted in list(self._cut.items()):
            path = str(log_path(self._storage.path, log_id))
            if held[log_id].last < counted.end:
                log.info("entry log was cut off by a crash", path=path, offset=counted.end)
            elif counted.unread:
                log.error(
                    "entry log cannot be synced or read to its end; it will be tried again",
                    path=path,
                    offset=counted.end,
                )
                told.unread.append(log_id)
                counted = _shared_out(counted, held[log_id].entries)
                await self._add(counted, for_now=True)
                del self._cut[log_id]
                continue
            else:
                log.error(
                    "entry log without footer is damaged; it is not compacted, and kept until its "
                    "ledgers are deleted",
                    path=path,
                    offset=counted.end,
                )
                told.damaged.append(log_id)
                counted = _shared_out(counted, held[log_id].entries)
            await self._add(counted)
            del self._cut[log_id]
        return told

    async def _add(self, counted: CountedLog, for_now: bool = False) -> None:
        add = self._storage.reclaimer.add
        await self._storage.flush_lane.run(
            lambda: add(counted.log_id, counted.end, counted.ledgers, for_now=for_now)
        )

    async def _held(self) -> dict[int, _Held]:
        index = self._storage.location_index
        found = {log_id: _Held({}, 0) for log_id in self._cut}

        def look(ledger_id: int, first: int) -> Sequence[int]:
            entry_ids = index.entry_ids(ledger_id, first, ROWS_AT_ONCE)
            find = NearbyPlaces(index.run).location
            for entry_id in entry_ids:
                log_id, offset = find(ledger_id, entry_id) or (0, 0)
                if log_id in found:
                    entries, last = found[log_id]
                    entries[ledger_id] = entries.get(ledger_id, 0) + 1
                    found[log_id] = _Held(entries, max(last, offset))
            return entry_ids

        for ledger_id in await self._lane.run(lambda: [row[0] for row in index.ledgers()]):
            first: int | None = 0
            while first is not None:
                looked_at = await self._lane.run(partial(look, ledger_id, first))
                await self._rest(len(looked_at) * INDEX_ROW_BYTES)
                first = looked_at[-1] + 1 if len(looked_at) == ROWS_AT_ONCE else None
        return found


def _made_durable(disk: Disk, path: Path) -> bool:
    """Raises ``FileNotFoundError``."""
    try:
        file = disk.open(path)
        try:
            file.datasync()
        finally:
            file.close()
    except FileNotFoundError:
        raise
    except OSError as error:
        log.error("entry log cannot be synced", path=str(path), error=str(error))
        return False
    return True


def _count_some(walk: RecordWalk, ledgers: dict[int, list[int]]) -> int:
    """One step of the walk; returns how far it went."""
    start = walk.pos
    for place in walk.step()[2]:
        row = ledgers.setdefault(place.ledger_id, [0, 0])
        row[0] += 1
        row[1] += place.length
    return walk.pos - start


def _shared_out(counted: CountedLog, entries: dict[int, int]) -> CountedLog:
    """A log that cannot be gone over, as the index sees it: its bytes are shared out."""
    total = sum(entries.values())
    size = max(0, counted.byte_count - HEADER_BYTES - total * RECORD_HEADER_BYTES)
    ledgers = {ledger_id: [count, size * count // total] for ledger_id, count in entries.items()}
    return counted._replace(end=counted.byte_count, ledgers=ledgers)
