"""A pass over a log that becomes another one meanwhile, and what passes leave behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.log.partition.compacting import CompactionPass, LogCompactor, Replacement
from magnetar.log.partition.limits import Cleanup, Kept, SegmentLimits
from magnetar.log.partition.local_log import LocalLog
from tests.unit.log.partition.kit import NOW_MS, SMALL, batch, marker, offsets, opened

TINY = replace(SMALL, segments=SegmentLimits(segment_bytes_max=500, index_interval_bytes=150))
KEPT = Kept(cleanup=Cleanup.COMPACT)


def put(log: LocalLog, count: int, value: bytes = b"v" * 30) -> None:
    for number in range(count):
        log.append_as_leader(batch([value], keys=[b"k%d" % (number % 2)]), 0, NOW_MS)


def begun(log: LocalLog) -> CompactionPass:
    compactor = LogCompactor(log)
    found = compactor.look(KEPT, committed_end=log.log_end, now_ms=NOW_MS)
    return compactor.begin(KEPT, found.end_offset, NOW_MS)


def first_ready(compaction: CompactionPass) -> tuple[Replacement, object]:
    steps = compaction.steps()
    ready = next(each for each in steps if each is not None)
    return ready, steps


def left_over(folder: Path) -> list[Path]:
    return [*folder.glob("*.cleaned"), *folder.glob("*.swap")]


def test_a_log_that_was_cut_is_not_replaced_by_what_it_was(tmp_path: Path) -> None:
    """Also where what came instead is as long to the byte."""
    log, _ = opened(tmp_path / "t-0", TINY)
    put(log, 20)
    compaction = begun(log)
    ready, steps = first_ready(compaction)
    sizes = [each.byte_count for each in log.segments]
    log.truncate(2, NOW_MS)
    put(log, 18, b"w" * 30)
    assert [each.byte_count for each in log.segments] == sizes
    assert compaction.overtaken()
    assert not compaction.put(ready)
    compaction.end()
    steps.close()  # type: ignore[attr-defined]
    assert log.compacted_end == 0
    assert not compaction.result.finished
    assert left_over(log.folder) == []
    assert b"w" * 30 in b"".join(path.read_bytes() for path in log.folder.glob("*.log"))


def test_a_cut_between_look_and_pass_ends_the_pass(tmp_path: Path) -> None:
    log, _ = opened(tmp_path / "t-0", TINY)
    put(log, 20)
    compactor = LogCompactor(log)
    found = compactor.look(KEPT, committed_end=log.log_end, now_ms=NOW_MS)
    log.truncate(2, NOW_MS)
    put(log, 18, b"w" * 30)
    compaction = compactor.begin(KEPT, found.end_offset, NOW_MS)
    ready, steps = first_ready(compaction)
    assert not compaction.put(ready)
    steps.close()  # type: ignore[attr-defined]
    assert left_over(log.folder) == []


def test_what_comes_in_place_of_what_was_compacted_is_compacted_again(tmp_path: Path) -> None:
    log, _ = opened(tmp_path / "t-0", TINY)
    put(log, 20)
    LogCompactor(log).compact(KEPT, committed_end=log.log_end, now_ms=NOW_MS)
    done = log.compacted_end
    log.truncate(done - 1, NOW_MS)
    assert log.compacted_end == log.log_end == done - 1
    former = done - 2
    assert former in [first for first, _ in offsets(log)], "the last of its key"
    key = b"k%d" % (former % 2)
    log.append_as_leader(batch([b"w"], keys=[key]), 0, NOW_MS)
    for _ in range(20):
        log.append_as_leader(batch([bytes(30)], keys=[b"other"]), 0, NOW_MS)
    LogCompactor(log).compact(KEPT, committed_end=log.log_end, now_ms=NOW_MS)
    assert former not in [first for first, _ in offsets(log)]


@pytest.mark.parametrize("begins_before", [False, True])
def test_what_was_aborted_behind_a_pass_is_known_to_the_next_one(
    tmp_path: Path, begins_before: bool
) -> None:
    """Its records would be taken for the last of their keys, and those that hold be gone."""
    log, _ = opened(tmp_path / "t-0", TINY)
    part = {"keys": [b"k"], "attributes": 0x10}

    def sent(sequence: int, value: bytes) -> None:
        log.append_as_leader(batch([value], producer=(7, 0, sequence), **part), 0, NOW_MS)

    log.append_as_leader(batch([b"held"], keys=[b"k"]), 0, NOW_MS)
    if begins_before:
        sent(0, b"aborted")
    put(log, 20)
    if not begins_before:
        sent(0, b"aborted")
    sent(1, b"aborted, too")
    log.append_as_leader(marker(7, 0, commits=False), 0, NOW_MS)
    for _ in range(2):
        compactor = LogCompactor(log)
        compactor.compact(KEPT, committed_end=log.log_end, now_ms=NOW_MS)
        put(log, 20)
    data = b"".join(path.read_bytes() for path in log.folder.glob("*.log"))
    assert b"held" in data
    assert b"aborted" not in data


def test_what_was_ready_and_is_not_put_goes(tmp_path: Path) -> None:
    log, _ = opened(tmp_path / "t-0", TINY)
    put(log, 20)
    compaction = begun(log)
    ready, steps = first_ready(compaction)
    assert left_over(log.folder) == [ready.new.path(".log.cleaned")]
    steps.close()  # type: ignore[attr-defined]
    assert left_over(log.folder) == []
    assert not compaction.overtaken()


class _Killed(Exception):
    pass


def test_a_crash_in_a_swap_beside_what_another_pass_left_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file ``.cleaned`` says of a swap at or behind it that it is half of a split."""
    log, _ = opened(tmp_path / "t-0", TINY)
    put(log, 40)
    keys = {b"k0", b"k1"}
    compaction = begun(log)
    ready, _steps = first_ready(compaction)
    stray = log.folder / f"{log.segments[0].base_offset:020}.log.cleaned"
    others = log.segments[1:]
    old = others[: max(2, len(ready.old))]
    # The same batches under the name of a later segment.
    data = b"".join(each.path(".log").read_bytes() for each in old)
    path = old[0].path(".log.cleaned")
    path.write_bytes(data)
    assert stray.exists()
    new = type(ready.new)(
        log.disk, log.folder, old[0].base_offset, log.disk.open(path), TINY.segments
    )
    new.rebuild(len(data))
    end = log.log_end

    def killed() -> None:
        raise _Killed

    monkeypatch.setattr(old[0], "delete_beside", killed)
    with pytest.raises(_Killed):
        log.swap_in(old, new)
    log.abandon()
    again, told = opened(tmp_path / "t-0", TINY, clean=True)
    assert (again.log_end, told.cuts) == (end, [])
    found = b"".join(path.read_bytes() for path in again.folder.glob("*.log"))
    assert all(found.count(each) == 20 for each in keys)
