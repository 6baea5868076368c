"""Ring 2: bookies that mistake one directory for all of them, or trouble for an end."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.journal.journal_files import JournalDirectory
from magnetar.bookie.ledgers.adds import Adds
from magnetar.bookie.ledgers.admission import RECOVERY
from magnetar.bookie.ledgers.fences import Fences
from magnetar.bookie.ledgers.flusher import Flusher
from magnetar.bookie.ledgers.ledger_state import HeldLedger
from magnetar.bookie.ledgers.ledger_table import LedgerTable
from magnetar.bookie.storage.storage import LedgerStorage
from magnetar.model.errors import BookieIOError
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 3000


def _failed_flush_is_forgotten() -> AbstractContextManager[None]:
    """Ledgers whose flush failed are let go of when another directory's succeeds."""

    async def flush(self: Any, index: int) -> None:
        self.mutant_under_way = getattr(self, "mutant_under_way", 0) + 1
        shrink = self._table.shrink

        async def shrink_alone() -> None:
            if self.mutant_under_way <= 1:
                await shrink()

        try:
            self._table.shrink = shrink_alone
            await original(self, index)
        finally:
            self._table.shrink = shrink
            self.mutant_under_way -= 1

    original = Flusher._flush
    return replaced(
        (LedgerStorage, "is_unwritten", lambda self, ledger_id: ledger_id in self.dirty),
        (Flusher, "_flush", flush),
    )


def _fence_goes_with_the_ledger() -> AbstractContextManager[None]:
    """A fence does not make its ledger dirty: it is in the journal and in memory, and forgotten
    with the ledger."""

    async def fence(self: Any, ledger_id: int, master_key: bytes) -> Any:
        known = await self._table.load(ledger_id)
        clean = known is not None and ledger_id not in known.storage.dirty
        ledger = await original(self, ledger_id, master_key)
        if clean:
            ledger.storage.dirty.pop(ledger_id, None)
        return ledger

    original = Fences.fence
    return replaced((Fences, "fence", fence))


def _force_tells_nothing() -> AbstractContextManager[None]:
    """What a full journal has refused of a ledger with deferred sync is not held against force."""
    return replaced((HeldLedger, "deferred_ended", lambda self, error, entry_ids: None))


def _waiting_adds_stall() -> AbstractContextManager[None]:
    """Adds that wait for room are looked at when a flush has ended, and only then."""

    async def flush(self: Any, index: int) -> None:
        go_on, self._go_on = self._go_on, lambda index: None
        try:
            await original(self, index)
        finally:
            self._go_on = go_on
        cache = self._table.storages[index].cache
        self._parkings[index].drain(lambda: cache.full)

    original = Flusher._flush
    return replaced((Flusher, "_flush", flush))


def _full_journal_ends_the_close() -> AbstractContextManager[None]:
    """A close ends where a journal cannot commit: what comes behind it stays open."""

    async def close(self: Any) -> None:
        barriers = [journal.barrier for journal in self._journals]
        if not self._admission.closed:
            self._admission.closed = True
            self._admission.look()
            await self._flusher.stop()
            await self._upkeep.stop()
            self._adds.refuse_waiting(BookieIOError("the bookie is closing"))
            for barrier in barriers:
                await barrier()
            await self._flusher.flush_all()
            await self._close_parts()

    return replaced((Bookie, "close", close))


def _bad_sector_stops_the_start() -> AbstractContextManager[None]:
    """A journal with a sector that cannot be read is not read at all."""

    def read(self: Any, file_id: int, offset: int) -> tuple[bytes, list[tuple[int, int]]]:
        path = self.file_path(file_id)
        file = self._disk.open(path)
        try:
            return file.pread(max(self._disk.size(path) - offset, 0), offset), []
        finally:
            file.close()

    return replaced((JournalDirectory, "read", read))


def _two_lookups_of_a_ledger() -> AbstractContextManager[None]:
    """Whoever asks for a ledger has it looked up, and every answer counts: a record that was read
    before the ledger was created or changed takes the place of what is in memory."""

    def look_up(self: Any, ledger_id: int, told: Any) -> None:
        def found(record: bytes | None, error: Any) -> None:
            if record is not None:
                self._restore(ledger_id, record)
            if error is None:
                self.hold(ledger_id)
            told(error)
            if error is None:
                self.release(ledger_id)

        self.storage_of(ledger_id).look_up(ledger_id, found)

    return replaced((LedgerTable, "look_up", look_up))


def _waiting_adds_pass_fences() -> AbstractContextManager[None]:
    """Adds that waited for their ledger are taken without a look at what was found."""
    return replaced(
        (Adds, "_carry_out", lambda self, add: self._add(*add._replace(flags=add.flags | RECOVERY)))
    )


DIRECTORIES = tuple(
    Mutant(name, 2, known, plant, SEEDS_MAX)
    for name, known, plant in (
        ("a ledger whose flush failed is forgotten", "", _failed_flush_is_forgotten),
        ("a fence is forgotten with its ledger", "", _fence_goes_with_the_ledger),
        ("force does not tell of refused entries", "", _force_tells_nothing),
        ("adds that wait for room stall", "", _waiting_adds_stall),
        ("a full journal ends the close", "", _full_journal_ends_the_close),
        ("an unreadable sector of a journal stops the start", "", _bad_sector_stops_the_start),
        ("a ledger is looked up twice, and the later answer counts", "", _two_lookups_of_a_ledger),
        ("adds that waited for a lookup pass a fence", "", _waiting_adds_pass_fences),
    )
)
