"""Forgets ledgers that the metadata store no longer has, so that their space can be given back.

Rules:

* The bookie's ledgers are listed before the store's. A ledger's metadata is made before its first
  entry and lives as long as anybody may read it, so one that the bookie has and the store has not
  was deleted.
* A store may answer from a replica that lags. So a ledger is deleted here only when two sweeps in
  a row have missed it.
* A sweep that cannot be sure of the store (``living`` raises) deletes nothing and counts for
  nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

import structlog

from magnetar.model.errors import BookieError, MetadataError

log = structlog.get_logger(__name__)


class LedgerHolder(Protocol):
    """The bookie, as far as this is concerned."""

    async def ledgers(self) -> list[int]: ...

    async def delete_ledger(self, ledger_id: int) -> None: ...


class Collector:
    """``living`` gives the ids of all ledgers of the cluster; it raises ``MetadataError`` when the
    store cannot be asked, or is not the one that the bookie belongs to."""

    def __init__(
        self, bookie: LedgerHolder, living: Callable[[], Awaitable[Collection[int]]]
    ) -> None:
        self._bookie = bookie
        self._living = living
        self._missed: frozenset[int] = frozenset()

    async def run(self, interval_s: float) -> None:
        """Sweep for ever, every ``interval_s``."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                deleted = await self.sweep()
            except (MetadataError, BookieError) as error:
                self._missed = frozenset()
                log.warning("deleted ledgers not looked for", error=str(error))
                continue
            if deleted:
                log.info("deleted ledgers forgotten", count=len(deleted), first=deleted[0])

    async def sweep(self) -> list[int]:
        """One look; returns what it deleted. Raises ``MetadataError``, ``BookieError``."""
        held = await self._bookie.ledgers()
        if not held:
            return []
        living = frozenset(await self._living())
        missing = [ledger_id for ledger_id in held if ledger_id not in living]
        gone = [ledger_id for ledger_id in missing if ledger_id in self._missed]
        self._missed = frozenset(missing)
        for ledger_id in gone:
            await self._bookie.delete_ledger(ledger_id)
        return gone
