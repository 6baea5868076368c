"""Ring 2: writers of ledgers with one rule broken each."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from magnetar.ledger.catalog.stored_ledger import StoredLedger
from magnetar.ledger.mending.mending import Mender
from magnetar.ledger.placing.placement import replaced_fragments
from magnetar.ledger.tailing import TailingReader
from magnetar.ledger.writing.deferred_sync import DeferredSync
from magnetar.ledger.writing.ensemble_change import EnsembleChange
from magnetar.ledger.writing.quorum_write import QuorumWrite
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.model.errors import LedgerClosedError, LedgerError, MetadataError
from magnetar.model.ids import BookieId
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 2000


async def _change_at_once(self: Any, owner: Any, replacements: dict[int, BookieId]) -> None:
    """The new bookies are used, and their answers count, before the store names them."""
    machine, stored = self._machine, self._stored
    first_entry_id = machine.begin_change(replacements)
    before = stored.metadata
    fragments = replaced_fragments(before.fragments, first_entry_id, replacements)
    stored.metadata = replace(before, fragments=fragments)
    for resend in machine.change_succeeded(replacements):
        owner.send_again(resend)
    owner.confirm()
    try:
        stored.version = await stored._manager.write(stored.metadata, stored.version)
    except (LedgerError, MetadataError) as error:
        owner.fail(error)


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


def _conflict_taken_for_success() -> AbstractContextManager[None]:
    """A compare-and-set that lost is taken for one that won: two failures and a conflict."""
    original = StoredLedger._write

    async def write(self: Any, wanted: Any) -> bool:
        if not await original(self, wanted):
            self.metadata = wanted
        return True

    return replaced((StoredLedger, "_write", write))


def _close_taken_for_ours() -> AbstractContextManager[None]:
    """A writer whose ledger somebody closed at another place believes that it was itself."""
    original = StoredLedger.close

    async def close(self: Any, last_entry_id: int, length: int) -> Any:
        try:
            return await original(self, last_entry_id, length)
        except LedgerClosedError:
            return self._closed_at(self.metadata, last_entry_id, length)

    return replaced((StoredLedger, "close", close))


def _change_in_any_state() -> AbstractContextManager[None]:
    """A writer changes the ensemble whatever state the ledger is in."""

    async def replace_bookies(self: Any, first_entry_id: int, replacements: Any) -> None:
        wanted = self._with_replacements(self.metadata, first_entry_id, replacements)
        while not await self._write(wanted):
            self.metadata, self.version = await self._read()
            wanted = self._with_replacements(self.metadata, first_entry_id, replacements)

    return replaced((StoredLedger, "replace_bookies", replace_bookies))


def _tells_what_is_not_confirmed() -> AbstractContextManager[None]:
    """Entries carry the last one sent for the last one confirmed."""
    return replaced((LedgerWriter, "_lac_to_tell", lambda self: self._machine.last_add_pushed))


def _taken_counts_as_durable() -> AbstractContextManager[None]:
    """With deferred sync, what bookies have taken counts as forced."""

    async def force(self: Any, length: int) -> None:
        self.last_add_confirmed, self.length = self._taken.last_add_confirmed, length

    return replaced((DeferredSync, "force", force))


def _forgets_an_unread_change() -> AbstractContextManager[None]:
    """Who follows a ledger reads its metadata once per change, whether that works or not."""
    original = TailingReader._keep_metadata

    async def keep(self: Any) -> None:
        try:
            await original(self)
        finally:
            self._unread = False

    return replaced((TailingReader, "_keep_metadata", keep))


def _never_looks_again() -> AbstractContextManager[None]:
    """Who follows a ledger does not look at its metadata after the first time."""
    original = TailingReader._keep_metadata

    async def keep(self: Any) -> None:
        if self._end_watch is None:
            await original(self)

    return replaced((TailingReader, "_keep_metadata", keep))


def _follows_without_fragments() -> AbstractContextManager[None]:
    """Who follows a ledger learns nothing from where its last fragment begins."""
    original = TailingReader._keep_metadata

    async def keep(self: Any) -> None:
        known = self.last_add_confirmed
        await original(self)
        if not self.closed:
            self.last_add_confirmed = known

    return replaced((TailingReader, "_keep_metadata", keep))


def _copies_nothing() -> AbstractContextManager[None]:
    """What a bookie missed is never given to it."""

    async def mend(self: Any, bookie_id: BookieId, ledger_id: int) -> None: ...

    return replaced((Mender, "_mend_ledger", mend))


def _mutant(name: str, known: str, plant: Any) -> Mutant:
    return Mutant(name, 2, known, plant, SEEDS_MAX)


CLIENTS = (
    _mutant(
        "the ensemble is switched before the compare-and-set",
        "#1591, rule 4",
        _ensemble_before_the_store,
    ),
    _mutant(
        "a replaced slot keeps its acknowledgements",
        "#4097, #4651, rule 3",
        _keeps_acknowledgements,
    ),
    _mutant("a lost compare-and-set counts as won", "#1886, rule 4", _conflict_taken_for_success),
    _mutant("an ensemble changes in any state", "rule 4", _change_in_any_state),
    _mutant("another's close counts as one's own", "rule 5", _close_taken_for_ours),
    _mutant("entries tell what is not confirmed", "rule 2", _tells_what_is_not_confirmed),
    _mutant("what is taken counts as durable", "deferred sync", _taken_counts_as_durable),
    _mutant("what a bookie is missing is not given to it", "", _copies_nothing),
    _mutant("a follower forgets a change that it could not read", "", _forgets_an_unread_change),
    _mutant("a follower never looks at the metadata again", "", _never_looks_again),
    _mutant("a follower does not see where a fragment begins", "", _follows_without_fragments),
)
