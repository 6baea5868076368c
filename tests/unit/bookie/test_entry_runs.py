"""Entries as reads of entry logs brought them: single ones, parts of a run, and what is sent."""

from __future__ import annotations

import pytest

from magnetar.bookie.storage.entry_runs import NO_ENTRIES, EntryRuns, RecordRun, count_within
from magnetar.speedups import check_records, join_records
from tests.unit.bookie.storage_kit import entry

SIZES = (100, 0, 3000, 100)


def stored(entries: list[bytes], first: int = 0) -> RecordRun:
    """With something behind it, as a read brings it."""
    data = bytes(join_records(((0, entries),), 9, 0, 50))
    return RecordRun(data, check_records(data, 9, 1, first, 1000))


def some(sizes: tuple[int, ...] = SIZES, first: int = 0) -> list[bytes]:
    return [entry(1, first + place, size=size) for place, size in enumerate(sizes)]


def sent(entries: list[bytes]) -> bytes:
    return b"".join(len(each).to_bytes(4, "big") + each for each in entries)


def test_a_run_is_its_entries() -> None:
    entries = some()
    run = stored(entries)
    assert run == entries
    assert entries == run
    assert [run[place] for place in (0, 2, -1)] == [entries[0], entries[2], entries[3]]
    assert [run.size_of(place) for place in (0, 2, -1)] == [len(run[at]) for at in (0, 2, 3)]
    assert run.byte_count == sum(map(len, entries))
    for part in (slice(1, 3), slice(2, None), slice(0, 2), slice(3, 3), slice(2, 99), slice(3, 1)):
        assert run[part] == entries[part]
        assert run[part].byte_count == sum(map(len, entries[part]))
    assert run[1:][1:2][0] == entries[2]
    with pytest.raises(IndexError):
        run[1:3][2]
    assert not NO_ENTRIES


@pytest.mark.parametrize("more_bytes", [0, 4])
def test_as_many_are_taken_as_there_is_room_for(more_bytes: int) -> None:
    entries = some()
    for run in (stored(entries), entries):
        for room in range(0, 4000, 7):
            count = count_within(run, room, more_bytes)
            assert sum(map(len, entries[:count])) + more_bytes * count <= room or not count
            if count < len(entries):
                more = entries[: count + 1]
                assert sum(map(len, more)) + more_bytes * len(more) > room


@pytest.mark.parametrize("size", [10, 70_000])
def test_runs_are_sent_one_behind_the_other(size: int) -> None:
    """From entry logs and from memory; large entries are sent from where they lie."""
    first, second, third = some((size,) * 3), some((size,) * 2, 3), some((size, size), 5)
    runs = EntryRuns(stored(first)[1:], second, stored(third, 5))
    entries = [*first[1:], *second, *third]
    assert runs == entries
    assert len(runs) == 6
    parts = runs.framed(1 << 30, 36)
    assert isinstance(parts[0], bytearray)
    assert b"".join(parts) == bytes(36) + sent(entries)
    assert any(part is second[0] for part in parts) == (size > 1000)
    for count in range(1, 7):
        room = sum(4 + len(each) for each in entries[:count])
        assert b"".join(runs.framed(room, 36)) == bytes(36) + sent(entries[:count])
        less = sent(entries[: max(1, count - 1)])
        assert b"".join(runs.framed(room - 1, 36)) == bytes(36) + less
    assert b"".join(EntryRuns().framed(9, 36)) == bytes(36)
