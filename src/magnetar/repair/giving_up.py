"""Closes a ledger that recovery cannot close, without the entries that nobody can read: at an
operator's word, and at nobody else's.

Recovery truncates nothing on doubt. So a ledger whose last entries have no sound copy is never
closed, and its topic is not opened; where there is one copy of each entry, one that is damaged
does it. The rules:

* A look comes first and changes nothing (``look``). It goes by recovery's own rules: an entry
  that is proven absent ends the ledger, and what recovery can close is left to it.
* The ledger ends at the last entry that has a sound copy. Whatever lies before it stays in it: what
  nobody can read there is a lost entry, which readers are told of.
* A bookie that does not answer may hold what is missed. Nothing is given up while one of the last
  fragment is silent, but those that the operator says are lost.
* The operator says where the ledger is to end. It is closed only if a look behind the fence finds
  the same.
* A closed ledger keeps its end, and its readers pass over what is lost in it: there is nothing to
  give up. But for a cursor's: without one of its entries nobody can tell what was acknowledged, and
  its topic is not opened. It is marked as given up, and its cursor goes on from what can be read.

Why: docs/adr/0225-a-ledger-is-closed-at-a-loss.md,
docs/adr/0233-a-damaged-cursor-goes-on-from-what-can-be-read.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import structlog

from magnetar.ledger.bookies import ReadFlag
from magnetar.ledger.catalog.seam import LedgerCatalog
from magnetar.ledger.given_up import GIVEN_UP_KEY, GivenUp, encode_given_up
from magnetar.ledger.placing.placement import without_empty_tail
from magnetar.ledger.recovering.last_confirmed import read_last_confirmed
from magnetar.ledger.recovering.recovery import (
    FENCING,
    WINDOW_BYTES,
    WINDOW_ENTRIES_MAX,
    WINDOW_ENTRIES_MIN,
    claim,
)
from magnetar.ledger.recovering.recovery_plan import RecoveryScan, VotingWindow
from magnetar.ledger.recovering.recovery_reads import Copy, RecoveryReads
from magnetar.ledger.replies import Refusal, listing, reply
from magnetar.model.errors import (
    BadVersionError,
    BookieIOError,
    DigestError,
    LedgerClosedError,
    LedgerRecoveryError,
    NoEntryError,
    NoLedgerError,
)
from magnetar.model.ids import NO_ENTRY, BookieId, EntryId
from magnetar.model.ledger import CURSOR_KEY, LedgerMetadata
from magnetar.repair.checking import ListingPool
from magnetar.repair.insight.explaining import Explainer
from magnetar.wire.bookie.digest import EntryDigest

log = structlog.get_logger(__name__)

ONE_ENTRY_BYTES = 1
READ_AT_ONCE = 100
"""Entries of a cursor's ledger: small ones."""


@dataclass(slots=True)
class LossLook:
    """At a ledger. ``recoverable``: recovery closes it, or it is closed, and nothing is lost.
    Else it could be closed at ``last`` (-1: without an entry), with ``length`` bytes. ``behind``:
    entries after it that are known, with what bookies say of each; ``unreadable``: such as lie
    before it. ``silent``: bookies that must answer first, and why they count as silent; the rest
    says nothing then."""

    metadata: LedgerMetadata
    silent: dict[BookieId, str]
    lost: Sequence[BookieId]
    confirmed: EntryId = NO_ENTRY
    recoverable: bool = False
    last: EntryId = NO_ENTRY
    length: int = 0
    behind: dict[EntryId, str] = field(default_factory=dict)
    unreadable: dict[EntryId, str] = field(default_factory=dict)

    def given_up(self, at_ms: int) -> GivenUp:
        whys = [*self.behind.items(), *self.unreadable.items()]
        why = "; ".join(f"entry {entry_id}: {why}" for entry_id, why in whys)
        last = max([self.last, *self.behind])
        return GivenUp(self.last + 1, last, sorted(self.unreadable), self.lost, at_ms, why)


