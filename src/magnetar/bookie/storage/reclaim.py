"""The closed entry logs of a ledger directory: what they hold of use, and their end.

Used by the directory's flush lane only, so that index, deletions and logs change one after the
other. Blocking; raises ``OSError`` and ``BookieIOError``.

Rules:

* A log is removed when all of its ledgers are deleted, durably (in the journal at least; a deleted
  ledger takes no entry any more, its record stays and refuses), or when a compacted one replaces
  it.
* The index is moved from a log to the one that replaces it by ``move``: an entry that was added
  again or deleted meanwhile is not where the old log had it, and is left alone.
* A log of which the index says nothing (``usage_store.py``) is never removed before its ledgers are
  counted (``log_counts.py``).
* A compacted log with sources that still exist is ``unfinished``: a crash came between its
  completion and theirs. ``compactor.py`` takes such work up again at a start.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import structlog

from magnetar.bookie.storage.compaction_plan import dead
from magnetar.bookie.storage.entry_log_format import (
    HEADER_BYTES,
    RECORD_HEADER_BYTES,
    Footer,
    RecordPlace,
    decode_header,
    log_ids,
    log_path,
    read_footer,
)
from magnetar.bookie.storage.ledger_record import record_deleted
from magnetar.bookie.storage.location_index import BATCH_MAX, LocationIndex
from magnetar.bookie.storage.location_runs import NearbyPlaces
from magnetar.bookie.storage.log_usage import LogUsage
from magnetar.bookie.storage.usage_store import UsageStore
from magnetar.env.files.disk import Disk
from magnetar.model.errors import BookieIOError

log = structlog.get_logger(__name__)


class ClosedLog(NamedTuple):
    """``sources``: the logs it was made to replace; ``footer`` None: it has no whole one.
    ``unread``: why header or footer could not be read; then nothing is known of that one."""

    log_id: int
    byte_count: int
    sources: tuple[int, ...]
    footer: Footer | None
    unread: OSError | None = None


def inspect_log(disk: Disk, directory: Path, log_id: int) -> ClosedLog:
    """Header and footer. A header that is not whole tells of no sources. Raises ``OSError`` if
    there is no such log."""
    path = log_path(directory, log_id)
    size = disk.size(path)
    file = disk.open(path)
    sources: tuple[int, ...] = ()
    footer = unread = None
    try:
        try:
            sources = decode_header(file.pread(HEADER_BYTES, 0), log_id) or ()
        except OSError as error:
            unread = error
        try:  # each by itself: one bad sector hides one of them
            footer = read_footer(file, log_id, size)
        except OSError as error:
            unread = error
    finally:
        file.close()
    if unread is not None:
        log.error("entry log cannot be read in places", path=str(path), error=str(unread))
    return ClosedLog(log_id, size, sources, footer, unread)


class DeadLedgers(Container[int]):
    """The ledgers of which it is certain that they were deleted, durably. Asked on one thread,
    which need not be the flush lane's."""

    def __init__(self, index: LocationIndex, stored: UsageStore) -> None:
        self._index = index
        self._stored = stored
        self._known: dict[int, bool] = {}

    def __contains__(self, ledger_id: object) -> bool:
        assert isinstance(ledger_id, int)
        known = self._known.get(ledger_id)
        if known is None:
            known = self._known[ledger_id] = self._dead(ledger_id)
        return known

    def _dead(self, ledger_id: int) -> bool:
        if self._stored.dead_early(ledger_id):
            return True
        try:
            record = self._index.ledger(ledger_id)
        except BookieIOError:
            return False  # whoever asks for the ledger is told
        # In this order: what a flush has written and not synced is undecided from before it is in
        # the index until it is durable.
        return (
            record is not None and record_deleted(record) and not self._stored.undecided(ledger_id)
        )


