"""Which segments are not kept any longer."""

from __future__ import annotations

from pathlib import Path

from magnetar.log.partition.limits import Cleanup, Kept
from magnetar.log.partition.retention import SegmentAge, deletable, outlived
from tests.unit.log.partition.kit import NOW_MS, filled, opened

SEGMENTS = [SegmentAge(10 * (i + 1), 100, 1000 * i) for i in range(5)]
ACTIVE = SegmentAge(60, 0, 0)


def count(
    kept: Kept,
    *,
    active: SegmentAge = ACTIVE,
    log_start: int = 0,
    committed_end: int = 99,
    now_ms: int = 5000,
) -> int:
    return deletable(
        SEGMENTS, active, kept, log_start=log_start, committed_end=committed_end, now_ms=now_ms
    )


def test_by_default_everything_stays() -> None:
    assert count(Kept()) == 0


def test_by_time() -> None:
    assert count(Kept(kept_ms=3000)) == 2
    assert count(Kept(kept_ms=2999)) == 3
    assert count(Kept(kept_ms=0)) == 5


def test_what_lies_wholly_before_the_start_goes_where_nothing_else_does() -> None:
    compacted = Kept(cleanup=Cleanup.COMPACT)
    assert [count(compacted, log_start=each) for each in (9, 10, 11, 20)] == [0, 1, 1, 2]


def test_by_size() -> None:
    assert count(Kept(kept_bytes=300)) == 2
    assert count(Kept(kept_bytes=301)) == 1
    assert count(Kept(kept_bytes=0)) == 5


def test_the_active_segment_counts_in_the_size() -> None:
    active = SegmentAge(60, 150, 5000)
    assert count(Kept(kept_bytes=650), active=active) == 0
    assert count(Kept(kept_bytes=550), active=active) == 1
    assert count(Kept(kept_bytes=150), active=active) == 5
    assert count(Kept(kept_bytes=151), active=active) == 4
    assert count(Kept(kept_bytes=0), active=active) == 5


def test_where_no_bytes_are_kept_the_active_segment_is_sealed() -> None:
    active, none = SegmentAge(50, 10, 1000), Kept(kept_bytes=0)
    assert outlived(active, none, committed_end=50, now_ms=1000)
    assert not outlived(active, none, committed_end=49, now_ms=1000)
    assert not outlived(active, Kept(kept_bytes=1), committed_end=50, now_ms=1000)
    compacted = Kept(kept_bytes=0, cleanup=Cleanup.COMPACT)
    assert not outlived(active, compacted, committed_end=50, now_ms=1000)


def test_a_log_keeps_its_bytes_and_not_a_segment_more(tmp_path: Path) -> None:
    log, _ = opened(tmp_path / "t-0")
    filled(log, 60)
    behind = sum(segment.byte_count for segment in log.segments[2:])
    third = log.segments[2].base_offset
    log.let_go(Kept(kept_bytes=behind), committed_end=log.log_end, now_ms=NOW_MS)
    assert (log.log_start, log.byte_count) == (third, behind)
    log.close()


def test_what_is_not_committed_stays() -> None:
    assert count(Kept(kept_ms=0), committed_end=29) == 2
    assert count(Kept(kept_ms=0), committed_end=30) == 3


def test_what_was_deleted_goes_also_from_a_compacted_log() -> None:
    compacted = Kept(kept_ms=0, kept_bytes=0, cleanup=Cleanup.COMPACT)
    assert count(compacted) == 0
    assert count(compacted, log_start=25) == 2
    assert count(Kept(kept_ms=0, cleanup=Cleanup.COMPACT_AND_DELETE)) == 5


def test_a_segment_whose_all_is_too_old_is_sealed() -> None:
    active, kept = SegmentAge(50, 10, 1000), Kept(kept_ms=500)
    assert outlived(active, kept, committed_end=50, now_ms=1501)
    assert not outlived(active, kept, committed_end=50, now_ms=1500)
    assert not outlived(active, kept, committed_end=49, now_ms=9999)
    assert not outlived(active._replace(byte_count=0), kept, committed_end=50, now_ms=9999)
    assert not outlived(active, Kept(), committed_end=50, now_ms=9999)


def test_a_log_lets_go_what_it_does_not_keep(tmp_path: Path) -> None:
    log, _ = opened(tmp_path / "t-0")
    filled(log, 60)
    bases = [segment.base_offset for segment in log.segments]
    latest = [segment.greatest[0] for segment in log.segments]
    now_ms = latest[2] + 1001
    assert log.let_go(Kept(kept_ms=1000), committed_end=log.log_end, now_ms=now_ms) > 0
    assert [segment.base_offset for segment in log.segments] == bases[3:]
    assert log.log_start == bases[3]
    end = log.log_end
    log.let_go(Kept(kept_ms=1000), committed_end=end, now_ms=NOW_MS + 10**6)
    assert (log.log_start, log.log_end, log.byte_count) == (end, end, 0), "nothing but the next"
    assert len(log.segments) == 1
    log.close()
    again, _ = opened(tmp_path / "t-0", clean=True)
    assert (again.log_start, again.log_end) == (end, end)
