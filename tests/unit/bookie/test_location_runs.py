"""The location index by runs: rows, what is left of them, and the index as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import Options, Rdict

from magnetar.bookie.bookie import RECOVERY, Bookie
from magnetar.bookie.storage import location_index
from magnetar.bookie.storage.location_index import BATCH_MAX, LocationIndex, UsageChange
from magnetar.bookie.storage.location_runs import (
    RUN_ENTRIES_MAX,
    LocationRun,
    NearbyPlaces,
    batches,
    gathered,
    replacing,
    run_of,
    runs_of,
)
from magnetar.config import BookieConfig
from magnetar.model.errors import BookieIOError
from tests.unit.bookie.storage_kit import add, running
from tests.unit.bookie.test_compaction import (
    LIVES,
    PER_LIFE,
    check_whole,
    eventually,
    fill,
    idle,
    logs,
    quick,
)

OLD_FAMILIES = ("locations", "ledgers", "deleted", "shares", "logs")
Rows = list[tuple[int, int, int, int]]

ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 2), st.integers(64, 2**32 - 1)),
    max_size=40,
)


def rows_of(runs: Sequence[LocationRun]) -> Rows:
    """(ledger id, entry id, entry log id, offset) of each entry."""
    found = []
    for run in runs:
        for entry_id in range(run.first, run.last + 1):
            place = run.place(entry_id)
            assert place is not None
            found.append((run.ledger_id, entry_id, *place))
    return found


def test_a_run_is_a_log_and_an_offset_for_each_entry() -> None:
    run = run_of(7, 12, 3, [64, 100, 228])
    assert run == (7, 12, bytes.fromhex("00000003 00000040 00000064 000000e4"))
    assert (run.first, run.last, run.entry_count, run.log_id) == (10, 12, 3, 3)
    assert [run.place(i) for i in range(9, 14)] == [None, (3, 64), (3, 100), (3, 228), None]
    assert run.part(11, 11) == (7, 11, bytes.fromhex("00000003 00000064"))


@given(ROWS)
def test_rows_are_gathered_to_runs_and_the_later_of_two_counts(rows: Rows) -> None:
    runs = gathered(rows)
    latest = {(row[0], row[1]): row for row in rows}
    assert rows_of(runs) == [latest[key] for key in sorted(latest)]
    for run, following in pairwise(runs):
        joined = (run.ledger_id, run.last + 1, run.log_id)
        assert joined != (following.ledger_id, following.first, following.log_id)


def test_a_run_has_a_bound() -> None:
    count = 2 * RUN_ENTRIES_MAX + 1
    runs = runs_of(1, range(count), 5, range(count))
    assert [run.entry_count for run in runs] == [RUN_ENTRIES_MAX, RUN_ENTRIES_MAX, 1]
    assert rows_of(runs) == [(1, i, 5, i) for i in range(count)]
    with pytest.raises(AssertionError):
        run_of(1, count, 5, range(RUN_ENTRIES_MAX + 1))


@given(st.integers(0, 30), st.integers(1, 9), st.sets(st.integers(0, 40), min_size=1))
def test_what_a_run_replaces_is_what_it_covers(first: int, count: int, ids: set[int]) -> None:
    there = runs_of(1, sorted(ids), 2, range(len(ids)))
    run = run_of(1, first + count - 1, 3, range(1000, 1000 + count))
    overlapped = [row for row in there if row.last >= first and row.first <= run.last]
    left = replacing(overlapped, run)
    covered = range(first, first + count)
    assert rows_of(left) == [row for row in rows_of(overlapped) if row[1] not in covered]
    assert len(left) <= 2


@given(st.lists(st.integers(1, 9)), st.integers(1, 5), st.integers(1, 20))
def test_batches_are_bounded(counts: list[int], count_max: int, entries_max: int) -> None:
    runs = [run_of(i, 9, 1, range(count)) for i, count in enumerate(counts)]
    found = list(batches(runs, count_max, entries_max))
    assert [run for batch in found for run in batch] == runs
    for batch in found:
        assert 0 < len(batch) <= count_max
        assert len(batch) == 1 or sum(run.entry_count for run in batch) <= entries_max


def test_neighbours_are_looked_up_once() -> None:
    runs = gathered([(1, i, 5, i) for i in (0, 1, 2, 7)] + [(2, 1, 6, 9)])
    asked = []

    def find(ledger_id: int, entry_id: int) -> LocationRun | None:
        asked.append((ledger_id, entry_id))
        for run in runs:
            if run.ledger_id == ledger_id and run.place(entry_id):
                return run
        return None

    nearby = NearbyPlaces(find)
    keys = [(1, 0), (1, 1), (1, 2), (2, 1), (2, 2), (1, 7)]
    places = [(5, 0), (5, 1), (5, 2), (6, 9), None, (5, 7)]
    assert [nearby.location(*key) for key in keys] == places
    assert asked == [(1, 0), (2, 1), (2, 2), (1, 7)]


class RowsInMemory(LocationIndex):
    """The index without RocksDB; ``looks`` counts; while it is ``failing`` writes fail."""

    def __init__(self) -> None:
        self._ends = {}
        self.rows: dict[tuple[int, int], bytes] = {}
        self.looks = 0
        self.failing = False

    def runs(self, ledger_id: int, first: int) -> Iterator[LocationRun]:
        self.looks += 1
        names = sorted(each for each in self.rows if each[0] == ledger_id and each[1] >= first)
        return iter([LocationRun(*name, self.rows[name]) for name in names])

    def _write_runs(self, gone: Sequence[tuple[int, int]], new: Sequence[LocationRun]) -> None:
        if self.failing:
            raise BookieIOError("no room")
        for name in gone:
            del self.rows[name]
        for run in new:
            self.rows[run.ledger_id, run.last] = run.value


@settings(max_examples=300)
@given(st.lists(st.tuples(ROWS.filter(bool), st.booleans()), max_size=12), st.integers(1, 3))
def test_runs_never_overlap_and_the_newest_counts(
    steps: list[tuple[Rows, bool]], known_max: int
) -> None:
    index, model = RowsInMemory(), dict[tuple[int, int], tuple[int, int]]()
    with patch.object(location_index, "ENDS_KNOWN_MAX", known_max):
        for rows, fails in steps:
            index.failing = fails
            try:
                index.put_locations(rows)
            except BookieIOError:
                continue
            model |= {(row[0], row[1]): (row[2], row[3]) for row in rows}
            found = rows_of([LocationRun(*name, index.rows[name]) for name in sorted(index.rows)])
            assert found == [(*key, *model[key]) for key in sorted(model)]
            for key in [(ledger, entry) for ledger in range(3) for entry in range(32)]:
                assert index.location(*key) == model.get(key)


def test_a_ledger_that_grows_is_looked_at_once() -> None:
    """A look costs several times a put: a ledger with a run of one entry in each flush would pay
    it every time."""
    index = RowsInMemory()
    for i in range(0, 50, 5):
        index.put_runs(runs_of(1, range(i, i + 5), 2, range(i, i + 5)))
        index.put_runs(runs_of(2, range(i, i + 5, 2), 2, range(3)))
    assert index.looks == 2
    index.put_runs(runs_of(1, [7], 3, [0]))  # again: it has entries behind
    assert index.looks == 3
    index.put_runs(runs_of(1, [60], 3, [0]))
    index.put_runs(runs_of(1, [61], 3, [0]))
    assert index.looks == 4
    index.failing = True
    with pytest.raises(BookieIOError):
        index.put_runs(runs_of(1, [62], 3, [0]))  # who knows what became of it?
    index.failing = False
    index.put_runs(runs_of(1, [62], 3, [0]))
    assert index.looks == 5


def test_two_runs_in_one_that_is_there_are_put_in_one_call() -> None:
    index = RowsInMemory()
    index.put_runs(runs_of(1, range(100), 2, range(100)))
    index.put_runs([*runs_of(1, range(10, 20), 3, range(10)), *runs_of(1, [30], 3, [99])])
    assert [(run.first, run.last, run.log_id) for run in index.runs(1, 0)] == [
        (0, 9, 2), (10, 19, 3), (20, 29, 2), (30, 30, 3), (31, 99, 2)
    ]  # fmt: skip
    assert len(gathered([(1, i, 2, i) for i in range(BATCH_MAX)])) == 1


ADDED = st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 12), st.integers(1, 3))
"""Of a ledger so many entries from the first on, in one log."""


@settings(max_examples=60)
@given(st.lists(st.one_of(ADDED, st.integers(0, 2), st.none()), max_size=20), st.integers(1, 3))
def test_what_was_put_last_is_where_an_entry_lies(
    steps: list[tuple[int, int, int, int] | int | None], known_max: int
) -> None:
    """The index, over entries that are put again in other runs, ledgers that go and are there
    again, and lives of the bookie, against a dictionary."""
    model: dict[tuple[int, int], tuple[int, int]] = {}
    with TemporaryDirectory() as name, patch.object(location_index, "ENDS_KNOWN_MAX", known_max):
        index = LocationIndex(Path(name) / "index")
        for number, step in enumerate(steps):
            match step:
                case None:
                    index.close()
                    index = LocationIndex(Path(name) / "index")
                case int(ledger_id):
                    index.change_usage(UsageChange(no_locations=[ledger_id]))
                    model = {key: model[key] for key in model if key[0] != ledger_id}
                case ledger_id, first, count, log_id:
                    rows = [
                        (each, entry_id, log_id, 1000 * number + 10 * entry_id)
                        for each in {ledger_id, 0}
                        for entry_id in range(first, first + count)
                    ]
                    index.put_locations(rows)
                    model |= {(row[0], row[1]): (row[2], row[3]) for row in rows}
            for ledger_id in range(3):
                ids = sorted(entry_id for each, entry_id in model if each == ledger_id)
                assert index.entry_ids(ledger_id) == ids
                assert index.entry_ids(ledger_id, 7, 5) == [each for each in ids if each >= 7][:5]
                for entry_id in range(55):
                    found = index.location(ledger_id, entry_id)
                    assert found == model.get((ledger_id, entry_id))
            assert list(index.located()) == sorted({ledger_id for ledger_id, _ in model})
        index.close()


def test_an_index_of_before_there_were_runs_is_read_and_goes_on(tmp_path: Path) -> None:
    """A row per entry, byte by byte as the version before wrote it."""
    path = tmp_path / "index"
    families = {name: Options(raw_mode=True) for name in OLD_FAMILIES}
    for each in families.values():
        each.create_if_missing(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    before = Rdict(str(path), options=options, column_families=families)
    locations = before.get_column_family("locations")
    for i in range(10):
        key = bytes.fromhex("0000000000000007") + i.to_bytes(8, "big")
        locations[key] = bytes.fromhex("00000005") + (64 + 100 * i).to_bytes(4, "big")
    locations.close()
    del locations
    before.close()
    del before
    index = LocationIndex(path)
    assert [index.location(7, i) for i in range(11)] == [
        *[(5, 64 + 100 * i) for i in range(10)],
        None,
    ]
    assert index.entry_ids(7) == list(range(10))
    index.put_locations([(7, i, 6, i) for i in range(4, 14)])
    assert [index.location(7, i) for i in range(15)] == [
        *[(5, 64 + 100 * i) for i in range(4)], *[(6, i) for i in range(4, 14)], None
    ]  # fmt: skip
    assert [run.entry_count for run in index.runs(7, 0)] == [1, 1, 1, 1, 10]
    index.close()
    with pytest.raises(Exception, match="Column families not opened: runs"):
        Rdict(str(path), options=options, column_families=families)


class RowPerEntry(LocationIndex):
    """Writes as the version before there were runs."""

    def put_runs(self, runs: Sequence[LocationRun]) -> None:
        for run in runs:
            for entry_id in range(run.first, run.last + 1):
                super().put_runs([run.part(entry_id, entry_id)])


def rows_by_count(config: BookieConfig) -> list[int]:
    """How many entries each row of ledger 1 has."""
    index = LocationIndex(config.ledger_directories[0] / "index")
    counts = [run.entry_count for run in index.runs(1, 0)]
    index.close()
    return counts


def test_a_bookie_of_before_there_were_runs_is_served_and_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        config = idle(tmp_path)
        with monkeypatch.context() as before:
            before.setattr(Bookie.__init__, "__defaults__", old_defaults())
            before.setattr(location_index, "_FAMILIES", OLD_FAMILIES)
            await fill(config)
        families = Rdict.list_cf(str(config.ledger_directories[0] / "index"), Options())
        assert sorted(families) == sorted(["default", *OLD_FAMILIES])
        assert rows_by_count(config) == [1] * LIVES * PER_LIFE
        old = logs(config)
        async with running(config) as bookie:
            await check_whole(bookie)
            await add(bookie, 1, [5], flags=RECOVERY)  # a row of before is replaced
            await check_whole(bookie)
        config = quick(tmp_path)
        async with running(config) as bookie:
            await eventually(lambda: not set(logs(config)) & set(old))
            await check_whole(bookie)
        assert len(rows_by_count(config)) < 10

    asyncio.run(scenario())


def old_defaults() -> tuple[object, ...]:
    found = Bookie.__init__.__defaults__
    assert found is not None
    return tuple(RowPerEntry if each is LocationIndex else each for each in found)
