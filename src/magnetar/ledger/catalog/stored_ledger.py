"""A ledger's metadata as its one writer, or a recovery, holds it: read, changed, closed.

Every change is a compare-and-set. Rules:

* A writer changes metadata only while the store says OPEN. Lost to IN_RECOVERY means fenced, lost
  to CLOSED means closed.
* A write whose outcome is unknown (the store did not answer) is repeated as it was; when the
  store then says "another version", the ledger is read again and compared: an earlier try may
  have landed.
* Fragments before the last may be changed under an open ledger by re-replication, so a change is
  kept as what it does to the last fragment and applied to what the store holds.
* A recovery's fragments stay here until the compare-and-set to CLOSED: another recovery must read
  from the same bookies as this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from magnetar.ledger.catalog.seam import LedgerCatalog
from magnetar.ledger.placing.placement import replaced_fragments, without_empty_tail
from magnetar.model.errors import (
    BadVersionError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataError,
    MetadataUnavailableError,
)
from magnetar.model.ids import BookieId, EntryId
from magnetar.model.ledger import LedgerMetadata, LedgerState

RETRY_DELAYS_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0)
"""Waits between tries while the metadata store does not answer."""
GIVE_UP_S = 10.0
"""No try begins later than this after the first: a store that is away may take long over each."""


class _Tries:
    """The first begins now."""

    def __init__(self) -> None:
        self._delays_s = iter(RETRY_DELAYS_S)
        self._give_up_at_s = asyncio.get_running_loop().time() + GIVE_UP_S

    async def pause(self, error: MetadataError) -> None:
        """Wait until the next try, or raise what the last one ended with."""
        delay_s = next(self._delays_s, None)
        if delay_s is None or asyncio.get_running_loop().time() >= self._give_up_at_s:
            raise error
        await asyncio.sleep(delay_s)


class StoredLedger:
    """The metadata of a ledger that this process writes. Not for concurrent use."""

    def __init__(self, manager: LedgerCatalog, metadata: LedgerMetadata, version: int) -> None:
        self._manager = manager
        self.metadata = metadata
        self.version = version

    async def replace_bookies(
        self, first_entry_id: EntryId, replacements: Mapping[int, BookieId]
    ) -> None:
        """Name other bookies in some slots from ``first_entry_id`` on.

        Raises ``LedgerFencedError``, ``LedgerClosedError``, ``MetadataError`` (the outcome is
        unknown: the store did not answer).
        """
        wanted = self._with_replacements(self.metadata, first_entry_id, replacements)
        while not await self._write(wanted):
            current, version = await self._read()
            if current.state is not LedgerState.OPEN:
                raise self._lost(current)
            if current.fragments[-1] == wanted.fragments[-1]:
                self.metadata, self.version = current, version
                return
            self.metadata, self.version = current, version
            wanted = self._with_replacements(current, first_entry_id, replacements)

    async def close(self, last_entry_id: EntryId, length: int) -> LedgerMetadata:
        """Close the ledger at ``last_entry_id``; closing twice at the same place is no error.

        Raises ``LedgerFencedError``, ``LedgerClosedError`` (closed elsewhere at another place),
        ``MetadataError`` (``MetadataUnavailableError``: it may be closed or not).
        """
        wanted = self._closed_at(self.metadata, last_entry_id, length)
        try:
            while not await self._write(wanted):
                current, version = await self._read()
                if self._settled(current, wanted):
                    self.metadata, self.version = current, version
                    return current
                self.metadata, self.version = current, version
                wanted = self._closed_at(current, last_entry_id, length)
        except MetadataUnavailableError as error:
            raise MetadataUnavailableError(
                f"ledger {wanted.ledger_id} could not be closed at entry {last_entry_id}, or is "
                f"closed and nobody said so ({error}); close it again when the store is back, or "
                "open it: every confirmed entry is kept"
            ) from error
        return self.metadata

    def _settled(self, current: LedgerMetadata, wanted: LedgerMetadata) -> bool:
        """Whether a conflicting close did what we wanted. Raises when the ledger is lost."""
        if current.state is LedgerState.OPEN:
            return False
        if (
            current.closed
            and current.last_entry_id == wanted.last_entry_id
            and current.length == wanted.length
        ):
            return True
        raise self._lost(current)

    async def _write(self, wanted: LedgerMetadata) -> bool:
        """Compare-and-set, repeated while the store does not answer; False when lost."""
        tries = _Tries()
        while True:
            try:
                self.version = await self._manager.write(wanted, self.version)
            except BadVersionError:
                return False
            except MetadataError as error:
                await tries.pause(error)
            else:
                self.metadata = wanted
                return True

    async def _read(self) -> tuple[LedgerMetadata, int]:
        tries = _Tries()
        while True:
            try:
                return await self._manager.read(self.metadata.ledger_id)
            except MetadataError as error:
                await tries.pause(error)

    def _with_replacements(
        self,
        metadata: LedgerMetadata,
        first_entry_id: EntryId,
        replacements: Mapping[int, BookieId],
    ) -> LedgerMetadata:
        fragments = replaced_fragments(metadata.fragments, first_entry_id, replacements)
        return replace(metadata, fragments=fragments)

    def _closed_at(
        self, metadata: LedgerMetadata, last_entry_id: EntryId, length: int
    ) -> LedgerMetadata:
        fragments = without_empty_tail(metadata.fragments, last_entry_id)
        return replace(metadata, fragments=fragments).with_close(last_entry_id, length)

    def _lost(self, current: LedgerMetadata) -> LedgerFencedError | LedgerClosedError:
        ledger_id = current.ledger_id
        if current.state is LedgerState.CLOSED:
            return LedgerClosedError(
                f"ledger {ledger_id} was closed by another client at entry "
                f"{current.last_entry_id}; write to a new ledger"
            )
        return LedgerFencedError(
            f"ledger {ledger_id} is being recovered by another client; this writer has lost it, "
            "write to a new ledger"
        )


class RecoveringLedger(StoredLedger):
    """The metadata of a ledger that this process recovers (the store says IN_RECOVERY)."""

    async def replace_bookies(
        self, first_entry_id: EntryId, replacements: Mapping[int, BookieId]
    ) -> None:
        """As above, kept here until ``close``."""
        self.metadata = self._with_replacements(self.metadata, first_entry_id, replacements)

    async def close(self, last_entry_id: EntryId, length: int) -> LedgerMetadata:
        """Close at ``last_entry_id``, or take what another recovery has closed at: the first
        one counts, and both ends were safe.

        Raises ``LedgerFencedError`` when the metadata changed and is not closed: begin again.
        """
        wanted = self._closed_at(self.metadata, last_entry_id, length)
        if await self._write(wanted):
            return wanted
        current, version = await self._read()
        if not current.closed:
            raise self._lost(current)
        self.metadata, self.version = current, version
        return current
