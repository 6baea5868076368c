"""Recovers a ledger whose writer is gone: fences it, completes its last entries, closes it.

Steps (what they may conclude is decided in ``recovery_plan``):

1. Compare-and-set to IN_RECOVERY: the old writer can change the ensemble no more.
2. Fencing LAC reads to the last fragment's bookies, until every write set is covered.
3. Read forward from there, fencing with every read, from the bookies that the metadata named when
   recovery began (``recovery_reads``). Each entry found is written again to its full write
   set, marked as recovery, with a digest of its own. Bookies that fail meanwhile are replaced in
   memory only.
4. At the first entry proven absent, wait for the rewrites and compare-and-set to CLOSED, replaced
   bookies included. Another recovery may be first; then its end counts, and it was as safe.

Nothing is truncated on doubt: without enough answers the recovery raises ``LedgerRecoveryError``,
leaves the ledger IN_RECOVERY, and can be repeated.

Reads go in windows of a size that doubles, bounded in entries and bytes; rewrites overlap with
the next window and are bounded in bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import structlog

from magnetar.ledger.bookies import AddFlag, ReadFlag
from magnetar.ledger.catalog.seam import LedgerCatalog
from magnetar.ledger.catalog.stored_ledger import RecoveringLedger
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.ledger.recovering.last_confirmed import read_last_confirmed
from magnetar.ledger.recovering.recovery_plan import RecoveryScan, VotingWindow
from magnetar.ledger.recovering.recovery_reads import Copy, RecoveryReads
from magnetar.ledger.replies import listing
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.model.errors import (
    BadVersionError,
    LedgerFencedError,
    LedgerRecoveryError,
    MagnetarError,
)
from magnetar.model.ids import EntryId
from magnetar.model.ledger import LedgerMetadata, LedgerState

log = structlog.get_logger(__name__)

ATTEMPTS = 10
"""Tries while other clients change the ledger's metadata meanwhile."""
WINDOW_ENTRIES_MIN = 8
WINDOW_ENTRIES_MAX = 1024
WINDOW_BYTES = 8 << 20
REWRITE_BYTES_MAX = 16 << 20

FENCING = ReadFlag.FENCE | ReadFlag.HIGH_PRIORITY


async def recover_ledger(context: LedgerContext, ledger_id: int) -> LedgerMetadata:
    """Close the ledger safely, whoever wrote it; returns its closed metadata at once if it is
    closed already.

    Raises ``LedgerRecoveryError`` (too few bookies answer; nothing is lost), ``NoSuchLedgerError``,
    ``MetadataError``.
    """
    manager = context.manager
    for _ in range(ATTEMPTS):
        metadata, version = await claim(manager, ledger_id)
        if metadata.closed:
            return metadata
        stored = RecoveringLedger(manager, metadata, version)
        try:
            return await _Recovery(stored, context).run()
        except LedgerFencedError:
            log.info("ledger metadata changed during recovery; again", ledger=ledger_id)
    raise LedgerRecoveryError(
        f"ledger {ledger_id}: its metadata changed {ATTEMPTS} times during recovery; who else "
        "recovers or re-replicates it? Try again later"
    )


async def claim(manager: LedgerCatalog, ledger_id: int) -> tuple[LedgerMetadata, int]:
    """Put the ledger IN_RECOVERY unless it is, or is closed. Raises ``LedgerRecoveryError``,
    ``NoSuchLedgerError``, ``MetadataError``."""
    for _ in range(ATTEMPTS):
        metadata, version = await manager.read(ledger_id)
        if metadata.state is not LedgerState.OPEN:
            return metadata, version
        # IN_RECOVERY before the fence: a writer that changes its ensemble meanwhile would go on
        # with bookies that nobody fences; its compare-and-set loses now, and tells it so.
        claimed = replace(metadata, state=LedgerState.IN_RECOVERY)
        try:
            return claimed, await manager.write(claimed, version)
        except BadVersionError:
            continue  # its writer changed the ensemble or closed it: look again
    raise LedgerRecoveryError(
        f"ledger {ledger_id}: its metadata changed {ATTEMPTS} times while recovery began; try again"
    )


