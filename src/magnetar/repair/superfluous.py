"""A bookie that came back too late gives up its copies of ledgers that do not name it any more.

Deleting copies is the one thing here that could lose entries: somebody may be about to name this
bookie for the very copies that are deleted. So, in this order:

1. The bookie begins to watch the ledger: whoever adds to it from here on, or asks what is here of
   it, stops the deletion.
2. The metadata is read: the ledger is closed, and names this bookie nowhere. Its copies elsewhere
   are looked at: it is whole without these.
3. The metadata is written as it is. Whoever has read it before, and has found or added copies here
   before 1, can name this bookie no more: its compare-and-set fails, and it begins anew.
4. The copies are deleted, unless somebody has come since 1. From then on the bookie says that it
   has none.

The ledger's lock is held meanwhile, so that BookKeeper's workers, which take it as well, stay away;
1 to 4 hold without it. A marked ledger is left alone. A repair may add to a ledger that was given
up: it comes back (``bookie.ledgers.fences``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol

import structlog

from magnetar.ledger.catalog.seam import LedgerCatalog
from magnetar.model.errors import (
    BadVersionError,
    BookieError,
    MetadataError,
    MetadataFormatError,
    NoSuchLedgerError,
)
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata
from magnetar.repair.checking import Checker
from magnetar.repair.copies import Standing, is_superfluous
from magnetar.repair.marks import HeldLocks, ShortageMarks

log = structlog.get_logger(__name__)

RETRY_S: Final = 1.0
"""Between attempts to let a lock go that may be held still."""


class GivingBookie(Protocol):
    """The bookie of this process (``bookie.bookie.Bookie``)."""

    async def ledgers(self) -> list[int]:
        """Those that it holds, ascending."""
        ...

    def giving_up(self, ledger_id: int) -> AbstractContextManager[Callable[[], Awaitable[bool]]]:
        """Watches the ledger; gives what deletes it unless somebody has come, and returns whether
        it did."""
        ...


class Beside(NamedTuple):
    """The bookie that auto-recovery runs beside."""

    bookie_id: BookieId
    bookie: GivingBookie


class KnownStandings(Protocol):
    async def look(self, named: tuple[BookieId, ...] = ()) -> None: ...

    def of(self, bookies: tuple[BookieId, ...]) -> Mapping[BookieId, Standing]: ...


class Superfluous:
    """``holder`` is to go into locks, another than the worker's beside; ``given_up`` is called with
    each ledger."""

    def __init__(
        self,
        beside: Beside,
        catalog: LedgerCatalog,
        marks: ShortageMarks,
        standings: KnownStandings,
        checker: Checker,
        holder: str,
        ledgers_per_s: float,
        given_up: Callable[[int], None],
    ) -> None:
        self._beside = beside
        self._catalog = catalog
        self._marks = marks
        self._standings = standings
        self._checker = checker
        self._locks = HeldLocks(marks, holder)
        self._ledgers_per_s = ledgers_per_s
        self._given_up = given_up

    async def run(self, interval_s: float, enabled: Callable[[], bool]) -> None:
        """Look for ever, every ``interval_s``."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                if enabled():
                    await self.sweep()
            except (MetadataError, BookieError) as error:
                log.warning("superfluous copies not looked for", error=str(error))
            await self._let_go()

    async def _let_go(self) -> None:
        while self._locks.perhaps:
            try:
                await self._locks.let_go()
            except MetadataError as error:
                log.debug("a lock may be held still", error=str(error))
                await asyncio.sleep(RETRY_S)

    async def sweep(self) -> list[int]:
        """Look at every ledger that is here; returns those that were given up. Raises
        ``MetadataError``, ``BookieError``."""
        found = []
        for ledger_id in await self._beside.bookie.ledgers():
            await asyncio.sleep(1 / self._ledgers_per_s)
            metadata = await self._read(ledger_id)
            if metadata is None or not is_superfluous(metadata[0], self._beside.bookie_id):
                continue
            if await self._gives_up(ledger_id):
                found.append(ledger_id)
                self._given_up(ledger_id)
                log.info("superfluous copies of a ledger are deleted", ledger=ledger_id)
        return found

    async def _read(self, ledger_id: int) -> tuple[LedgerMetadata, int] | None:
        """None: it cannot be told what is to be there (a ledger that was deleted is not ours)."""
        try:
            return await self._catalog.read(ledger_id)
        except (NoSuchLedgerError, MetadataFormatError):
            return None

    async def _gives_up(self, ledger_id: int) -> bool:
        """As ``_give_up``; what the bookie refuses of one ledger keeps no other."""
        try:
            return await self._give_up(ledger_id)
        except BookieError as error:
            log.warning("superfluous copies stay here", ledger=ledger_id, error=str(error))
            return False

    async def _give_up(self, ledger_id: int) -> bool:
        with self._beside.bookie.giving_up(ledger_id) as delete:
            async with self._locks.held(ledger_id) as lock:
                if lock is None:
                    return False
                return await self._is_nobodys(ledger_id) and await delete()

    async def _is_nobodys(self, ledger_id: int) -> bool:
        """Whether nobody needs what is here, and whoever was about to name it cannot."""
        found = await self._read(ledger_id)
        if found is None or await self._marks.read(ledger_id) is not None:
            return False
        metadata, version = found
        if not is_superfluous(metadata, self._beside.bookie_id):
            return False
        named = tuple(dict.fromkeys(b for one in metadata.fragments for b in one.bookies))
        await self._standings.look(named)
        findings = await self._checker.look(metadata, self._standings.of(named), durably=True)
        if not findings.whole:
            return False  # what is here may be needed
        try:
            await self._catalog.write(metadata, version)
        except (BadVersionError, NoSuchLedgerError):
            return False
        return True
