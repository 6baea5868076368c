"""Values in memory (``cluster.schemas.registry.ValueStore``)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from magnetar.model.errors import NoSuchLedgerError


class MemoryValues:
    """``reads`` counts what was asked of it."""

    def __init__(self) -> None:
        self.values: dict[int, bytes] = {}
        self.reads = 0
        self._last = 0

    async def put(self, value: bytes, about: Mapping[str, bytes]) -> int:
        await asyncio.sleep(0)
        self._last += 1
        self.values[self._last] = value
        return self._last

    async def get(self, ledger_id: int) -> bytes:
        self.reads += 1
        await asyncio.sleep(0)
        if ledger_id not in self.values:
            raise NoSuchLedgerError(f"no ledger {ledger_id}")
        return self.values[ledger_id]

    async def delete(self, ledger_id: int) -> None:
        await asyncio.sleep(0)
        self.values.pop(ledger_id, None)
