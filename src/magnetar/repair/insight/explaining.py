"""Asks the bookies of a ledger what they hold, and says where its copies are (``forecast``
decides).

Every bookie that the metadata names is asked once, all at the same time, for its list: exact, and
no entry is read. Nothing is changed and nothing is fenced, so it may be asked about a ledger that
is being written; what it says is then a moment old.

``explanation`` is a plain value for programs (``magnetar ledger explain --json`` prints it as it
is); people get a picture made of the same value.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from magnetar.ledger.given_up import given_up_of
from magnetar.ledger.replies import Refusal, reply
from magnetar.model.errors import DigestError, NoEntryError, NoLedgerError
from magnetar.model.ids import BookieId, EntryId
from magnetar.model.ledger import LedgerMetadata
from magnetar.repair.checking import ListingPool
from magnetar.repair.insight.forecast import (
    Closing,
    CopyLayout,
    CopyState,
    EntryFate,
    Section,
    Stretch,
    closing,
    forecast,
    sections,
    share,
)
from magnetar.wire.bookie.availability import Group
from magnetar.wire.bookie.digest import EntryDigest

RANGES_MAX = 1000
"""Of one list in an explanation; what is beyond is counted."""


class Explainer:
    """``timeout_s``: a bookie's time to answer."""

    def __init__(self, pool: ListingPool, timeout_s: float) -> None:
        self._pool = pool
        self._timeout_s = timeout_s

    async def explain(
        self, metadata: LedgerMetadata, gone: Sequence[BookieId] = ()
    ) -> dict[str, Any]:
        """Where the copies are, and what would be left without ``gone``."""
        layout, silent = await self.layout(metadata)
        return explanation(layout, silent, gone)

    async def layout(self, metadata: LedgerMetadata) -> tuple[CopyLayout, dict[BookieId, str]]:
        """What is known, and who is silent, and why."""
        named = [*dict.fromkeys(b for one in metadata.fragments for b in one.bookies)]
        told = await asyncio.gather(*(self._list(metadata, bookie) for bookie in named))
        held: dict[BookieId, Sequence[Group]] = {}
        silent: dict[BookieId, str] = {}
        for bookie, answer in zip(named, told, strict=True):
            if isinstance(answer, Refusal):
                silent[bookie] = str(answer.error)
            else:
                held[bookie] = answer
        if metadata.closed:
            return CopyLayout(metadata, held), silent
        last = [bookie for bookie in metadata.fragments[-1].bookies if bookie in held]
        lacs = await asyncio.gather(*(self._confirmed(metadata, bookie) for bookie in last))
        confirmed = {b: lac for b, lac in zip(last, lacs, strict=True) if lac is not None}
        return CopyLayout(metadata, held, confirmed), silent

    async def _list(
        self, metadata: LedgerMetadata, bookie_id: BookieId
    ) -> Sequence[Group] | Refusal:
        listing = self._pool.lister(bookie_id).list_entries(metadata.ledger_id)
        told = await reply(bookie_id, listing, self._timeout_s)
        if isinstance(told, Refusal) and isinstance(told.error, NoLedgerError | NoEntryError):
            return ()  # it is certain that it holds nothing
        return told

    async def _confirmed(self, metadata: LedgerMetadata, bookie_id: BookieId) -> EntryId | None:
        asking = self._pool.client(bookie_id).read_lac(metadata.ledger_id)
        told = await reply(bookie_id, asking, self._timeout_s)
        if isinstance(told, Refusal):
            return None
        digest = EntryDigest(metadata.digest_type, metadata.ledger_id, metadata.password)
        try:
            return digest.verify_reply(told)
        except DigestError:
            return None  # who reads the ledger does not believe it either


