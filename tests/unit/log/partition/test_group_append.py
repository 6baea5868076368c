"""Many senders' batches in one write: each judged by itself."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from magnetar.env.files.disk import Buffer, Disk, DiskFile, RealDisk, RealFile
from magnetar.log.partition.batch_header import BatchHead, whole_batches
from magnetar.log.partition.group_append import append_group
from magnetar.log.partition.limits import PartitionPolicy
from magnetar.log.partition.local_log import Appended
from magnetar.model.errors import MessageTooLargeError, NoSpaceError, OutOfOrderSequenceError
from tests.unit.log.partition.kit import NOW_MS, batch, opened


def sent(count: int, producer: tuple[int, int, int] = (-1, -1, -1), size: int = 10) -> bytearray:
    return bytearray(batch([bytes(size)] * count, producer=producer))


def test_each_batch_has_its_outcome(tmp_path: Path) -> None:
    source, _ = opened(tmp_path / "t-0")
    group = [
        sent(2),
        sent(3, (7, 0, 0)),
        sent(1, (7, 0, 3)),  # follows what is in the same group
        sent(3, (7, 0, 0)),  # comes again
        sent(1, (7, 0, 9)),
        sent(1, size=2 << 20),
        sent(4),
    ]
    outcomes, log_end, synced_end, _ = append_group(source, group, 5, NOW_MS)
    assert outcomes[:4] == [
        Appended(0, 1),
        Appended(2, 4),
        Appended(5, 5),
        Appended(2, 4, True, NOW_MS),
    ]
    assert isinstance(outcomes[4], OutOfOrderSequenceError)
    assert isinstance(outcomes[5], MessageTooLargeError)
    assert outcomes[6] == Appended(6, 9)
    assert (log_end, synced_end) == (10, 10)
    found = source.range_from(0, 10, 1 << 20)
    assert found is not None
    heads = [head for _, head in whole_batches(found.read(), checked=True)]
    assert [(head.base_offset, head.leader_epoch) for head in heads] == [
        (0, 5), (2, 5), (5, 5), (6, 5)
    ]  # fmt: skip
    again = append_group(source, [sent(1, (7, 0, 3)), sent(1, (7, 0, 4))], 5, NOW_MS)
    assert again.outcomes == [Appended(5, 5, True, NOW_MS), Appended(10, 10)]
    source.close()


def test_the_work_for_a_batch_does_not_grow_with_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def counted(self: BatchHead) -> int:
        nonlocal looks
        looks += 1
        return 12 + self.length

    monkeypatch.setattr(BatchHead, "byte_count", property(counted))
    source, _ = opened(tmp_path / "t-0", PartitionPolicy())
    append_group(source, [sent(1) for _ in range(500)], 0, NOW_MS)
    assert source.log_end == 500
    assert looks <= 500 * 10
    source.close()


def test_a_group_goes_on_in_the_next_segment(tmp_path: Path) -> None:
    source, _ = opened(tmp_path / "t-0")  # segments of 2000 bytes
    outcomes = append_group(source, [sent(1, size=500) for _ in range(11)], 0, NOW_MS).outcomes
    assert outcomes == [Appended(offset, offset) for offset in range(11)]
    assert [each.base_offset for each in source.segments] == [0, 3, 6, 9]
    assert all(each.byte_count <= 2000 for each in source.segments)
    source.close()


class FullFile(RealFile):
    full = False

    def write_through(self, parts: Sequence[Buffer], offset: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "no space")
        super().write_through(parts, offset)


class FullDisk(RealDisk):
    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        file = super().open(path, create=create)
        assert isinstance(file, RealFile)
        return FullFile(path, file._fd)


def test_a_full_disk_refuses_and_the_log_goes_on(tmp_path: Path) -> None:
    disk: Disk = FullDisk()
    source, _ = opened(tmp_path / "t-0", disk=disk)
    append_group(source, [sent(1)], 0, NOW_MS)
    FullFile.full = True
    try:
        outcomes = append_group(source, [sent(1), sent(2, (7, 0, 0))], 0, NOW_MS).outcomes
    finally:
        FullFile.full = False
    assert all(isinstance(each, NoSpaceError) for each in outcomes)
    assert append_group(source, [sent(2, (7, 0, 0))], 0, NOW_MS).outcomes == [Appended(1, 2)]
    source.close()


def test_a_failed_disk_ends_the_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = opened(tmp_path / "t-0", disk=FullDisk())

    def broken(self: FullFile, parts: Sequence[Buffer], offset: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(FullFile, "write_through", broken)
    with pytest.raises(OSError, match="input"):
        append_group(source, [sent(1)], 0, NOW_MS)
    source.abandon()