class _Recovery:
    """One recovery of one ledger, as its metadata was when it began."""

    def __init__(self, stored: RecoveringLedger, context: LedgerContext) -> None:
        self._stored = stored
        self._context = context
        self._metadata = metadata = stored.metadata  # reads go here, whatever is replaced later
        self._pool = context.pool
        self._timeout_s = context.config.read_timeout_ms / 1000
        self._rewrites = _Rewrites(stored, context)
        self._reads = RecoveryReads(metadata, context.pool, self._timeout_s, FENCING)

    async def run(self) -> LedgerMetadata:
        try:
            # Fence before reading: an entry that is absent now could else be added, and
            # acknowledged, after it was found absent.
            start_after = await self._fence()
            log.debug("ledger fenced", ledger=self._metadata.ledger_id, reads_after=start_after)
            # Write again before closing: once the metadata says CLOSED nobody looks for copies,
            # and what was found at one bookie must be at all that the metadata names.
            last = await self._scan(start_after)
            closed = await self._close(start_after, last)
        finally:
            await self._rewrites.abandon()
        log.info(
            "ledger recovered",
            ledger=closed.ledger_id,
            last_entry=closed.last_entry_id,
            rewritten=last - start_after,
        )
        return closed

    async def _fence(self) -> EntryId:
        """Fence the last fragment; returns the entry after which to read."""
        told = await read_last_confirmed(self._metadata, self._pool, self._timeout_s, FENCING)
        if not told.covered:
            raise LedgerRecoveryError(
                f"ledger {self._metadata.ledger_id} cannot be fenced: too few of its bookies "
                f"say where it ends ({listing(told.refusals)}); bring them back, restore what is "
                f"damaged there, and open it again{self._at_a_loss}"
            )
        return told.start_after

    async def _scan(self, start_after: EntryId) -> EntryId:
        """Read forward and write again what is found; returns the ledger's last entry."""
        quorums = self._metadata.write_quorum, self._metadata.ack_quorum
        scan: RecoveryScan[Copy] = RecoveryScan(start_after)
        count = WINDOW_ENTRIES_MIN
        while not scan.finished:
            first = scan.next_entry_id
            copies = await self._reads.read(VotingWindow(scan, count, *quorums))
            if copies:
                await self._rewrites.append(first - 1, copies)
                largest = max(1, *(len(copy.payload) for copy in copies))
                room = max(1, WINDOW_BYTES // largest)
                count = min(2 * count, WINDOW_ENTRIES_MAX, room)
        if scan.end is None:
            assert scan.blocked_at is not None
            raise self._blocked(scan.blocked_at)
        return scan.end

    def _blocked(self, entry_id: EntryId) -> LedgerRecoveryError:
        told = listing(self._reads.refusals(entry_id))
        return LedgerRecoveryError(
            f"ledger {self._metadata.ledger_id}: nobody can say whether entry {entry_id} was "
            f"acknowledged ({told}); bring these bookies back and open it again{self._at_a_loss}"
        )

    @property
    def _at_a_loss(self) -> str:
        """The way out where that cannot be done, which only an operator may take."""
        return (
            "; what closing it without them would give up: magnetar ledger close-at-loss "
            f"{self._metadata.ledger_id}"
        )

    async def _close(self, start_after: EntryId, last: EntryId) -> LedgerMetadata:
        if last > start_after:
            return await self._rewrites.close()
        return await self._stored.close(last, await self._length_at(last))

    async def _length_at(self, entry_id: EntryId) -> int:
        """The ledger's length up to and with a confirmed entry."""
        if entry_id < 0:
            return 0
        reader = LedgerReader(
            self._metadata, entry_id, self._pool, self._context.config, self._context.policy
        )
        try:
            (entry,) = await reader.read(entry_id, 1, 1)
        except MagnetarError as error:
            raise LedgerRecoveryError(
                f"ledger {self._metadata.ledger_id} cannot be closed: its last entry cannot be "
                f"read: {error}{self._at_a_loss}"
            ) from error
        return self._reads.digest.verify(bytes(entry.data), entry_id)[1]


class _Rewrites:
    """Writes entries again in order, through a writer that marks them as recovery."""

    def __init__(self, stored: RecoveringLedger, context: LedgerContext) -> None:
        self._stored = stored
        self._context = context
        self._writer: LedgerWriter | None = None
        self._error: MagnetarError | None = None
        self._moved = asyncio.Event()

    async def append(self, after: EntryId, copies: Sequence[Copy]) -> None:
        """Write ``copies``, the entries after ``after``; waits while too much is under way."""
        if self._writer is None:
            first = copies[0]
            self._writer = self._open(after, first.length - len(first.payload))
        self._writer.append([copy.payload for copy in copies], self._done)
        while self._writer.pending_bytes > REWRITE_BYTES_MAX:
            self._moved.clear()
            await self._moved.wait()
        self._check()

    def _open(self, first_lac: EntryId, length: int) -> LedgerWriter:
        return LedgerWriter(
            self._stored,
            self._context,
            flags=AddFlag.RECOVERY | AddFlag.HIGH_PRIORITY,
            first_lac=first_lac,
            length=length,
        )

    def _done(self, error: MagnetarError | None, _ledger: int, _first: int, _count: int) -> None:
        self._error = self._error or error
        self._moved.set()

    async def close(self) -> LedgerMetadata:
        """Wait for all of it and close the ledger at its end."""
        assert self._writer is not None
        # At the ack quorum before CLOSED names it the last entry: a reader takes a closed ledger's
        # end for readable.
        await self._writer.wait_confirmed()
        self._check()
        return await self._writer.close()

    def _check(self) -> None:
        if self._error is not None:
            raise LedgerRecoveryError(
                f"ledger {self._stored.metadata.ledger_id}: its last entries cannot be written "
                f"again: {self._error}"
            ) from self._error

    async def abandon(self) -> None:
        if self._writer is not None:
            await self._writer.abandon()
