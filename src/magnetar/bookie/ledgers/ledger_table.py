"""Which ledgers the bookie knows, and where each has its place.

A ledger's directory is ``ledger id % directories`` and its journal ``ledger id % journals``. A
ledger is looked up in the index when it is first touched (one point lookup, mostly answered by a
bloom filter in memory) and kept until it is clean and many others have come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice

from magnetar.bookie.journal.journal import Journal
from magnetar.bookie.ledgers.ledger_state import HeldLedger
from magnetar.bookie.storage.storage import LedgerStorage

LOOKED_AT_ONCE = 2000
"""Ledgers in one turn of the loop: a millisecond or two."""


class LedgerTable:
    """``kept_max``: ledgers in memory past which clean ones are forgotten."""

    def __init__(
        self, storages: Sequence[LedgerStorage], journals: Sequence[Journal], kept_max: int
    ) -> None:
        self._kept_max = kept_max
        self.storages = storages
        self.journals = journals
        self._states: dict[int, HeldLedger] = {}
        self.get_loaded = self._states.get
        """The ledger's state if it is in memory; no lookup."""
        self.new_from = 1 << 63
        """Ledgers with this id and above were made after the bookie's last loss; 2^63: none is
        known to be."""

    def storage_of(self, ledger_id: int) -> LedgerStorage:
        return self.storages[ledger_id % len(self.storages)]

    def journal_of(self, ledger_id: int) -> Journal:
        return self.journals[ledger_id % len(self.journals)]

    def find(self, ledger_id: int) -> HeldLedger | None:
        """The ledger's state, from memory or the index; None: never heard of."""
        state = self._states.get(ledger_id)
        if state is not None or ledger_id < 0:
            return state
        storage = self.storage_of(ledger_id)
        record = storage.location_index.ledger(ledger_id)
        if record is None:
            return None
        state = self._new(ledger_id, b"")
        state.restore(record)
        self._states[ledger_id] = state
        return state

    def create(self, ledger_id: int, master_key: bytes) -> HeldLedger:
        """A ledger never heard of; dirty until the next flush."""
        state = self._states[ledger_id] = self._new(ledger_id, master_key)
        state.storage.dirty[ledger_id] = state
        return state

    def _new(self, ledger_id: int, master_key: bytes) -> HeldLedger:
        storage, journal = self.storage_of(ledger_id), self.journal_of(ledger_id)
        return HeldLedger(ledger_id, master_key, storage, journal)

    async def shrink(self) -> None:
        """Forget clean ledgers when too many are in memory, some in each turn of the loop. Call
        after a flush."""
        excess = len(self._states) - self._kept_max // 2
        if len(self._states) <= self._kept_max:
            return
        ids = list(self._states)
        for start in range(0, len(ids), LOOKED_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            idle = filter(self._is_idle, ids[start : start + LOOKED_AT_ONCE])
            for ledger_id in list(islice(idle, excess)):
                del self._states[ledger_id]
                excess -= 1
            if excess <= 0:
                return

    def _is_idle(self, ledger_id: int) -> bool:
        """Whether all that is known of it is in the index, now."""
        state = self._states.get(ledger_id)
        if state is None or (state.fenced and not state.fence_durable):
            return False
        return not state.storage.is_unwritten(ledger_id)
