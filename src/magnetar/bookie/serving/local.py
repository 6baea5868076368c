"""A bookie of the same process, as the ledger client sees it: calls instead of a connection.

Same contract as the client over TCP (structurally ``ledger.bookies.BookieClient``), with one
thing that a connection would do: once closed it answers nothing but ``BookieUnavailableError``,
so that whoever keeps a client of a bookie that has stopped finds out the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from magnetar.bookie.core import AddDone, BookieCore, LacSource
from magnetar.bookie.serving.lac_watch import RECHECK_S
from magnetar.model.entry import LacReply
from magnetar.model.errors import BookieUnavailableError, NoLedgerError
from magnetar.model.ids import NO_ENTRY, BookieId


class LocalCore(BookieCore, Protocol):
    """A bookie's core as those in its process may use it."""

    def add_lac_source(self, source: LacSource) -> None:
        """Ask it, too, whenever somebody wants to know a ledger's LAC."""
        ...

    def remove_lac_source(self, source: LacSource) -> None: ...


class LocalBookie:
    """Client of ``core``; several may share one core, and closing one closes only itself."""

    def __init__(self, bookie_id: BookieId, core: LocalCore) -> None:
        self._core = core
        self._closed = False
        self._lac_sources: list[LacSource] = []
        self.bookie_id = bookie_id

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddDone,
    ) -> None:
        if self._closed:
            asyncio.get_running_loop().call_soon(done, self._unavailable(), tuple(entry_ids))
            return
        # A plain int: operators of enum flags cost more than the rest of an add's checks.
        self._core.add_entries(ledger_id, master_key, entry_ids, entries, int(flags), done)

    async def read_entry(
        self, ledger_id: int, entry_id: int, flags: int = 0, master_key: bytes = b""
    ) -> bytes:
        return await self._open().read_entry(ledger_id, entry_id, flags, master_key)

    async def read_batch(
        self,
        ledger_id: int,
        first_entry_id: int,
        max_entries: int,
        max_bytes: int,
        flags: int = 0,
        master_key: bytes = b"",
    ) -> list[bytes]:
        found = await self._open().read_batch(
            ledger_id, first_entry_id, max_entries, max_bytes, flags, master_key
        )
        return list(found)

    async def read_lac(self, ledger_id: int, flags: int = 0, master_key: bytes = b"") -> LacReply:
        reply = await self._open().read_lac(ledger_id, flags, master_key)
        return LacReply(reply.last_add_confirmed, reply.last_entry, reply.explicit_lac)

    async def write_lac(self, ledger_id: int, master_key: bytes, lac: int, body: bytes) -> None:
        await self._open().write_lac(ledger_id, master_key, lac, body)

    def ask_for_lacs(self, source: LacSource) -> None:
        """As ``ledger.bookies.AsksForLacs``, structurally."""
        self._open().add_lac_source(source)
        self._lac_sources.append(source)

    async def wait_lac(self, ledger_id: int, previous_lac: int, timeout_s: float) -> LacReply:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while True:
            told = await self._told(ledger_id)
            left_s = deadline_s - loop.time()
            if told.last_add_confirmed > previous_lac or left_s <= 0:
                return told
            await asyncio.sleep(min(RECHECK_S, left_s))

    async def _told(self, ledger_id: int) -> LacReply:
        try:
            return await self.read_lac(ledger_id)
        except NoLedgerError:
            return LacReply(NO_ENTRY, None)

    async def force_ledger(self, ledger_id: int) -> None:
        await self._open().force(ledger_id)

    async def disk_space(self) -> tuple[int, int]:
        info = self._open().info()
        return info.total_bytes, info.free_bytes

    @property
    def session(self) -> int:
        """Always the same: this client ends with the bookie's process."""
        return 1

    async def close(self) -> None:
        self._closed = True
        while self._lac_sources:
            self._core.remove_lac_source(self._lac_sources.pop())

    def _open(self) -> LocalCore:
        if self._closed:
            raise self._unavailable()
        return self._core

    def _unavailable(self) -> BookieUnavailableError:
        return BookieUnavailableError(
            f"bookie {self.bookie_id}: this client of it is closed; take another from the pool"
        )
