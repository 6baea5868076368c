"""Ring 2: collectors, compaction and marks with one rule broken each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, aclosing
from typing import Any

from magnetar.bookie.journal.journal_format import DELETE
from magnetar.bookie.ledgers.fences import Fences
from magnetar.bookie.ledgers.flusher import Flusher
from magnetar.bookie.ledgers.ledger_table import LedgerTable
from magnetar.bookie.replay import Replayer
from magnetar.bookie.space.collector import Collector
from magnetar.bookie.space.compactor import Compactor
from magnetar.bookie.space.log_counts import LogCounts
from magnetar.bookie.space.missing_ledgers import MissingLedgers
from magnetar.bookie.space.upkeep import Upkeep
from magnetar.bookie.storage import location_index, location_runs, storage
from magnetar.bookie.storage.entry_log import EntryLogReader, EntryLogWriter
from magnetar.bookie.storage.entry_log_format import HEADER_BYTES, encode_footer
from magnetar.bookie.storage.entry_runs import NO_ENTRIES
from magnetar.bookie.storage.ledger_record import record_deleted
from magnetar.bookie.storage.location_index import LocationIndex
from magnetar.bookie.storage.location_runs import LocationRun
from magnetar.bookie.storage.log_usage import LogUsage
from magnetar.bookie.storage.marks import MarkFile
from magnetar.bookie.storage.reclaim import Reclaimer
from magnetar.bookie.storage.storage import LedgerStorage
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.model.errors import MetadataError
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 400


# -- compaction -----------------------------------------------------------------------------------


def _sources_before_the_index() -> AbstractContextManager[None]:
    """The sources go before the index that points to the new log is durable."""

    def replace(self: Any, log_id: int, footer: Any, sources: Sequence[int]) -> Any:
        gone = self.remove(sources)
        self.add(log_id, footer.offset, footer.ledgers, settled=True)
        return gone

    return replaced((Reclaimer, "replace", replace))


def _new_log_not_synced() -> AbstractContextManager[None]:
    """The index is moved to a log, and its sources go, before that log is durable."""

    def sync(self: Any) -> None:
        if not self._sources:
            original_sync(self)

    def finish(self: Any) -> None:
        if not self._sources or self._file is None:
            original_finish(self)
            return
        footer = encode_footer(self._log_id, self._offset, self._ledgers)
        self._file.pwritev([footer], self._offset)
        self.abandon()

    original_sync, original_finish = EntryLogWriter.sync, EntryLogWriter.finish
    return replaced((EntryLogWriter, "sync", sync), (EntryLogWriter, "finish", finish))


def _unfinished_taken_for_done() -> AbstractContextManager[None]:
    """After a crash a compacted log that is whole replaces its sources, moved or not."""

    async def take_up(self: Any, unfinished: Any) -> int:
        if unfinished.footer is None:
            return int(await original(self, unfinished))
        reclaimer = self._storage.reclaimer
        gone = await self._storage.flush_lane.run(
            lambda: reclaimer.replace(unfinished.log_id, unfinished.footer, unfinished.sources)
        )
        return len(gone)

    original = Compactor._take_up
    return replaced((Compactor, "_take_up", take_up))


def _log_without_footer_is_dead() -> AbstractContextManager[None]:
    """A log that a crash left without footer is taken for one that holds nothing."""

    async def count(self: Any, log_id: int) -> None:
        reclaimer = self._storage.reclaimer
        if log_id not in reclaimer.usage:
            await self._storage.flush_lane.run(lambda: reclaimer.add(log_id, 64, {}))

    return replaced((LogCounts, "count", count))


def _moves_what_was_deleted() -> AbstractContextManager[None]:
    """The index is pointed to the new log without a look at what it says by then."""

    def move(self: Any, log_id: int, places: Sequence[Any], sources: frozenset[int]) -> int:
        rows = [(place.ledger_id, place.entry_id, log_id, place.offset) for place in places]
        self._index.put_locations(rows)
        return len(rows)

    return replaced((Reclaimer, "move", move))


def _reader_does_not_look_again() -> AbstractContextManager[None]:
    """A log that was removed since the index was asked: "no such entry"."""

    def read(self: Any, *args: Any) -> Any:
        try:
            return original(self, *args)
        except FileNotFoundError:
            return NO_ENTRIES

    def read_place(self: Any, lane: int, ledger_id: int, entry_id: int, *rest: Any) -> Any:
        try:
            return original_read(self, lane, ledger_id, entry_id, *rest)
        except IndexError:  # the sizes of an empty answer
            return NO_ENTRIES

    original, original_read = EntryLogReader.read, LedgerStorage._read
    return replaced((EntryLogReader, "read", read), (LedgerStorage, "_read", read_place))


def _reader_gives_up() -> AbstractContextManager[None]:
    """A log that was removed since the index was asked: an I/O error."""

    def read(self: Any, *args: Any) -> Any:
        try:
            return original(self, *args)
        except FileNotFoundError as error:
            raise OSError(5, "Input/output error") from error

    original = EntryLogReader.read
    return replaced((EntryLogReader, "read", read))


def _compacted_log_is_kept() -> AbstractContextManager[None]:
    """A compacted log counts only when the log that flushes write to has a later id."""

    def add(
        self: Any, log_id: int, size: int, ledgers: Any, settled: bool = False, **rest: Any
    ) -> None:
        original(self, log_id, size, ledgers, **rest)

    original = Reclaimer.add
    return replaced((Reclaimer, "add", add))


def _takes_what_is_not_settled() -> AbstractContextManager[None]:
    """Compaction takes a log of a flush that will be repeated from behind its entries."""
    original = LogUsage.uses
    return replaced((LogUsage, "uses", lambda self, below: original(self, 1 << 62)))


def _header_counts_as_dead() -> AbstractContextManager[None]:
    """A small log looks as if compaction made it smaller, and so does the one that replaces it."""

    def add(self: Any, log_id: int, byte_count: int, *rest: Any) -> None:
        original(self, log_id, byte_count + HEADER_BYTES, *rest)

    original = LogUsage.add
    return replaced((LogUsage, "add", add))


# -- collecting -----------------------------------------------------------------------------------


def _failed_listing_is_empty() -> AbstractContextManager[None]:
    """A store that cannot be asked has no ledgers."""

    async def look(self: Any) -> list[int]:
        try:
            return list(await original(self))
        except MetadataError:
            return list(await self._bookie.ledgers(0, 1 << 63))

    original = Collector._look_at_ranges
    return replaced((Collector, "_look_at_ranges", look))


def _partial_listing_is_whole() -> AbstractContextManager[None]:
    """What a listing gave before it failed is all that there is, and one look is enough."""

    async def look(self: Any) -> list[int]:
        held = await self._bookie.ledgers(0, 1 << 63)
        found: list[int] = []
        try:
            async with aclosing(self._living()) as ranges:
                async for each in ranges:
                    found += await each.ids()
        except MetadataError:
            if not found:
                raise
        return [ledger_id for ledger_id in held if ledger_id not in found]

    return replaced((Collector, "_look_at_ranges", look), (MissingLedgers, "look", _one_look))


def _one_look(_: Any, held: Sequence[int], living: Any, now_s: float) -> list[int]:
    return [ledger_id for ledger_id in held if ledger_id not in living]


def _store_listed_first() -> AbstractContextManager[None]:
    """The bookie's ledgers are listed after the store's, and one look is enough."""

    async def sweep(self: Any) -> list[int]:
        living: list[int] = []
        async with aclosing(self._living()) as ranges:
            async for each in ranges:
                living += await each.ids()
        gone = [each for each in await self._bookie.ledgers() if each not in living]
        for ledger_id in gone:
            await self._bookie.delete_ledgers([ledger_id])
        return gone

    return replaced((Collector, "sweep", sweep))


def _old_listing_decides() -> AbstractContextManager[None]:
    """A server that lags is believed, and one look is enough."""

    async def living(self: Any, instance_id: str) -> Any:
        async for each in self.ranges():
            yield each

    return replaced((LedgerManager, "living_ranges", living), (MissingLedgers, "look", _one_look))


def _forgotten_without_trace() -> AbstractContextManager[None]:
    """A bookie that has forgotten a ledger takes its writer's adds as those of a new one."""

    def init(self: Any, *args: Any) -> None:
        original_init(self, *args)
        self.get_loaded = lambda ledger_id: remembered(self, ledger_id)

    def remembered(self: Any, ledger_id: int) -> Any:
        state = self._states.get(ledger_id)
        if state is None or not state.deleted or ledger_id in state.storage.deleted:
            return state
        del self._states[ledger_id]
        return None

    def find_blocking(self: Any, ledger_id: int) -> Any:
        original_find(self, ledger_id)
        return remembered(self, ledger_id)

    def looked_up(self: Any, ledger_id: int, record: bytes | None, error: Any) -> None:
        forgotten = record is not None and record_deleted(record)
        original_looked_up(self, ledger_id, None if forgotten else record, error)

    original_init, original_find = LedgerTable.__init__, LedgerTable.find_blocking
    original_looked_up = LedgerTable._looked_up
    return replaced(
        (LedgerTable, "__init__", init),
        (LedgerTable, "find_blocking", find_blocking),
        (LedgerTable, "_looked_up", looked_up),
    )


