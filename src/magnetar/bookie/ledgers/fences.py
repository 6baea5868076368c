"""What is written of a ledger beside its entries: its key, its fence, its explicit LAC, its end.

Rules:

* The first add or fence of a ledger binds its master key; both are in the journal before any
  entry or answer that depends on them.
* A fence is durable before it is answered, by whichever reader.
* From the look at a ledger's state to what is made of it nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from magnetar.bookie.core import LacSource
from magnetar.bookie.journal.journal import Journal, Request
from magnetar.bookie.journal.journal_format import (
    DELETE,
    LAC,
    LEDGER,
    REVIVE,
    encode_delete,
    encode_lac,
    encode_ledger,
    encode_revive,
)
from magnetar.bookie.ledgers.admission import RECOVERY, Admission, check_key, check_key_length
from magnetar.bookie.ledgers.ledger_state import LAC_BODY_BYTES_MAX, HeldLedger
from magnetar.bookie.ledgers.ledger_table import LedgerTable
from magnetar.bookie.ledgers.reads import EntryReads
from magnetar.model.errors import BadRequestError, NoLedgerError, TooManyRequestsError


class Fences:
    """On the loop."""

    def __init__(self, table: LedgerTable, admission: Admission, reads: EntryReads) -> None:
        self._table = table
        self._admission = admission
        self._reads = reads
        self.lac_sources: list[LacSource] = []
        """Of the writers of this process."""

    def bind(
        self, ledger_id: int, ledger: HeldLedger | None, master_key: bytes, begins: bool = False
    ) -> HeldLedger:
        """Bind the master key: in the journal before whatever depends on it. ``begins``: this is
        the ledger's first entry, so nothing of it can have been lost before."""
        if ledger is None:
            ledger = self._table.create(ledger_id, master_key)
            ledger.epoch = ledger.storage.marks.epoch if begins else 0
        ledger.master_key = master_key
        ledger.storage.dirty[ledger_id] = ledger
        record = encode_ledger(ledger_id, master_key, ledger.fenced)
        ledger.journal.append(Request(LEDGER, (record,), len(record), None, ()))
        return ledger

    async def fence(self, ledger_id: int, master_key: bytes) -> HeldLedger:
        """Fence the ledger, durably; it is created if it is unknown."""
        ledger = await self._table.load(ledger_id)
        self._admission.check_open()
        if ledger is None:
            check_key_length(ledger_id, master_key)
            ledger = self._table.create(ledger_id, master_key)
        elif ledger.deleted:
            raise NoLedgerError(f"ledger {ledger_id} was deleted here")
        else:
            check_key(ledger, master_key)
        if not ledger.fenced:
            ledger.fenced = True
            self.bind(ledger_id, ledger, master_key)
        if not ledger.fence_durable:
            await ledger.journal.barrier()
            ledger.fence_durable = True
        return ledger

    async def write_lac(self, ledger_id: int, master_key: bytes, lac: int, body: bytes) -> None:
        """As ``BookieCore.write_lac``."""
        _check_body(ledger_id, body)
        ledger = await self._table.load(ledger_id)
        self._admission.check_add(ledger_id, ledger, master_key, RECOVERY)
        if ledger is None or not ledger.master_key:
            ledger = self.bind(ledger_id, ledger, master_key)
        _take_lac(ledger, lac, body)
        await ledger.journal.write(LAC, encode_lac(ledger_id, lac, body))

    def ask_for_lac(self, ledger: HeldLedger) -> None:
        """A reader wants to know how far the ledger is confirmed: if it is written in this process,
        its writer knows best."""
        if self._table.get_loaded(ledger.ledger_id) is not ledger:
            return  # forgotten while its reader waited: its record by now may say more
        for source in self.lac_sources:
            told = source(ledger.ledger_id)
            if told is not None:
                _take_lac(ledger, *told)

    def revive(self, ledger: HeldLedger) -> None:
        """A repair adds to a ledger that was deleted here: this bookie is named for it again.
        Raises ``TooManyRequestsError`` until the index knows of the deletion: a flush deletes last,
        and would take what is added now with it."""
        ledger_id, storage = ledger.ledger_id, ledger.storage
        if storage.deletes(ledger_id):
            raise TooManyRequestsError(
                f"ledger {ledger_id} is being deleted here; add to it again when that is done"
            )
        ledger.revive()
        # In the journal before the first entry, which a replay would leave out else; and its record
        # in the index before its entries are (``LedgerStorage.write``), or the log that they are
        # written to would count as one of deleted ledgers only, and be removed.
        record = encode_revive(ledger_id)
        ledger.journal.append(Request(REVIVE, (record,), len(record), None, ()))
        storage.dirty[ledger_id] = ledger
        storage.revived[ledger_id] = ledger

    async def delete(
        self, ledger_ids: Sequence[int], unless: Callable[[], bool] = lambda: False
    ) -> bool:
        """Durably when it returns: a record each, all of a journal's in one commit. Nothing is
        done, and False returned, if ``unless`` says so once all are in memory: whoever comes behind
        that is refused."""
        by_journal: dict[Journal, list[HeldLedger]] = {}
        async with self._table.loaded(ledger_ids):
            self._admission.check_open()
            if unless():
                return False
            for ledger_id in ledger_ids:
                ledger = self.mark_deleted(ledger_id)
                if ledger is not None:
                    by_journal.setdefault(ledger.journal, []).append(ledger)
        for journal, ledgers in by_journal.items():
            await journal.write(DELETE, *(encode_delete(each.ledger_id) for each in ledgers))
            for ledger in ledgers:
                ledger.storage.deletion_journaled(ledger.ledger_id)
        return True

    def mark_deleted(self, ledger_id: int) -> HeldLedger | None:
        """In memory; whoever writes or reads is refused from here on. None: the index has nothing
        of it, or knows of its deletion. It was looked up."""
        ledger = self._table.get_loaded(ledger_id)
        if ledger is None and ledger_id in (self._table.storage_of(ledger_id).strays or ()):
            ledger = self._table.create(ledger_id, b"")
        # A flush that is under way, or has failed, knows of it, and makes nothing durable yet.
        if ledger is None or (ledger.deleted and not ledger.storage.deletes(ledger_id)):
            return None
        ledger.deleted = True
        ledger.storage.cache.drop_ledger(ledger_id)
        ledger.storage.dirty[ledger_id] = ledger
        ledger.storage.deleted[ledger_id] = None
        ledger.storage.revived.pop(ledger_id, None)
        self._reads.drop_ledger(ledger_id)
        return ledger


def _check_body(ledger_id: int, body: bytes) -> None:
    if len(body) > LAC_BODY_BYTES_MAX:
        raise BadRequestError(f"LAC of ledger {ledger_id}: body of {len(body)} bytes")


def _take_lac(ledger: HeldLedger, lac: int, body: bytes) -> None:
    """Of those of a ledger the highest."""
    if lac > ledger.explicit_lac:
        ledger.explicit_lac, ledger.lac_body = lac, bytes(body)
        ledger.storage.dirty[ledger.ledger_id] = ledger
