"""Values in ledgers of their own."""

from __future__ import annotations

import pytest

from magnetar.ledger.values import LedgerValues
from magnetar.model.errors import (
    BookieUnavailableError,
    EntryTooLargeError,
    LedgerError,
    NoSuchLedgerError,
)
from magnetar.model.ledger import LedgerState
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.ledger.doubles import Cluster


def test_a_value_is_one_entry_of_a_closed_ledger() -> None:
    async def run() -> None:
        cluster = Cluster()
        values = LedgerValues(cluster.client)
        ledger_id = await values.put(b"what it is", {"magnetar-schema": b"t"})
        metadata = await cluster.client.read_metadata(ledger_id)
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 0)
        assert dict(metadata.custom) == {"magnetar-schema": b"t"}
        assert await values.get(ledger_id) == b"what it is"
        await cluster.client.close()

    run_virtual(run())


def test_what_is_gone_may_be_deleted_again() -> None:
    async def run() -> None:
        cluster = Cluster()
        values = LedgerValues(cluster.client)
        ledger_id = await values.put(b"x", {})
        await values.delete(ledger_id)
        await values.delete(ledger_id)
        with pytest.raises(NoSuchLedgerError):
            await values.get(ledger_id)
        await cluster.client.close()

    run_virtual(run())


def test_a_value_that_is_not_stored_leaves_no_ledger() -> None:
    async def run() -> None:
        cluster = Cluster()
        values = LedgerValues(cluster.client)
        with pytest.raises(EntryTooLargeError):
            await values.put(bytes(64 << 20), {})
        for bookie in cluster.pool.bookies.values():
            bookie.refuse = BookieUnavailableError("down")
        with pytest.raises(LedgerError):
            await values.put(b"x", {})
        with pytest.raises(NoSuchLedgerError):
            await cluster.client.read_metadata(1)
        await cluster.client.close()

    run_virtual(run())
