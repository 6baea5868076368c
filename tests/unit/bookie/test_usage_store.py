"""How much of each entry log is of use, as the index keeps it, after every crash."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from rocksdict import Options, Rdict

from magnetar.bookie.storage import location_index
from magnetar.bookie.storage.ledger_record import LedgerRecord
from magnetar.bookie.storage.location_index import LocationIndex, Share, StoredLog, UsageChange
from magnetar.bookie.storage.log_usage import LogUsage, LogUse
from magnetar.bookie.storage.reclaim import Reclaimer
from magnetar.bookie.storage.usage_store import UsageStore
from magnetar.env.files.disk import DiskFile, RealDisk
from magnetar.model.errors import BookieIOError
from tests.unit.bookie.storage_kit import add, running, settings

LEDGERS = range(1, 9)


def record(*, deleted: bool) -> bytes:
    return LedgerRecord(False, deleted, 0, b"k" * 20, 0, -1, -1, b"").encode()


class EndingIndex(LocationIndex):
    """After ``left`` changes no more of them arrive."""

    left = 1 << 30

    def change_usage(self, change: UsageChange) -> None:
        self.left -= 1
        if self.left < 0:
            raise BookieIOError("the index fails")
        super().change_usage(change)


def shares_of(index: LocationIndex) -> dict[int, int]:
    """By log, what all ledgers have in it."""
    found: dict[int, int] = {}
    for ledger_id in LEDGERS:
        for log_id, size in index.shares(ledger_id):
            found[log_id] = found.get(log_id, 0) + size
    return found


def history(index: LocationIndex) -> None:
    """Three logs, deletions before and after they are stored, one of them early, a compaction."""
    store = UsageStore(index, LogUsage())
    store.open([])
    store.add(1, 1000, dict.fromkeys(LEDGERS, 100), False, frozenset())
    store.add(2, 400, {1: 200, 2: 200}, False, frozenset())
    store.take([1])
    store.apply()
    store.store(3, ())
    store.take([2, 3])
    store.apply()
    store.add(3, 300, {4: 100, 5: 200}, False, frozenset())
    store.forget_early([4])
    store.store(4, ())
    store.take([4])
    store.apply()
    store.drop([1], [5, 6, 7, 8])
    store.add(4, 900, {5: 100, 6: 100, 7: 100, 8: 100}, True, frozenset())
    store.store(0, ())
    store.take([8])


def test_a_log_is_never_said_to_hold_less_than_its_ledgers_have_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each prefix of the changes."""
    monkeypatch.setattr("magnetar.bookie.storage.usage_store.BATCH_MAX", 3)
    ended = False
    for writes in range(100):
        index = EndingIndex(tmp_path / f"index-{writes}")
        index.left = writes
        try:
            history(index)
            ended = index.left >= 0
        except BookieIOError:
            pass
        shares = shares_of(index)
        for log_id, _, live_bytes in index.logs()[0]:
            assert live_bytes == shares.get(log_id, 0), (writes, log_id)
        assert max(shares, default=0) <= index.logs()[1], "such an id could be given out again"
        index.close()
        if ended:
            break
    assert ended
    assert writes > 10


def test_what_is_of_use_is_told_by_the_index_alone(tmp_path: Path) -> None:
    index = LocationIndex(tmp_path / "index")
    history(index)
    usage = LogUsage()
    again = UsageStore(index, usage)
    again.open([2, 3, 4])
    assert usage.uses(9) == [LogUse(2, 400, 0), LogUse(3, 300, 200), LogUse(4, 900, 300)]
    assert usage.dead_bytes == 400 + 100 + 600
    index.close()


def test_a_share_counts_as_dead_when_its_deletion_is_durable_and_once(tmp_path: Path) -> None:
    index = LocationIndex(tmp_path / "index")
    usage = LogUsage()
    store = UsageStore(index, usage)
    store.open([])
    usage.add(1, 300, 300)
    store.add(1, 300, {1: 100, 2: 200}, False, frozenset())
    store.store(2, ())
    store.take([1])
    assert usage.uses(9) == [LogUse(1, 300, 300)], "it is not durable yet"
    assert store.undecided(1)
    store.take([1])  # the flush is repeated
    store.apply()
    assert not store.undecided(1)
    assert usage.uses(9) == [LogUse(1, 300, 200)]
    store.forget_early([2])
    store.forget_early([2])
    assert usage.uses(9) == [LogUse(1, 300, 0)]
    assert index.logs()[0] == [StoredLog(1, 300, 200)], "nothing was written"
    store.take([2])
    store.apply()
    assert usage.uses(9) == [LogUse(1, 300, 0)]
    assert index.logs()[0] == [StoredLog(1, 300, 0)]
    index.close()


