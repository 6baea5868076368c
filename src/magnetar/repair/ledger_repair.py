"""Makes one ledger whole. Requires that the caller holds the ledger's lock.

Round by round: read the metadata, ask the bookies what they hold, and do the next thing that is
missing; the round that finds nothing missing has shown that the ledger is whole. Within a round the
order is the guarantee:

1. The metadata is read before the bookies are asked. What is found missing is found by the very
   version that will be replaced.
2. Copies are made, and are durable, before the metadata names them: a crash in between leaves
   copies too many, and never one that is named and not there.
3. The metadata is changed by compare-and-set on the version of 1. If it has changed meanwhile, by
   a writer, another worker, or a bookie that gives up a copy nobody named, all that was found says
   nothing any more, and a new round begins. What was copied is there still, and is not copied
   again.

A ledger that is still written, with a bookie lost in its last fragment, is taken from its writer
and closed when its grace is over (``turns``); then that fragment is a part like all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

import structlog

from magnetar.ledger.catalog.seam import LedgerCatalog
from magnetar.ledger.placing.placement import Placement, RandomSource
from magnetar.ledger.replies import Refusal
from magnetar.model.errors import (
    BadVersionError,
    BookieUnavailableError,
    LedgerError,
    NoEntryError,
    NoSuchLedgerError,
    TooManyRequestsError,
)
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata
from magnetar.repair.checking import Checker
from magnetar.repair.copies import Cause, Findings, Need, Part, parts_of
from magnetar.repair.copying import Copier, CopyTarget
from magnetar.repair.replacing import choose, replaced
from magnetar.repair.silences import Inquiry, Silences
from magnetar.repair.standings import Standings
from magnetar.repair.turns import Turns

log = structlog.get_logger(__name__)

ROUNDS_MAX = 20
"""Of one repair of a ledger: a change of the metadata each, or a bookie that refused."""


class Outcome(Enum):
    WHOLE = "whole"
    GONE = "the ledger was deleted"
    LEFT = "something is missing still"


class Repaired(NamedTuple):
    """How it ended; ``why`` for people."""

    outcome: Outcome
    why: str = ""


class Bookies(Protocol):
    """Who can be chosen, and by which rules."""

    async def available(self) -> list[BookieId]:
        """Raises ``MetadataError``."""
        ...

    async def placement(self, bookies: Sequence[BookieId]) -> Placement:
        """Raises ``MetadataError``."""
        ...


class LedgerRepair:
    """``close`` takes a ledger from its writer and closes it (``LedgerClient.open``)."""

    def __init__(
        self,
        catalog: LedgerCatalog,
        bookies: Bookies,
        standings: Standings,
        silences: Silences,
        checker: Checker,
        copier: Copier,
        turns: Turns,
        random: RandomSource,
        close: Callable[[int], Awaitable[object]],
    ) -> None:
        self._catalog = catalog
        self._bookies = bookies
        self._standings = standings
        self._silences = silences
        self._checker = checker
        self._copier = copier
        self._turns = turns
        self._random = random
        self._close = close

    async def run(self, ledger_id: int, marked: Sequence[str]) -> Repaired:
        """``marked``: the bookies of the ledger's mark. Raises ``MetadataError``."""
        refused: dict[BookieId, str] = {}
        for _ in range(ROUNDS_MAX):
            try:
                metadata, version = await self._catalog.read(ledger_id)
            except NoSuchLedgerError:
                return Repaired(Outcome.GONE)
            findings = await self._look(metadata, marked)
            if findings.whole:
                return Repaired(Outcome.WHOLE)
            try:
                why = await self._next(metadata, version, findings, refused)
            except NoSuchLedgerError:
                return Repaired(Outcome.GONE)
            except (LedgerError, NoEntryError) as error:
                why = str(error)
            if why is not None:
                return Repaired(Outcome.LEFT, why)
        return Repaired(Outcome.LEFT, f"it changed {ROUNDS_MAX} times meanwhile")

    async def _look(self, metadata: LedgerMetadata, marked: Sequence[str]) -> Findings:
        named = [bookie for fragment in metadata.fragments for bookie in fragment.bookies]
        await self._standings.look(named)
        standings = self._standings.of(named, marked)
        return await self._checker.look(metadata, standings, durably=True)

    async def _next(
        self,
        metadata: LedgerMetadata,
        version: int,
        findings: Findings,
        refused: dict[BookieId, str],
    ) -> str | None:
        """Do what can be done about the first part that lacks something, or about the open
        fragment. None: look again; else why nothing can be done now."""
        stuck = []
        for part in parts_of(metadata):
            needs = findings.needs.get(part.fragment.first_entry_id)
            if needs:
                why = await self._complete(metadata, version, part, needs, refused)
                if why is None:
                    return None  # the version is another now, or a bookie has refused
                stuck.append(why)
        if stuck:
            return "; ".join(stuck)
        if findings.open_lacks:
            last = metadata.fragments[-1]
            if not self._turns.due(metadata.ledger_id, last, _now_s()):
                return "it is still written; its writer may replace the bookie by itself"
            log.warning(
                "a ledger that is still written lacks a bookie: it is closed, to be repaired",
                ledger=metadata.ledger_id,
                bookies=findings.open_lacks,
            )
            await self._close(metadata.ledger_id)
            return None
        told = "; ".join(f"{bookie}: {why}" for bookie, why in findings.unknown.items())
        return f"not known whether all copies are there ({told})"

    async def _complete(
        self,
        metadata: LedgerMetadata,
        version: int,
        part: Part,
        needs: Sequence[Need],
        refused: dict[BookieId, str],
    ) -> str | None:
        """Give a part's bookies what they lack, others the places of those that are gone. As
        ``_next``."""
        taking = [n for n in needs if n.cause is Cause.LACKING and n.bookie not in refused]
        # One that lacks entries and takes none is no copy's place: another is.
        leaving = [
            need if need.cause is not Cause.LACKING else need._replace(cause=Cause.DAMAGED)
            for need in needs
            if need not in taking
        ]
        chosen = await self._choose(metadata, part, leaving, refused)
        targets = [CopyTarget(need.bookie, need.slot, need.missing) for need in taking]
        for need in leaving:
            if need.slot in chosen:
                targets.append(await self._target(metadata, part, need, chosen[need.slot]))
        if not targets:
            names = ", ".join(f"{need.bookie} ({need.cause.value})" for need in leaving)
            return f"no bookie can take the place of {names}"
        refusal = await self._copier.copy(metadata, part, targets)
        self._note_answers(metadata, taking, refusal)
        if refusal is not None:
            busy = isinstance(refusal.error, BookieUnavailableError | TooManyRequestsError)
            if busy and any(need.bookie == refusal.bookie_id for need in taking):
                # It holds the rest: later is better than elsewhere, until it is silent.
                return str(refusal.error)
            self._note_refusal(metadata, refusal, refused)
            return None
        if chosen:
            await self._name(metadata, version, part, chosen)
        return None

    async def _choose(
        self,
        metadata: LedgerMetadata,
        part: Part,
        needs: Sequence[Need],
        refused: dict[BookieId, str],
    ) -> dict[int, BookieId]:
        if not needs:
            return {}
        available = await self._bookies.available()
        placement = await self._bookies.placement([*available, *part.fragment.bookies])
        leaving = dict.fromkeys(self._standings.leaving, "it is to be emptied")
        now_s = _now_s()
        silent = {b: "it is silent" for b in available if self._silences.rests(b, now_s)}
        excluded = {**leaving, **silent, **refused}
        quorum = metadata.write_quorum
        return choose(part.fragment, needs, available, excluded, self._random, placement, quorum)

    async def _target(
        self, metadata: LedgerMetadata, part: Part, need: Need, bookie_id: BookieId
    ) -> CopyTarget:
        """``bookie_id`` is to get all of the slot but what it has from an attempt before."""
        missing = await self._checker.missing_at(metadata, part, need.slot, bookie_id)
        return CopyTarget(bookie_id, need.slot, missing)

    def _note_answers(
        self, metadata: LedgerMetadata, taking: Sequence[Need], refusal: Refusal | None
    ) -> None:
        """A bookie may tell what it holds, and take nothing: its journal's disk hangs."""
        ledger_id = metadata.ledger_id
        for need in taking:
            if refusal is None:
                self._silences.answered(need.bookie, ledger_id, Inquiry.COPIES)
            elif refusal.bookie_id == need.bookie and isinstance(
                refusal.error, BookieUnavailableError
            ):
                self._silences.unanswered(need.bookie, ledger_id, Inquiry.COPIES, _now_s())

    def _note_refusal(
        self, metadata: LedgerMetadata, refusal: Refusal, refused: dict[BookieId, str]
    ) -> None:
        refused[refusal.bookie_id] = str(refusal.error)
        log.info(
            "a bookie does not take copies",
            ledger=metadata.ledger_id,
            bookie=refusal.bookie_id,
            error=str(refusal.error),
        )

    async def _name(
        self,
        metadata: LedgerMetadata,
        version: int,
        part: Part,
        chosen: dict[int, BookieId],
    ) -> None:
        """Name the bookies that have got copies. A version that has changed is no failure: the next
        round finds out what is true then."""
        wanted = replaced(metadata, part.fragment, chosen)
        assert wanted is not None
        try:
            await self._catalog.write(wanted, version)
        except BadVersionError:
            return
        log.info(
            "bookies replaced in a ledger",
            ledger=metadata.ledger_id,
            first_entry=part.fragment.first_entry_id,
            before=part.fragment.bookies,
            now=[chosen.get(slot, name) for slot, name in enumerate(part.fragment.bookies)],
        )


def _now_s() -> float:
    return asyncio.get_running_loop().time()
