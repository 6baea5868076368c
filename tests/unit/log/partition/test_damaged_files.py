"""Files of a partition that are cut, removed or damaged: it is not opened, and its files stay."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from magnetar.env.files.disk import RealDisk
from magnetar.log.partition.checkpoint_files import (
    LOG_STARTS,
    RECOVERY_POINTS,
    decode_offsets,
    encode_offsets,
)
from magnetar.log.partition.limits import SyncPolicy
from magnetar.log.partition.local_log import LocalLog
from magnetar.log.partition.log_directory import LogDirectory
from magnetar.log.partition.segment import Segment
from magnetar.log.partition.serving.batch_places import SPAN
from magnetar.log.partition.serving.stored_entries import find_entries, read_entries
from magnetar.model.errors import CorruptBatchError, LogDamagedError, OtherClusterError
from tests.unit.log.partition.kit import NOW_MS, SMALL, batch, filled, marker
from tests.unit.log.partition.kit import opened as opened_log

ONE = ("topic", 0)
END = 80


def opened(path: Path, cluster: str = "") -> LogDirectory:
    policy = replace(SMALL, sync=SyncPolicy.EACH_BATCH)
    draw = count(100).__next__
    return LogDirectory.open(RealDisk(), path, policy, draw, cluster=cluster)


def written(path: Path, *, clean: bool) -> tuple[Path, list[Path]]:
    """A log of ``END`` records in several segments, all of it below the recovery point: its folder
    and the segments' files."""
    directory = opened(path)
    filled(directory.open_log(ONE, NOW_MS), 40)
    assert directory.logs[ONE].log_end == END - 1
    if clean:
        directory.close()
    else:
        directory.checkpoint()
        directory.logs[ONE].abandon()
    folder = path / "topic-0"
    return folder, sorted(folder.glob("*.log"))


def last_removed(files: list[Path]) -> None:
    files[-1].unlink()


def all_removed(files: list[Path]) -> None:
    for each in files:
        each.unlink()


def middle_removed(files: list[Path]) -> None:
    files[1].unlink()


def last_emptied(files: list[Path]) -> None:
    files[-1].write_bytes(b"")


def first_emptied(files: list[Path]) -> None:
    files[0].write_bytes(b"")


def middle_cut(files: list[Path]) -> None:
    """Where a batch ends."""
    data = files[1].read_bytes()
    files[1].write_bytes(data[: 12 + int.from_bytes(data[8:12], "big")])


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "damage", [first_emptied, middle_cut, last_removed, all_removed, middle_removed, last_emptied]
)
def test_a_log_that_lacks_what_it_held_is_not_opened(
    tmp_path: Path, damage: Callable[[list[Path]], None], clean: bool
) -> None:
    folder, files = written(tmp_path, clean=clean)
    assert len(files) > 3
    damage(files)
    left = {each.name: each.read_bytes() for each in folder.glob("*.log")}
    directory = opened(tmp_path)
    with pytest.raises(LogDamagedError, match=str(folder)):
        directory.open_log(ONE, NOW_MS)
    assert {each.name: each.read_bytes() for each in folder.glob("*.log")} == left


def test_after_an_orderly_end_the_first_segment_is_not_to_be_missing(tmp_path: Path) -> None:
    _, files = written(tmp_path, clean=True)
    files[0].unlink()
    files[0].with_suffix(".index").unlink()
    with pytest.raises(LogDamagedError, match=f"begins with {files[1].name}"):
        opened(tmp_path).open_log(ONE, NOW_MS)


def test_a_first_segment_whose_index_is_there_is_not_to_be_missing(tmp_path: Path) -> None:
    """Also after a kill: what deletes a segment takes the ``.log`` last."""
    _, files = written(tmp_path, clean=False)
    files[0].unlink()
    with pytest.raises(LogDamagedError, match=f"{files[0].name} is gone"):
        opened(tmp_path).open_log(ONE, NOW_MS)


def test_a_log_without_segments_that_has_had_batches_is_told_as_cut(tmp_path: Path) -> None:
    """All of it was above the recovery point; other replicas are asked (``cut_short``)."""
    directory = opened(tmp_path)
    filled(directory.open_log(ONE, NOW_MS), 2)
    directory.logs[ONE].abandon()
    for each in (tmp_path / "topic-0").glob("*.log"):
        each.unlink()
    again = opened(tmp_path)
    assert again.open_log(ONE, NOW_MS).log_end == 0
    assert [each.file for each in again.recovered[ONE].cuts] == ["leader-epoch-checkpoint"]


def test_a_short_segment_that_was_emptied_is_not_passed_over(tmp_path: Path) -> None:
    """So short that its index of offsets has no entries."""
    _, files = written(tmp_path, clean=False)
    files[1].write_bytes(b"")
    files[1].with_suffix(".index").write_bytes(b"")
    with pytest.raises(LogDamagedError, match=f"{files[1].name} ends at .* times has"):
        opened(tmp_path).open_log(ONE, NOW_MS)


