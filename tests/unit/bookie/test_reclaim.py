"""Space of deleted ledgers comes back; nothing else goes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from magnetar.bookie.storage.entry_log_format import RecordPlace, log_ids, log_path
from magnetar.bookie.storage.ledger_record import LedgerRecord
from magnetar.bookie.storage.location_index import LocationIndex, StoredLog
from magnetar.bookie.storage.log_usage import LogUse
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


class PartlyFailing(LocationIndex):
    """Cannot be asked of ``fails``."""

    fails: frozenset[int] = frozenset()

    def ledger(self, ledger_id: int) -> bytes | None:
        if ledger_id in self.fails:
            raise BookieIOError(f"location index {self.path}: Input/output error")
        return super().ledger(ledger_id)


class ChangingDisk(RealDisk):
    """Notes what changes the directory; does not remove what is ``held``."""

    def __init__(self) -> None:
        self.changes: list[str] = []
        self.held: set[str] = set()

    def remove(self, path: Path) -> None:
        if path.name in self.held:
            raise OSError(errno.EIO, "Input/output error", str(path))
        self.changes.append(f"remove {path.name}")
        super().remove(path)

    def sync_dir(self, path: Path) -> None:
        self.changes.append("sync")
        super().sync_dir(path)


def reclaimer_of(
    directory: Path,
    index: LocationIndex,
    log_count: int = 1,
    disk: RealDisk | None = None,
    removed: Callable[[Sequence[int]], None] = lambda removed: None,
) -> Reclaimer:
    """With so many logs that are there already."""
    for log_id in range(1, log_count + 1):
        log_path(directory, log_id).write_bytes(bytes(1000))
    reclaimer = Reclaimer(disk or RealDisk(), directory, index, removed)
    reclaimer.open()
    return reclaimer


def record(*, deleted: bool = False) -> bytes:
    return LedgerRecord(False, deleted, 0, b"k" * 20, 0, -1, -1, b"").encode()


def test_what_a_flush_that_was_cut_short_left_of_an_unknown_ledger_is_dead(tmp_path: Path) -> None:
    """Nobody would ever delete it. Of a ledger with entries and no record it is not so; nor in a
    log of this life, whose ledgers may have no record yet."""
    index = LocationIndex(tmp_path / "index")
    index.put_locations([(8, 0, 1, 64)])
    index.put_ledgers([(9, record()), (10, record(deleted=True))])
    reclaimer = reclaimer_of(tmp_path, index)
    reclaimer.add(1, 1064, {7: (1, 92), 8: (1, 192), 9: (1, 292), 10: (1, 92)})
    reclaimer.add(2, 164, {7: (1, 92)})
    assert reclaimer.usage.uses(3) == [LogUse(1, 1000, 500), LogUse(2, 100, 100)]
    index.close()


def test_each_ledger_of_which_the_index_could_not_be_asked_is_asked_for_again(
    tmp_path: Path,
) -> None:
    index = PartlyFailing(tmp_path / "index")
    index.put_ledgers([(7, record(deleted=True)), (8, record(deleted=True)), (9, record())])
    index.fails = frozenset((7, 8))
    reclaimer = reclaimer_of(tmp_path, index, 2)
    reclaimer.add(1, 264, {7: (1, 92), 8: (1, 92)})
    reclaimer.add(2, 264, {8: (1, 92), 9: (1, 92)})
    reclaimer.settle(3)
    assert index.logs()[0] == [], "a start would not ask again"
    index.fails = frozenset((8,))
    assert reclaimer.remove_dead(3) == []
    index.fails = frozenset()
    assert reclaimer.remove_dead(3) == [1]
    reclaimer.settle(3)
    assert index.logs()[0] == [StoredLog(2, 200, 100)]
    index.close()


def test_a_log_is_stored_once_its_ledgers_can_be_asked_for(tmp_path: Path) -> None:
    index = PartlyFailing(tmp_path / "index")
    index.put_ledgers([(7, record()), (8, record(deleted=True))])
    index.fails = frozenset((7, 8))
    reclaimer = reclaimer_of(tmp_path, index)
    reclaimer.add(1, 264, {7: (1, 92), 8: (1, 92)})
    reclaimer.settle(2)
    assert index.logs()[0] == []
    index.fails = frozenset()
    reclaimer.settle(2)
    assert index.logs()[0] == [StoredLog(1, 200, 100)]
    index.close()


def test_who_reads_a_log_is_told_that_it_is_gone_and_its_removal_is_durable(
    tmp_path: Path,
) -> None:
    index, disk = LocationIndex(tmp_path / "index"), ChangingDisk()
    index.put_ledgers([(7, record(deleted=True))])
    told: list[int] = []
    reclaimer = reclaimer_of(tmp_path, index, 2, disk, told.extend)
    for log_id in (1, 2):
        reclaimer.add(log_id, 164, {7: (1, 92)})
    assert reclaimer.remove_dead(2) == [1]
    assert told == [1]
    assert disk.changes == ["remove 00000001.log", "sync"]
    assert reclaimer.remove_dead(3) == [2]
    assert told == [1, 2]
    index.close()


def test_a_log_that_the_disk_keeps_does_not_keep_others_and_is_tried_again(tmp_path: Path) -> None:
    index, disk = LocationIndex(tmp_path / "index"), ChangingDisk()
    index.put_ledgers([(7, record(deleted=True))])
    reclaimer = reclaimer_of(tmp_path, index, 2, disk)
    for log_id in (1, 2):
        reclaimer.add(log_id, 164, {7: (1, 92)})
    disk.held = {log_path(tmp_path, 1).name}
    assert reclaimer.remove_dead(3) == []
    assert logs(tmp_path) == [1]
    with pytest.raises(OSError, match="Input/output"):
        reclaimer.remove([1])
    disk.held.clear()
    assert reclaimer.remove_dead(3) == [1]
    assert reclaimer.usage.uses(3) == []
    assert reclaimer.usage.dead_bytes == 0
    index.close()


def test_a_log_that_takes_no_more_behind_a_deletion_in_the_journal_is_dead(tmp_path: Path) -> None:
    """The index has no room to be told of it yet."""
    index = LocationIndex(tmp_path / "index")
    index.put_ledgers([(7, record())])
    reclaimer = reclaimer_of(tmp_path, index)
    reclaimer.stored.forget_early([7])
    reclaimer.add(1, 164, {7: (1, 92)})
    assert reclaimer.live_bytes({7: (1, 92), 8: (2, 192)}) == 208
    assert reclaimer.remove_dead(2) == [1]
    index.close()


def test_a_dead_log_that_is_found_at_a_start_goes(tmp_path: Path) -> None:
    """A crash, or the disk, has kept it; no deletion need come for it to be looked at."""

    async def scenario() -> None:
        config, disk = settings(tmp_path), ChangingDisk()
        directory = config.ledger_directories[0]
        async with running(config) as bookie:
            await add(bookie, 1, range(5))
        disk.held = {log_path(directory, 1).name}
        async with running(config, disk) as bookie:
            await bookie.delete_ledger(1)
        assert logs(directory) == [1]
        async with running(config):
            await until(lambda: logs(directory) == [])

    asyncio.run(scenario())
