"""The bookies of a cluster, as its metadata store and they themselves tell: who is there, who is
away, who takes entries, how much room there is, which ledgers name one. Nothing is changed, but for
what an operator says of one bookie (its cookie).

A bookie that has a cookie belongs to the cluster, also while it is not registered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

from magnetar.ledger.bookies import BookiePool
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.connections.channel import Address
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.ledger.placing.topology import RACK_PROPERTY, ZONE_PROPERTY
from magnetar.ledger.replies import Refusal, reply
from magnetar.model.errors import NoNodeError
from magnetar.model.ids import BookieId
from magnetar.repair.naming import ledgers_naming
from magnetar.repair.switches import Switches

WRITABLE, READ_ONLY, AWAY = "read-write", "read-only", "away"


class KnownBookies:
    """``timeout_s``: a bookie's time to answer. All methods may raise ``MetadataError``."""

    def __init__(
        self,
        manager: LedgerManager,
        registry: BookieRegistry,
        pool: BookiePool,
        switches: Switches,
        timeout_s: float,
    ) -> None:
        self._manager = manager
        self._registry = registry
        self._pool = pool
        self._switches = switches
        self._timeout_s = timeout_s

    async def all(self) -> list[dict[str, Any]]:
        """As JSON has it, by id."""
        writable, read_only = await self._registry.available(), await self._registry.read_only()
        refusals = await self._registry.refusals()
        leaving, held = await self._switches.leaving(), await self._switches.held()
        found: dict[BookieId, tuple[str, Address | None]] = {}
        for bookie in await self._with_cookies():
            found[bookie] = AWAY, None
        for bookie, address in read_only.items():
            found[bookie] = READ_ONLY, address
        for bookie, address in writable.items():
            found[bookie] = WRITABLE, address
        rows = []
        for bookie, (state, at) in sorted(found.items()):
            told: Mapping[str, str] = self._registry.told(bookie) if at else {}
            why = refusals[bookie].reason if state == READ_ONLY and bookie in refusals else ""
            rows.append(
                {
                    "bookieId": bookie,
                    "state": state,
                    "address": f"{at[0]}:{at[1]}" if at else "",
                    "why": why,
                    "rack": told.get(RACK_PROPERTY, ""),
                    "zone": told.get(ZONE_PROPERTY, ""),
                    "toBeEmptied": bookie in leaving,
                    "toBeReadOnly": bookie in held,
                }
            )
        return rows

    async def _with_cookies(self) -> list[BookieId]:
        try:
            names = await self._manager.store.children(f"{self._manager.root}/cookies")
        except NoNodeError:
            return []
        return [BookieId(name) for name in names]

    async def space(self, wanted: Collection[BookieId] = ()) -> list[dict[str, Any]]:
        """Of those, or of all that are registered; each is asked. One that does not tell has
        ``problem``."""
        bookies = sorted(wanted or await self._registry.all())
        told = await asyncio.gather(*(self._space(bookie) for bookie in bookies))
        return [*told]

    async def _space(self, bookie_id: BookieId) -> dict[str, Any]:
        told = await reply(bookie_id, self._pool.client(bookie_id).disk_space(), self._timeout_s)
        if isinstance(told, Refusal):
            return {"bookieId": bookie_id, "problem": str(told.error)}
        total, free = told
        return {"bookieId": bookie_id, "totalBytes": total, "freeBytes": free, "problem": ""}

    def ledgers_of(self, bookie_id: BookieId) -> AsyncIterator[int]:
        """The ledgers whose metadata names the bookie, ascending. Reads the metadata of all."""
        return ledgers_naming(self._manager, bookie_id)

    async def is_registered(self, bookie_id: BookieId) -> bool:
        return bookie_id in await self._registry.all()

    async def cookie(self, bookie_id: BookieId) -> str:
        """Its text. Raises ``NoNodeError``."""
        found = await self._manager.store.get(self._cookie(bookie_id))
        return found.value.decode("utf-8", "replace")

    async def delete_cookie(self, bookie_id: BookieId) -> None:
        """Raises ``NoNodeError``."""
        await self._manager.store.delete(self._cookie(bookie_id))
        await self._switches.forget_generation(bookie_id)

    def _cookie(self, bookie_id: BookieId) -> str:
        return f"{self._manager.root}/cookies/{bookie_id}"
