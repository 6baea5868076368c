"""Ledgers, entries and bookies: ``/magnetar/v1``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from magnetar.admin.ledgers import LedgerService
from magnetar.admin.paths import ID_MAX, IdSegment
from magnetar.admin.views import BookieView, EntryView, LedgerView

ENTRIES_MAX = 1000
LEDGERS_MAX = 10_000


def routes(service: LedgerService) -> APIRouter:
    """All of it."""
    router = APIRouter(prefix="/magnetar/v1", tags=["storage"])

    @router.get("/ledgers")
    async def ledgers(
        after: Annotated[int, Query(ge=-1, le=ID_MAX)] = -1,
        limit: Annotated[int, Query(ge=1, le=LEDGERS_MAX)] = 1000,
    ) -> list[LedgerView]:
        """Ledgers with ids above ``after``, at most ``limit``."""
        return await service.ledgers(after, limit)

    @router.get("/ledgers/{ledger_id}")
    async def ledger(ledger_id: IdSegment) -> LedgerView:
        """One ledger's metadata."""
        return await service.ledger(ledger_id)

    @router.get("/ledgers/{ledger_id}/entries")
    async def entries(
        ledger_id: IdSegment,
        first: Annotated[int, Query(ge=0, le=ID_MAX)] = 0,
        count: Annotated[int, Query(ge=1, le=ENTRIES_MAX)] = 10,
    ) -> list[EntryView]:
        """Entries from ``first`` on, at most ``count``; the ledger is not fenced."""
        return await service.entries(ledger_id, first, count)

    @router.get("/bookies")
    async def bookies() -> list[BookieView]:
        """The bookies that are registered, and those of this process."""
        return await service.bookies()

    return router