def test_a_damaged_batch_below_the_recovery_point_is_not_cut(tmp_path: Path) -> None:
    _, files = written(tmp_path, clean=False)
    data = bytearray(files[-1].read_bytes())
    data[70] ^= 1
    files[-1].write_bytes(data)
    with pytest.raises(LogDamagedError, match=files[-1].name):
        opened(tmp_path).open_log(ONE, NOW_MS)
    assert files[-1].read_bytes() == data


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_start_behind_the_end_deletes_nothing(tmp_path: Path, clean: bool) -> None:
    folder, files = written(tmp_path, clean=clean)
    (tmp_path / LOG_STARTS).write_bytes(encode_offsets({ONE: 900}))
    with pytest.raises(LogDamagedError, match=f"{LOG_STARTS} says that its log begins at 900"):
        opened(tmp_path).open_log(ONE, NOW_MS)
    assert sorted(folder.glob("*.log")) == files


def test_an_operator_may_go_on_without_what_is_lost(tmp_path: Path) -> None:
    _, files = written(tmp_path, clean=False)
    files[-1].unlink()
    end = int(files[-1].stem)
    (tmp_path / RECOVERY_POINTS).write_bytes(encode_offsets({ONE: end}))
    log = opened(tmp_path).open_log(ONE, NOW_MS)
    assert log.log_end == end
    filled(log, 20)
    log.close()
    assert opened(tmp_path).open_log(ONE, NOW_MS).log_end == log.log_end


