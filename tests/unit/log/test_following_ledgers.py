"""A followed log on the real ledger client, with a live writer beside it: nothing is written and
nothing is fenced by who follows."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import NamedTuple

import pytest

from magnetar.config import LedgerConfig
from magnetar.env.metadata import MetadataStore, SessionState, Versioned
from magnetar.log.managed.records import decode_log, log_path
from magnetar.log.managed.store import ManagedLogStore
from magnetar.model.errors import LogFencedError, NoSuchLogError
from magnetar.model.ids import EARLIEST
from magnetar.model.ledger import LedgerMetadata, LedgerState
from magnetar_sim.world.virtual_time import run_virtual
from tests.doubles.memory_metadata import MemoryMetadata
from tests.unit.ledger.doubles import Cluster
from tests.unit.log.contract.engines import seen
from tests.unit.log.doubles import NAME, Outcomes
from tests.unit.log.test_managed_log import publish, read_all, values
from tests.unit.log.test_on_ledgers import place


class Stored(NamedTuple):
    """All that a follower could have changed."""

    record: Versioned
    ledgers: dict[int, tuple[LedgerMetadata, int]]
    fenced: list[set[int]]
    entries: list[dict[int, dict[int, bytes]]]
    lacs: list[dict[int, tuple[int, bytes]]]


async def stored(cluster: Cluster, metadata: MetadataStore) -> Stored:
    bookies = cluster.pool.bookies.values()
    return Stored(
        await metadata.get(log_path(NAME)),
        dict(cluster.manager.ledgers),
        [set(bookie.fenced) for bookie in bookies],
        [copy.deepcopy(bookie.entries) for bookie in bookies],
        [dict(bookie.lacs) for bookie in bookies],
    )


class Here:
    """A cluster on virtual time; ``store`` is another process."""

    def __init__(self) -> None:
        self.cluster = Cluster(bookies=3, quorums=(3, 3, 2))
        self.metadata = MemoryMetadata()

    def store(self, retention_ms: int = -1) -> ManagedLogStore:
        config = LedgerConfig(
            ledger_entries_max=20,
            cursor_flush_interval_ms=1,
            retention_ms=retention_ms,
            retention_bytes=retention_ms,
        )
        return ManagedLogStore(self.metadata, self.cluster.new_client(), config)


def test_a_follower_changes_nothing_in_the_metadata_store_or_at_a_bookie() -> None:
    async def scenario() -> None:
        here = Here()
        log = await here.store().open(NAME)
        held = await publish(log, 0, 50)
        await asyncio.sleep(10)  # the writer is idle and has said how far it is confirmed
        before = await stored(here.cluster, here.metadata)

        source = await here.store().follow(NAME)
        await seen(source, held[-1])
        assert values(await read_all(source)) == list(range(50))
        assert await source.positions.offset_of(held[30]) == 30
        await asyncio.sleep(100)
        assert await stored(here.cluster, here.metadata) == before
        assert before.ledgers[held[-1].ledger_id][0].state is LedgerState.OPEN

        held += await publish(log, 50, 5)
        assert held[-1].ledger_id == held[49].ledger_id, "the owner goes on in the same ledger"
        await seen(source, held[-1])
        await source.close()
        assert not any(here.cluster.manager.watches.values())
        assert await here.metadata.get(log_path(NAME)) == before.record
        assert not any(bookie.fenced for bookie in here.cluster.pool.bookies.values())

    run_virtual(scenario())


def test_one_long_poll_per_bookie_is_under_way() -> None:
    async def scenario() -> None:
        here = Here()
        log = await here.store().open(NAME)
        await publish(log, 0, 5)
        source = await here.store().follow(NAME)
        await seen(source, log.positions.readable)
        bookies = here.cluster.pool.bookies.values()
        polls = [bookie.long_polls for bookie in bookies]
        await asyncio.sleep(300)
        for bookie, earlier in zip(bookies, polls, strict=True):
            assert bookie.long_polls - earlier <= 11, "one in 30 seconds"
        await source.close()

    run_virtual(scenario())


def test_rolling_trimming_and_another_owner_are_followed() -> None:
    async def scenario() -> None:
        here = Here()
        log = await here.store(retention_ms=0).open(NAME)
        cursor = await log.cursors.open("c", EARLIEST)
        held = await publish(log, 0, 5)
        source = await here.store().follow(NAME)
        for start in range(5, 65, 10):
            held += await publish(log, start, 10)
            await seen(source, held[-1])
        assert values(await read_all(source)) == list(range(65))

        cursor.acknowledge_cumulative(held[44])
        await cursor.wait_stored()
        await asyncio.sleep(1)
        assert source.positions.first == log.positions.first == held[40]
        assert values(await read_all(source)) == list(range(40, 65))
        assert await source.positions.offset_of(EARLIEST) == 40

        epoch = decode_log(NAME, here.metadata.nodes[log_path(NAME)].value).epoch
        other = await here.store(retention_ms=0).open(NAME)  # fences the first owner
        assert decode_log(NAME, here.metadata.nodes[log_path(NAME)].value).epoch == epoch + 1
        outcomes = Outcomes()
        log.append([b"late"], outcomes)
        await outcomes.wait(1)
        assert isinstance(outcomes.errors[0], LogFencedError)
        held += await publish(other, 65, 30)
        await seen(source, held[-1])
        assert values(await read_all(source)) == list(range(40, 95))
        assert source.stats().ledgers[:-1] == other.stats().ledgers[:-1]
        await source.close()

    run_virtual(scenario())


def test_a_session_that_was_lost_and_came_back_costs_time_only() -> None:
    """Whatever changed meanwhile is told of once, when the session is back."""

    async def scenario() -> None:
        here = Here()
        log = await here.store().open(NAME)
        held = await publish(log, 0, 5)
        source = await here.store().follow(NAME)
        await seen(source, held[-1])
        tell = here.metadata.tell
        here.metadata.tell = lambda *_paths: None  # type: ignore[method-assign]
        here.metadata.end_session(SessionState.EXPIRED)
        held += await publish(log, 5, 40)
        await asyncio.sleep(100)
        assert source.positions.readable == held[19], "the ledger that it knows of, to its end"
        assert values(await read_all(source)) == list(range(20))
        here.metadata.tell = tell  # type: ignore[method-assign]
        here.metadata.end_session(SessionState.CONNECTED)
        here.metadata.tell(log_path(NAME))
        await seen(source, held[-1])
        assert values(await read_all(source)) == list(range(45))
        await source.close()

    run_virtual(scenario())


def test_a_log_that_is_deleted_ends_for_those_who_follow_it() -> None:
    async def scenario() -> None:
        here = Here()
        owner = here.store()
        log = await owner.open(NAME)
        held = await publish(log, 0, 25)
        source = await here.store().follow(NAME)
        await seen(source, held[-1])
        told = asyncio.Event()
        source.watch_readable(told.set)
        await log.close()
        await owner.delete(NAME)
        await told.wait()
        with pytest.raises(NoSuchLogError):
            await source.read(EARLIEST, 1, 1000)
        polls = [bookie.long_polls for bookie in here.cluster.pool.bookies.values()]
        await asyncio.sleep(300)
        assert polls == [bookie.long_polls for bookie in here.cluster.pool.bookies.values()]
        with pytest.raises(NoSuchLogError):
            await here.store().follow(NAME)
        assert not here.metadata.nodes.keys() & {log_path(NAME)}
        await source.close()

    run_virtual(scenario())


def test_a_follower_of_a_busy_writer_on_the_embedded_store(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with place(tmp_path) as here:
            log = await here.store().open(NAME)
            source = await here.store().follow(NAME)
            for start in range(0, 200, 25):
                await publish(log, start, 25, batch=3)
            await publish(log, 200, 1)
            async with asyncio.timeout(20):
                await seen(source, log.positions.readable)
            assert values(await read_all(source)) == list(range(201))
            assert source.positions.end_offset == log.positions.end_offset
            await source.close()
            await log.close()

    asyncio.run(scenario())
