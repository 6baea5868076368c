"""What a crash leaves of a partition's directory, and what opening it makes of that."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from magnetar.log.partition.checkpoint_files import LEADER_EPOCHS
from magnetar.log.partition.limits import PartitionPolicy, SegmentLimits
from magnetar.log.partition.segment import SCAN_BYTES
from magnetar.model.errors import LogDamagedError
from tests.unit.log.partition.kit import NOW_MS, batch, filled, offsets, opened, read_all


@pytest.mark.parametrize("lost", [1, 5, 40, 61, 100, 500])
def test_a_torn_end_is_cut_and_told(tmp_path: Path, lost: int) -> None:
    folder = tmp_path / "t-0"
    log, _ = opened(folder)
    filled(log, 12)
    before = offsets(log)
    log.abandon()
    path = max(folder.glob("*.log"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    found, told = opened(folder)
    expected = [pair for pair in before if pair[1] < found.log_end]
    assert offsets(found) == expected
    if told.cuts:
        (cut,) = told.cuts
        assert cut.file == path.name
        assert cut.offset == found.log_end
        assert cut.position + cut.byte_count == len(whole) - lost
        assert f"{cut.byte_count} bytes from byte {cut.position} on" in str(cut)
        assert path.stat().st_size == cut.position
    again = found.append_as_leader(batch([b"on"]), 1, NOW_MS)
    assert again.first_offset == expected[-1][1] + 1


LARGE = PartitionPolicy(segments=SegmentLimits(segment_bytes_max=16 << 20))


@pytest.mark.parametrize("damaged", [None, 0, 1, 2, 3])
def test_batches_larger_than_what_is_read_at_once(tmp_path: Path, damaged: int | None) -> None:
    """A crash costs none of them; where one is damaged the log ends, however much is behind it."""
    folder = tmp_path / "t-0"
    log, _ = opened(folder, LARGE)
    for size in (100, SCAN_BYTES + 1, 3 * SCAN_BYTES, 200, 2 * SCAN_BYTES, SCAN_BYTES // 2):
        log.append_as_leader(batch([bytes(size)]), 0, NOW_MS)
    before = offsets(log)
    places = [position for position, _ in log.segments[0].headers()]
    log.abandon()
    if damaged is not None:
        (path,) = folder.glob("*.log")
        data = bytearray(path.read_bytes())
        data[places[damaged] + 80] ^= 1
        path.write_bytes(data)
    found, told = opened(folder, LARGE)
    assert offsets(found) == before[:damaged]
    assert [cut.position for cut in told.cuts] == ([] if damaged is None else [places[damaged]])
    found.close()


@pytest.mark.parametrize("at", [70, 15, 12, 3, 40])
def test_a_damaged_batch_in_a_sealed_segment_costs_no_other(tmp_path: Path, at: int) -> None:
    """It was synced before the next one was begun: no crash does that. (12 to 15: the epoch, which
    no checksum is over.)"""
    folder = tmp_path / "t-0"
    log, _ = opened(folder)
    filled(log, 60)
    end, second = log.log_end, log.segments[1]
    position, _ = list(second.headers())[2]
    behind = log.segments[2].base_offset
    expected = read_all(log, behind)
    log.abandon()
    path = folder / f"{second.base_offset:020d}.log"
    data = bytearray(path.read_bytes())
    data[position + at] ^= 1
    path.write_bytes(data)
    files = {each.name: each.read_bytes() for each in folder.glob("*.log")}
    for _ in range(2):
        found, told = opened(folder)
        assert (found.log_end, told.cuts) == (end, [])
        assert found.epochs.starts == log.epochs.starts
        assert read_all(found, behind) == expected
        found.abandon()
    assert {each.name: each.read_bytes() for each in folder.glob("*.log")} == files


@pytest.mark.parametrize("left", [0, 1])
def test_a_sealed_segment_that_was_cut_is_not_passed_over(tmp_path: Path, left: int) -> None:
    """``left``: so many of its batches are."""
    folder = tmp_path / "t-0"
    log, _ = opened(folder)
    filled(log, 60)
    second = log.segments[1]
    position, _ = list(second.headers())[left]
    log.abandon()
    path = folder / f"{second.base_offset:020d}.log"
    path.write_bytes(path.read_bytes()[:position])
    with pytest.raises(LogDamagedError, match=path.name):
        opened(folder)


def test_below_the_recovery_point_only_indexes_are_looked_at(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log, _ = opened(folder)
    filled(log, 60)
    before = offsets(log)
    log.abandon()
    point = log.segments[-1].base_offset
    found, told = opened(folder, recovery_point=point)
    assert (told.segments_read, told.cuts) == (1, [])
    assert offsets(found) == before
    found.close()
    _, told = opened(folder, clean=True)
    assert told.segments_read == 0


@pytest.mark.parametrize("ending", ["index", "timeindex"])
@pytest.mark.parametrize("damage", ["gone", "torn", "zeros", "beyond"])
def test_an_index_that_cannot_be_true_is_made_again(
    tmp_path: Path, ending: str, damage: str
) -> None:
    folder = tmp_path / "t-0"
    log, _ = opened(folder)
    first = filled(log, 60)
    log.close()
    path = folder / f"{log.segments[1].base_offset:020d}.{ending}"
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "torn":
        path.write_bytes(data[:-3])
    elif damage == "zeros":
        path.write_bytes(bytes(10 * len(data)))
    elif ending == "index":
        path.write_bytes(data + b"\x7f\xff\xff\xff\x7f\xff\xff\xff")
    else:
        path.write_bytes(data + bytes(12))
    found, told = opened(folder, clean=True)
    assert len(told.rebuilt) == 1
    assert path.name.split(".")[0] in told.rebuilt[0]
    assert read_all(found, 0) == first
    at = found.first_at(NOW_MS + 40)
    assert at is not None
    assert at.base_offset == first[40]


def test_a_crash_in_a_later_epoch_leaves_what_earlier_ones_wrote(tmp_path: Path) -> None:
    """The file of epochs is ahead of the batches that are read: all of it, or the next epoch."""
    folder = tmp_path / "t-0"
    log, _ = opened(folder)
    filled(log, 20, epoch=0)
    filled(log, 20, epoch=3)
    expected = offsets(log)
    log.epochs.assign(4, log.log_end)
    log.store_epochs()
    log.abandon()
    found, told = opened(folder)
    assert told.cuts == []
    assert offsets(found) == expected
    assert found.epochs.starts == log.epochs.starts[:2]


@pytest.mark.parametrize("content", [None, b"", b"9\n", b"0\n5\n1 2\n", b"0\n1\nx y\n"])
def test_leader_epochs_come_from_the_batches_if_need_be(
    tmp_path: Path, content: bytes | None
) -> None:
    folder = tmp_path / "t-0"
    log, _ = opened(folder)
    filled(log, 20, epoch=2)
    filled(log, 20, epoch=7)
    log.close()
    path = folder / LEADER_EPOCHS
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    for clean in (True, False):
        found, _ = opened(folder, clean=clean)
        assert found.epochs.starts == log.epochs.starts
        found.abandon()


def test_a_swap_that_a_crash_has_interrupted_is_finished(tmp_path: Path) -> None:
    """As compaction leaves it: two segments are one, under a name that says so."""
    folder = tmp_path / "t-0"
    log, _ = opened(folder)
    filled(log, 60)
    expected = offsets(log)
    log.close()
    bases = [segment.base_offset for segment in log.segments]
    parts = [(folder / f"{base:020d}.log").read_bytes() for base in bases[:2]]
    (folder / f"{bases[0]:020d}.log.swap").write_bytes(b"".join(parts))
    (folder / f"{bases[1]:020d}.index.deleted").write_bytes(b"x")
    (folder / f"{bases[3]:020d}.log.cleaned").write_bytes(b"half")
    found, _ = opened(folder)
    assert offsets(found) == expected
    assert [segment.base_offset for segment in found.segments] == [bases[0], *bases[2:]]
    assert not [
        path for path in folder.iterdir() if path.suffix in (".swap", ".deleted", ".cleaned")
    ]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_a_crash_leaves_is_a_prefix(tmp_path: Path, seed: int) -> None:
    """The last segment's end is cut, damaged, or followed by rubbish."""
    rng = random.Random(seed)
    folder = tmp_path / "t-0"
    log, _ = opened(folder)
    filled(log, rng.randint(1, 40))
    before = offsets(log)
    log.abandon()
    path = max(folder.glob("*.log"))
    data = bytearray(path.read_bytes())
    damage = rng.randrange(3)
    if damage == 0:
        del data[rng.randint(0, len(data)) :]
    elif damage == 1 and data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    else:
        data += rng.randbytes(rng.randint(1, 400))
    path.write_bytes(data)
    found, told = opened(folder)
    after = offsets(found)
    # A bit of the first 16 bytes is not covered by the checksum; what it says there is the
    # broker's.
    assert after == before[: len(after)] or damage == 1
    assert found.log_end == (after[-1][1] + 1 if after else found.segments[0].base_offset)
    assert bool(told.cuts) or damage != 2
    again, told = opened(folder)
    assert (offsets(again), told.cuts) == (after, [])