def _deletion_not_replayed() -> AbstractContextManager[None]:
    def apply(self: Any, position: Any, record: Any) -> None:
        if record.kind != DELETE:
            original(self, position, record)

    original = Replayer.apply
    return replaced((Replayer, "apply", apply))


def _space_kept() -> AbstractContextManager[None]:
    """Logs of deleted ledgers are not removed."""
    return replaced((Reclaimer, "remove_dead", lambda self, below: []))


# -- marks and space ------------------------------------------------------------------------------


def _mark_goes_back() -> AbstractContextManager[None]:
    """The mark that is stored is the one before; journals are given up by the new one."""

    def store(self: Any, marks: Any) -> None:
        before = getattr(self, "before", marks)
        self.before = marks
        original(self, before)

    original = MarkFile.store
    return replaced((MarkFile, "store", store))


def _compaction_moves_the_mark() -> AbstractContextManager[None]:
    """A compaction that is through stores how far the journals are, flushed or not."""

    def init(self: Any, table: Any, *args: Any) -> None:
        original_init(self, table, *args)
        for each in table.storages:
            each.reclaimer_journals = table.journals

    async def finish(self: Any, unfinished: Any, footer: Any) -> int:
        removed = await original(self, unfinished, footer)
        own = self._storage
        marks = own.marks.moved([journal.committed for journal in own.reclaimer_journals])
        await own.flush_lane.run(lambda: own._mark_file.store(marks))
        own.marks = marks
        return int(removed)

    original, original_init = Compactor._finish, Flusher.__init__
    return replaced((Compactor, "_finish", finish), (Flusher, "__init__", init))