class GivingUp:
    """``timeout_s``: a bookie's time to answer. All may raise ``NoSuchLedgerError``,
    ``MetadataError``."""

    def __init__(self, catalog: LedgerCatalog, pool: ListingPool, timeout_s: float) -> None:
        self._catalog = catalog
        self._pool = pool
        self._timeout_s = timeout_s
        self._explainer = Explainer(pool, timeout_s)

    async def look(self, ledger_id: int, lost: Sequence[BookieId] = ()) -> LossLook:
        """Nothing is fenced. Raises ``LedgerClosedError``."""
        metadata, _ = await self._catalog.read(ledger_id)
        if metadata.closed:
            return await self._look_inside(metadata, lost)
        return await self._look(metadata, lost, ReadFlag.NONE)

    async def close(
        self, ledger_id: int, at: EntryId, at_ms: int, lost: Sequence[BookieId] = ()
    ) -> LedgerMetadata:
        """Close it at ``at``, if that is where it ends; ``at_ms``: now. Raises
        ``LedgerClosedError``, and ``LedgerRecoveryError`` where nothing was given up: says why."""
        metadata, version = await claim(self._catalog, ledger_id)
        if metadata.closed:
            found = await self._look_inside(metadata, lost)
        else:
            # Fence before the look that counts: what a writer adds behind it is acknowledged to
            # nobody, so no entry is given up that the look has not seen.
            await self._fence(metadata, lost)
            found = await self._look(metadata, lost, FENCING)
        self._check(found, at)
        # What is given up is written with the end, by one compare-and-set: no crash leaves a ledger
        # that has lost entries and does not say so.
        custom = {**dict(metadata.custom), GIVEN_UP_KEY: encode_given_up(found.given_up(at_ms))}
        closed = replace(metadata, custom=tuple(sorted(custom.items())))
        if not metadata.closed:
            fragments = without_empty_tail(metadata.fragments, at)
            closed = replace(closed, fragments=fragments).with_close(at, found.length)
        try:
            await self._catalog.write(closed, version)
        except BadVersionError:
            raise LedgerRecoveryError(
                f"ledger {ledger_id} was changed meanwhile, and nothing of it was given up: look "
                "again"
            ) from None
        log.warning(
            "a ledger was closed at an operator's word, and entries of it are given up",
            ledger=ledger_id,
            last_entry=at,
            given_up=found.given_up(at_ms).text,
            why=found.given_up(at_ms).why,
        )
        return closed

    def _check(self, found: LossLook, at: EntryId) -> None:
        where = f"ledger {found.metadata.ledger_id}"
        if found.silent:
            refusals = ", ".join(f"{bookie} ({why})" for bookie, why in found.silent.items())
            raise LedgerRecoveryError(
                f"{where} may have sound copies at bookies that do not answer: {refusals}; bring "
                "them back, or say that they are lost (--lost). Nothing was given up"
            )
        if found.recoverable:
            why = "is sound" if found.metadata.closed else "can be closed without a loss"
            raise LedgerRecoveryError(f"{where} {why}: open its topic. Nothing was given up")
        if found.last != at:
            raise LedgerRecoveryError(
                f"{where} would end at entry {found.last} now, and not at {at}: look again. "
                "Nothing was given up"
            )

    # -- fencing ------------------------------------------------------------------------------

    async def _fence(self, metadata: LedgerMetadata, lost: Collection[BookieId]) -> None:
        """Raises ``LedgerRecoveryError`` if a bookie of the last fragment cannot be fenced."""
        named = [each for each in metadata.fragments[-1].bookies if each not in lost]
        told = await asyncio.gather(*(self._fence_one(metadata, bookie) for bookie in named))
        refusals = [each for each in told if each is not None]
        if refusals:
            raise LedgerRecoveryError(
                f"ledger {metadata.ledger_id} cannot be fenced: {listing(refusals)}. Nothing was "
                "given up"
            )

    async def _fence_one(self, metadata: LedgerMetadata, bookie_id: BookieId) -> Refusal | None:
        """By reading an entry that there is hardly one of: a bookie fences first, and what it says
        of its last entry, if that is what is damaged, would not tell whether it has."""
        digest = EntryDigest(metadata.digest_type, metadata.ledger_id, metadata.password)
        asking = self._pool.client(bookie_id).read_batch(
            metadata.ledger_id, _BEYOND, 1, ONE_ENTRY_BYTES, FENCING, digest.master_key
        )
        told = await reply(bookie_id, asking, self._timeout_s)
        if isinstance(told, Refusal) and not isinstance(told.error, NoEntryError | NoLedgerError):
            return told
        return None

    # -- looking ------------------------------------------------------------------------------

    async def _look(
        self, metadata: LedgerMetadata, lost: Sequence[BookieId], flags: ReadFlag
    ) -> LossLook:
        layout, silent = await self._explainer.layout(metadata)
        last = metadata.fragments[-1].bookies
        found = LossLook(
            metadata,
            {
                bookie: why
                for bookie, why in silent.items()
                if bookie in last and bookie not in lost
            },
            [each for each in lost if any(each in one.bookies for one in metadata.fragments)],
            layout.last_confirmed,
        )
        if not found.silent:
            scan = _LossScan(self._pool, found, self._timeout_s, flags)
            await scan.run(layout.last_entry)
        return found

    async def _look_inside(self, metadata: LedgerMetadata, lost: Sequence[BookieId]) -> LossLook:
        """At a cursor's closed ledger: each of its entries."""
        _check_cursors(metadata)
        end = metadata.last_entry_id
        there = {bookie for fragment in metadata.fragments for bookie in fragment.bookies}
        found = LossLook(metadata, {}, [each for each in lost if each in there], end)
        found.last, found.length = end, metadata.length
        scan = _LossScan(self._pool, found, self._timeout_s, ReadFlag.NONE)
        for first in range(0, end + 1, READ_AT_ONCE):
            await scan.inside(range(first, min(first + READ_AT_ONCE, end + 1)))
        found.recoverable = not found.unreadable and not found.silent
        return found


