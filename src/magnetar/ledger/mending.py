"""Gives bookies that were away what was confirmed without them: makes a ledger whole again.

One task per client, running only while something is owed (``ledger.owed``). For each bookie and
ledger: read the owed entries from the other replicas, a piece at a time, and add them to the
bookie as they are. A bookie that refuses because the ledger is fenced, or because it takes no new
entries, gets them marked as recovery: neither must keep a confirmed entry out. (Plain adds cost
both sides less.)

Rules:

* The metadata decides: it is read anew before each ledger, and an entry goes to a bookie only if
  the metadata names it there. A ledger in recovery is left alone until it is closed. Deleted
  ledgers are forgotten.
* One piece of ``PIECE_BYTES`` is under way at a time: mending does not compete with writers.
* A bookie that does not answer is tried again after ``BACKOFF_S``, doubling to ``BACKOFF_S_MAX``.

Debts live as long as the client. What a process owed when it ended is found and repaired by
re-replication. Why so: docs/adr/0044-copies-for-slow-bookies.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from magnetar.config import LedgerConfig
from magnetar.env.tasks import TaskScope
from magnetar.ledger.bookies import AddFlag, BookiePool
from magnetar.ledger.owed import OwedEntries
from magnetar.ledger.read_order import ReadPolicy
from magnetar.ledger.reader import LedgerReader
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    BookieUnavailableError,
    FencedError,
    MagnetarError,
    NoSuchLedgerError,
    ReadOnlyBookieError,
)
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata, LedgerState
from magnetar.wire.bookie.digest import EntryDigest

log = structlog.get_logger(__name__)

PIECE_BYTES = 1 << 20
PIECE_ENTRIES = 1000
BACKOFF_S = 0.5
BACKOFF_S_MAX = 15.0


class MetadataReader(Protocol):
    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]: ...


class Mender:
    """The mending of one client's ledgers; see the module's text."""

    def __init__(
        self, manager: MetadataReader, pool: BookiePool, config: LedgerConfig, policy: ReadPolicy
    ) -> None:
        self._manager = manager
        self._pool = pool
        self._config = config
        self._policy = policy
        self._owed = OwedEntries()
        self._scope = TaskScope("mending")
        self._running = False
        self._closed = False
        self._timers: dict[asyncio.TimerHandle, None] = {}
        self.mended_entries = 0
        """Entries copied to bookies that lacked them, since the start."""

    @property
    def owing(self) -> bool:
        """Whether some bookie is known to lack confirmed entries, or has yet to be looked at."""
        return bool(self._owed or self._timers)

    def owes(self, bookie_id: BookieId, ledger_id: int, entry_ids: range) -> None:
        """``bookie_id`` may lack some of these confirmed entries."""
        if not entry_ids or self._closed:
            return
        self._owed.add(bookie_id, ledger_id, entry_ids)
        if not self._running:
            self._running = True
            self._scope.spawn(self._run(), "owed entries")

    def look_later(self, delay_s: float, look: Callable[[], None]) -> None:
        """Call ``look`` after ``delay_s``, unless this is closed before: a bookie that is only
        late may have answered by then."""
        if self._closed:
            return

        def due() -> None:
            del self._timers[timer]
            look()

        timer = asyncio.get_running_loop().call_later(delay_s, due)
        self._timers[timer] = None

    async def close(self) -> None:
        """Stop mending. Idempotent."""
        self._closed = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        await self._scope.close()

    # -- the task -----------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff_s = BACKOFF_S
        try:
            while self._owed:
                before = self.mended_entries
                await asyncio.sleep(backoff_s)
                for bookie_id in self._owed.bookies():
                    await self._mend_bookie(bookie_id)
                moved = self.mended_entries > before
                backoff_s = BACKOFF_S if moved else min(2 * backoff_s, BACKOFF_S_MAX)
        finally:
            self._running = False

    async def _mend_bookie(self, bookie_id: BookieId) -> None:
        """Everything owed to one bookie, until it refuses."""
        before = self.mended_entries
        try:
            for ledger_id in self._owed.ledgers(bookie_id):
                await self._mend_ledger(bookie_id, ledger_id)
        except MagnetarError as error:
            log.debug("cannot mend now", bookie=bookie_id, error=str(error))
        if self.mended_entries > before:
            count = self.mended_entries - before
            log.info("bookie was given what it had missed", bookie=bookie_id, entries=count)

    async def _mend_ledger(self, bookie_id: BookieId, ledger_id: int) -> None:
        try:
            metadata, _ = await self._manager.read(ledger_id)
        except NoSuchLedgerError:
            self._owed.forget(ledger_id)
            return
        if metadata.state is LedgerState.IN_RECOVERY:
            return
        for owed in self._owed.ranges(bookie_id, ledger_id):
            last = owed[-1]
            if metadata.closed:
                last = min(last, metadata.last_entry_id)
            await self._mend_range(bookie_id, metadata, range(owed.start, last + 1))
            self._owed.settled(bookie_id, ledger_id, owed)

    async def _mend_range(self, bookie_id: BookieId, metadata: LedgerMetadata, owed: range) -> None:
        digest = EntryDigest(metadata.digest_type, metadata.ledger_id, metadata.password)
        reader = LedgerReader(
            metadata, owed[-1] if owed else -1, self._pool, self._config, self._policy, bookie_id
        )
        entry_id, flags = owed.start, AddFlag.NONE
        while entry_id < owed.stop:
            if bookie_id not in metadata.fragment_of(entry_id).bookies:
                entry_id = min(reader.fragment_end(entry_id) + 1, owed.stop)
                continue
            count = min(PIECE_ENTRIES, owed.stop - entry_id)
            found = await reader.read(entry_id, count, PIECE_BYTES)
            own = [entry for entry in found if bookie_id in metadata.write_set(entry.entry_id)]
            if own:
                flags = await self._add(
                    bookie_id, metadata.ledger_id, digest.master_key, own, flags
                )
            end = entry_id + len(found)
            self._owed.settled(bookie_id, metadata.ledger_id, range(entry_id, end))
            entry_id = end

    async def _add(
        self,
        bookie_id: BookieId,
        ledger_id: int,
        master_key: bytes,
        entries: Sequence[Entry],
        flags: AddFlag,
    ) -> AddFlag:
        """Returns the flags that it takes. Raises ``BookieError``."""
        try:
            await self._add_with(bookie_id, ledger_id, master_key, entries, flags)
        except (FencedError, ReadOnlyBookieError):
            if flags & AddFlag.RECOVERY:
                raise
            flags = AddFlag.RECOVERY
            await self._add_with(bookie_id, ledger_id, master_key, entries, flags)
        self.mended_entries += len(entries)
        return flags

    async def _add_with(
        self,
        bookie_id: BookieId,
        ledger_id: int,
        master_key: bytes,
        entries: Sequence[Entry],
        flags: AddFlag,
    ) -> None:
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = len(entries)

        def done(error: MagnetarError | None, entry_ids: Sequence[int]) -> None:
            nonlocal left
            left -= len(entry_ids)
            if finished.done():
                return
            if error is not None:
                finished.set_exception(error)
            elif left == 0:
                finished.set_result(None)

        ids = [entry.entry_id for entry in entries]
        data = [entry.data for entry in entries]
        client = self._pool.client(bookie_id)
        client.add_entries(ledger_id, master_key, ids, data, flags, done)
        try:
            async with asyncio.timeout(self._config.add_timeout_ms / 1000):
                await finished
        except TimeoutError as error:
            raise BookieUnavailableError(f"{bookie_id} did not answer an add in time") from error