@pytest.mark.parametrize("everything", [True, False])
def test_a_crash_while_a_log_is_cut_is_no_damage(
    tmp_path: Path, everything: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower cuts what its new leader does not have."""
    written(tmp_path, clean=True)
    directory = opened(tmp_path)
    log = directory.open_log(ONE, NOW_MS)
    directory.checkpoint()

    def crash(segment: Segment, offset: int) -> int:
        raise OSError("crash")

    if everything:
        log.restart_at(0, NOW_MS)
    else:
        monkeypatch.setattr(Segment, "truncate", crash)
        with pytest.raises(OSError, match="crash"):
            log.truncate(30, NOW_MS)
        monkeypatch.undo()
    points = decode_offsets((tmp_path / RECOVERY_POINTS).read_bytes(), tmp_path)
    assert points[ONE] <= 30
    assert opened(tmp_path).open_log(ONE, NOW_MS).log_end <= END


def test_a_file_that_is_no_text_does_not_end_in_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "cluster").write_bytes(b"0\nabc\xa3\n")
    with pytest.raises(OtherClusterError, match="file cluster"):
        opened(tmp_path, cluster="abc")


def test_a_damaged_batch_is_not_read(tmp_path: Path) -> None:
    """The ones before it are; whoever reads on is told the file and the byte."""
    directory = opened(tmp_path)
    log = directory.open_log(ONE, NOW_MS)
    filled(log, 6)
    places = find_entries(log, RealDisk(), log.log_end, SPAN).places
    position, header = list(log.segments[0].headers())[2]
    path = log.segments[0].path(".log")
    data = bytearray(path.read_bytes())
    data[position + 70] ^= 1
    path.write_bytes(data)
    found = read_entries(log, places, 0, log.log_end, 100, 1 << 20)
    assert [entry.entry_id for entry in found] == [0, 1]
    with pytest.raises(CorruptBatchError, match=f"{path}: byte {position}: .*its checksum"):
        read_entries(log, places, header.base_offset, log.log_end, 100, 1 << 20)


@pytest.mark.parametrize("clean", [True, False])
def test_a_folder_that_is_gone_is_not_made_anew(tmp_path: Path, clean: bool) -> None:
    folder, _ = written(tmp_path, clean=clean)
    shutil.rmtree(folder)
    directory = opened(tmp_path)
    with pytest.raises(LogDamagedError, match=f"{folder} is gone.*{RECOVERY_POINTS}"):
        directory.open_log(ONE, NOW_MS)
    assert not folder.exists()
    # What the error says, to go on without its records:
    (tmp_path / RECOVERY_POINTS).write_bytes(encode_offsets({ONE: 0}))
    assert opened(tmp_path).open_log(ONE, NOW_MS).log_end == 0


def test_where_others_have_it_a_folder_that_is_gone_is_made_anew(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, clean=True)
    shutil.rmtree(folder)
    assert opened(tmp_path).open_log(ONE, NOW_MS, counted_on=False).log_end == 0


def test_a_log_that_never_held_anything_is_made_again(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.open_log(ONE, NOW_MS)
    directory.close()
    shutil.rmtree(tmp_path / "topic-0")
    assert opened(tmp_path).open_log(ONE, NOW_MS).log_end == 0


def test_a_deletion_that_is_cut_off_leaves_nothing_to_be_missed(tmp_path: Path) -> None:
    """The process ends before the next checkpoint, and the topic is made again."""
    folder, _ = written(tmp_path, clean=True)
    directory = opened(tmp_path)
    directory.open_log(ONE, NOW_MS).abandon()
    directory.closed(ONE, in_order=True)
    directory.delete_log(ONE)
    assert not folder.exists()
    assert opened(tmp_path).open_log(ONE, NOW_MS).log_end == 0


def test_a_lost_folder_of_a_deleted_topic_is_not_missed(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, clean=True)
    shutil.rmtree(folder)
    opened(tmp_path).forget_lost(ONE)
    assert opened(tmp_path).open_log(ONE, NOW_MS).log_end == 0


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("to", [-1, 1, 7, 500, 1 << 40])
@pytest.mark.parametrize("place", [0, 2, -1])
def test_a_batch_whose_offset_has_changed_is_not_passed_over(
    tmp_path: Path, place: int, to: int, listed: bool
) -> None:
    """No checksum is over it. ``place``: of a segment's batches. ``listed``: beside the segment
    stands where its batches begin."""
    _, files = written(tmp_path, clean=True)
    log = opened(tmp_path).open_log(ONE, NOW_MS)
    known = find_entries(log, RealDisk(), END, SPAN)
    position, header = list(log.segments[1].headers())[place]
    log.close()
    data = bytearray(files[1].read_bytes())
    data[position : position + 8] = max(header.base_offset + to, 0).to_bytes(8, "big")
    files[1].write_bytes(data)
    if not listed:
        files[1].with_suffix(".batches").unlink()
    log = opened(tmp_path).open_log(ONE, NOW_MS)
    found = find_entries(log, RealDisk(), END, SPAN)
    assert list(found.places.none_begins(0, 0, END)) == list(known.places.none_begins(0, 0, END))
    offset, read = 0, []
    while offset < header.base_offset:
        read += read_entries(log, known.places, offset, END, 100, 1 << 20)
        assert read[-1].entry_id < header.base_offset
        offset = known.places.following(read[-1].entry_id + 1)
    with suppress(CorruptBatchError):
        assert read_entries(log, known.places, offset, END, 100, 1 << 20) == []
    behind = known.places.following(header.next_offset)
    assert read_entries(log, known.places, behind, END, 1, 1)[0].entry_id == behind


def aborting(path: Path) -> tuple[LocalLog, list[Path]]:
    """A log with a transaction that was aborted in each of its segments; their lists."""
    log, _ = opened_log(path)
    for number in range(40):
        producer = (number % 3, 0, number // 3)
        data = batch([bytes(90)], producer=producer, attributes=0x10)
        log.append_as_leader(data, 0, NOW_MS)
        log.append_as_leader(marker(number % 3, 0, commits=number % 2 == 0), 0, NOW_MS)
    assert len(log.segments) > 3
    log.close()
    return log, sorted(path.glob("*.txnindex"))


def test_a_list_of_aborted_transactions_that_was_damaged_is_made_again(tmp_path: Path) -> None:
    """Compaction would take their records for the last of their keys. No checksum is in it."""
    log, files = aborting(tmp_path)
    sums = tmp_path / "aborted-checkpoint"
    whole = {each: each.read_bytes() for each in (*files, sums)}
    draw = random.Random(1)
    for each, data in whole.items():
        damaged = [None, b"", data[:-1], data[: len(data) // 2], data + data]
        for _ in range(12):
            flipped = bytearray(data)
            flipped[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            damaged.append(bytes(flipped))
        for content in damaged:
            each.unlink()
            if content is not None:
                each.write_bytes(content)
            for clean in (True, False):
                found, _ = opened_log(tmp_path, clean=clean)
                assert found.aborted == log.aborted
                found.abandon()
            if each != sums:
                assert {path: path.read_bytes() for path in whole} == whole
            assert [path.read_bytes() for path in files] == [whole[path] for path in files]
            each.write_bytes(data)


def test_lists_of_aborted_transactions_without_sums_are_believed(tmp_path: Path) -> None:
    """An older version has written them."""
    log, _ = aborting(tmp_path)
    (tmp_path / "aborted-checkpoint").unlink()
    found, _ = opened_log(tmp_path, clean=True)
    assert found.aborted == log.aborted
    found.append_as_leader(batch([b"x"], producer=(1, 0, 13), attributes=0x10), 0, NOW_MS)
    found.append_as_leader(marker(1, 0, commits=False), 0, NOW_MS)
    found.close()
    assert (tmp_path / "aborted-checkpoint").exists()
    again, _ = opened_log(tmp_path, clean=True)
    assert again.aborted == found.aborted
