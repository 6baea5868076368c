"""Gives bookies that were away what was confirmed without them: makes a ledger whole again.

One task per client, running only while some bookie is missing entries (``missing_entries``). For
each bookie and ledger: read the missing entries from the other replicas, a piece at a time, and add
them to the bookie as they are. A bookie that refuses because the ledger is fenced, or because it
takes no new entries, gets them marked as recovery: neither must keep a confirmed entry out. (Plain
adds cost both sides less.)

Rules:

* The metadata decides: it is read anew before each ledger, and an entry goes to a bookie only if
  the metadata names it there. A ledger in recovery is left alone until it is closed. Deleted
  ledgers are forgotten.
* Memory and load are bounded: a piece of ``PIECE_BYTES`` is added while the next one is read, and
  no more is under way. Mending goes on beside writers and leaves most of a bookie to them.
* A ledger that nobody can read now, or that the bookie refuses for a reason of that ledger's, is
  passed over, and its turn comes again.
* A bookie that does not answer is tried again after ``BACKOFF_S``, doubling to ``BACKOFF_S_MAX``.

What is missing is known as long as the client lives; its log has the beginning and the end of each
case, and what is left when it is closed. What was missing when a process ended is found and
repaired by auto-recovery (``repair``). Why so, and what that means:
docs/adr/0044-copies-for-slow-bookies.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from magnetar.config import LedgerConfig
from magnetar.env.tasks import TaskScope, awaited, fails
from magnetar.ledger.bookies import AddFlag, BookiePool
from magnetar.ledger.mending.adding import add_copies
from magnetar.ledger.mending.missing_entries import MissingEntries
from magnetar.ledger.reading.read_order import ReadPolicy
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    BookieUnavailableError,
    FencedError,
    MagnetarError,
    MetadataError,
    NoSuchLedgerError,
    ReadOnlyBookieError,
    TooManyRequestsError,
    UnknownLedgerStateError,
)
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata, LedgerState
from magnetar.wire.bookie.digest import EntryDigest

log = structlog.get_logger(__name__)

PIECE_BYTES = 1 << 20
PIECE_ENTRIES = 1000
LOGGED_MAX = 100
"""Ledgers that a line of the log names."""
BACKOFF_S = 0.5
BACKOFF_S_MAX = 15.0
OF_ALL: Final = (
    BookieUnavailableError,
    TooManyRequestsError,
    ReadOnlyBookieError,
    MetadataError,
)
"""What the bookie's other ledgers would meet as well."""


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
        self._missing = MissingEntries()
        self._scope = TaskScope("mending", fails(self._task_failed))
        self._running = False
        self._closed = False
        self._timers: dict[asyncio.TimerHandle, Callable[[], None]] = {}
        self.mended_entries = 0
        """Entries copied to bookies that lacked them, since the start."""

    @property
    def has_missing(self) -> bool:
        """Whether some bookie is known to lack confirmed entries, or has yet to be looked at."""
        return bool(self._missing or self._timers)

    def note_missing(self, bookie_id: BookieId, ledger_id: int, entry_ids: range) -> None:
        """``bookie_id`` may lack some of these confirmed entries."""
        if not entry_ids or self._closed:
            return
        if not self._missing.ranges(bookie_id, ledger_id):
            log.info(
                "bookie lacks confirmed entries; they are missing to it",
                bookie=bookie_id,
                ledger=ledger_id,
                first_entry=entry_ids[0],
            )
        dropped = self._missing.dropped
        self._missing.add(bookie_id, ledger_id, entry_ids)
        if self._missing.dropped > dropped:
            log.warning(
                "too much is missing; the oldest record of it is dropped", dropped=dropped + 1
            )
        self._begin()

    def _begin(self) -> None:
        if not self._running and not self._closed:
            self._running = True
            self._scope.spawn(self._run(), "missing entries")

    def _task_failed(self, task: str, error: BaseException) -> None:
        """What is missing is still known: mend on, later, lest a defect that lasts fills the
        log."""
        self._running = False
        self.look_later(BACKOFF_S_MAX, self._begin)

    def look_later(self, delay_s: float, look: Callable[[], None]) -> None:
        """Call ``look`` after ``delay_s``, unless this is closed before: a bookie that is only
        late may have answered by then."""
        if self._closed:
            return

        def due() -> None:
            del self._timers[timer]
            look()

        timer = asyncio.get_running_loop().call_later(delay_s, due)
        self._timers[timer] = look

    async def close(self) -> None:
        """Stop mending; what is still missing goes to the log, as nobody else knows. Idempotent."""
        if self._closed:
            return
        for timer, look in self._timers.items():
            timer.cancel()
            look()
        self._timers.clear()
        self._closed = True
        await self._scope.close()
        for bookie_id in self._missing.bookies():
            ledger_ids = self._missing.ledgers(bookie_id)
            log.warning(
                "the client ends before the bookie got what it lacks: these ledgers are short of "
                "copies until auto-recovery finds it at its next check of all ledgers "
                "(repair.check_interval_ms, or: magnetar recovery check)",
                bookie=bookie_id,
                ledgers=ledger_ids[:LOGGED_MAX],
                ledger_count=len(ledger_ids),
                entries_at_most=self._missing.entries(bookie_id),
            )

    # -- the task -----------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff_s = BACKOFF_S
        try:
            while self._missing:
                before = self.mended_entries
                await asyncio.sleep(backoff_s)
                for bookie_id in self._missing.bookies():
                    await self._mend_bookie(bookie_id)
                moved = self.mended_entries > before
                backoff_s = BACKOFF_S if moved else min(2 * backoff_s, BACKOFF_S_MAX)
        finally:
            self._running = False

    async def _mend_bookie(self, bookie_id: BookieId) -> None:
        """Everything missing to one bookie that can be read, until it takes nothing."""
        try:
            for ledger_id in self._missing.ledgers(bookie_id):
                before = self.mended_entries
                try:
                    await self._mend_ledger(bookie_id, ledger_id)
                except OF_ALL:
                    raise
                except MagnetarError as error:  # nobody gives it, or the bookie does not take it
                    log.debug("cannot mend now", ledger=ledger_id, error=str(error))
                    continue
                if not self._missing.ranges(bookie_id, ledger_id):
                    log.info(
                        "bookie lacks nothing of the ledger any more",
                        bookie=bookie_id,
                        ledger=ledger_id,
                        copied_entries=self.mended_entries - before,
                    )
        except MagnetarError as error:
            log.debug("cannot mend now", bookie=bookie_id, error=str(error))

    async def _mend_ledger(self, bookie_id: BookieId, ledger_id: int) -> None:
        try:
            metadata, _ = await self._manager.read(ledger_id)
        except NoSuchLedgerError:
            self._missing.forget(ledger_id)
            return
        if metadata.state is LedgerState.IN_RECOVERY:
            return
        for missing in self._missing.ranges(bookie_id, ledger_id):
            last = missing[-1]
            if metadata.closed:
                last = min(last, metadata.last_entry_id)
            await self._mend_range(bookie_id, metadata, range(missing.start, last + 1))
            self._missing.copied(bookie_id, ledger_id, missing)

    async def _mend_range(
        self, bookie_id: BookieId, metadata: LedgerMetadata, missing: range
    ) -> None:
        digest = EntryDigest(metadata.digest_type, metadata.ledger_id, metadata.password)
        reader = LedgerReader(
            metadata,
            missing[-1] if missing else -1,
            self._pool,
            self._config,
            self._policy,
            bookie_id,
        )
        flags = AddFlag.NONE
        coming = self._read_ahead(reader, bookie_id, missing)
        try:
            while coming is not None:
                found = await coming
                if isinstance(found, MagnetarError):
                    raise found
                read = range(found[0].entry_id, found[-1].entry_id + 1)
                coming = self._read_ahead(reader, bookie_id, range(read.stop, missing.stop))
                own = [entry for entry in found if bookie_id in metadata.write_set(entry.entry_id)]
                if own:
                    flags = await self._add(
                        bookie_id, metadata.ledger_id, digest.master_key, own, flags
                    )
                self._missing.copied(bookie_id, metadata.ledger_id, read)
        finally:
            if coming is not None:
                coming.cancel()

    def _read_ahead(
        self, reader: LedgerReader, bookie_id: BookieId, missing: range
    ) -> asyncio.Task[list[Entry] | MagnetarError] | None:
        """Begin to read the next piece of ``missing``; None if nothing of it is the bookie's."""
        metadata = reader.metadata
        while missing and bookie_id not in metadata.fragment_of(missing.start).bookies:
            missing = missing[reader.fragment_end(missing.start) + 1 - missing.start :]
        if not missing:
            return None
        count = min(PIECE_ENTRIES, len(missing))

        async def read() -> list[Entry] | MagnetarError:
            try:
                return await reader.read(missing.start, count, PIECE_BYTES)
            except MagnetarError as error:
                return error

        return self._scope.spawn(read(), "a piece", awaited(by="_mend_range"))

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
        except (FencedError, ReadOnlyBookieError, UnknownLedgerStateError):
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
        client = self._pool.client(bookie_id)
        timeout_s = self._config.add_timeout_ms / 1000
        await add_copies(client, ledger_id, master_key, entries, flags, timeout_s)
