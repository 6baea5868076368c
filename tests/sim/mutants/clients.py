"""Ring 2: ledger clients with one rule broken each."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from magnetar.ledger import recovery, recovery_reads
from magnetar.ledger.bookies import AddFlag, ReadFlag
from magnetar.ledger.ensemble_change import EnsembleChange
from magnetar.ledger.last_confirmed import read_last_confirmed
from magnetar.ledger.quorum_write import QuorumWrite
from magnetar.ledger.recovery_plan import LacCoverage
from magnetar.ledger.stored_ledger import StoredLedger, replaced_fragments
from magnetar.ledger.writer import LedgerWriter
from magnetar.model.errors import LedgerError, MetadataError
from magnetar.model.ids import BookieId
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 1500


async def _fence_lac_only(metadata: Any, pool: Any, timeout_s: float, flags: ReadFlag) -> Any:
    return await read_last_confirmed(metadata, pool, timeout_s, flags | ReadFlag.FENCE)


def _lac_only_fencing() -> AbstractContextManager[None]:
    return replaced(
        (recovery, "FENCING", ReadFlag.HIGH_PRIORITY),
        (recovery, "read_last_confirmed", _fence_lac_only),
    )


def _earlier_fragment() -> AbstractContextManager[None]:
    return replaced((LacCoverage, "start_after", lambda self, first: self.last_add_confirmed))


async def _change_at_once(self: Any, replacements: dict[int, BookieId]) -> None:
    """The new bookies are used, and their answers count, before the store names them."""
    machine, stored = self._machine, self._stored
    first_entry_id = machine.begin_change(replacements)
    before = stored.metadata
    fragments = replaced_fragments(before.fragments, first_entry_id, replacements)
    stored.metadata = replace(before, fragments=fragments)
    for resend in machine.change_succeeded(replacements):
        self._owner.send_again(resend)
    self._owner.confirm()
    try:
        stored.version = await stored._manager.write(stored.metadata, stored.version)
    except (LedgerError, MetadataError) as error:
        self._owner.fail(error)


def _ensemble_before_the_store() -> AbstractContextManager[None]:
    return replaced((EnsembleChange, "_change", _change_at_once))


def _keeps_acknowledgements() -> AbstractContextManager[None]:
    def keeps(self: Any, slot: int) -> Any:
        mark, beyond = self._marks[slot], set(self._beyond[slot])
        resend = original(self, slot)
        self._marks[slot], self._beyond[slot] = max(mark, self.last_add_confirmed), beyond
        return resend

    original = QuorumWrite._replaced
    return replaced((QuorumWrite, "_replaced", keeps))


def _truncates_on_unknown() -> AbstractContextManager[None]:
    def count(vote: Any, refusals: list[Any], told: Any) -> None:
        if isinstance(told, recovery_reads.Copy):
            vote.found(told)
        else:
            refusals.append(told)
            vote.negative()

    return replaced((recovery_reads, "_count", count))


def _recovery_flag_lost() -> AbstractContextManager[None]:
    original = LedgerWriter.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        if options.get("flags"):
            options["flags"] = options["flags"] & ~AddFlag.RECOVERY
        original(self, *args, **options)

    return replaced((LedgerWriter, "__init__", init))


def _conflict_taken_for_success() -> AbstractContextManager[None]:
    """A compare-and-set that lost is taken for one that won: two failures and a conflict."""
    original = StoredLedger._write

    async def write(self: Any, wanted: Any) -> bool:
        if not await original(self, wanted):
            self.metadata = wanted
        return True

    return replaced((StoredLedger, "_write", write))


CLIENTS = (
    Mutant("only LAC reads fence", 2, "#2614", _lac_only_fencing, SEEDS_MAX),
    Mutant("recovery starts in an earlier fragment", 2, "#2615", _earlier_fragment, SEEDS_MAX),
    Mutant(
        "the ensemble is switched before the compare-and-set",
        2,
        "#1591",
        _ensemble_before_the_store,
        SEEDS_MAX,
    ),
    Mutant(
        "a replaced slot keeps its acknowledgements",
        2,
        "#4097, #4651",
        _keeps_acknowledgements,
        SEEDS_MAX,
    ),
    Mutant("recovery truncates on unknown", 2, "", _truncates_on_unknown, SEEDS_MAX),
    Mutant("rewrites lose the recovery flag", 2, "#3783", _recovery_flag_lost, SEEDS_MAX),
    Mutant(
        "a lost compare-and-set counts as won", 2, "#1886", _conflict_taken_for_success, SEEDS_MAX
    ),
)
