"""The way of an add into the write cache and the journal's queue.

Rules:

* An entry is acknowledged after the journal's sync, and readable from the moment it is accepted.
  Only a ledger whose writer asked for it (DEFERRED_SYNC) is answered before.
* Fence check and insert happen in one turn of the loop: after a fence, no add without RECOVERY is
  accepted, and every one accepted before it is found by the fencing reader.
* Adds that find the write cache full wait, in order, bounded in bytes and in time; so do those of
  a ledger that is not in memory (``arrivals``).

What is here is done once per run of adds. A writer of many ledgers sends runs of a single entry,
so ``_add`` asks what could speak against an add with a few comparisons, and has the reasons worked
out elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

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

DEFERRED_SYNC = 4
"""Add flag: answered once accepted; durable after ``force``."""


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
        size, lac, last = inspect_entries(ledger_id, entry_ids, entries, self._entry_bytes_max)
        ledger = self._get_loaded(ledger_id)
        if ledger is None and not self._table.is_absent(ledger_id):
            self._arrive(Add(ledger_id, master_key, entry_ids, entries, flags, done), size)
            return
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
            return
        journal = self._table.journal_of(ledger_id) if ledger is None else ledger.journal
        if journal.pending_bytes and journal.pending_bytes + size > self._pending_bytes_max:
            raise self._too_much(ledger_id, journal)
        if ledger is None or not ledger.master_key:
            begins = not flags & RECOVERY and self._begins(ledger_id)
            ledger = self._fences.bind(ledger_id, ledger, master_key, begins)
        self._tell(ledger, entry_ids, lac, last)
        half.put(ledger_id, entry_ids, entries, size)
        storage.dirty[ledger_id] = ledger
        if flags & DEFERRED_SYNC and not self._behind(journal):
            self._loop.call_soon(done, journal.broken, entry_ids)
            journal.append(Request(ENTRY, entries, size, ledger.deferred_ended, entry_ids))
        else:
            journal.append(Request(ENTRY, entries, size, done, entry_ids))
        if half.byte_count >= self.flusher.flush_bytes:
            self.flusher.want()

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