def _mark_before_the_index() -> AbstractContextManager[None]:
    """The mark moves before the index that the flush wrote is durable."""

    def write(self: Any, work: Any, positions: Any, paced: bool) -> None:
        kept = self.location_index.sync
        self.location_index.sync = lambda: None
        try:
            original(self, work, positions, paced)
        finally:
            self.location_index.sync = kept

    original = LedgerStorage.write
    return replaced((LedgerStorage, "write", write))


def _entries_without_a_record() -> AbstractContextManager[None]:
    """A flush writes where entries lie and not the record of a ledger that it has one of: what was
    acknowledged since is left in the index for nobody."""

    def write(self: Any, work: Any, positions: Any, paced: bool) -> None:
        known = self.location_index.ledger
        new = [row for row in work.records if known(row[0]) is None]
        original(self, work._replace(records=new), positions, paced)

    original = LedgerStorage.write
    return replaced((LedgerStorage, "write", write))


def _stays_read_only() -> AbstractContextManager[None]:
    """A bookie whose disk was nearly full once is read-only until a restart."""

    def look(self: Any) -> None:
        before = self.level
        original(self)
        self.level = max(before, self.level)

    original = Upkeep.look
    return replaced((Upkeep, "look", look))


def _freed_before_it_is_durable() -> AbstractContextManager[None]:
    """A ledger is deleted in memory only: a crash brings it back."""

    async def delete(
        self: Any, ledger_ids: Sequence[int], unless: Callable[[], bool] = lambda: False
    ) -> bool:
        async with self._table.loaded(ledger_ids):
            if unless():
                return False
            for ledger_id in ledger_ids:
                found = self._table.get_loaded(ledger_id)
                dirty = found is None or ledger_id in found.storage.dirty
                ledger = self.mark_deleted(ledger_id)
                if ledger is not None:
                    ledger.storage.deletion_journaled(ledger_id)
                    if not dirty:
                        del ledger.storage.dirty[ledger_id]
                    await ledger.storage.free_deleted()
        return True

    return replaced((Fences, "delete", delete))


