"""Staged ledgers that no commit has named: of attempts that failed, lost or came too late.

They are known by the ``Origin`` in their metadata, and deleted when the record of their query says
that nothing will ever read them (``commit_rules.may_delete``). No clock is asked: a ledger of a
batch that is not decided stays, however old, until its query commits that batch or begins a new
run.

Every ledger of the cluster is looked at once; those that are not staged are remembered. Records of
batch writes that are over go here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable
from typing import Final

import structlog

from magnetar.model.errors import MagnetarError, NoSuchLedgerError, StagedWriteError
from magnetar.staging.commit_rules import may_delete
from magnetar.staging.queries import Queries
from magnetar.staging.records import LEDGER_KEY, Origin, decode_origin
from magnetar.staging.seams import ReadableStagedLedgers

log = structlog.get_logger(__name__)

REMEMBERED_MAX: Final = 200_000
"""Ids of ledgers that are not staged ones; past that all are looked at again."""


class Leftovers:
    """Looks for them and deletes them."""

    def __init__(
        self, queries: Queries, ledgers: ReadableStagedLedgers, now_ms: Callable[[], int]
    ) -> None:
        self._queries = queries
        self._now_ms = now_ms
        self._ledgers = ledgers
        self._others: set[int] = set()

    async def run(self, living: Callable[[], AsyncIterable[int]], every_s: float) -> None:
        """Look at the ledgers that there are, again and again, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            try:
                gone = await self.collect(living())
                await self.collect_records()
            except MagnetarError as error:
                log.warning("staged ledgers are not looked through", error=str(error))
            else:
                if gone:
                    log.info("staged ledgers that were left over are deleted", count=len(gone))

    async def collect_records(self) -> int:
        """Delete the records that are over; how many."""
        now_ms = self._now_ms()
        names = await self._queries.names()
        return sum([await self._delete_if_over(name, now_ms) for name in names])

    async def _delete_if_over(self, name: str, now_ms: int) -> bool:
        try:
            return await self._queries.delete_if_over(name, now_ms)
        except StagedWriteError as error:  # of this one alone
            log.warning("a query's record is passed over", query=name, error=str(error))
            return False

    async def collect(self, ledger_ids: AsyncIterable[int]) -> list[int]:
        """Those of ``ledger_ids`` that were deleted. What fails stays for the next time. Raises
        ``MetadataError``."""
        if len(self._others) > REMEMBERED_MAX:
            self._others.clear()
        found = []
        async for ledger_id in ledger_ids:
            origin = await self._origin(ledger_id)
            if origin is not None:
                found.append((ledger_id, origin))
        # After the ledgers were seen: a query that is missing now was deleted.
        await self._queries.metadata.sync()
        return [ledger_id for ledger_id, origin in found if await self._collect(ledger_id, origin)]

    async def _origin(self, ledger_id: int) -> Origin | None:
        if ledger_id in self._others:
            return None
        try:
            custom = dict((await self._ledgers.read_metadata(ledger_id)).custom)
            if LEDGER_KEY in custom:
                return decode_origin(custom[LEDGER_KEY])
        except (NoSuchLedgerError, StagedWriteError):
            return None
        self._others.add(ledger_id)
        return None

    async def _collect(self, ledger_id: int, origin: Origin) -> bool:
        try:
            record = await self._queries.read(origin.query)
        except StagedWriteError as error:  # its own stay
            log.warning("staged ledger stays", ledger=ledger_id, error=str(error))
            return False
        if not may_delete(record, ledger_id, origin):
            return False
        try:
            await self._ledgers.delete(ledger_id, missing_ok=True)
        except MagnetarError as error:
            log.warning("staged ledger left over", ledger=ledger_id, error=str(error))
            return False
        return True