def test_a_log_is_not_stored_while_the_index_cannot_be_asked_of_its_ledgers(tmp_path: Path) -> None:
    index = LocationIndex(tmp_path / "index")
    store = UsageStore(index, LogUsage())
    store.open([])
    store.add(1, 300, {1: 100, 2: 200}, False, frozenset([2]))
    store.store(9, {2})
    assert index.logs()[0] == []
    store.store(9, ())
    assert index.logs()[0] == [StoredLog(1, 300, 300)]
    assert index.shares(2) == [Share(1, 200)]
    index.close()


def test_a_start_reads_no_log_that_the_index_knows(tmp_path: Path) -> None:
    class Disk(RealDisk):
        opened: ClassVar[list[str]] = []

        def open(self, path: Path, *, create: bool = False) -> DiskFile:
            self.opened.append(path.name)
            return super().open(path, create=create)

    async def scenario() -> None:
        config = settings(tmp_path)
        for ledger_id in (1, 2, 3):
            async with running(config) as bookie:
                await add(bookie, ledger_id, range(5))
        directory = config.ledger_directories[0]
        index = LocationIndex(directory / "index")
        reclaimer = Reclaimer(Disk(), directory, index, lambda removed: None)
        assert reclaimer.open() == 3
        assert Disk.opened == []
        assert reclaimer.unknown == []
        assert [use.log_id for use in reclaimer.usage.uses(9)] == [1, 2, 3]
        assert all(use.live_bytes == use.byte_count > 0 for use in reclaimer.usage.uses(9))
        index.close()

    asyncio.run(scenario())


def test_logs_that_an_older_version_wrote_are_counted(tmp_path: Path) -> None:
    """Their footers are read in the background, and the records of deleted ledgers set apart."""

    async def scenario() -> None:
        config = settings(tmp_path)
        for ledger_id in (1, 2):
            async with running(config) as bookie:
                await add(bookie, ledger_id, range(5))
                await add(bookie, 3, range(5))
        index = config.ledger_directories[0] / "index"
        _as_an_older_version(index, 2)
        async with running(config) as bookie:
            assert await bookie.ledgers() == [1, 3]
            reclaimer = bookie._storages[0].reclaimer
            async with asyncio.timeout(60):
                while reclaimer.unknown:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.01)
            uses = reclaimer.usage.uses(3)
            assert [use.log_id for use in uses] == [1, 2]
            assert uses[0].live_bytes == uses[0].byte_count
            assert 0 < uses[1].live_bytes < uses[1].byte_count, "ledger 2 is deleted"
            await bookie.delete_ledger(1)
            await bookie.delete_ledger(3)
        async with running(config) as bookie:
            assert await bookie.ledgers() == []
            assert bookie._storages[0].reclaimer.usage.uses(3) == []

    asyncio.run(scenario())


def _as_an_older_version(path: Path, deleted: int) -> None:
    """Two families only, and the record of a deleted ledger among the others."""
    raw = Options(raw_mode=True)
    families = {name: Options(raw_mode=True) for name in Rdict.list_cf(str(path))}
    db = Rdict(str(path), options=raw, column_families=families)
    for name in ("deleted", "shares", "logs"):
        db.drop_column_family(name)
    ledgers = db.get_column_family("ledgers")
    ledgers.put(deleted.to_bytes(8, "big"), record(deleted=True))
    parts = [db, ledgers]
    del db, ledgers
    while parts:
        parts.pop().close()


def test_records_of_deleted_ledgers_are_not_listed_and_are_found(tmp_path: Path) -> None:
    index = LocationIndex(tmp_path / "index")
    assert index.empty
    index.put_ledgers([(1, record(deleted=False)), (2, record(deleted=True))])
    index.put_ledgers([(1, record(deleted=True)), (3, record(deleted=False))])
    assert [ledger_id for ledger_id, _ in index.ledgers()] == [3]
    assert index.ledger(1) == index.ledger(2) == record(deleted=True)
    index.put_ledgers([(2, record(deleted=False))])  # a repair brings it back
    assert [ledger_id for ledger_id, _ in index.ledgers()] == [2, 3]
    assert index.ledger(2) == record(deleted=False)
    index.put_ledgers([(2, record(deleted=True)), (3, record(deleted=True))])
    assert list(index.ledgers()) == []
    assert not index.empty
    index.close()


def test_range_deletions_are_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_index, "RANGE_DELETIONS_MAX", 5)
    path = tmp_path / "index"
    index = LocationIndex(path)
    for ledger_id in LEDGERS:
        index.put_locations([(ledger_id, entry_id, 1, 64) for entry_id in range(20)])
    for ledger_id in LEDGERS[:6]:
        index.change_usage(UsageChange(no_locations=[ledger_id]))
    assert index._range_deletions == 1
    assert list(path.glob("*.sst")), "the five before are in a file"
    for _ in range(2):
        assert list(index.located()) == [*LEDGERS[6:]]
        assert index.location(2, 3) is None
        assert index.location(8, 19) == (1, 64)
        index.close()
        index = LocationIndex(path)
    index.close()


