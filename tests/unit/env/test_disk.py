"""The real disk and its lanes."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from magnetar.env.files import disk as disk_module
from magnetar.env.files.disk import IOV_MAX, RealDisk


def test_many_parts_are_written_as_one_run(tmp_path: Path) -> None:
    file = RealDisk().open(tmp_path / "f", create=True)
    parts = [bytes([n % 256]) * (n % 7) for n in range(3 * IOV_MAX + 5)]
    file.pwritev(parts, 10)
    file.datasync()
    whole = b"".join(parts)
    assert file.pread(1 << 20, 10) == whole
    assert file.pread(5, 10 + len(whole)) == b""
    assert file.pread(10, 0) == bytes(10)
    file.close()
    file.close()


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealDisk().open(tmp_path / "f", create=True)
    real = os.pwritev

    def short(fd: int, parts: Sequence[bytes], offset: int) -> int:
        return real(fd, [b"".join(parts)[:7]], offset)

    monkeypatch.setattr(os, "pwritev", short)
    file.pwritev([b"abcdef", b"ghijkl", b"mnop"], 3)
    assert file.pread(100, 3) == b"abcdefghijklmnop"
    file.close()


def test_writing_through_is_one_call_that_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealDisk().open(tmp_path / "f", create=True)
    real = os.pwritev
    flags_seen: list[int] = []

    def noted(fd: int, parts: Sequence[bytes], offset: int, flags: int = 0) -> int:
        flags_seen.append(flags)
        return real(fd, parts, offset, flags)

    monkeypatch.setattr(os, "pwritev", noted)
    file.write_through([b"abc", b"def"], 2)
    assert flags_seen == [os.RWF_DSYNC]
    assert file.pread(100, 2) == b"abcdef"
    file.close()


@pytest.mark.parametrize("count", [2, 2 * IOV_MAX + 1])
def test_what_one_call_does_not_write_through_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """A short write, or more parts than one call takes."""
    file = RealDisk().open(tmp_path / "f", create=True)
    real_write, real_sync = os.pwritev, os.fdatasync
    events: list[str] = []

    def short(fd: int, parts: Sequence[bytes], offset: int, flags: int = 0) -> int:
        events.append("write")
        return real_write(fd, [b"".join(parts)[:3]], offset, flags)

    def sync(fd: int) -> None:
        events.append("sync")
        real_sync(fd)

    monkeypatch.setattr(os, "pwritev", short)
    monkeypatch.setattr(os, "fdatasync", sync)
    file.write_through([b"abcd"] * count, 0)
    assert events[-1] == "sync"
    assert file.pread(1 << 20, 0) == b"abcd" * count
    file.close()


def test_a_kernel_that_cannot_write_through_gets_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealDisk().open(tmp_path / "f", create=True)
    real_write, real_sync = os.pwritev, os.fdatasync
    reason = errno.EOPNOTSUPP
    synced: list[int] = []

    def refused(fd: int, parts: Sequence[bytes], offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(reason, os.strerror(reason))
        return real_write(fd, parts, offset)

    def sync(fd: int) -> None:
        synced.append(fd)
        real_sync(fd)

    monkeypatch.setattr(os, "pwritev", refused)
    monkeypatch.setattr(os, "fdatasync", sync)
    file.write_through([b"abc"], 0)
    assert file.pread(10, 0) == b"abc"
    assert len(synced) == 1
    reason = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        file.write_through([b"def"], 3)
    assert len(synced) == 1
    file.close()


def test_a_missing_file_is_not_created_by_the_way(tmp_path: Path) -> None:
    disk = RealDisk()
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "missing")
    assert disk.list(tmp_path) == []
    disk.make_dir(tmp_path / "a" / "b")
    disk.make_dir(tmp_path / "a" / "b")
    assert disk.list(tmp_path / "a") == ["b"]
    space = disk.space(tmp_path)
    assert 0 < space.free_bytes <= space.total_bytes


def test_a_lane_runs_in_order_in_one_thread_and_answers_on_the_loop() -> None:
    async def scenario() -> None:
        lane = RealDisk().lane("test")
        order: list[int] = []
        threads: set[int] = set()

        def job(number: int) -> int:
            order.append(number)
            threads.add(threading.get_ident())
            return number * 2

        futures = [lane.run(lambda number=number: job(number)) for number in range(50)]  # type: ignore[misc]
        assert await asyncio.gather(*futures) == [number * 2 for number in range(50)]
        assert order == list(range(50))
        assert threads.isdisjoint({threading.get_ident()})
        assert len(threads) == 1
        posted: list[int] = []
        lane.submit(lambda: lane.post(posted.append, threading.get_ident()))
        await lane.run(lambda: None)
        await asyncio.sleep(0)
        assert len(posted) == 1
        await lane.close()
        await lane.close()

    asyncio.run(scenario())


def test_a_failing_job_fails_its_future_and_nothing_else() -> None:
    async def scenario() -> None:
        lane = RealDisk().lane("test")

        def fail() -> None:
            raise OSError(5, "broken")

        lane.submit(fail)
        with pytest.raises(OSError, match="broken"):
            await lane.run(fail)
        assert await lane.run(lambda: 7) == 7
        await lane.close()

    asyncio.run(scenario())


def test_an_unused_lane_has_no_thread() -> None:
    async def scenario() -> None:
        lane = RealDisk().lane("idle")
        assert "idle" not in {thread.name for thread in threading.enumerate()}
        await lane.run(lambda: None)
        assert "idle" in {thread.name for thread in threading.enumerate()}
        await lane.close()

    asyncio.run(scenario())


def test_no_free_descriptor_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals and directories must not fail because connections have taken too many."""
    opened, refusals = os.open, [errno.EMFILE, errno.ENFILE]

    def scarce(path: Path, flags: int, mode: int) -> int:
        if refusals:
            raise OSError(refusals.pop(), "too many open files", str(path))
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", scarce)
    monkeypatch.setattr(disk_module, "DESCRIPTOR_LOOK_S", 0.01)
    file = RealDisk().open(tmp_path / "file", create=True)
    file.close()
    assert not refusals
    refusals += [errno.ENOSPC]
    with pytest.raises(OSError, match="too many"):
        RealDisk().open(tmp_path / "file")


def test_advice_waits_for_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    waits: list[float] = []
    monkeypatch.setattr(os, "open", none)
    monkeypatch.setattr(disk_module.time, "sleep", waits.append)
    RealDisk().drop_cached(tmp_path / "file", 0, 4096)
    assert waits == []