def _rest_of_a_run_is_lost() -> AbstractContextManager[None]:
    """Of a row that a run overlaps, what lies behind the run goes with what the run replaces."""

    def replacing(rows: Sequence[LocationRun], run: LocationRun) -> list[LocationRun]:
        return [left for left in original(rows, run) if left.last < run.first]

    original = location_runs.replacing
    return replaced((location_index, "replacing", replacing))


def _nothing_is_replaced() -> AbstractContextManager[None]:
    """A run is put beside older rows of its entries: a lookup finds the first that it comes to."""
    return replaced((LocationIndex, "_look", lambda self, run: ([], False)))


def _one_row_is_replaced() -> AbstractContextManager[None]:
    """Of the rows that a run overlaps only the first is taken for replaced."""

    def look(self: Any, run: LocationRun) -> tuple[list[LocationRun], bool]:
        rows, more = original(self, run)
        return rows[:1], more

    original = LocationIndex._look
    return replaced((LocationIndex, "_look", look))


def _gap_is_taken_for_a_run() -> AbstractContextManager[None]:
    """Entries of a flush that lie side by side are one run, whatever ids they have."""

    def runs_of(
        ledger_id: int, entry_ids: Sequence[int], log_id: int, offsets: Sequence[int]
    ) -> list[LocationRun]:
        return [location_runs.run_of(ledger_id, entry_ids[-1], log_id, offsets)]

    return replaced((storage, "runs_of", runs_of))


def _end_is_known_too_early() -> AbstractContextManager[None]:
    """After a run was put between others its last entry is taken for the ledger's: the next one is
    put without a look at what is there."""

    def look(self: Any, run: LocationRun) -> tuple[list[LocationRun], bool]:
        rows, _ = original(self, run)
        return rows, False

    original = LocationIndex._look
    return replaced((LocationIndex, "_look", look))


UPKEEP = tuple(
    Mutant(name, 2, known, plant, SEEDS_MAX, upkeep=True)
    for name, known, plant in (
        ("sources are removed before the index is synced", "", _sources_before_the_index),
        ("a compacted log is not synced", "", _new_log_not_synced),
        ("an unfinished compaction counts as done", "", _unfinished_taken_for_done),
        ("a log without footer counts as empty", "", _log_without_footer_is_dead),
        ("compaction moves deleted entries", "", _moves_what_was_deleted),
        ("a reader of a removed log: no such entry", "", _reader_does_not_look_again),
        ("a reader of a removed log: an I/O error", "", _reader_gives_up),
        ("a compacted log is kept while no add comes", "", _compacted_log_is_kept),
        ("compaction takes logs that are not settled", "", _takes_what_is_not_settled),
        ("a log's header counts as dead bytes", "", _header_counts_as_dead),
        ("a failed listing: all is deleted", "", _failed_listing_is_empty),
        ("a partial listing: the rest is deleted", "", _partial_listing_is_whole),
        ("the store is listed before the bookie", "", _store_listed_first),
        ("an old listing decides", "", _old_listing_decides),
        ("writes after the deletion of a fenced ledger", "#4462", _forgotten_without_trace),
        ("a deletion is not replayed", "", _deletion_not_replayed),
        ("a deletion is not journaled", "", _freed_before_it_is_durable),
        ("logs of deleted ledgers are kept", "", _space_kept),
        ("the mark goes back", "#4105, #4740", _mark_goes_back),
        ("compaction moves the mark", "", _compaction_moves_the_mark),
        ("the mark moves before the index is synced", "", _mark_before_the_index),
        ("a flush writes a ledger's first record only", "", _entries_without_a_record),
        ("a full disk makes read-only for good", "", _stays_read_only),
        ("what a run leaves of another is lost", "", _rest_of_a_run_is_lost),
        ("a run is put beside what it replaces", "", _nothing_is_replaced),
        ("a run replaces one row of several", "", _one_row_is_replaced),
        ("a gap is taken for a run", "", _gap_is_taken_for_a_run),
        ("a ledger's end is known too early", "", _end_is_known_too_early),
    )
)