class Reclaimer:
    """``removed`` is told of logs that are no more: an open file keeps its space."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        index: LocationIndex,
        removed: Callable[[Sequence[int]], None],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._index = index
        self._removed = removed
        self.usage = LogUsage()
        self.stored = UsageStore(index, self.usage)
        self._found_max = 0
        self.unfinished: list[ClosedLog] = []
        self.unknown: list[int] = []
        """Logs of which the index says nothing: a crash came before they were settled, or an older
        version wrote them. Whoever has the time looks at them again, and counts their ledgers."""
        self._unsure: dict[int, None] = {}
        """Ledgers counted as living because the index could not be asked of them."""

    def open(self) -> int:
        """Look at the logs; returns the highest id that one may have had (0: there is none). Of
        those that the index knows nothing is read."""
        ids = log_ids(self._disk.list(self._directory))
        self.stored.open(ids)
        for log_id in ids:
            if log_id in self.stored:
                continue
            found = inspect_log(self._disk, self._directory, log_id)
            if any(source in ids for source in found.sources):
                self.unfinished.append(found)
            else:
                self.unknown.append(log_id)
        sources = {source for each in self.unfinished for source in each.sources}
        self.unknown = [log_id for log_id in self.unknown if log_id not in sources]
        self._found_max = max([*ids, self.stored.highest], default=0)
        return self._found_max

    def replaces_any(self, found: ClosedLog) -> bool:
        """Whether some log that it was made to replace is there still. Raises ``OSError``."""
        there = log_ids(self._disk.list(self._directory)) if found.sources else ()
        return any(source in there for source in found.sources)

    def deleted(self, ledger_id: int) -> bool:
        """Whether it is certain that the ledger was deleted, durably."""
        if self.stored.dead_early(ledger_id):
            return True
        try:
            record = self._index.ledger(ledger_id)
        except BookieIOError as error:  # whoever asks for the ledger is told as well
            return self._not_known(ledger_id, error)
        return self._says_deleted(ledger_id, record)

    def _says_deleted(self, ledger_id: int, record: bytes | None) -> bool:
        """Not by a flush that failed behind its deletions: they may be lost, and no journal need
        know of them. It is repeated, and takes what the ledger has by then."""
        deleted = record is not None and record_deleted(record)
        return deleted and not self.stored.undecided(ledger_id)

    def _gone(self, ledger_id: int) -> bool:
        """Of a ledger in a log that an earlier life of the bookie wrote: deleted, or the index has
        nothing of it. Then its flush was cut short, and what was acknowledged of it is flushed
        again, elsewhere; nobody would ever delete it here."""
        try:
            if self._index.ledger(ledger_id) is None:
                return not self._index.entry_ids(ledger_id, at_most=1)
        except BookieIOError as error:
            return self._not_known(ledger_id, error)
        return self.deleted(ledger_id)

    def _not_known(self, ledger_id: int, error: BookieIOError) -> bool:
        """It counts as living, and is asked for again: the error may pass."""
        if ledger_id not in self._unsure:
            log.warning("ledger counted as living for now", ledger=ledger_id, error=str(error))
        self._unsure[ledger_id] = None
        return False

    def _ask_again(self) -> None:
        """Of the ledgers of which the index could not be asked, those that it says are deleted."""
        before = list(self._unsure)
        try:
            for ledger_id in before:
                if self._says_deleted(ledger_id, self._index.ledger(ledger_id)):
                    self.stored.forget_unstored(ledger_id)
                del self._unsure[ledger_id]
        except BookieIOError:
            return  # the next call goes on here; it has been told already

    def add(
        self,
        log_id: int,
        byte_count: int,
        ledgers: Mapping[int, Sequence[int]],
        settled: bool = False,
        for_now: bool = False,
    ) -> None:
        """A log takes no more. ``byte_count``: up to the end of its records. Its header does not
        count: a log that is all alive must not look as if compaction made it any smaller.
        ``for_now``: it could not be read through, and will be added anew."""
        if log_id in self.stored:
            return  # counted anew, for a compaction that was cut short
        dead = self._gone if log_id <= self._found_max else self.deleted
        shares = {
            ledger_id: 0 if dead(ledger_id) else counts[1] + counts[0] * RECORD_HEADER_BYTES
            for ledger_id, counts in ledgers.items()
        }
        unsure = frozenset(self._unsure).intersection(shares)
        size = byte_count - HEADER_BYTES
        self.usage.add(log_id, size, sum(shares.values()), settled)
        self.stored.add(log_id, size, shares, settled, unsure, for_now)

    def live_bytes(self, ledgers: Mapping[int, Sequence[int]]) -> int:
        """Of records, ledger id -> (entries, bytes), those of ledgers that are not deleted."""
        return sum(
            counts[1] + counts[0] * RECORD_HEADER_BYTES
            for ledger_id, counts in ledgers.items()
            if not self.deleted(ledger_id)
        )

    def settle(self, below: int) -> None:
        """Logs with smaller ids are settled: what they hold of use may be stored."""
        self._ask_again()
        self.stored.store(below, self._unsure)

    def dead_ledgers(self) -> DeadLedgers:
        """Those that are deleted, durably, for who goes over a log in another lane."""
        return DeadLedgers(self._index, self.stored)

    def remove_dead(self, below: int) -> list[int]:
        """Remove the settled logs (all with ids under ``below``) that have deleted ledgers only;
        returns their ids. Call when the deletions are durable. Those that cannot be removed stay,
        until the next call: nothing else depends on it."""
        self._ask_again()
        try:
            return self.remove(dead(self.usage.uses(below)))
        except OSError as error:
            path = str(self._directory)
            log.error("entry logs cannot be removed for now", directory=path, error=str(error))
            return []

    def remove(self, ids: Sequence[int]) -> list[int]:
        """Those of them that are there; returns their ids. Raises ``OSError`` when it has removed
        what can be removed."""
        names = self._disk.list(self._directory) if ids else []
        gone: list[int] = []
        failed: dict[int, OSError] = {}
        for log_id in log_ids(names):
            if log_id in ids:
                try:
                    self._disk.remove(log_path(self._directory, log_id))
                    gone.append(log_id)
                except OSError as error:
                    failed[log_id] = error
        self.usage.drop(log_id for log_id in ids if log_id not in failed)
        self.stored.drop(log_id for log_id in ids if log_id not in failed)
        if gone:
            self._removed(gone)
            self._disk.sync_dir(self._directory)
            log.info("entry logs removed", directory=str(self._directory), logs=gone)
        if failed:
            raise next(iter(failed.values()))
        return gone

    # -- the steps of a compaction that change the index --------------------------------------

    def move(self, log_id: int, places: Sequence[RecordPlace], sources: frozenset[int]) -> int:
        """Point the index to ``places`` of ``log_id`` where it points into ``sources``; returns
        how many that were. At most ``BATCH_MAX`` places."""
        assert len(places) <= BATCH_MAX
        rows = []
        find = NearbyPlaces(self._index.run).location
        for ledger_id, entry_id, offset, _ in places:
            location = find(ledger_id, entry_id)
            if location is not None and location[0] in sources:
                rows.append((ledger_id, entry_id, log_id, offset))
        if rows:
            self._index.put_locations(rows)
        return len(rows)

    def replace(self, log_id: int, footer: Footer, sources: Sequence[int]) -> list[int]:
        """All has been moved: make it durable, then remove the sources. Returns their ids. The
        new log is settled, though its id is behind that of the one that flushes write to."""
        self._index.sync()
        gone = self.remove(sources)
        self.add(log_id, footer.offset, footer.ledgers, settled=True)
        self.stored.drop(sources, footer.ledgers)
        self.settle(0)
        return gone
