"""A log followed while another client writes it to real bookies over TCP, with metadata in SQLite:
ledgers that roll, a bookie that stops, an owner that is replaced."""

from __future__ import annotations

import asyncio
from pathlib import Path

from magnetar.config import LedgerConfig
from magnetar.log.managed.records import decode_log, log_path
from magnetar.log.managed.store import ManagedLogStore
from magnetar.model.ids import EARLIEST
from magnetar.model.ledger import LedgerState
from tests.integration.test_ledger_cluster import Platform, with_platform
from tests.unit.log.contract.engines import seen
from tests.unit.log.doubles import NAME, Outcomes
from tests.unit.log.test_managed_log import publish, read_all, values


def test_a_live_writer_is_followed_and_not_disturbed(tmp_path: Path) -> None:
    async def scenario(platform: Platform) -> None:
        metadata = platform.manager.store

        def store(retention: int = -1) -> ManagedLogStore:
            config = LedgerConfig(
                ledger_entries_max=40,
                cursor_flush_interval_ms=1,
                retention_ms=retention,
                retention_bytes=retention,
            )
            return ManagedLogStore(metadata, platform.client((3, 3, 2)), config)

        log = await store(retention=0).open(NAME)
        cursor = await log.cursors.open("c", EARLIEST)
        held = await publish(log, 0, 50, batch=5)
        source = await store().follow(NAME)
        await seen(source, held[-1])
        record = await metadata.get(log_path(NAME))
        assert values(await read_all(source)) == list(range(50))
        assert await source.positions.offset_of(held[45]) == 45
        last, version = await platform.manager.read(held[-1].ledger_id)
        assert (last.state, version) == (LedgerState.OPEN, 0), "not fenced, not closed"
        assert await metadata.get(log_path(NAME)) == record, "not written"

        held += await publish(log, 50, 20, batch=5)  # in the same ledger
        assert held[-1].ledger_id == last.ledger_id
        await seen(source, held[-1])
        await next(iter(platform.bookies.values())).stop()
        held += await publish(log, 70, 60, batch=5)
        await seen(source, held[-1])
        assert values(await read_all(source)) == list(range(130))

        cursor.acknowledge_cumulative(held[85])
        await cursor.wait_stored()
        while source.positions.first != held[80]:  # noqa: ASYNC110 (trimming tells nobody)
            await asyncio.sleep(0.01)
        assert values(await read_all(source)) == list(range(80, 130))

        other = await store().open(NAME)  # takes the log away from its owner
        held += await publish(other, 130, 20)
        await seen(source, held[-1])
        assert values(await read_all(source)) == list(range(80, 150))
        outcomes = Outcomes()
        log.append([b"late"], outcomes)
        await outcomes.wait(1)
        assert outcomes.errors
        epoch = decode_log(NAME, (await metadata.get(log_path(NAME))).value).epoch
        assert epoch == decode_log(NAME, record.value).epoch + 1, "the new owner's, and no other"
        await source.close()
        await other.close()

    with_platform(tmp_path, 4, scenario)