def explanation(
    layout: CopyLayout, silent: dict[BookieId, str], gone: Sequence[BookieId]
) -> dict[str, Any]:
    """As JSON has it."""
    metadata, found = layout.metadata, sections(layout)
    lost = [bookie for bookie in gone if any(bookie in one.bookies for one in metadata.fragments)]
    given_up = given_up_of(metadata)
    return {
        "ledgerId": int(metadata.ledger_id),
        "state": metadata.state.name,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorum": metadata.write_quorum,
        "ackQuorum": metadata.ack_quorum,
        "lastConfirmed": layout.last_confirmed,
        "lastEntry": layout.last_entry,
        "length": metadata.length if metadata.closed else None,
        "givenUp": None if given_up is None else given_up.text,
        "bookies": _bookies(layout, silent, found),
        "fragments": _fragments(layout, found),
        "now": _forecast(layout, found, ()),
        "forecast": _forecast(layout, found, lost) if gone else None,
        "notOfThisLedger": [bookie for bookie in gone if bookie not in lost],
    }


def _bookies(
    layout: CopyLayout, silent: dict[BookieId, str], found: Sequence[Section]
) -> list[dict[str, Any]]:
    named = [*dict.fromkeys(b for one in layout.metadata.fragments for b in one.bookies)]
    due, held = dict.fromkeys(named, 0), dict.fromkeys(named, 0)
    for section in found:
        for slot, bookie in enumerate(section.fragment.bookies):
            size, quorum = len(section.fragment.bookies), layout.metadata.write_quorum
            count = sum(map(len, share(section.entry_ids, slot, size, quorum)))
            due[bookie] += count
            held[bookie] += count if section.copies[slot] is CopyState.HELD else 0
    return [
        {
            "bookieId": bookie,
            "answers": bookie in layout.held,
            "problem": silent.get(bookie, ""),
            "copiesNamed": due[bookie],
            "copiesHeld": held[bookie] if bookie in layout.held else None,
        }
        for bookie in named
    ]


def _fragments(layout: CopyLayout, found: Sequence[Section]) -> list[dict[str, Any]]:
    rows = []
    for number, fragment in enumerate(layout.metadata.fragments):
        own = [section for section in found if section.fragment is fragment]
        last = number == len(layout.metadata.fragments) - 1
        rows.append(
            {
                "firstEntryId": fragment.first_entry_id,
                "lastEntryId": own[-1].entry_ids[-1] if own else fragment.first_entry_id - 1,
                "open": last and not layout.metadata.closed,
                "bookies": list(fragment.bookies),
                "sections": [_section(section) for section in own[:RANGES_MAX]],
                "sectionsLeftOut": max(0, len(own) - RANGES_MAX),
            }
        )
    return rows


def _section(section: Section) -> dict[str, Any]:
    return {
        "firstEntryId": section.entry_ids[0],
        "lastEntryId": section.entry_ids[-1],
        "confirmed": section.confirmed,
        "copies": [copy.value for copy in section.copies],
    }


def _forecast(
    layout: CopyLayout, found: Sequence[Section], gone: Collection[BookieId]
) -> dict[str, Any]:
    counts = {fate.value: 0 for fate in EntryFate}
    listed: list[Stretch] = []
    left_out = 0
    for stretch in forecast(layout, found, gone):
        counts[stretch.fate.value] += len(stretch.entry_ids)
        if stretch.fate is EntryFate.WHOLE:
            continue
        if len(listed) < RANGES_MAX:
            listed.append(stretch)
        else:
            left_out += 1
    return {
        "without": list(gone),
        "entries": counts,
        "ranges": _ranges(listed),
        "rangesLeftOut": left_out,
        "closing": _closing(closing(layout, found, gone)),
    }


def _ranges(stretches: Iterable[Stretch]) -> list[dict[str, Any]]:
    """``every``: the entries are those from the first to the last, one of so many."""
    return [
        {
            "fate": each.fate.value,
            "firstEntryId": each.entry_ids[0],
            "lastEntryId": each.entry_ids[-1],
            "every": each.entry_ids.step,
            "entries": len(each.entry_ids),
            "confirmed": each.confirmed,
            "copies": each.copies,
            "copiesPerhaps": each.perhaps,
        }
        for each in stretches
    ]


def _closing(found: Closing | None) -> dict[str, Any] | None:
    if found is None:
        return None
    least, most = (int(found.least), int(found.most)) if found.possible else (None, None)
    return {
        "possible": found.possible,
        "lastEntryIdLeast": least,
        "lastEntryIdMost": most,
        "why": found.why,
    }
