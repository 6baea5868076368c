"""One replica's log on its disk: appending, reading, rolling, cutting."""

from __future__ import annotations

import errno
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from magnetar.env.files.disk import DiskFile, RealDisk, RealFile
from magnetar.log.partition import local_log
from magnetar.log.partition.batch_header import HEADER_BYTES, read_header
from magnetar.log.partition.limits import PartitionPolicy, SegmentLimits, SyncPolicy
from magnetar.log.partition.local_log import Appended, LocalLog
from magnetar.log.partition.serving.stored_entries import find_entries
from magnetar.model.errors import (
    CorruptBatchError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    OpenTransactionError,
    OutOfOrderSequenceError,
    StaleProducerEpochError,
)
from tests.unit.log.partition.kit import (
    NOW_MS,
    SMALL,
    batch,
    filled,
    marker,
    offsets,
    opened,
    read_all,
)


def test_a_batch_is_stored_as_it_came_but_for_offset_and_epoch(tmp_path: Path) -> None:
    log, _ = opened(tmp_path / "t-0")
    sent = batch([b"a", b"b"], offset=77, epoch=-1)
    assert log.append_as_leader(batch([b"x"]), 4, NOW_MS) == Appended(0, 0)
    assert log.append_as_leader(sent, 4, NOW_MS) == Appended(1, 2)
    piece = log.range_from(1, log.log_end, 1 << 20)
    assert piece is not None
    data = piece.read()
    header = read_header(data)
    assert (header.base_offset, header.leader_epoch, header.record_count) == (1, 4, 2)
    assert data[16:] == sent[16:]
    assert (log.log_end, log.synced_end, log.epochs.last) == (3, 3, 4)


def test_one_append_may_fill_several_segments(tmp_path: Path) -> None:
    """A follower gets in one answer what its leader took in many requests; a client may send many
    batches at once, too."""
    leader, _ = opened(tmp_path / "leader")
    sent = [batch([b"%d" % i + bytes(100)] * (1 + i % 3), time_ms=NOW_MS + i) for i in range(40)]
    leader.append_as_leader(b"".join(sent), 3, NOW_MS)
    assert len(leader.segments) > 3
    stored = b"".join(segment.file.pread(segment.byte_count, 0) for segment in leader.segments)
    assert len(stored) == sum(map(len, sent))
    follower, _ = opened(tmp_path / "follower")
    follower.append_as_follower(stored, NOW_MS)
    assert len(follower.segments) > 3
    ends = [sum(1 + i % 3 for i in range(count)) for count in range(41)]
    for log in (leader, follower):
        expected = [(first, end - 1) for first, end in pairwise(ends)]
        assert offsets(log) == expected
        assert read_all(log, 0) == ends[:-1]
        log.abandon()
        found, told = opened(log.folder)
        assert (offsets(found), told.cuts) == (expected, [])


