"""Ring 2: auto-recovery with one of its rules broken each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from magnetar.ledger.replies import Refusal
from magnetar.repair import checking, copying, ledger_repair, superfluous
from magnetar.repair.auditor import Auditor
from magnetar.repair.checking import Checker
from magnetar.repair.copies import Standing, parts_of
from magnetar.repair.copying import Copier
from magnetar.repair.ledger_repair import LedgerRepair
from magnetar.repair.marks import ShortageMarks
from magnetar.repair.silences import Silences
from magnetar.wire.bookie.availability import Group
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 1000
EVERYTHING = (Group(0, 0, 2**31 - 1, 0),)


def _named_before_copies() -> AbstractContextManager[None]:
    """The metadata names a bookie at once; its copies come later, in the next round."""

    async def copy(self: Any, metadata: Any, part: Any, targets: Sequence[Any]) -> Any:
        named = [each for each in targets if each.bookie_id in part.fragment.bookies]
        return await original(self, metadata, part, named) if named else None

    original = Copier.copy
    return replaced((Copier, "copy", copy))


def _answers_are_not_awaited() -> AbstractContextManager[None]:
    async def add(
        client: Any, ledger_id: int, key: bytes, entries: Any, flags: Any, timeout_s: float
    ) -> None:
        ids, data = [each.entry_id for each in entries], [each.data for each in entries]
        client.add_entries(ledger_id, key, ids, data, flags, lambda error, entry_ids: None)

    return replaced((copying, "add_copies", add))


def _writes_without_compare() -> AbstractContextManager[None]:
    original = LedgerRepair._name

    async def name(self: Any, metadata: Any, version: int, part: Any, chosen: Any) -> None:
        await original(self, metadata, -1, part, chosen)

    return replaced((LedgerRepair, "_name", name))


def _silence_is_taken_for_yes() -> AbstractContextManager[None]:
    original = Checker._ask

    async def ask(self: Any, metadata: Any, bookie_id: Any, durably: bool) -> Any:
        told = await original(self, metadata, bookie_id, durably)
        return EVERYTHING if isinstance(told, Refusal) else told

    return replaced((Checker, "_ask", ask))


def _ends_are_enough() -> AbstractContextManager[None]:
    """Whoever has the first and the last entry of its share has all of it."""
    original = Checker._missing

    async def missing(self: Any, part: Any, slot: int, quorum: int, groups: Any) -> Any:
        found = await original(self, part, slot, quorum, groups)
        size = len(part.fragment.bookies)
        at_ends = found and (
            found[0].start < part.entry_ids.start + size
            or found[-1].stop > part.entry_ids.stop - size
        )
        return found if at_ends else ()

    return replaced((Checker, "_missing", missing))


def _open_fragments_are_left_alone() -> AbstractContextManager[None]:
    return replaced((checking, "open_lacks", lambda metadata, standings: ()))


def _the_last_part_is_forgotten() -> AbstractContextManager[None]:
    def parts(metadata: Any) -> Any:
        found = parts_of(metadata)
        return found[:-1] if metadata.closed and len(found) > 1 else found

    return replaced((checking, "parts_of", parts), (ledger_repair, "parts_of", parts))


def _a_stripe_is_forgotten() -> AbstractContextManager[None]:
    def is_own(part: Any, slot: int, write_quorum: int, entry_id: int) -> bool:
        size = len(part.fragment.bookies)
        return (slot - entry_id) % size < write_quorum - (size > write_quorum)

    return replaced((copying, "is_own", is_own))


async def _granted(self: Any, ledger_id: int, holder: str) -> bool:
    return True


NO_LOCKS = (ShortageMarks, "lock", _granted)
"""What protects copies that are given up does so without locks, which hide whether it does."""


class _Unwritten:
    def __init__(self, catalog: Any) -> None:
        self.read = catalog.read

    async def write(self, metadata: Any, version: int) -> int:
        return version


def _open_ledgers_are_given_up() -> AbstractContextManager[None]:
    def nobodys(metadata: Any, bookie: Any) -> bool:
        return all(bookie not in one.bookies for one in metadata.fragments)

    return replaced((superfluous, "is_superfluous", nobodys))


def _locks_stay() -> AbstractContextManager[None]:
    async def unlock(self: Any, lock: Any) -> None:
        return

    return replaced((ShortageMarks, "unlock", unlock))


def _only_the_last_fragment_is_audited() -> AbstractContextManager[None]:
    original = Auditor._read

    async def read(self: Any, ledger_ids: Any) -> Any:
        found = await original(self, ledger_ids)
        return [replace(each, fragments=each.fragments[-1:]) for each in found]

    return replaced((Auditor, "_read", read))


def _away_is_taken_for_there() -> AbstractContextManager[None]:
    """A bookie that is not registered, and not lost yet, counts as if it had said that it has
    everything."""
    look, ask = Checker.look, Checker._ask

    async def look_anyhow(self: Any, metadata: Any, standings: Any, durably: bool) -> Any:
        self.mutant_away = {b for b, is_ in standings.items() if is_ is Standing.AWAY}
        there = {
            b: Standing.SERVING if is_ is Standing.AWAY else is_ for b, is_ in standings.items()
        }
        return await look(self, metadata, there, durably)

    async def ask_others(self: Any, metadata: Any, bookie_id: Any, durably: bool) -> Any:
        if bookie_id in getattr(self, "mutant_away", ()):
            return EVERYTHING
        return await ask(self, metadata, bookie_id, durably)

    return replaced((Checker, "look", look_anyhow), (Checker, "_ask", ask_others))


def _unmarks_without_compare() -> AbstractContextManager[None]:
    original = ShortageMarks.unmark

    async def unmark(self: Any, lock: Any, version: int) -> bool:
        return await original(self, lock, -1)

    return replaced((ShortageMarks, "unmark", unmark))


def _silent_bookies_keep_their_places() -> AbstractContextManager[None]:
    return replaced((Silences, "_counts", lambda self, told: False))


def _a_deaf_auditor_stays() -> AbstractContextManager[None]:
    return replaced((Silences, "cut_off", False))


def _what_was_not_read_is_forgotten() -> AbstractContextManager[None]:
    """A reader gives the first entries of what it is asked for; the others are not asked for
    again."""
    return replaced((copying, "_put_back", lambda left, wanted, found: None))


def _mutant(name: str, known: str, plant: Any) -> Mutant:
    return Mutant(name, 2, known, plant, SEEDS_MAX, kind="repaired")


REPAIRS = (
    _mutant("a bookie is named before it has its copies", "rule 11", _named_before_copies),
    _mutant("copies count before they are answered", "rule 11", _answers_are_not_awaited),
    _mutant("a repair writes metadata without compare", "rule 11", _writes_without_compare),
    _mutant("a bookie that is silent has everything", "", _silence_is_taken_for_yes),
    _mutant("first and last entry stand for all", "LedgerChecker", _ends_are_enough),
    _mutant("repair leaves open fragments alone", "", _open_fragments_are_left_alone),
    _mutant("repair forgets the last fragment", "", _the_last_part_is_forgotten),
    _mutant("repair forgets a stripe", "", _a_stripe_is_forgotten),
    _mutant("a repair's lock stays", "", _locks_stay),
    _mutant("only last fragments are audited", "", _only_the_last_fragment_is_audited),
    _mutant("a bookie that is away has everything", "", _away_is_taken_for_there),
    _mutant("copies of an open ledger are given up", "", _open_ledgers_are_given_up),
    _mutant("a mark is taken away without compare", "", _unmarks_without_compare),
    _mutant("a silent bookie keeps its places", "", _silent_bookies_keep_their_places),
    _mutant("an auditor that hears nobody stays", "", _a_deaf_auditor_stays),
    _mutant("what a read did not give is not copied", "", _what_was_not_read_is_forgotten),
)
