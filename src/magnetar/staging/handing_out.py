"""A broker's side for those who write staged ledgers and have no metadata store within reach.

They write entries straight to the bookies, as others do; for what is kept in the metadata store, a
broker does what they ask: the records of queries, under compare-and-set, and the metadata of staged
ledgers (``grants`` says which). Nothing is kept here between two questions: whichever broker is
asked, before and after a restart, the store is what answers.

Why: docs/adr/0085-brokers-hand-out-staged-writes.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from magnetar.env.metadata import MetadataStore, Versioned
from magnetar.env.node_changes import NodeChanges
from magnetar.model.errors import NoNodeError
from magnetar.model.ledger import LedgerMetadata, Quorums
from magnetar.model.registered_bookie import RegisteredBookie
from magnetar.staging.grants import (
    check_change,
    check_deletion,
    check_new,
    check_record,
    check_told,
    path_of,
)

AWAIT_S_MAX: Final = 10.0
"""A client that waits longer asks again: it learns in time that its broker has gone."""
NO_VERSION: Final = -1
"""Of a record that is not there."""


class StagedCatalog(Protocol):
    """Where ledgers' metadata are (``ledger.catalog.metadata``)."""

    async def create_new(self, metadata: LedgerMetadata) -> tuple[LedgerMetadata, int]: ...

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]: ...

    async def write(self, metadata: LedgerMetadata, version: int) -> int: ...

    async def delete(self, ledger_id: int, version: int = -1) -> None: ...


class HandingOut:
    """Does what clients ask. ``quorums_for(topic)``: how what is written for a topic is to be
    replicated; "": for any topic. ``bookies``: all that are registered. All methods raise
    ``MetadataError``, and ``NotAllowedError`` for what no client may do."""

    def __init__(
        self,
        metadata: MetadataStore,
        catalog: StagedCatalog,
        quorums_for: Callable[[str], Awaitable[Quorums]],
        bookies: Callable[[], Awaitable[Sequence[RegisteredBookie]]],
    ) -> None:
        self._metadata = metadata
        self._catalog = catalog
        self._quorums_for = quorums_for
        self._bookies = bookies
        self.record_written: Callable[[str, bytes], None] | None = None
        """Told of each record that was written here, and how it stands: those who take in, in this
        broker, need not wait for the store to tell them, and read it."""

    async def quorums_for(self, topic: str) -> Quorums:
        return await self._quorums_for(topic)

    async def bookies(self) -> Sequence[RegisteredBookie]:
        return await self._bookies()

    # -- records ------------------------------------------------------------------------------

    async def read_record(self, query: str) -> Versioned:
        """Not older than this call: clients have no way to sync. Raises ``NoNodeError``."""
        path = path_of(query)
        await self._metadata.sync()
        return await self._metadata.get(path)

    async def create_record(self, query: str, value: bytes) -> int:
        """Raises ``NodeExistsError``."""
        await self._metadata.create(check_record(query, value), value)
        return 0

    async def write_record(self, query: str, value: bytes, version: int) -> int:
        """On top of ``version``; returns the new one. Raises ``NoNodeError``,
        ``BadVersionError``."""
        version = await self._metadata.put(check_record(query, value), value, version)
        if self.record_written is not None:
            self.record_written(query, value)
        return version

    async def await_record(self, query: str, version: int, wait_s: float) -> int:
        """The version of the record (``NO_VERSION``: there is none), once it is not ``version``,
        or after that time."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + min(wait_s, AWAIT_S_MAX)
        with NodeChanges(self._metadata, path_of(query)) as changes:
            while True:
                found = await self._version_of(query)
                left_s = until_s - loop.time()
                if found != version or left_s <= 0:
                    return found
                await changes.wait(left_s)

    async def _version_of(self, query: str) -> int:
        try:
            return (await self._metadata.get(path_of(query))).version
        except NoNodeError:
            return NO_VERSION

    # -- ledgers ------------------------------------------------------------------------------

    async def create_ledger(self, metadata: LedgerMetadata) -> tuple[LedgerMetadata, int]:
        """Under an id of the store's choosing."""
        return await self._catalog.create_new(check_new(metadata))

    async def read_ledger(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        """Raises ``NoSuchLedgerError``."""
        metadata, version = await self._catalog.read(ledger_id)
        return check_told(metadata), version

    async def write_ledger(self, metadata: LedgerMetadata, version: int) -> int:
        """On top of ``version``. Raises ``NoSuchLedgerError``, ``BadVersionError``."""
        before, _ = await self._catalog.read(metadata.ledger_id)
        return await self._catalog.write(check_change(before, metadata), version)

    async def delete_ledger(self, ledger_id: int) -> None:
        """Raises ``NoSuchLedgerError``."""
        metadata, _ = await self._catalog.read(ledger_id)
        check_deletion(metadata)
        await self._catalog.delete(ledger_id)