@pytest.mark.parametrize("early", [False, True])
def test_shares_that_a_crash_left_of_a_log_without_a_row_count_once(
    tmp_path: Path, early: bool
) -> None:
    """The log is counted anew after the start; with the shares that were found its deleted ledgers
    would count twice, and less than nothing would be live in it: it would never go."""
    index = EndingIndex(tmp_path / "index")
    store = UsageStore(index, LogUsage())
    store.open([])
    store.add(1, 300, {1: 200, 2: 100}, False, frozenset())
    index.left = 2  # the highest id and the shares arrive, the row does not
    store.store(2, ())
    assert (index.shares(1), index.logs()[0]) == ([(1, 200)], [])
    index.left = 1 << 30

    usage = LogUsage()
    store = UsageStore(index, usage)
    store.open([1])
    usage.add(1, 300, 300)
    store.add(1, 300, {1: 200, 2: 100}, False, frozenset())
    if early:
        store.forget_early([1])
        assert usage.uses(2) == [LogUse(1, 300, 100)]
    store.take([1])
    store.apply()
    assert usage.uses(2) == [LogUse(1, 300, 100)]
    store.store(2, ())
    assert index.logs()[0] == [StoredLog(1, 300, 100)]
    store.take([2])
    store.apply()
    assert usage.uses(2) == [LogUse(1, 300, 0)]
    assert index.logs()[0] == [StoredLog(1, 300, 0)]
    assert shares_of(index) == {}


def opened(index: LocationIndex, there: Sequence[int] = ()) -> tuple[UsageStore, LogUsage]:
    usage = LogUsage()
    store = UsageStore(index, usage)
    store.open(there)
    return store, usage


def test_a_log_is_stored_when_it_is_settled_and_not_before(tmp_path: Path) -> None:
    """What a flush that is cut short leaves in it must be counted again by a start."""
    index = LocationIndex(tmp_path / "index")
    store, _ = opened(index)
    store.add(5, 300, {1: 300}, False, frozenset())
    store.add(6, 300, {1: 300}, True, frozenset())
    store.store(5, ())
    assert index.logs()[0] == [StoredLog(6, 300, 300)]
    store.store(6, ())
    assert index.logs()[0] == [StoredLog(5, 300, 300), StoredLog(6, 300, 300)]
    index.close()


def test_nothing_is_left_of_a_log_that_is_no_more(tmp_path: Path) -> None:
    """Neither its row nor what ledgers that live on had in it, or a ledger that outlives many
    compactions would have a row for each."""
    index = EndingIndex(tmp_path / "index")
    store, _ = opened(index)
    store.add(1, 300, {1: 100, 2: 200}, False, frozenset())
    store.store(2, ())
    store.add(2, 300, {1: 300}, False, frozenset())
    store.drop([1, 2], [1, 2])
    index.left = 0  # the index fails: it is tried again
    store.store(3, ())
    index.left = 1 << 30
    store.store(3, ())
    assert index.logs()[0] == []
    assert shares_of(index) == {}
    index.close()


def test_rows_of_logs_that_are_not_there_count_for_nothing_and_go(tmp_path: Path) -> None:
    """A crash came between a log's removal and that of its row."""
    index = LocationIndex(tmp_path / "index")
    store, _ = opened(index)
    for log_id in (1, 2):
        store.add(log_id, 300, {log_id: 300}, False, frozenset())
    store.store(3, ())
    store, usage = opened(index, [2])
    assert usage.uses(9) == [LogUse(2, 300, 300)]
    assert 1 not in store
    store.store(0, ())
    assert index.logs() == ([StoredLog(2, 300, 300)], 2)
    index.close()


def test_shares_of_a_log_are_written_anew_with_its_row(tmp_path: Path) -> None:
    """One that was left over would be taken away from the log's once more, and what is of use in it
    would count as dead."""
    index = LocationIndex(tmp_path / "index")
    index.change_usage(UsageChange(shares=[(1, 1, 200)]))
    store, _ = opened(index, [1])
    store.add(1, 300, {1: 0, 2: 100}, False, frozenset())
    store.store(2, ())
    assert index.shares(1) == []
    assert index.logs()[0] == [StoredLog(1, 300, 100)]
    index.close()


def test_a_deletion_is_undecided_before_the_index_hears_of_it(tmp_path: Path) -> None:
    """Other threads ask the index first, and this then."""
    told: list[bool] = []

    class Asking(LocationIndex):
        def change_usage(self, change: UsageChange) -> None:
            if change.no_locations:
                told.append(store.undecided(1))
            super().change_usage(change)

    index = Asking(tmp_path / "index")
    store, _ = opened(index)
    store.take([1])
    assert told == [True]
    store.apply()
    assert not store.undecided(1)
    index.close()
