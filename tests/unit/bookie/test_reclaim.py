"""Space of deleted ledgers comes back; nothing else goes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from magnetar.bookie.storage.entry_log_format import RecordPlace, log_ids, log_path
from magnetar.bookie.storage.ledger_record import LedgerRecord
from magnetar.bookie.storage.location_index import LocationIndex
from magnetar.bookie.storage.reclaim import Reclaimer
from magnetar.env.files.disk import RealDisk
from magnetar.model.errors import BookieIOError, NoLedgerError
from tests.memory_bookie import until
from tests.unit.bookie.storage_kit import add, crashed, entry, flip_bit, running, settings


def logs(directory: Path) -> list[int]:
    return log_ids(RealDisk().list(directory))


def test_logs_go_when_the_last_of_their_ledgers_is_deleted(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        for ledger_id in (1, 2, 3):  # a log per life; the second is shared with ledger 9
            async with running(config) as bookie:
                await add(bookie, ledger_id, range(5))
                if ledger_id == 2:
                    await add(bookie, 9, range(5))
        assert logs(config.ledger_directories[0]) == [1, 2, 3]
        async with running(config) as bookie:
            await bookie.delete_ledger(1)
            await bookie.delete_ledger(2)
        assert logs(config.ledger_directories[0]) == [2, 3]
        async with running(config) as bookie:
            for ledger_id in (3, 9):
                for i in range(5):
                    assert await bookie.read_entry(ledger_id, i) == entry(ledger_id, i)
            await bookie.delete_ledger(9)
        async with running(config) as bookie:
            assert logs(config.ledger_directories[0]) == [3]
            with pytest.raises(NoLedgerError):
                await bookie.read_entry(9, 0)
            assert await bookie.read_entry(3, 4) == entry(3, 4)

    asyncio.run(scenario())


def test_the_space_of_a_deletion_that_only_the_journal_has_comes_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        root = tmp_path / "bookie"
        config = settings(root)
        async with running(config) as bookie:
            await add(bookie, 1, range(5))
        async with running(config) as bookie:
            await bookie.delete_ledger(1)
            remains = crashed(config, root)
        assert logs(remains.ledger_directories[0]) == [1]
        async with running(remains) as bookie:
            with pytest.raises(NoLedgerError):
                await bookie.read_entry(1, 0)
        assert logs(remains.ledger_directories[0]) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("damaged", [False, True])
def test_a_log_cut_off_by_a_crash_goes_with_the_last_of_its_ledgers(
    tmp_path: Path, damaged: bool
) -> None:
    async def scenario() -> None:
        config = settings(tmp_path, flush_interval_ms=20)
        async with running(config) as bookie:
            await add(bookie, 1, range(300), entries=[entry(1, i, size=9000) for i in range(300)])
            await add(bookie, 2, [0])
            await until(lambda: not bookie.info().write_cache_bytes)
            remains = crashed(config, tmp_path)
        directory = remains.ledger_directories[0]
        before = logs(directory)
        if damaged:  # the length of the first record
            flip_bit(directory / f"{before[0]:08x}.log", 64)
        async with running(remains) as bookie:
            await bookie.delete_ledger(1)
            await asyncio.sleep(0.3)
            assert logs(directory)[: len(before)] == before  # ledger 2 lives there
            await bookie.delete_ledger(2)
            async with asyncio.timeout(60):
                while set(logs(directory)) & set(before):  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())


def test_an_index_that_could_not_be_asked_costs_no_space_for_good(tmp_path: Path) -> None:
    class Index(LocationIndex):
        fails = True

        def ledger(self, ledger_id: int) -> bytes | None:
            if self.fails:
                raise BookieIOError(f"location index {self.path}: Input/output error")
            return super().ledger(ledger_id)

    disk, index = RealDisk(), Index(tmp_path / "index")
    try:
        log_path(tmp_path, 1).write_bytes(bytes(1000))
        record = LedgerRecord(False, True, 0, b"k" * 20, 0, -1, -1, b"").encode()
        index.put_ledgers([(7, record)])
        reclaimer = Reclaimer(disk, tmp_path, index, lambda removed: None)
        reclaimer.add(1, 1000, {7: (1, 900)})
        assert reclaimer.remove_dead(2) == []
        index.fails = False
        assert reclaimer.remove_dead(2) == [1]
        assert logs(tmp_path) == []
    finally:
        index.close()


def test_only_what_the_index_has_in_the_sources_is_moved(tmp_path: Path) -> None:
    """What was deleted or added again since it was copied stays so."""
    index = LocationIndex(tmp_path / "index")
    try:
        reclaimer = Reclaimer(RealDisk(), tmp_path, index, lambda removed: None)
        index.put_locations([(7, 0, 1, 64), (7, 1, 2, 64), (7, 2, 9, 64)])
        places = [RecordPlace(7, each, 1000 + each, 90) for each in (0, 1, 2, 3)]
        assert reclaimer.move(5, places, frozenset({1, 2})) == 2
        found = [index.location(7, each) for each in (0, 1, 2, 3)]
        assert found == [(5, 1000), (5, 1001), (9, 64), None]
    finally:
        index.close()


def test_no_log_goes_by_a_deletion_that_may_be_lost(tmp_path: Path) -> None:
    """A flush has written it and has failed before it was durable; no journal need know of it. A
    log that takes no more since then counted as dead at once."""
    index = LocationIndex(tmp_path / "index")
    reclaimer = Reclaimer(RealDisk(), tmp_path, index, lambda removed: None)
    reclaimer.open()
    log_path(tmp_path, 1).write_bytes(bytes(264))
    living = LedgerRecord(False, False, 0, b"k" * 20, 1, -1, -1, b"")
    index.put_ledgers([(1, living.encode())])
    reclaimer.stored.take([1])
    index.put_ledgers([(1, living._replace(deleted=True).encode())])
    reclaimer.add(1, 264, {1: [2, 184]})
    reclaimer.settle(2)
    assert reclaimer.remove_dead(2) == []
    reclaimer.stored.take([1])  # the flush is repeated
    reclaimer.stored.apply()
    assert reclaimer.remove_dead(2) == [1]
    assert logs(tmp_path) == []
    index.close()