def test_segments_are_named_by_their_first_offset_and_found_again(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log, _ = opened(folder)
    first = filled(log, 60)
    assert len(log.segments) > 3
    for segment in log.segments:
        assert (folder / f"{segment.base_offset:020d}.log").exists()
    for segment in log.segments[:-1]:
        assert (folder / f"{segment.base_offset:020d}.index").stat().st_size % 8 == 0
        assert (folder / f"{segment.base_offset:020d}.timeindex").stat().st_size % 12 == 0
        assert len(segment.index) > 2
    for start in (0, 1, 17, 50, first[-1]):
        expected = [base for base, last in offsets(log) if last >= start]
        assert read_all(log, start) == expected
    assert read_all(log, 0, first[7]) == first[:7], "nothing at the end that was asked for"
    assert log.range_from(log.log_end, log.log_end, 100) is None
    for start in (-1, log.log_end + 1):
        with pytest.raises(OffsetOutOfRangeError, match=f"{start} is none"):
            log.range_from(start, log.log_end, 100)


def test_a_batch_larger_than_was_asked_for_comes_whole(tmp_path: Path) -> None:
    log, _ = opened(tmp_path / "t-0")
    log.append_as_leader(batch([bytes(5000)]), 0, NOW_MS)
    piece = log.range_from(0, 1, 10)
    assert piece is not None
    assert len(piece.read()) == read_header(piece.read()).byte_count > 5000


@pytest.mark.parametrize("at", [12, 17, 30, HEADER_BYTES + 3, -1])
def test_what_is_not_whole_is_refused_and_leaves_nothing(tmp_path: Path, at: int) -> None:
    log, _ = opened(tmp_path / "t-0")
    good, bad = batch([b"x"]), bytearray(batch([b"damaged"]))
    bad[at] ^= 0x40
    if at == 12:
        bad = bad[:-1]
    with pytest.raises(CorruptBatchError):
        log.append_as_leader(good + bytes(bad), 0, NOW_MS)
    assert (log.log_end, log.byte_count) == (0, 0)


def test_a_batch_that_is_too_large_is_refused(tmp_path: Path) -> None:
    log, _ = opened(tmp_path / "t-0", replace(SMALL, batch_bytes_max=100))
    with pytest.raises(MessageTooLargeError, match="up to 100"):
        log.append_as_leader(batch([bytes(200)]), 0, NOW_MS)


def test_the_first_at_a_time(tmp_path: Path) -> None:
    log, _ = opened(tmp_path / "t-0")
    first = filled(log, 60)
    for i in (0, 1, 20, 59):
        found = log.first_at(NOW_MS + i)
        assert found is not None
        assert found.base_offset == first[i]
    assert log.first_at(NOW_MS + 60) is None
    log.append_as_leader(batch([b"late"], time_ms=NOW_MS + 30), 0, NOW_MS)
    found = log.first_at(NOW_MS + 59)
    assert found is not None
    assert found.base_offset == first[59]


def test_the_first_at_a_time_where_the_log_begins_within_a_segment(tmp_path: Path) -> None:
    """What is below its start is in the segment still, and is older than what is asked for."""
    log, _ = opened(tmp_path / "t-0", replace(SMALL, segments=SegmentLimits()))
    first = filled(log, 60)
    assert len(log.segments) == 1
    for start in (1, 20, 59):
        log.log_start = first[start]
        for i in (0, start - 1, start, 59):
            found = log.first_at(NOW_MS + i)
            assert found is not None
            assert found.base_offset == first[max(start, i)]
    log.log_start = log.log_end
    assert log.first_at(NOW_MS) is None


@pytest.mark.parametrize("keep", [0, 1, 7, 30, 58])
def test_what_is_cut_is_gone_and_the_log_goes_on(tmp_path: Path, keep: int) -> None:
    folder = tmp_path / "t-0"
    log, _ = opened(folder)
    first = filled(log, 30, epoch=1)
    first += filled(log, 30, epoch=2)
    log.truncate(first[keep], NOW_MS)
    assert [base for base, _ in offsets(log)] == first[:keep]
    assert log.epochs.last == (2 if keep > 30 else 1 if keep else -1)
    again = log.append_as_leader(batch([b"new"]), 3, NOW_MS)
    assert again.first_offset == first[keep]
    assert log.epochs.end_of(2, log.log_end).end_offset == first[keep]
    log.close()
    found, _ = opened(folder, clean=True)
    assert [base for base, _ in offsets(found)] == [*first[:keep], first[keep]]
    assert found.epochs.starts == log.epochs.starts
    assert read_all(found, 0) == [*first[:keep], first[keep]]


def test_an_epoch_that_was_cut_is_not_there_after_a_crash(tmp_path: Path) -> None:
    """An older one's batches may come in its place: they would be of the one that was cut."""
    folder = tmp_path / "t-0"
    log, _ = opened(folder)
    filled(log, 3, epoch=3)
    end = log.log_end
    filled(log, 3, epoch=4)
    log.truncate(end, NOW_MS)
    more = batch([b"later"], offset=end, epoch=3)
    assert log.append_as_follower(more, NOW_MS) is not None
    log.abandon()
    found, _ = opened(folder)
    assert found.epochs.starts == ((3, 0),)


@pytest.mark.parametrize("kept", range(1, 24))
def test_what_was_cut_has_no_times(tmp_path: Path, kept: int) -> None:
    """Others come at its offsets: who looks by time would begin behind the first of them."""
    log, _ = opened(tmp_path / "t-0")
    for number in range(24):
        log.append_as_leader(batch([bytes(60)], time_ms=NOW_MS + number), 0, NOW_MS)
    log.truncate(kept, NOW_MS)
    assert max(each.greatest[0] for each in log.segments) == NOW_MS + kept - 1
    assert log.first_at(NOW_MS + kept) is None
    for _ in range(24):
        log.append_as_leader(batch([bytes(60)], time_ms=NOW_MS + 100), 0, NOW_MS)
    for time_ms, offset in ((NOW_MS + kept - 1, kept - 1), (NOW_MS + 100, kept)):
        found = log.first_at(time_ms)
        assert found is not None
        assert found.base_offset == offset


def test_what_is_read_ends_where_it_is_said(tmp_path: Path) -> None:
    log, _ = opened(tmp_path / "t-0")
    first = filled(log, 20)
    for end in first[1:]:
        assert read_all(log, 0, end) == [each for each in first if each < end]
        last = first[first.index(end) - 1]
        piece = log.range_from(last, end, 1 << 20)  # of more than that, too
        assert piece is not None
        assert piece.byte_count == read_header(piece.read()).byte_count
        assert log.range_from(end, end, 1 << 20) is None


def test_a_marker_of_a_later_epoch_ends_what_an_earlier_one_has_open(tmp_path: Path) -> None:
    """Of a producer that was replaced, or whose time was over."""
    log, _ = opened(tmp_path / "t-0")
    part = batch([b"a"], producer=(1, 0, 0), attributes=0x10)
    log.append_as_leader(part, 0, NOW_MS)
    log.append_as_leader(marker(1, 1, commits=False), 0, NOW_MS)
    assert log.producers.first_open() is None
    assert aborted_of(log) == [(1, 0, 1)]
    with pytest.raises(StaleProducerEpochError):
        log.append_as_leader(batch([b"b"], producer=(1, 0, 1)), 0, NOW_MS)


def test_sequences_go_round_and_a_part_of_a_batch_is_no_repeat(tmp_path: Path) -> None:
    log, _ = opened(tmp_path / "t-0")
    last = (1 << 31) - 1

    def send(sequence: int, count: int) -> Appended:
        data = batch([b"v"] * count, producer=(9, 0, sequence))
        return log.append_as_leader(data, 0, NOW_MS)

    assert send(last - 1, 3) == Appended(0, 2)
    assert send(last - 1, 3).repeated
    for part in ((last - 1, 2), (0, 1)):  # its beginning, its end
        with pytest.raises(OutOfOrderSequenceError):
            send(*part)
    assert send(1, 1) == Appended(3, 3)
    assert send(last - 1, 3).repeated
    log.append_as_leader(batch([b"v"] * 2, producer=(8, 0, last - 1)), 0, NOW_MS)
    assert not log.append_as_leader(batch([b"v"], producer=(8, 0, 0)), 0, NOW_MS).repeated


def test_a_follower_stores_which_epochs_it_has(tmp_path: Path) -> None:
    """Batches of segments that were synced are not read to find out."""
    folder = tmp_path / "t-0"
    log, _ = opened(folder)
    for offset, epoch in ((0, 3), (1, 3), (2, 6)):
        log.append_as_follower(batch([b"v"], offset=offset, epoch=epoch), NOW_MS)
        if not offset:
            log.store_epochs()
    log.abandon()
    found, _ = opened(folder, clean=True)
    assert found.epochs.starts == ((3, 0), (6, 2))


def test_a_cut_takes_the_list_of_batches_with_it(tmp_path: Path) -> None:
    """The next leader's batches may fill a segment to the same byte and offset."""
    log, _ = opened(tmp_path / "t-0")
    one, two, full = batch([b"1"]), batch([b"1", b"2"]), batch([bytes(1900)])
    for first in ((one, two), (two, one)):
        for data in (*first, full, full, full):
            log.append_as_leader(data, 0, NOW_MS)
        assert [each.base_offset for each in log.segments[:2]] == [0, 3]
        places = find_entries(log, RealDisk(), log.log_end, 1 << 31).places
        begins = [each for each in range(3) if places.begins(each)]
        assert begins == [first for first, _ in offsets(log)[:2]]
        log.truncate(0, NOW_MS)


def test_a_follower_stores_what_its_leader_has(tmp_path: Path) -> None:
    leader, _ = opened(tmp_path / "l-0")
    filled(leader, 20, epoch=1)
    filled(leader, 20, epoch=5)
    follower, _ = opened(tmp_path / "f-0")
    while (piece := leader.range_from(follower.log_end, leader.log_end, 333)) is not None:
        assert follower.append_as_follower(piece.read(), NOW_MS) is not None
    assert offsets(follower) == offsets(leader)
    assert follower.epochs.starts == leader.epochs.starts
    with pytest.raises(CorruptBatchError, match="where 78 of 5 or later comes next"):
        follower.append_as_follower(batch([b"x"], offset=10, epoch=5), NOW_MS)
    assert follower.append_as_follower(b"", NOW_MS) is None
    cut = batch([b"x"], offset=90, epoch=5)[:-1]
    assert follower.append_as_follower(cut, NOW_MS) is None


def test_producers_are_held_to_their_sequence(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log, _ = opened(folder)

    def send(sequence: int, epoch: int = 0, count: int = 2) -> Appended:
        return log.append_as_leader(batch([b"v"] * count, producer=(9, epoch, sequence)), 0, NOW_MS)

    assert send(0) == Appended(0, 1)
    assert send(2) == Appended(2, 3)
    assert send(0) == Appended(0, 1, True, NOW_MS), "again: it is there"
    with pytest.raises(OutOfOrderSequenceError, match="sends sequence 6; 4 comes next"):
        send(6)
    assert send(0, epoch=1) == Appended(4, 5)
    with pytest.raises(StaleProducerEpochError):
        send(4, epoch=0)
    log.close()
    log, _ = opened(folder, clean=True)
    assert send(0, epoch=1) == Appended(4, 5, True, NOW_MS), "the snapshot knows it"
    log.abandon()
    for snapshot in folder.glob("*.snapshot"):
        snapshot.write_bytes(b"nonsense")
    log, _ = opened(folder)
    assert send(0, epoch=1) == Appended(4, 5, True, NOW_MS), "and so do the batches"
    with pytest.raises(OutOfOrderSequenceError):
        send(9, epoch=1)


@pytest.mark.parametrize("value", [b"v", b"v" * 30_000], ids=["small", "large"])
@pytest.mark.parametrize("policy", [SMALL, PartitionPolicy()], ids=["segments", "one segment"])
def test_what_may_be_sent_again_is_known_after_an_end(
    tmp_path: Path, policy: PartitionPolicy, value: bytes
) -> None:
    """A client has five under way, and the snapshot knows the last one."""
    folder = tmp_path / "t-0"
    log, _ = opened(folder, policy)

    def send(log: LocalLog, producer: int, sequence: int) -> Appended:
        data = batch([value], producer=(producer, 0, sequence))
        return log.append_as_leader(data, 0, NOW_MS)

    first = {(each, at): send(log, each, at) for at in range(8) for each in (3, 4)}
    log.append_as_leader(batch([value]), 0, NOW_MS)
    known = log.producers.producers
    log.close()
    log, _ = opened(folder, policy, clean=True)
    assert log.producers.producers == known
    for (producer, sequence), answer in first.items():
        if sequence < 3:
            with pytest.raises(OutOfOrderSequenceError):
                send(log, producer, sequence)
        else:
            again = send(log, producer, sequence)
            assert again.repeated
            assert again.first_offset == answer.first_offset
    assert not send(log, 3, 8).repeated


def test_damage_before_a_snapshot_does_not_close_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log, _ = opened(folder, PartitionPolicy())
    for sequence in range(8):
        log.append_as_leader(batch([bytes(3000)], producer=(3, 0, sequence)), 0, NOW_MS)
    (file,) = (each.path(".log") for each in log.segments)
    log.close()
    data = bytearray(file.read_bytes())
    second = read_header(data).byte_count
    data[second + 8 : second + 12] = bytes(4)  # its length
    file.write_bytes(data)
    found, _ = opened(folder, PartitionPolicy(), clean=True)
    assert [each.last_sequence for each in found.producers.producers[3].batches] == [7]


def test_nothing_behind_an_open_transaction_is_stable(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log, _ = opened(folder)

    def send(producer: int, sequence: int) -> None:
        data = batch([b"v"], producer=(producer, 0, sequence), attributes=0x10)
        log.append_as_leader(data, 0, NOW_MS)

    send(1, 0)
    send(2, 0)
    send(1, 1)
    assert log.producers.first_open() == 0
    log.append_as_leader(marker(1, 0, commits=False), 0, NOW_MS)
    assert log.producers.first_open() == 1
    assert [(each.producer_id, each.first_offset, each.last_offset) for each in log.aborted] == [
        (1, 0, 3)
    ]
    assert log.aborted[0].last_stable_offset == 1
    log.append_as_leader(marker(2, 0, commits=True), 0, NOW_MS)
    assert log.producers.first_open() is None
    aborted = list(log.aborted)
    log.abandon()
    for clean in (False, True):
        found, _ = opened(folder, clean=clean)
        assert found.aborted == aborted
        assert found.producers.first_open() is None
        found.close()


def test_a_producer_with_an_open_transaction_sends_nothing_beside(tmp_path: Path) -> None:
    log, _ = opened(tmp_path / "t-0")

    def send(sequence: int, epoch: int = 0, attributes: int = 0) -> Appended:
        data = batch([b"v"], producer=(1, epoch, sequence), attributes=attributes)
        return log.append_as_leader(data, 0, NOW_MS)

    send(0)
    send(1, attributes=0x10)
    end = log.log_end
    for epoch, sequence in ((0, 2), (1, 0)):
        with pytest.raises(OpenTransactionError, match="open since offset 1"):
            send(sequence, epoch)
    with pytest.raises(OutOfOrderSequenceError):
        send(7)
    assert log.log_end == end
    assert send(0).repeated, "it is there"
    send(2, attributes=0x10)
    log.append_as_leader(marker(1, 0, commits=False), 0, NOW_MS)
    assert not send(3).repeated


def test_records_are_deleted_from_the_front(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log, _ = opened(folder)
    first = filled(log, 60)
    log.delete_records(first[10] + 1)
    with pytest.raises(OffsetOutOfRangeError):
        log.range_from(first[10] - 1, log.log_end, 100)
    assert read_all(log, first[10] + 1)[0] == first[10], "a batch comes whole"
    names = {path.name for path in folder.iterdir()}
    third = log.segments[2].base_offset
    freed = log.delete_segments(2)
    assert freed > 0
    assert (log.log_start, log.segments[0].base_offset) == (max(third, first[10] + 1), third)
    gone = names - {path.name for path in folder.iterdir()}
    assert len([name for name in gone if name.endswith(".log")]) == 2
    with pytest.raises(OffsetOutOfRangeError, match="can be deleted up to"):
        log.delete_records(log.log_end + 1)


def test_what_the_sync_policy_says_is_synced(tmp_path: Path) -> None:
    for sync in SyncPolicy:
        policy = replace(SMALL, sync=sync, segments=SegmentLimits())
        log, _ = opened(tmp_path / sync.name / "t-0", policy)
        log.append_as_leader(batch([b"x"]), 0, NOW_MS)
        assert log.synced_end == (1 if sync.durable else 0)
        assert log.sync() == 1
        assert (policy.warning is None) == sync.durable


def test_a_log_that_begins_anew_forgets_its_epochs_where_they_are(tmp_path: Path) -> None:
    """The replica's machine holds the same object: it would go on comparing what is gone."""
    source, _ = opened(tmp_path)
    filled(source, 5, epoch=3)
    epochs = source.epochs
    source.restart_at(100, NOW_MS)
    assert source.epochs is epochs
    assert (epochs.starts, source.log_end) == ((), 100)


def test_records_in_the_middle_of_a_batch_are_deleted(tmp_path: Path) -> None:
    """A log may begin in the middle of a batch, which is read whole."""
    log, _ = opened(tmp_path / "t-0")
    first = filled(log, 40)
    middle = first[11] + 1  # of three records
    log.delete_records(middle)
    assert (log.log_start, log.first_base) == (middle, first[11])
    assert read_all(log, middle)[0] == first[11]
    assert read_all(log, first[11])[0] == first[11], "a follower fetches from there"
    with pytest.raises(OffsetOutOfRangeError):
        log.range_from(first[11] - 1, log.log_end, 100)
    log.drop_deleted()
    assert log.segments[0].base_offset <= first[11] < log.segments[1].base_offset
    log.close()
    again, _ = opened(tmp_path / "t-0", log_start=middle)
    assert (again.log_start, again.first_base) == (middle, first[11])
    again.delete_records(again.log_end)
    again.drop_deleted()
    assert (len(again.segments), again.first_base) == (1, again.log_end)


def test_a_follower_takes_no_older_epoch_behind_a_newer_one(tmp_path: Path) -> None:
    """Recovery would cut there, and with it what was acknowledged behind it."""
    log, _ = opened(tmp_path / "t-0")
    answer = batch([b"x"], offset=0, epoch=5) + batch([b"y"], offset=1, epoch=3)
    with pytest.raises(CorruptBatchError, match="of epoch 3 where 1 of 5 or later comes next"):
        log.append_as_follower(answer, NOW_MS)
    assert (log.log_end, log.epochs.last) == (0, -1)


@pytest.mark.parametrize("end", [3, 13, 14])
def test_a_log_that_is_cut_before_its_start_begins_where_it_ends(tmp_path: Path, end: int) -> None:
    """By a leader that was elected uncleanly, and lacks what was deleted here."""
    folder = tmp_path / "t-0"
    log, _ = opened(folder)
    log.append_as_leader(batch([b"v"] * 12), 0, NOW_MS)
    log.append_as_leader(batch([b"v"] * 5), 0, NOW_MS)
    log.delete_records(15)  # in the middle of the second batch
    log.drop_deleted()
    log.truncate(end, NOW_MS)
    assert log.log_end <= end
    assert log.log_start == log.first_base == log.synced_end == log.log_end
    assert log.append_as_follower(batch([b"x"], offset=log.log_end, epoch=1), NOW_MS) is not None
    assert read_all(log, log.log_start) == [log.log_start]
    log.close()


def aborted_of(log: LocalLog) -> list[tuple[int, int, int]]:
    return [(each.producer_id, each.first_offset, each.last_offset) for each in log.aborted]


def test_aborts_go_with_their_segments(tmp_path: Path) -> None:
    log, _ = opened(tmp_path / "t-0")
    for at in range(40):
        part = batch([b"a"], producer=(at % 3, 0, at // 3), attributes=0x10)
        log.append_as_leader(part, 0, NOW_MS)
        log.append_as_leader(marker(at % 3, 0, commits=False), 0, NOW_MS)
    assert len(log.segments) == 3
    assert len(log.aborted) == 40
    log.delete_segments(2)
    first = log.segments[0].base_offset
    assert [each.last_offset for each in log.aborted] == [
        at for at in range(1, 80, 2) if at >= first
    ]
    known = list(log.aborted)
    log.load_producers()
    assert log.aborted == known


def test_an_abort_that_was_cut_is_not_there_again(tmp_path: Path) -> None:
    """Else what is written at its offsets afterwards counts as aborted."""
    folder = tmp_path / "t-0"
    log, _ = opened(folder)

    def send(sequence: int, epoch: int = 0) -> None:
        data = batch([b"v"], producer=(1, 0, sequence), attributes=0x10)
        log.append_as_leader(data, epoch, NOW_MS)

    for sequence in range(4):
        send(sequence)
    log.append_as_leader(marker(1, 0, commits=False), 0, NOW_MS)
    log.close()
    log, _ = opened(folder, clean=True)
    assert aborted_of(log) == [(1, 0, 4)]
    log.truncate(1, NOW_MS)
    log.append_as_leader(marker(1, 0, commits=False), 1, NOW_MS)
    for sequence in range(1, 6):
        send(sequence, epoch=1)
    log.append_as_leader(marker(1, 0, commits=True), 1, NOW_MS)
    for known in ({}, {"clean": True}):
        log.close()
        log, _ = opened(folder, **known)
        assert log.log_end == 8
        assert aborted_of(log) == [(1, 0, 1)]
    log.close()


def test_a_transaction_whose_abort_alone_was_cut_may_be_committed(tmp_path: Path) -> None:
    """A new leader that does not have the marker ends it its own way. Counted as aborted, its
    records would go with the next compaction."""
    folder = tmp_path / "t-0"
    log, _ = opened(folder)
    for sequence in range(4):
        data = batch([b"v"], producer=(1, 0, sequence), attributes=0x10)
        log.append_as_leader(data, 0, NOW_MS)
    log.append_as_leader(marker(1, 0, commits=False), 0, NOW_MS)
    log.close()
    log, _ = opened(folder, clean=True)
    log.truncate(4, NOW_MS)
    log.append_as_leader(marker(1, 0, commits=True), 1, NOW_MS)
    for known in ({}, {"clean": True}):
        assert (log.log_end, aborted_of(log)) == (5, [])
        log.close()
        log, _ = opened(folder, **known)
    log.close()


def test_what_a_snapshot_counts_is_in_the_index_of_aborted_transactions(tmp_path: Path) -> None:
    """Markers before a snapshot are not read again."""
    folder = tmp_path / "t-0"
    log, _ = opened(folder)
    log.append_as_leader(batch([b"v"], producer=(1, 0, 0), attributes=0x10), 0, NOW_MS)
    log.append_as_leader(marker(1, 0, commits=False), 0, NOW_MS)
    (folder / f"{0:020d}.txnindex").write_bytes(b"\0" * 20)  # torn, as by an older version
    log.roll(log.log_end, NOW_MS)
    log.append_as_leader(batch([b"v"], producer=(2, 0, 0), attributes=0x10), 0, NOW_MS)
    log.append_as_leader(marker(2, 0, commits=False), 0, NOW_MS)
    log.roll(log.log_end, NOW_MS)
    log.abandon()
    assert [len((folder / f"{base:020d}.txnindex").read_bytes()) for base in (0, 2)] == [34, 34]
    found, _ = opened(folder, recovery_point=4)
    assert aborted_of(found) == [(1, 0, 1), (2, 2, 3)]
    found.close()


class _BadFile(RealFile):
    fails = False

    def datasync(self) -> None:
        if self.fails:
            raise OSError(errno.ENOSPC, "no space")
        super().datasync()


class _BadDisk(RealDisk):
    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        file = super().open(path, create=create)
        assert isinstance(file, RealFile)
        return _BadFile(path, file._fd)


@pytest.mark.parametrize("again", [False, True])
def test_what_a_failed_sync_leaves_is_not_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """It can be read, and no later sync stores it. Also when the disk is full: it is not enough
    then to try again, since what counted is gone."""
    policy = replace(SMALL, sync=SyncPolicy.INTERVAL)
    log, _ = opened(tmp_path / "t-0", policy, _BadDisk())
    filled(log, 6)
    assert log.sync() == log.log_end == 12
    filled(log, 1)
    if again:
        log.sync()
        assert log.truncate(12, NOW_MS) > 0
        filled(log, 1)
    monkeypatch.setattr(_BadFile, "fails", True)
    with pytest.raises(OSError, match="what was not synced is lost") as failed:
        log.sync()
    assert failed.value.errno == errno.EIO
    log.abandon()
    monkeypatch.setattr(_BadFile, "fails", False)
    found, recovered = opened(tmp_path / "t-0", policy)
    assert (found.log_end, recovered.cuts) == (12, [])


def test_a_log_whose_first_sync_fails_keeps_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = opened(tmp_path / "t-0")
    filled(log, 6)
    log.abandon()
    monkeypatch.setattr(_BadFile, "fails", True)
    with pytest.raises(OSError, match="no space"):
        opened(tmp_path / "t-0", SMALL, _BadDisk(), clean=True)
    found, _ = opened(tmp_path / "t-0")
    assert found.log_end == 12


def _snapshots(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.snapshot"))


def test_ends_in_order_leave_one_snapshot_within_a_segment(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    for number in range(6):
        log, _ = opened(folder, clean=number > 0)
        log.append_as_leader(batch([b"a"], producer=(7, 0, number)), 0, NOW_MS)
        log.close()
    log, _ = opened(folder, clean=True)
    assert _snapshots(folder) == [6]
    assert log.producers.producers[7].batches[-1].last_sequence == 5


def test_a_snapshot_behind_a_cut_does_not_come_back(tmp_path: Path) -> None:
    """The process ended in the middle of a cut: other batches came where it had been made."""
    folder = tmp_path / "t-0"
    log, _ = opened(folder)
    log.append_as_leader(batch([b"a"], producer=(7, 0, 0)), 0, NOW_MS)
    log.append_as_leader(batch([b"b"], producer=(7, 0, 1)), 0, NOW_MS)
    log.close()
    assert _snapshots(folder) == [2]
    snapshot = (folder / f"{2:020d}.snapshot").read_bytes()
    cut, _ = opened(folder)
    cut.truncate(1, NOW_MS)
    cut.abandon()
    (folder / f"{2:020d}.snapshot").write_bytes(snapshot)  # the crash came before it went
    for _ in range(2):
        log, _ = opened(folder)
        log.append_as_leader(batch([b"x"]), 1, NOW_MS)
        log.abandon()
    found, _ = opened(folder)
    assert found.producers.producers[7].batches[-1].last_sequence == 0
    assert not found.append_as_leader(batch([b"b"], producer=(7, 0, 1)), 2, NOW_MS).repeated


def test_producers_of_deleted_records_are_known_after_a_crash(tmp_path: Path) -> None:
    """While the segment that has their batches is there."""
    folder = tmp_path / "t-0"
    log, _ = opened(folder)
    log.append_as_leader(batch([b"a", b"b"], producer=(7, 0, 0)), 0, NOW_MS)
    log.append_as_leader(batch([b"x"]), 0, NOW_MS)
    log.delete_records(2)
    log.abandon()
    found, _ = opened(folder, log_start=2)
    assert found.log_start == 2
    again = found.append_as_leader(batch([b"a", b"b"], producer=(7, 0, 0)), 0, NOW_MS)
    assert again == Appended(0, 1, True, NOW_MS)


def test_producers_that_were_not_heard_of_for_long_are_forgotten(tmp_path: Path) -> None:
    log, _ = opened(tmp_path / "t-0")
    day_ms = SMALL.producers_kept_ms

    def send(producer: int, time_ms: int, attributes: int = 0) -> None:
        data = batch([b"a"], producer=(producer, 0, 0), time_ms=time_ms, attributes=attributes)
        log.append_as_leader(data, 0, NOW_MS)

    send(1, NOW_MS - day_ms - 1)
    send(2, NOW_MS)
    send(3, NOW_MS - day_ms - 1, attributes=0x10)
    log.roll(log.log_end, NOW_MS)
    assert list(log.producers.producers) == [1, 2, 3], "they wrote to the segment just now"
    send(4, NOW_MS - 2 * day_ms)
    log.roll(log.log_end, NOW_MS)
    assert list(log.producers.producers) == [2, 3, 4], "a transaction is open"


def test_producers_are_forgotten_within_a_segment_too(tmp_path: Path) -> None:
    """Each start of a client is a producer, and one segment may be written for weeks."""
    log, _ = opened(tmp_path / "t-0", PartitionPolicy())
    day_ms = log.policy.producers_kept_ms
    hour_ms = day_ms // 24

    def send(producer: int, hour: int, *, sequence: int = 0, time_ms: int = -1) -> None:
        now_ms = NOW_MS + hour * hour_ms
        made_ms = now_ms if time_ms < 0 else time_ms
        data = batch([b"a"], producer=(producer, 0, sequence), time_ms=made_ms)
        log.append_as_leader(data, 0, now_ms)

    for hour in range(1, 24 * 6):
        send(100 + hour, hour)
        send(1, hour, sequence=hour, time_ms=NOW_MS - 10 * day_ms)  # it copies what is old
        assert len(log.producers.producers) <= 30
    assert list(log.producers.producers) == [1, *range(219, 244)]
    assert len(log.segments) == 1
    log.truncate(10, NOW_MS + 6 * day_ms)
    send(1, 144, sequence=6, time_ms=NOW_MS - 10 * day_ms)
    send(2, 167)
    assert 1 in log.producers.producers, "it is not known how long ago the log ended there"


def test_a_log_of_very_many_segments_is_cut_as_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has an open file: a topic that wants them tiny must not take those of all others."""
    monkeypatch.setattr(local_log, "SEGMENTS_MANY", 4)
    log, _ = opened(tmp_path / "t-0", replace(SMALL, segments=SegmentLimits()))
    log.cut_by(SegmentLimits(segment_bytes_max=1, segment_age_ms_max=1))
    filled(log, 20)
    assert len(log.segments) == 4
    log.delete_segments(3)
    filled(log, 2)
    assert len(log.segments) == 3, "as the topic says, again"


def test_a_log_of_very_many_segments_is_not_cut_finer_than_its_topic_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_log, "SEGMENTS_MANY", 1)
    configured = SegmentLimits(segment_bytes_max=1, segment_age_ms_max=1)
    log, _ = opened(tmp_path / "t-0", replace(SMALL, segments=configured))
    log.cut_by(SegmentLimits())
    filled(log, 5)
    assert len(log.segments) == 1
