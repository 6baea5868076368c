"""Of each key the last record stays."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.log.partition.batch_header import read_header
from magnetar.log.partition.compacting import LogCompactor
from magnetar.log.partition.compaction import AbortedBatches, records_of
from magnetar.log.partition.limits import Kept, SegmentLimits
from magnetar.log.partition.local_log import LocalLog
from magnetar.log.partition.producer_states import AbortedTransaction
from magnetar.wire.kafka.batches import build_batch
from magnetar.wire.kafka.compression import Codec, compress
from magnetar.wire.kafka.records import KafkaRecord, encode_records
from tests.unit.log.partition.kit import NOW_MS, SMALL, batch, marker, opened, read_all

DAY_MS = 24 * 3600 * 1000
KEPT = Kept(tombstones_kept_ms=DAY_MS)
TINY = replace(SMALL, segments=SegmentLimits(segment_bytes_max=700, index_interval_bytes=150))


def put(log: LocalLog, values: Mapping[bytes, bytes | None], codec: Codec = Codec.NONE) -> None:
    records = [KafkaRecord(i, i, key, value) for i, (key, value) in enumerate(values.items())]
    data = build_batch(
        compress(codec, encode_records(records)),
        count=len(records), last_offset_delta=len(records) - 1, attributes=codec,
        base_timestamp_ms=NOW_MS, max_timestamp_ms=NOW_MS + len(records) - 1,
    )  # fmt: skip
    log.append_as_leader(data, 0, NOW_MS)


def contents(log: LocalLog) -> list[tuple[int, bytes | None, bytes | None, int]]:
    """(offset, key, value, time) of every record."""
    found = []
    for segment in log.segments:
        for position, header in segment.headers():
            data = segment.file.pread(header.byte_count, position)
            if not header.control:
                found += [
                    (
                        header.base_offset + record.offset_delta, record.key, record.value,
                        header.base_timestamp_ms + record.timestamp_delta_ms,
                    )
                    for record in records_of(data, read_header(data))
                ]  # fmt: skip
    return found


def compact(log: LocalLog, kept: Kept, *, committed_end: int, now_ms: int) -> int:
    return LogCompactor(log).compact(kept, committed_end=committed_end, now_ms=now_ms)


def seal(log: LocalLog) -> None:
    log.roll(log.log_end, NOW_MS)


@pytest.mark.parametrize("seed", range(10))
def test_the_last_of_each_key_stays_where_it_is(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    folder = tmp_path / "t-0"
    log, _ = opened(folder, TINY)
    for i in range(120):
        keys = {b"k%d" % rng.randrange(30): b"v%d" % i for _ in range(rng.randint(1, 4))}
        put(log, keys, rng.choice((Codec.NONE, Codec.GZIP)))
    seal(log)
    before, end = contents(log), log.log_end
    last = {key: offset for offset, key, _, _ in before}
    compactor = LogCompactor(log)
    assert compactor.dirty_ratio(end) == 1.0
    assert compactor.compact(KEPT, committed_end=end, now_ms=NOW_MS) > 0
    expected = [each for each in before if last[each[1]] == each[0]]
    assert contents(log) == expected
    assert (log.log_end, log.log_start, compactor.dirty_ratio(end)) == (end, 0, 0.0)
    assert compact(log, KEPT, committed_end=end, now_ms=NOW_MS) == 0
    assert contents(log) == expected
    log.close()
    for clean in (True, False):
        found, told = opened(folder, TINY, clean=clean)
        assert (contents(found), found.log_end, told.cuts) == (expected, end, [])
        bases = [header.base_offset for each in found.segments for _, header in each.headers()]
        assert read_all(found, 0) == bases
        found.abandon()


def test_a_tombstone_stays_for_a_while(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log, _ = opened(folder, TINY)
    put(log, {b"a": b"1", b"b": b"1"})
    put(log, {b"a": None})
    put(log, {b"c": b"1"})
    seal(log)
    end = log.log_end
    left = [(1, b"b", b"1", NOW_MS + 1), (2, b"a", None, NOW_MS), (3, b"c", b"1", NOW_MS)]
    for now_ms in (NOW_MS, NOW_MS + DAY_MS - 1):
        compact(log, KEPT, committed_end=end, now_ms=now_ms)
        assert contents(log) == left
    log.close()
    log, _ = opened(folder, TINY, clean=True)
    compact(log, KEPT, committed_end=end, now_ms=NOW_MS + DAY_MS)
    assert contents(log) == [left[0], left[2]], "its time stands in the batch"


def test_what_is_not_committed_or_sealed_stays(tmp_path: Path) -> None:
    log, _ = opened(tmp_path / "t-0", TINY)
    put(log, {b"a": b"1"})
    seal(log)
    put(log, {b"a": b"2"})
    assert compact(log, KEPT, committed_end=2, now_ms=NOW_MS) == 0, "it is the last"
    seal(log)
    assert compact(log, KEPT, committed_end=1, now_ms=NOW_MS) == 0
    assert compact(log, KEPT, committed_end=2, now_ms=NOW_MS) > 0
    assert [each[2] for each in contents(log)] == [b"2"]


def test_what_was_aborted_goes_and_what_is_open_waits(tmp_path: Path) -> None:
    log, _ = opened(tmp_path / "t-0", TINY)

    def send(value: bytes, sequence: int, producer: int = 5) -> None:
        data = batch([value], keys=[b"k"], producer=(producer, 0, sequence), attributes=0x10)
        log.append_as_leader(data, 0, NOW_MS)

    put(log, {b"k": b"kept"})
    send(b"aborted", 0)
    seal(log)
    assert compact(log, KEPT, committed_end=2, now_ms=NOW_MS) == 0, "it may be aborted"
    log.append_as_leader(marker(5, 0, commits=False), 0, NOW_MS)
    seal(log)
    compact(log, KEPT, committed_end=log.log_end, now_ms=NOW_MS)
    assert [each[2] for each in contents(log)] == [b"kept"]
    assert log.aborted == [], "nothing is left of it"
    send(b"committed", 1)
    log.append_as_leader(marker(5, 0, commits=True), 0, NOW_MS)
    seal(log)
    compact(log, KEPT, committed_end=log.log_end, now_ms=NOW_MS)
    assert [each[2] for each in contents(log)] == [b"committed"]


def test_a_producers_sequence_outlives_its_records(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log, _ = opened(folder, TINY)
    log.append_as_leader(batch([b"1"], keys=[b"k"], producer=(5, 0, 0)), 0, NOW_MS)
    put(log, {b"k": b"2"})
    seal(log)
    compact(log, KEPT, committed_end=2, now_ms=NOW_MS)
    assert [each[2] for each in contents(log)] == [b"2"]
    log.abandon()
    for snapshot in folder.glob("*.snapshot"):
        snapshot.unlink()
    log, _ = opened(folder, TINY)
    again = log.append_as_leader(batch([b"1"], keys=[b"k"], producer=(5, 0, 0)), 0, NOW_MS)
    assert again.repeated


def test_what_its_producer_committed_before_was_not_aborted() -> None:
    found = AbortedBatches([AbortedTransaction(7, 10, 12, 13)])

    def at(offset: int, producer_id: int = 7, attributes: int = 0x10) -> bool:
        data = batch([b"v"], producer=(producer_id, 0, 0), attributes=attributes, offset=offset)
        return found.has(read_header(data))

    assert [each for each in range(20) if at(each)] == [10, 11, 12]
    assert not at(11, producer_id=8)
    assert not at(11, attributes=0)
