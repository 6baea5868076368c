"""Asks bookies what they hold of a ledger, and finds what is missing (``copies`` decides).

* Every bookie that serves a part is asked once, all at the same time, for the list of what it
  holds: exact, and without reading entries.
* A list has entries in it that are not durable yet. Where "whole" is to follow from it, the bookie
  is told to make durable what it has answered, behind the list: what was listed is safe then.
* A list does not say that an entry can be read. Of each bookie's share of a part the first and the
  last entry are read and their digests verified, as BookKeeper's check does.
* Whoever lets any of this pass its deadline has said nothing: it is not known what it has, until it
  counts as silent (``silences``, which is told of every request and answer).
* What the lists say of long ledgers is compared in windows, so that the loop is never held up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from magnetar.ledger.bookies import BookiePool, EntryLister
from magnetar.ledger.replies import Refusal, reply
from magnetar.model.errors import (
    BookieIOError,
    BookieUnavailableError,
    DigestError,
    MagnetarError,
    NoEntryError,
    NoLedgerError,
    UnknownLedgerStateError,
)
from magnetar.model.ids import BookieId, EntryId
from magnetar.model.ledger import LedgerMetadata
from magnetar.repair.copies import (
    Cause,
    Findings,
    Need,
    Part,
    Standing,
    joined,
    needs_by_standing,
    open_lacks,
    own_runs,
    parts_of,
    without,
)
from magnetar.repair.silences import Inquiry, Silences
from magnetar.wire.bookie.availability import Group, held_runs
from magnetar.wire.bookie.digest import EntryDigest

WINDOW_ENTRIES = 20_000
ASKED_AT_ONCE = 64
"""Samples of one ledger."""
LOOK_AGAIN_S = 1.0


class _SampleRead(NamedTuple):
    part: Part
    slot: int
    bookie_id: BookieId
    entry_id: EntryId


class _Sampled(NamedTuple):
    """``damaged``: who gives entries that it says to hold damaged, or not at all. ``mute``: who did
    not answer."""

    damaged: dict[Part, list[Need]]
    mute: dict[BookieId, MagnetarError]


class _Told(NamedTuple):
    """What bookies said when they were asked: a list, or why not; ``silent`` ones have no word."""

    held: Mapping[BookieId, Sequence[Group]]
    refused: Mapping[BookieId, MagnetarError]
    silent: Sequence[BookieId]
    damaged: Mapping[Part, Sequence[Need]]


class ListingPool(BookiePool, Protocol):
    """Bookies that also tell what they hold."""

    def lister(self, bookie_id: BookieId) -> EntryLister: ...


class Checker:
    """``timeout_s``: a bookie's time to answer. ``silences``: of the process; without, nobody ever
    counts as silent."""

    def __init__(
        self, pool: ListingPool, timeout_s: float, silences: Silences | None = None
    ) -> None:
        self._pool = pool
        self._timeout_s = timeout_s
        self._silences = silences or Silences(0.0)

    async def look(
        self, metadata: LedgerMetadata, standings: Mapping[BookieId, Standing], durably: bool
    ) -> Findings:
        """What the ledger lacks. ``standings`` are those of all that the metadata names;
        ``durably``: what is found to be there must be there after a power cut, too."""
        parts = parts_of(metadata)
        named = dict.fromkeys(b for one in metadata.fragments for b in one.bookies)
        serving = [bookie for bookie in named if standings[bookie] is Standing.SERVING]
        told = await self._listen(metadata, parts, serving, durably)
        away = {b: "it is not registered" for b in named if standings[b] is Standing.AWAY}
        unknown = away | {bookie: str(error) for bookie, error in told.refused.items()}
        now = dict(standings) | dict.fromkeys(told.silent, Standing.SILENT)
        needs: dict[EntryId, Sequence[Need]] = {}
        for part in parts:
            found = await self._needs(metadata, part, now, told.held)
            spoiled = {need.slot: need for need in told.damaged.get(part, ())}
            slots = {need.slot: need for need in found} | spoiled
            if slots:
                needs[part.fragment.first_entry_id] = [slots[slot] for slot in sorted(slots)]
        return Findings(needs, unknown, open_lacks(metadata, now))

    async def _listen(
        self,
        metadata: LedgerMetadata,
        parts: Sequence[Part],
        serving: Sequence[BookieId],
        durably: bool,
    ) -> _Told:
        asked = [b for b in serving if not self._silences.rests(b, _now_s())]
        answers = await asyncio.gather(*(self._ask(metadata, b, durably) for b in asked))
        held: dict[BookieId, Sequence[Group]] = {}
        refused: dict[BookieId, MagnetarError] = {}
        for bookie, told in zip(asked, answers, strict=True):
            if isinstance(told, Refusal):
                refused[bookie] = told.error
            else:
                held[bookie] = told
        sampled = await self._sample(metadata, parts, held)
        refused |= sampled.mute
        for bookie in asked:
            # Only all of it is an answer: a list is known by heart, and entries are on a disk.
            if durably or bookie in refused:
                self._heard(bookie, metadata.ledger_id, refused.get(bookie))
        silent = [b for b in serving if self._silences.is_silent(b, metadata.ledger_id)]
        for bookie in silent:
            held.pop(bookie, None)
            refused.pop(bookie, None)
        for bookie in serving:
            if bookie not in asked and bookie not in silent:  # it has answered others meanwhile
                refused[bookie] = BookieUnavailableError(f"{bookie} was not asked: it was silent")
        damaged = {
            part: [need for need in needs if need.bookie in held]
            for part, needs in sampled.damaged.items()
        }
        return _Told(held, refused, silent, damaged)

    async def hear(self, metadata: LedgerMetadata, bookie_id: BookieId) -> None:
        """Find out whether the bookie answers, with a ledger that names it."""
        parts = parts_of(metadata)
        told = await self._ask(metadata, bookie_id, durably=True)
        if isinstance(told, Refusal):
            self._heard(bookie_id, metadata.ledger_id, told.error)
            return
        mute = (await self._sample(metadata, parts, {bookie_id: told})).mute
        self._heard(bookie_id, metadata.ledger_id, mute.get(bookie_id))

    def _heard(self, bookie_id: BookieId, ledger_id: int, refused: MagnetarError | None) -> None:
        """``refused`` None: it has said all that it was asked for."""
        if isinstance(refused, BookieUnavailableError):
            self._silences.unanswered(bookie_id, ledger_id, Inquiry.HELD, _now_s())
        else:
            self._silences.answered(bookie_id, ledger_id, Inquiry.HELD)

    async def _ask(
        self, metadata: LedgerMetadata, bookie_id: BookieId, durably: bool
    ) -> Sequence[Group] | Refusal:
        """What it holds; a refusal says nothing of that."""
        listing = self._pool.lister(bookie_id).list_entries(metadata.ledger_id)
        told = await reply(bookie_id, listing, self._timeout_s)
        # A bookie that has lost entries and knows of nothing left has no more than nothing; it
        # takes what it lacks from a repair.
        nothing = NoLedgerError, UnknownLedgerStateError, NoEntryError
        if isinstance(told, Refusal) and isinstance(told.error, nothing):
            return ()
        if isinstance(told, Refusal) or not told or not durably:
            return told
        forcing = self._pool.client(bookie_id).force_ledger(metadata.ledger_id)
        forced = await reply(bookie_id, forcing, self._timeout_s)
        return forced if isinstance(forced, Refusal) else told

    async def missing_at(
        self, metadata: LedgerMetadata, part: Part, slot: int, bookie_id: BookieId
    ) -> tuple[range, ...]:
        """What a bookie lacks of ``slot``'s share, whether the metadata names it there or not. All
        of it, of one that does not tell."""
        told = await self._ask(metadata, bookie_id, durably=True)
        if isinstance(told, Refusal):
            self._heard(bookie_id, metadata.ledger_id, told.error)
        groups = () if isinstance(told, Refusal) else told
        return await self._missing(part, slot, metadata.write_quorum, groups)

    async def _needs(
        self,
        metadata: LedgerMetadata,
        part: Part,
        standings: Mapping[BookieId, Standing],
        held: Mapping[BookieId, Sequence[Group]],
    ) -> list[Need]:
        quorum = metadata.write_quorum
        found = needs_by_standing(part, quorum, standings)
        for slot, bookie in enumerate(part.fragment.bookies):
            groups = held.get(bookie)
            if groups is None:
                continue
            missing = await self._missing(part, slot, quorum, groups)
            if missing:
                found.append(Need(slot, bookie, Cause.LACKING, missing))
        return found

    async def _missing(
        self, part: Part, slot: int, quorum: int, groups: Sequence[Group]
    ) -> tuple[range, ...]:
        missing: list[range] = []
        for start in range(part.entry_ids.start, part.entry_ids.stop, WINDOW_ENTRIES):
            window = range(start, min(start + WINDOW_ENTRIES, part.entry_ids.stop))
            missing += without(own_runs(part, slot, quorum, window), held_runs(groups, window))
            await asyncio.sleep(0)
        return joined(missing, len(part.fragment.bookies) - quorum)

    # -- samples ------------------------------------------------------------------------------

    async def _sample(
        self,
        metadata: LedgerMetadata,
        parts: Sequence[Part],
        held: Mapping[BookieId, Sequence[Group]],
    ) -> _Sampled:
        looks = [
            _SampleRead(part, slot, bookie, entry_id)
            for part in parts
            for slot, bookie in enumerate(part.fragment.bookies)
            if bookie in held
            for entry_id in self._samples(part, slot, metadata.write_quorum, held[bookie])
        ]
        mute: dict[BookieId, MagnetarError] = {}
        spoiled = await self._spoiled(metadata, looks, mute)
        if spoiled:  # a bookie that is just ending fails every read, and is gone a moment later
            await asyncio.sleep(LOOK_AGAIN_S)
            spoiled = await self._spoiled(metadata, spoiled, mute)
        found: dict[Part, list[Need]] = {}
        for part, slot, bookie, _ in spoiled:
            needs = found.setdefault(part, [])
            if all(need.slot != slot for need in needs):
                needs.append(Need(slot, bookie, Cause.DAMAGED, (part.entry_ids,)))
        return _Sampled(found, mute)

    async def _spoiled(
        self,
        metadata: LedgerMetadata,
        looks: Sequence[_SampleRead],
        mute: dict[BookieId, MagnetarError],
    ) -> list[_SampleRead]:
        """Those of ``looks`` that get no sound entry, from a bookie that says so; those that say
        nothing come into ``mute``."""
        digest = EntryDigest(metadata.digest_type, metadata.ledger_id, metadata.password)
        turns = asyncio.Semaphore(ASKED_AT_ONCE)

        async def is_spoiled(look: _SampleRead) -> bool:
            client = self._pool.client(look.bookie_id)
            async with turns:
                reading = client.read_entry(metadata.ledger_id, look.entry_id)
                told = await reply(look.bookie_id, reading, self._timeout_s)
            if isinstance(told, Refusal):
                if isinstance(told.error, BookieUnavailableError):
                    mute[look.bookie_id] = told.error
                return _is_damage(told.error)
            try:
                digest.verify(told, look.entry_id)
            except DigestError:
                return True
            return False

        found = await asyncio.gather(*(is_spoiled(look) for look in looks))
        return [look for look, spoiled in zip(looks, found, strict=True) if spoiled]

    def _samples(
        self, part: Part, slot: int, write_quorum: int, groups: Sequence[Group]
    ) -> list[EntryId]:
        """The first and the last of its share, as far as it says to hold them."""
        stop = part.entry_ids.stop
        first = next(own_runs(part, slot, write_quorum, part.entry_ids), range(0))
        around_end = range(max(part.entry_ids.start, stop - len(part.fragment.bookies)), stop)
        last = [*own_runs(part, slot, write_quorum, around_end)][-1:]
        wanted = dict.fromkeys([*first[:1], *(run[-1] for run in last)])
        return [entry for entry in wanted if held_runs(groups, range(entry, entry + 1))]


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _is_damage(error: MagnetarError) -> bool:
    """A bookie that is silent or busy says nothing of the entry; nor does one that has given up the
    ledger since it was asked for the list."""
    return isinstance(error, BookieIOError)
