"""What operators ask of repair, and say to it, over the metadata store alone.

A bookie is emptied the same way whether it serves still (decommission) or not (recover): it is
noted as leaving (``switches``), the auditor marks its ledgers, workers give its places to others.
The one who asks waits, also while the store does not answer, and need not: the work goes on
without.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import structlog

from magnetar.env.metadata import MetadataStore
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.model.errors import MetadataUnavailableError, NoNodeError, NoSuchBookieError
from magnetar.model.ids import BookieId
from magnetar.repair.election import Election
from magnetar.repair.marks import ShortageMark, ShortageMarks
from magnetar.repair.naming import ledgers_naming
from magnetar.repair.switches import Switches
from magnetar.wire.bookie.metadata_service import PROCESS_PROPERTY

log = structlog.get_logger(__name__)

T = TypeVar("T")

LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class RecoveryState:
    """``auditor``: its name; None: there is none. ``marked``: ledgers that lack copies, of which
    ``locked`` are being repaired. ``checked_ms``: when all ledgers were checked last (0: never)."""

    enabled: bool
    auditor: str | None
    delay_s: int
    marked: int
    locked: int
    leaving: tuple[BookieId, ...]
    checked_ms: int


@dataclass(frozen=True, slots=True)
class MarkedLedger:
    """``holder``: who repairs it now."""

    ledger_id: int
    mark: ShortageMark
    holder: str | None


class Operating:
    """``default_delay_s``: what counts while nothing was said. All methods may raise
    ``MetadataError``."""

    def __init__(
        self,
        store: MetadataStore,
        manager: LedgerManager,
        registry: BookieRegistry,
        default_delay_s: int,
    ) -> None:
        self._manager = manager
        self._registry = registry
        self._store = store
        self._default_delay_s = default_delay_s
        self.marks = ShortageMarks(store, manager.root)
        self.switches = Switches(store, manager.root)
        self._election = Election(store, "", manager.root)

    async def state(self) -> RecoveryState:
        switches = self.switches
        marked = 0
        async for _ in self.marks.ledgers():
            marked += 1
        return RecoveryState(
            enabled=await switches.enabled(),
            auditor=await self._election.auditor(),
            delay_s=await switches.delay(self._default_delay_s),
            marked=marked,
            locked=len(await self.marks.locked()),
            leaving=tuple(await switches.leaving()),
            checked_ms=await switches.checked_ms(),
        )

    async def marked(self) -> AsyncIterator[MarkedLedger]:
        """The ledgers that lack copies."""
        locked = await self.marks.locked()
        async for ledger_id in self.marks.ledgers():
            mark = await self.marks.read(ledger_id)
            if mark is not None:
                holder = await self.marks.holder(ledger_id) if ledger_id in locked else None
                yield MarkedLedger(ledger_id, mark, holder)

    async def trigger(self) -> None:
        """The auditor looks at all bookies now."""
        await self.switches.set_delay(await self.switches.delay(self._default_delay_s))

    async def workers(self) -> int:
        """How many processes repair, as far as they are candidates for the auditor."""
        return await self._election.voters()

    async def is_registered(self, bookie_id: BookieId) -> bool:
        return bookie_id in await self._registry.all()

    async def check_known(self, bookie_id: BookieId) -> None:
        """Raises ``NoSuchBookieError`` for one that is not registered, has no cookie, and is named
        by no ledger: nothing is to be done about it, and its name was mistyped."""
        if await self.is_registered(bookie_id):
            return
        try:
            await self._store.get(self._cookie(bookie_id))
        except NoNodeError:
            async for _ in ledgers_naming(self._manager, bookie_id):
                return
            raise NoSuchBookieError(
                f"this cluster knows no bookie {bookie_id}: none is registered so, has a cookie, "
                "or is named by a ledger; magnetar bookie list shows those that are there"
            ) from None

    async def hears_of_leaving(self, bookie_id: BookieId) -> bool:
        """Whether it takes no new entries once it is to be emptied: it takes none anyway, or it is
        one of this platform's, which follow what operators say. BookKeeper's own do not."""
        available = await self._registry.available()
        return bookie_id not in available or self._is_ours(bookie_id)

    def http_address(self, bookie_id: BookieId) -> tuple[str, int] | None:
        """The bookie's HTTP server, as it was registered when it was asked for last."""
        return self._registry.http_address(bookie_id)

    async def is_java(self, bookie_id: BookieId) -> bool:
        """Whether it is registered, and is none of this platform's."""
        return await self.is_registered(bookie_id) and not self._is_ours(bookie_id)

    def _is_ours(self, bookie_id: BookieId) -> bool:
        """As it was registered when it was last read of."""
        return PROCESS_PROPERTY in self._registry.told(bookie_id)

    async def set_read_only(self, bookie_id: BookieId, read_only: bool) -> None:
        """One of this platform's follows at once if it runs, else when it starts."""
        if read_only:
            await self.switches.hold(bookie_id)
        else:
            await self.switches.let_go(bookie_id)

    async def wait_read_only(self, bookie_id: BookieId, read_only: bool) -> None:
        """Return when the bookie is registered so, or not registered as one that takes entries."""
        while (bookie_id in await self._registry.available()) is read_only:  # noqa: ASYNC110 - as below
            await asyncio.sleep(LOOK_S)

    async def ledgers_of(self, bookie_id: BookieId) -> int:
        """How many ledgers name the bookie. Reads the metadata of all."""
        return len([each async for each in ledgers_naming(self._manager, bookie_id)])

    async def empty(self, bookie_id: BookieId, told: Callable[[int], None]) -> None:
        """Have the bookie emptied, and return when no ledger names it; ``told`` is called with how
        many do, now and then. The bookie stays noted as leaving: ``forget`` ends that."""
        await self.switches.leave(bookie_id)
        while left := await self.patiently(partial(self.ledgers_of, bookie_id)):
            told(left)
            await asyncio.sleep(LOOK_S)
        told(0)

    async def wait_ended(self, bookie_id: BookieId) -> None:
        """Return when the bookie is not registered any more."""
        registered = partial(self.is_registered, bookie_id)
        while await self.patiently(registered):  # noqa: ASYNC110 - each look asks the store
            await asyncio.sleep(LOOK_S)

    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What the store says to ``ask``, which changes nothing, however often it must be asked:
        who waits for hours does not end with a pause of the store."""
        while True:
            try:
                return await ask()
            except MetadataUnavailableError as error:
                log.warning("waits for the metadata store", error=str(error))
                await asyncio.sleep(LOOK_S)

    async def forget(self, bookie_id: BookieId) -> None:
        """A bookie that is empty, and has ended, is none of the cluster any more: its cookie goes,
        so that another may begin under its id."""
        with suppress(NoNodeError):  # it had none, or was forgotten already
            await self._store.delete(self._cookie(bookie_id))
        await self.switches.forget_generation(bookie_id)
        await self.switches.stay(bookie_id)

    def _cookie(self, bookie_id: BookieId) -> str:
        return f"{self._manager.root}/cookies/{bookie_id}"
