"""The way of an add into the write cache and the journal's queue.

Rules:

* An entry is acknowledged after the journal's sync, and readable from the moment it is accepted.
  Only a ledger whose writer asked for it (DEFERRED_SYNC) is answered before.
* Fence check and insert happen in one turn of the loop: after a fence, no add without RECOVERY is
  accepted, and every one accepted before it is found by the fencing reader.
* Adds that find the write cache full wait, in order, bounded in bytes and in time; so do those of
  a ledger that is not in memory (``arrivals``).

What is here is done once per run of adds. A writer of many ledgers sends runs of a single entry,
so ``_put`` asks what could speak against an add with a few comparisons, and has the reasons worked
out elsewhere; and the runs of a chunk are one request to the journal, with one answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from magnetar.bookie.core import RunsDone
from magnetar.bookie.journal.journal import Done, Journal, Request
from magnetar.bookie.journal.journal_format import ENTRY
from magnetar.bookie.ledgers.admission import RECOVERY, Admission, check_certain
from magnetar.bookie.ledgers.arrivals import Arrivals
from magnetar.bookie.ledgers.fences import Fences
from magnetar.bookie.ledgers.flusher import Flusher
from magnetar.bookie.ledgers.ledger_state import HeldLedger, inspect_entries
from magnetar.bookie.ledgers.ledger_table import LedgerTable
from magnetar.bookie.ledgers.parking import Add, Parking
from magnetar.bookie.ledgers.reads import EntryReads
from magnetar.config import BookieConfig
from magnetar.model.errors import BookieError, MagnetarError, TooManyRequestsError
from magnetar.wire.bookie.messages import AddRun

DEFERRED_SYNC = 4
"""Add flag: answered once accepted; durable after ``force``."""


class _TakenRuns:
    """Runs of one chunk that the write cache has taken."""

    __slots__ = ("byte_count", "entries", "journal", "runs")

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.runs: list[AddRun] = []
        self.entries: list[bytes] = []
        self.byte_count = 0


def _tell_one(
    done: RunsDone, run: AddRun, error: MagnetarError | None, entry_ids: Sequence[int]
) -> None:
    done(error, (run,), entry_ids)


def _tell_all(
    done: RunsDone, runs: Sequence[AddRun], error: MagnetarError | None, _: Sequence[int]
) -> None:
    done(error, runs, ())


class Adds:
    """On the loop. ``flusher`` and ``parkings`` are set by whoever makes them of this."""

    flusher: Flusher

    def __init__(
        self,
        table: LedgerTable,
        admission: Admission,
        fences: Fences,
        reads: EntryReads,
        config: BookieConfig,
    ) -> None:
        self._get_loaded = table.get_loaded
        self._table = table
        self._admission = admission
        self._fences = fences
        self._reads = reads
        self._entry_bytes_max = config.entry_bytes_max
        self._pending_bytes_max = config.journal.pending_bytes_max
        self._loop = asyncio.get_running_loop()
        self.giving_up: dict[int, bool] = {}
        """Ledgers that are about to be given up here, and whether somebody has come for them
        since."""
        self.parkings = [
            Parking(self._pending_bytes_max, self._retry, table.hold, table.release)
            for _ in table.storages
        ]
        self._arrivals = [
            Arrivals(self._pending_bytes_max, table.look_up, self._carry_out)
            for _ in table.storages
        ]

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: Done,
    ) -> None:
        """See ``Bookie.add_entries``."""
        try:
            self._add(ledger_id, master_key, entry_ids, entries, flags, done)
        except MagnetarError as error:
            self._loop.call_soon(done, error, entry_ids)

    def add_runs(self, runs: Sequence[AddRun], done: RunsDone) -> None:
        """See ``Bookie.add_runs``."""
        group: _TakenRuns | None = None
        for run in runs:
            if run.flags:
                # Adds of an entry lie in the journal in the order in which the write cache got
                # them, for a replay goes by that: what was collected goes before this one.
                self._append_group(group, done)
                group = None
            each = partial(_tell_one, done, run)
            asked = (run.ledger_id, run.master_key, run.entry_ids, run.entries, run.flags, each)
            try:
                if run.flags:
                    self._add(*asked)
                    continue
                put = self._put(*asked, collected_bytes=group.byte_count if group else 0)
            except MagnetarError as error:
                self._loop.call_soon(each, error, run.entry_ids)
                continue
            if put is None:  # it waits, and all later ones of its ledger do
                continue
            ledger, size = put
            if group is None or group.journal is not ledger.journal:
                self._append_group(group, done)
                group = _TakenRuns(ledger.journal)
            group.runs.append(run)
            group.entries += run.entries
            group.byte_count += size
        self._append_group(group, done)

    def _append_group(self, group: _TakenRuns | None, done: RunsDone) -> None:
        if group is not None:
            answer = partial(_tell_all, done, group.runs)
            group.journal.append(Request(ENTRY, group.entries, group.byte_count, answer, ()))

    def _begins(self, ledger_id: int) -> bool:
        """Whether a ledger never heard of cannot have been here before, so nothing of it is lost:
        its id is new. That its first entry comes says nothing: it may have been fenced before, and
        its old writer knows nothing of that."""
        return ledger_id >= self._table.new_from

    def waits_for_lookup(self, ledger_id: int) -> bool:
        """Whether adds of the ledger wait until it is looked up."""
        return self._arrivals[self._table.storage_of(ledger_id).index].has(ledger_id)

    def refuse_waiting(self, error: BookieError) -> None:
        """Whatever has not been taken yet is told so."""
        for parking in self.parkings:
            parking.refuse_all(error)
        for arrivals in self._arrivals:
            arrivals.refuse_all(error)

    def _retry(self, add: Add) -> None:
        self._add(*add, parked=True)

    def _carry_out(self, add: Add) -> None:
        self._add(*add)

    def _arrive(self, add: Add, size: int) -> None:
        """Its ledger has to be looked up first."""
        self._admission.check_open()
        if add.ledger_id in self.giving_up:
            self.giving_up[add.ledger_id] = True
        self._arrivals[self._table.storage_of(add.ledger_id).index].wait(add, size)

    def _add(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: Done,
        parked: bool = False,
    ) -> None:
        put = self._put(ledger_id, master_key, entry_ids, entries, flags, done, parked)
        if put is None:
            return
        ledger, size = put
        journal = ledger.journal
        if flags & DEFERRED_SYNC and not self._behind(journal):
            self._loop.call_soon(done, journal.broken, entry_ids)
            journal.append(Request(ENTRY, entries, size, ledger.deferred_ended, entry_ids))
        else:
            journal.append(Request(ENTRY, entries, size, done, entry_ids))

    def _put(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: Done,
        parked: bool = False,
        collected_bytes: int = 0,
    ) -> tuple[HeldLedger, int] | None:
        """Into the write cache: its ledger and how many bytes; whoever calls queues them to the
        ledger's journal in this turn of the loop. None: the add waits, and is taken up later by
        ``_add``. ``collected_bytes``: what else is to be queued."""
        size, lac, last = inspect_entries(ledger_id, entry_ids, entries, self._entry_bytes_max)
        ledger = self._get_loaded(ledger_id)
        if ledger is None and not self._table.is_absent(ledger_id):
            self._arrive(Add(ledger_id, master_key, entry_ids, entries, flags, done), size)
            return None
        if (
            ledger is None
            or ledger.master_key != master_key
            or ledger.fenced
            or ledger.deleted
            or self._admission.hindered
        ):
            if ledger is not None and ledger.deleted and flags & RECOVERY:
                self._admission.check_revival(ledger, master_key)
                self.flusher.want()  # what it waits for, if it is refused
                self._fences.revive(ledger)
            self._admission.check_add(ledger_id, ledger, master_key, flags)
        if self.giving_up and ledger_id in self.giving_up:
            self.giving_up[ledger_id] = True
        storage = self._table.storage_of(ledger_id) if ledger is None else ledger.storage
        if storage.marks.limbo and not flags & RECOVERY:
            check_certain(ledger_id, ledger, self._begins(ledger_id))
        cache = storage.cache
        half = cache.active
        if not parked and (
            half.byte_count >= cache.half_bytes_max or self.parkings[storage.index].waiting
        ):
            add = Add(ledger_id, master_key, entry_ids, entries, flags, done)
            self.parkings[storage.index].park(add, size)
            self.flusher.want()
            return None
        journal = self._table.journal_of(ledger_id) if ledger is None else ledger.journal
        pending_bytes = journal.pending_bytes + collected_bytes
        if pending_bytes and pending_bytes + size > self._pending_bytes_max:
            raise self._too_much(ledger_id, journal)
        if ledger is None or not ledger.master_key:
            begins = not flags & RECOVERY and self._begins(ledger_id)
            ledger = self._fences.bind(ledger_id, ledger, master_key, begins)
        self._tell(ledger, entry_ids, lac, last)
        half.put(ledger_id, entry_ids, entries, size)
        storage.dirty[ledger_id] = ledger
        if half.byte_count >= self.flusher.flush_bytes:
            self.flusher.want()
        return ledger, size

    def _tell(self, ledger: HeldLedger, entry_ids: Sequence[int], lac: int, last: int) -> None:
        """The ledger's state what came."""
        if entry_ids[0] <= ledger.last_entry_id or min(entry_ids) <= ledger.last_entry_id:
            # added again: the newer bytes count
            self._reads.drop_entries(ledger.ledger_id, entry_ids)
        if last > ledger.last_entry_id:
            ledger.last_entry_id = last
        if lac > ledger.lac:
            ledger.lac = lac

    def _behind(self, journal: Journal) -> bool:
        """Whether so much waits for the journal that adds with deferred sync wait as well: their
        answers are what slows a writer down."""
        return journal.pending_bytes > self._pending_bytes_max // 4

    def _too_much(self, ledger_id: int, journal: Journal) -> TooManyRequestsError:
        return TooManyRequestsError(
            f"add to ledger {ledger_id}: {journal.pending_bytes} bytes wait for the journal "
            f"(journal.pending_bytes_max is {self._pending_bytes_max}); try again later"
        )
