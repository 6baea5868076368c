"""Ring 2: recoveries and tail readers with one rule of the protocol broken each."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Any

from magnetar.ledger import client
from magnetar.ledger.bookies import AddFlag, ReadFlag
from magnetar.ledger.catalog.stored_ledger import RecoveringLedger
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.ledger.recovering import last_confirmed, recovery, recovery_reads
from magnetar.ledger.recovering.last_confirmed import read_last_confirmed
from magnetar.ledger.recovering.recovery_plan import LacCoverage
from magnetar.ledger.recovering.recovery_reads import RecoveryReads, _WindowReading
from magnetar.ledger.replies import Refusal
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.model.errors import BookieUnavailableError
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 1500
RETRY_S = 0.2


async def _fence_lac_only(metadata: Any, pool: Any, timeout_s: float, flags: ReadFlag) -> Any:
    return await read_last_confirmed(metadata, pool, timeout_s, flags | ReadFlag.FENCE)


def _lac_only_fencing() -> AbstractContextManager[None]:
    return replaced(
        (recovery, "FENCING", ReadFlag.HIGH_PRIORITY),
        (recovery, "read_last_confirmed", _fence_lac_only),
    )


def _earlier_fragment() -> AbstractContextManager[None]:
    return replaced((LacCoverage, "start_after", lambda self, first: self.last_add_confirmed))


def _truncates_on_unknown() -> AbstractContextManager[None]:
    def count(vote: Any, told: Any) -> None:
        if isinstance(told, Refusal):
            vote.negative()
        else:
            vote.found(told)

    return replaced((recovery_reads, "_count", count))


def _recovery_flag_lost() -> AbstractContextManager[None]:
    original = LedgerWriter.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        if options.get("flags"):
            options["flags"] = options["flags"] & ~AddFlag.RECOVERY
        original(self, *args, **options)

    return replaced((LedgerWriter, "__init__", init))


def _waits_for_every_bookie() -> AbstractContextManager[None]:
    """A bookie that hangs is asked until it answers, and every one is waited for."""
    ask = _WindowReading._ask

    async def ask_again(self: Any, bookie_id: Any, run: range) -> Any:
        while True:
            told = await ask(self, bookie_id, run)
            if not isinstance(told, Refusal) or not isinstance(told.error, BookieUnavailableError):
                return told
            await asyncio.sleep(RETRY_S)

    async def run(self: Any) -> Any:
        try:
            await asyncio.gather(*self._readers())
        finally:
            await self._scope.close()
        return self._copies

    return replaced((_WindowReading, "_ask", ask_again), (_WindowReading, "run", run))


class _ReadsOfTheChanged(RecoveryReads):
    """Asks whoever the ensemble names now, replacements by this recovery included."""

    stored: Any = None

    @property
    def metadata(self) -> Any:
        return self._first if self.stored is None else self.stored.metadata

    @metadata.setter
    def metadata(self, metadata: Any) -> None:
        self._first = metadata


def _reads_the_changed_ensemble() -> AbstractContextManager[None]:
    original = recovery._Recovery.__init__

    def init(self: Any, stored: Any, context: Any) -> None:
        original(self, stored, context)
        self._reads.stored = stored

    return replaced(
        (recovery, "RecoveryReads", _ReadsOfTheChanged), (recovery._Recovery, "__init__", init)
    )


def _changes_stored_at_once() -> AbstractContextManager[None]:
    """A recovery's ensemble change is in the metadata before what it wrote again is there."""

    async def replace_bookies(self: Any, first_entry_id: int, replacements: Any) -> None:
        wanted = self._with_replacements(self.metadata, first_entry_id, replacements)
        if not await self._write(wanted):
            raise self._lost((await self._read())[0])

    return replaced((RecoveringLedger, "replace_bookies", replace_bookies))


def _no_entry_of_all() -> AbstractContextManager[None]:
    """A bookie's "no such entry" counts for all of the run that it was asked for."""
    original = _WindowReading._count_all

    def count_all(self: Any, bookie_id: Any, run: range, told: Any) -> int:
        about = original(self, bookie_id, run, told)
        if isinstance(told, Refusal):
            for first in range(run.start + about, run.stop):
                original(self, bookie_id, range(first, first + 1), told)
            return len(run)
        return about

    return replaced((_WindowReading, "_count_all", count_all))


def _does_not_write_again() -> AbstractContextManager[None]:
    """What a recovery finds on one bookie stays on that one."""

    async def append(self: Any, after: int, copies: Any) -> None:
        return

    async def close(self: Any, start_after: int, last: int) -> Any:
        return await self._stored.close(last, await self._length_at(last))

    return replaced((recovery._Rewrites, "append", append), (recovery._Recovery, "_close", close))


def _close_without_compare() -> AbstractContextManager[None]:
    original = RecoveringLedger.close

    async def close(self: Any, last_entry_id: int, length: int) -> Any:
        self.version = -1
        return await original(self, last_entry_id, length)

    return replaced((RecoveringLedger, "close", close))


async def _told_only(metadata: Any, pool: Any, timeout_s: float, flags: ReadFlag) -> Any:
    asking = last_confirmed._Asking(metadata, pool, timeout_s, flags)
    told = await asking.run()
    return told._replace(start_after=asking._coverage.last_add_confirmed)


def _hole_before_a_fragment() -> AbstractContextManager[None]:
    """A reader of an open ledger believes its bookies alone: those of a fresh fragment know of
    nothing, and the end of the one before it cannot be read."""
    return replaced((client, "read_last_confirmed", _told_only))


def _reads_past_the_end() -> AbstractContextManager[None]:
    """A reader gives what bookies hold, also past where the ledger was closed."""
    original = LedgerReader.read

    async def read(self: Any, first: int, max_entries: int, max_bytes: int) -> Any:
        end, self.last_add_confirmed = self.last_add_confirmed, first + max_entries
        try:
            return await original(self, first, max_entries, max_bytes)
        finally:
            self.last_add_confirmed = end

    return replaced((LedgerReader, "read", read))


def _mutant(name: str, known: str, plant: Any) -> Mutant:
    return Mutant(name, 2, known, plant, SEEDS_MAX)


RECOVERIES = (
    _mutant("only LAC reads fence", "#2614, rule 7", _lac_only_fencing),
    _mutant("recovery starts in an earlier fragment", "#2615, rule 7", _earlier_fragment),
    _mutant("recovery truncates on unknown", "rule 7", _truncates_on_unknown),
    _mutant("one negative stands for a run of entries", "rule 7", _no_entry_of_all),
    _mutant("recovery waits for every bookie", "#1067", _waits_for_every_bookie),
    _mutant("recovery reads from its own replacements", "rule 7", _reads_the_changed_ensemble),
    _mutant("recovery stores its changes before its close", "rule 8", _changes_stored_at_once),
    _mutant("recovery does not write again what it finds", "rule 7", _does_not_write_again),
    _mutant("rewrites lose the recovery flag", "#3783, rule 11", _recovery_flag_lost),
    _mutant("a recovery closes without compare", "rule 5", _close_without_compare),
    _mutant("a reader goes past the end", "rule 9", _reads_past_the_end),
    _mutant("the end before an ensemble change is hidden", "#3917", _hole_before_a_fragment),
)
