"""Follows an open ledger without polling and without disturbing its writer.

Rules:

* A long poll goes to every bookie of the last fragment; the first that tells of a higher last add
  confirmed (LAC) ends the wait. It counts only with a digest: from the header of an entry, or
  from an explicit LAC.
* The metadata store tells of changes (a watch): the ensemble changed, the ledger is in recovery,
  closed or deleted.
* What a reader sees trails the writer by the entries not yet followed by another, until the
  writer is idle for ``explicit_lac_interval_ms``. Who hears it from the writer itself says so
  (``told``): then bookies are not asked, until the writer has been silent for ``TOLD_S``.
* Without any bookie that answers, it looks again after ``BACKOFF_S``, doubling to
  ``BACKOFF_S_MAX``.

Why so: docs/adr/0046-tailing-readers.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from magnetar.env.tasks import TaskScope, awaited
from magnetar.ledger.bookies import BookieClient
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.ledger.replies import Refusal, reply
from magnetar.model.entry import Entry, LacReply
from magnetar.model.errors import DigestError, LedgerError, MagnetarError, NoEntryError
from magnetar.model.ids import NO_ENTRY, BookieId, EntryId
from magnetar.model.ledger import LedgerMetadata

POLL_S = 30.0
BACKOFF_S = 0.05
BACKOFF_S_MAX = 2.0
TOLD_S = 1.0


class WatchedLedgers(Protocol):
    """The part of ``LedgerManager`` that a tail needs."""

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]: ...

    def watch(self, ledger_id: int, changed: Callable[[int], None]) -> Callable[[], None]: ...


class TailingReader(LedgerReader):
    """A reader whose ``last_add_confirmed`` moves: see ``wait_past`` and ``follow``.

    ``close`` ends its watch; the reader is also an asynchronous context manager that does.
    Waiting is for one caller at a time.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        last_add_confirmed: EntryId,
        context: LedgerContext,
        manager: WatchedLedgers,
        *,
        urgent: bool = False,
    ) -> None:
        super().__init__(
            metadata,
            last_add_confirmed,
            context.pool,
            context.config,
            context.policy,
            urgent=urgent,
        )
        self._manager = manager
        self._changed = asyncio.Event()
        self._news = asyncio.Event()  # the metadata has changed, or the writer has told something
        self._told_s = -TOLD_S  # when it did
        self._unread = False  # a change that could not be read: nobody tells of it again
        self._end_watch: Callable[[], None] | None = None

    async def __aenter__(self) -> TailingReader:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        end, self._end_watch = self._end_watch, None
        if end is not None:
            end()

    async def wait_past(self, entry_id: EntryId, timeout_s: float | None = None) -> EntryId:
        """Wait until entries after ``entry_id`` are confirmed, or the ledger is closed, or
        ``timeout_s`` are over; returns ``last_add_confirmed`` as it then is.

        Raises ``NoSuchLedgerError`` (it was deleted), ``MetadataError``.
        """
        try:
            async with asyncio.timeout(timeout_s) as limit:
                await self._wait_past(entry_id, limit.when())
        except TimeoutError:
            pass  # what is known now is the answer
        return self.last_add_confirmed

    def told(self, entry_id: EntryId) -> None:
        """The ledger's writer says that it has confirmed entries up to that one."""
        self._told_s = asyncio.get_running_loop().time()
        if entry_id > self.last_add_confirmed:
            self.last_add_confirmed = entry_id
            self._news.set()

    async def read(self, first_entry_id: EntryId, max_entries: int, max_bytes: int) -> list[Entry]:
        """As ``LedgerReader.read``; if it fails and the metadata names other bookies by now, once
        more. Raises ``NoSuchLedgerError`` when the ledger was deleted meanwhile."""
        try:
            return await super().read(first_entry_id, max_entries, max_bytes)
        except (LedgerError, NoEntryError):
            before = self.metadata
            await self._read_metadata()
            if self.metadata.fragments == before.fragments:
                raise
        return await super().read(first_entry_id, max_entries, max_bytes)

    async def follow(
        self, first_entry_id: EntryId = 0, max_entries: int = 100, max_bytes: int = 1 << 20
    ) -> AsyncIterator[Entry]:
        """Every entry from ``first_entry_id`` on, as they are confirmed; ends with the ledger.
        ``max_entries`` and ``max_bytes`` bound what is read at once. Raises as ``read`` and
        ``wait_past``."""
        following = first_entry_id
        while await self.wait_past(following - 1) >= following:
            for entry in await self.read(following, max_entries, max_bytes):
                yield entry
                following = entry.entry_id + 1

    # -- waiting ------------------------------------------------------------------------------

    async def _wait_past(self, entry_id: EntryId, until_s: float | None) -> None:
        loop, backoff_s = asyncio.get_running_loop(), BACKOFF_S
        while self.last_add_confirmed <= entry_id and not self.closed:
            self._news.clear()
            if not self._unread:
                await self._keep_metadata()
            if self.closed:
                return
            now_s = loop.time()
            if self._told_s + TOLD_S > now_s:
                await self._wait_told(until_s)
            elif await self._poll(POLL_S if until_s is None else min(POLL_S, until_s - now_s)):
                backoff_s = BACKOFF_S
            else:
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)

    async def _wait_told(self, until_s: float | None) -> None:
        """For news; not for longer than a writer that tells is ever silent while it goes on."""
        silent_s = self._told_s + TOLD_S
        try:
            async with asyncio.timeout_at(silent_s if until_s is None else min(silent_s, until_s)):
                await self._news.wait()
        except TimeoutError:
            pass  # bookies are asked

    async def _keep_metadata(self) -> None:
        """Read the metadata if it may have changed since."""
        if self._end_watch is None:
            self._end_watch = self._manager.watch(self.ledger_id, self._metadata_changed)
            self._changed.set()
        if not self._changed.is_set():
            return
        self._changed.clear()
        self._unread = True
        await self._read_metadata()
        self._unread = False

    async def _read_metadata(self) -> None:
        """Whoever takes the metadata takes with it what it says is confirmed: a reader that knows
        of the close and not of the end would stop short of it."""
        self.metadata, _ = await self._manager.read(self.ledger_id)
        known = self.metadata.fragments[-1].first_entry_id - 1  # confirmed before it was begun
        if self.closed:
            known = self.metadata.last_entry_id
        self.last_add_confirmed = max(self.last_add_confirmed, known)

    def _metadata_changed(self, _ledger_id: int) -> None:
        self._changed.set()
        self._news.set()

    async def _poll(self, poll_s: float) -> bool:
        """One round of long polls; True when there is news: a higher LAC, or a change of the
        metadata, or all is as it was for ``poll_s``. Bookies go on with a poll that nobody waits
        for any more, so none is asked to take longer than the caller."""
        scope = TaskScope(f"tail-of-{self.ledger_id}", awaited(by="TailingReader._poll"))
        before, began_s = self.last_add_confirmed, asyncio.get_running_loop().time()
        try:
            changed = scope.spawn(self._look(), "metadata")
            polls = {
                scope.spawn(self._listen(bookie_id, poll_s), bookie_id)
                for bookie_id in self.metadata.fragments[-1].bookies
            }
            while polls and not changed.done() and self.last_add_confirmed == before:
                done, _ = await asyncio.wait({changed, *polls}, return_when=asyncio.FIRST_COMPLETED)
                polls -= done
                for each in done:
                    each.result()  # a defect is no bookie that does not answer
            if changed.done() and (error := changed.result()) is not None:
                raise error
            if changed.done() or self.last_add_confirmed > before:
                return True
            answered = asyncio.get_running_loop().time() - began_s >= poll_s / 2
            if not answered or poll_s == POLL_S:  # nobody answers, or a quiet round
                self._changed.set()  # look at the metadata as well
            return answered
        finally:
            await scope.close()

    async def _look(self) -> MagnetarError | None:
        """Wait for a change of the metadata, or for the writer. A change that could not be read is
        read, beside the polls: bookies tell of entries also while the store is away. Returns what
        that failed with."""
        if not self._unread:
            await self._news.wait()
            return None
        self._changed.set()
        try:
            await self._keep_metadata()
        except MagnetarError as error:
            return error
        return None

    async def _listen(self, bookie_id: BookieId, poll_s: float) -> None:
        client = self._pool.client(bookie_id)
        known = self.last_add_confirmed
        answer = client.wait_lac(self.ledger_id, known, poll_s)
        told = await reply(bookie_id, answer, poll_s + self._timeout_s)
        if isinstance(told, Refusal):
            self._policy.order.failed(bookie_id, asyncio.get_running_loop().time())
            return
        lac = self._verified(told)
        if lac <= known < told.last_add_confirmed:  # it knows from an explicit LAC
            lac = await self._read_lac(bookie_id, client)
        self.last_add_confirmed = max(self.last_add_confirmed, lac)

    async def _read_lac(self, bookie_id: BookieId, client: BookieClient) -> EntryId:
        told = await reply(bookie_id, client.read_lac(self.ledger_id), self._timeout_s)
        return NO_ENTRY if isinstance(told, Refusal) else self._verified(told)

    def _verified(self, told: LacReply) -> EntryId:
        """The LAC that the reply proves; -1 if that is none."""
        try:
            return self._digest.verify_reply(told)
        except DigestError:
            return NO_ENTRY  # a corrupt copy tells nothing