class _LossScan:
    """Of one look: recovery's, that goes on behind what it cannot decide."""

    def __init__(
        self, pool: ListingPool, found: LossLook, timeout_s: float, flags: ReadFlag
    ) -> None:
        self._pool = pool
        self._found = found
        self._timeout_s = timeout_s
        self._flags = flags
        self._reads = RecoveryReads(found.metadata, pool, timeout_s, flags)

    async def run(self, last_listed: EntryId) -> None:
        """``last_listed``: the last entry that any bookie has, or that was confirmed."""
        found = self._found
        told = await read_last_confirmed(found.metadata, self._pool, self._timeout_s, self._flags)
        start = max(told.start_after, found.confirmed)
        found.last = start
        unknown, decided = await self._after(start, last_listed)
        if found.silent:
            return
        if found.last == start:  # nothing behind it has a sound copy
            await self._down_from(start)
        found.behind |= {each: why for each, why in unknown.items() if each > found.last}
        found.unreadable = {each: why for each, why in unknown.items() if each < found.last}
        found.recoverable = told.covered and decided and not unknown and not found.behind

    async def _after(self, start: EntryId, last_listed: EntryId) -> tuple[dict[EntryId, str], bool]:
        """The entries behind ``start`` whose fate nobody can tell; and whether the end is proven:
        where it is not, no bookie that answers has anything further."""
        unknown: dict[EntryId, str] = {}
        after = start
        while True:
            scan: RecoveryScan[Copy] = RecoveryScan(after)
            await self._scan(scan)
            if scan.blocked_at is None or scan.blocked_at > last_listed:
                return unknown, scan.blocked_at is None
            after = scan.blocked_at
            refusals = self._reads.refusals(after)
            if not self._certain(refusals):
                return unknown, False
            unknown[after] = listing(refusals)

    async def _scan(self, scan: RecoveryScan[Copy]) -> None:
        """Until it ends or is blocked."""
        found = self._found
        quorums = found.metadata.write_quorum, found.metadata.ack_quorum
        count = WINDOW_ENTRIES_MIN
        while not scan.finished:
            copies = await self._reads.read(VotingWindow(scan, count, *quorums))
            if copies:
                found.last, found.length = scan.next_entry_id - 1, copies[-1].length
                largest = max(1, *(len(copy.payload) for copy in copies))
                count = min(2 * count, WINDOW_ENTRIES_MAX, max(1, WINDOW_BYTES // largest))

    async def _down_from(self, start: EntryId) -> None:
        """The last entry up to ``start`` that has a sound copy. Those behind it were confirmed, and
        nobody can read them."""
        found = self._found
        for entry_id in range(start, NO_ENTRY, -1):
            length, refusals = await self._copy(entry_id)
            if length is not None:
                found.last, found.length = entry_id, length
                return
            if not self._certain(refusals):
                return
            found.behind[entry_id] = listing(refusals)
        found.last, found.length = NO_ENTRY, 0

    async def inside(self, entry_ids: range) -> None:
        """Of these, what nobody can read."""
        copies = await asyncio.gather(*map(self._copy, entry_ids))
        for entry_id, (length, refusals) in zip(entry_ids, copies, strict=True):
            if length is None and self._certain(refusals):
                self._found.unreadable[entry_id] = listing(refusals)

    async def _copy(self, entry_id: EntryId) -> tuple[int | None, Sequence[Refusal]]:
        """The ledger's length up to a sound copy of the entry; None: there is none."""
        metadata, refusals = self._found.metadata, []
        for bookie_id in metadata.write_set(entry_id):
            asking = self._pool.client(bookie_id).read_entry(metadata.ledger_id, entry_id)
            told = await reply(bookie_id, asking, self._timeout_s)
            if not isinstance(told, Refusal):
                try:
                    return self._reads.digest.verify(bytes(told), entry_id)[1], ()
                except DigestError as error:
                    told = Refusal(bookie_id, error)
            refusals.append(told)
        return None, refusals

    def _certain(self, refusals: Sequence[Refusal]) -> bool:
        """Whether no bookie has a sound copy: one that is busy, late or in limbo may have one."""
        found = self._found
        for each in refusals:
            if each.bookie_id not in found.lost and not isinstance(each.error, _CERTAIN):
                found.silent[each.bookie_id] = str(each.error)
        return not found.silent


_BEYOND = 2**62
"""An entry id that no ledger comes to."""
_CERTAIN = (DigestError, BookieIOError, NoEntryError, NoLedgerError)
"""The bookie has no sound copy: what it has is damaged, or nothing."""


def _check_cursors(metadata: LedgerMetadata) -> None:
    if CURSOR_KEY not in dict(metadata.custom):
        raise LedgerClosedError(
            f"ledger {metadata.ledger_id} is closed, at entry {metadata.last_entry_id}: nothing "
            "of it is to be given up. What bookies lack of it is repaired (magnetar ledger "
            "verify); readers pass over what nobody can read"
        )
