"""Staged ledgers in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from magnetar.model.entry import Entry
from magnetar.model.errors import NoSuchLedgerError
from magnetar.model.ids import BookieId, LedgerId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata
from magnetar.staging.seams import Buffer


class MemoryStagedLedger:
    """Writer and reader in one."""

    def __init__(self, ledger_id: int, custom: Mapping[str, bytes]) -> None:
        self.ledger_id = ledger_id
        self.metadata = LedgerMetadata(
            ledger_id=LedgerId(ledger_id),
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            digest_type=DigestType.CRC32C,
            password=b"",
            fragments=(Fragment(0, (BookieId("b"),)),),
            custom=tuple(custom.items()),
        )
        self.payloads: list[bytes] = []
        self.closed = False
        self.abandoned = False

    async def add(self, payloads: Sequence[Buffer]) -> int:
        assert not self.closed
        first = len(self.payloads)
        self.payloads += map(bytes, payloads)
        await asyncio.sleep(0)
        return first

    async def close(self) -> None:
        self.closed = True

    async def abandon(self) -> None:
        self.abandoned = True

    @property
    def last_add_confirmed(self) -> int:
        return len(self.payloads) - 1

    async def read(self, first_entry_id: int, max_entries: int, max_bytes: int) -> list[Entry]:
        await asyncio.sleep(0)
        stop = min(first_entry_id + max_entries, len(self.payloads))
        numbers = range(first_entry_id, stop)
        return [Entry(self.ledger_id, number, self.payloads[number], 0) for number in numbers]


class MemoryStagedLedgers:
    """``staging.seams.StagedLedgers``."""

    def __init__(self) -> None:
        self.ledgers: dict[int, MemoryStagedLedger] = {}
        self.opened_urgent: list[bool] = []
        self._next = 0

    async def create(self, custom: Mapping[str, bytes] | None = None) -> MemoryStagedLedger:
        self._next += 1
        made = self.ledgers[self._next] = MemoryStagedLedger(self._next, custom or {})
        return made

    async def open_no_recovery(self, ledger_id: int, *, urgent: bool = False) -> MemoryStagedLedger:
        self.opened_urgent.append(urgent)
        return self._find(ledger_id)

    def _find(self, ledger_id: int) -> MemoryStagedLedger:
        if ledger_id not in self.ledgers:
            raise NoSuchLedgerError(f"no ledger {ledger_id}")
        return self.ledgers[ledger_id]

    async def delete(self, ledger_id: int, *, missing_ok: bool = False) -> None:
        if self.ledgers.pop(ledger_id, None) is None and not missing_ok:
            raise NoSuchLedgerError(f"no ledger {ledger_id}")

    async def read_metadata(self, ledger_id: int) -> LedgerMetadata:
        return self._find(ledger_id).metadata
