"""Entry logs that a crash left without a footer are counted, compacted and removed like others."""

from __future__ import annotations

import asyncio
import errno
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.space import log_counts
from magnetar.bookie.space.compactor import Compactor
from magnetar.bookie.storage import entry_log_format
from magnetar.bookie.storage.entry_log_format import (
    HEADER_BYTES,
    RECORD_HEADER_BYTES,
    encode_header,
    log_path,
    read_footer,
)
from magnetar.bookie.storage.location_index import LocationIndex, UsageChange
from magnetar.config import BookieConfig
from magnetar.env.files.disk import DiskFile, RealDisk
from magnetar.metrics import Metrics
from magnetar.model.errors import BookieIOError
from tests.unit.bookie.storage_kit import WatchedDisk, add, entry, running
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

HALF_A_RECORD = struct.pack(">II", 500, 77) + bytes(100)
TAILS = [
    pytest.param(b"", id="nothing"),
    pytest.param(HALF_A_RECORD, id="half a record"),
    pytest.param(bytes(3000), id="zeros"),
    pytest.param(b"\xa5" * 1000, id="noise"),
]


def cut_off(config: BookieConfig, log_id: int, tail: bytes) -> Path:
    """The log as a crash leaves it: ``tail`` instead of a footer."""
    path = log_path(config.ledger_directories[0], log_id)
    file = RealDisk().open(path)
    footer = read_footer(file, log_id, path.stat().st_size)
    file.close()
    assert footer is not None
    path.write_bytes(path.read_bytes()[: footer.offset] + tail)
    unsettle(config, log_id)
    return path


def unsettle(config: BookieConfig, log_id: int) -> None:
    """The index says nothing of the log: a crash came before it was settled, or an older version
    wrote it."""
    index = LocationIndex(config.ledger_directories[0] / "index")
    index.change_usage(UsageChange(no_logs=[log_id]))
    index.close()


@pytest.mark.parametrize("tail", TAILS)
def test_a_log_that_was_cut_off_is_compacted(tmp_path: Path, tail: bytes) -> None:
    async def scenario() -> None:
        await fill(idle(tmp_path))
        config = quick(tmp_path)
        before = logs(config)
        for log_id in before:
            cut_off(config, log_id, tail)
        async with running(config) as bookie:
            await eventually(lambda: not set(logs(config)) & set(before))
            await check_whole(bookie)

    asyncio.run(scenario())


def test_a_log_that_was_cut_off_goes_with_its_ledgers(tmp_path: Path) -> None:
    async def scenario() -> None:
        await fill(idle(tmp_path))
        config = quick(tmp_path, percent=0)
        before = logs(config)
        cut_off(config, before[1], HALF_A_RECORD)
        async with running(config) as bookie:
            await bookie.delete_ledger(1)
            await eventually(lambda: not set(logs(config)) & set(before))

    asyncio.run(scenario())


def test_a_log_whose_records_are_hidden_is_kept_as_long_as_it_is_of_use(tmp_path: Path) -> None:
    """The first record's length is damaged: the walk over the log finds nothing."""

    async def scenario() -> None:
        await fill(idle(tmp_path))
        config = quick(tmp_path)
        hidden, *sound = logs(config)
        path = cut_off(config, hidden, b"")
        data = path.read_bytes()
        path.write_bytes(data[:HEADER_BYTES] + b"\xff" * 4 + data[HEADER_BYTES + 4 :])
        async with running(config) as bookie:
            await eventually(lambda: not set(logs(config)) & set(sound))
            assert hidden in logs(config)
            with pytest.raises(BookieIOError, match="damaged"):
                await bookie.read_entry(1, 0)
            for entry_id in range(1, LIVES * PER_LIFE):
                assert await bookie.read_entry(1, entry_id) == entry(1, entry_id)
            await bookie.delete_ledger(1)
            await eventually(lambda: hidden not in logs(config))

    asyncio.run(scenario())


def test_a_log_whose_last_record_is_hidden_was_not_cut_off_before_it(tmp_path: Path) -> None:
    """The index has that record: without it the rest would be compacted, and the log removed."""

    async def scenario() -> None:
        for life in range(2):
            async with running(idle(tmp_path)) as bookie:
                for ledger_id in (1, 5):
                    await add(bookie, ledger_id, range(life * PER_LIFE, (life + 1) * PER_LIFE))
        async with running(idle(tmp_path)) as bookie:
            await bookie.delete_ledger(1)
        config = quick(tmp_path)
        hidden, sound = logs(config)
        path = cut_off(config, hidden, b"")
        data = path.read_bytes()
        at = len(data) - RECORD_HEADER_BYTES - len(entry(5, PER_LIFE - 1))
        path.write_bytes(data[:at] + b"\xff" * 4 + data[at + 4 :])
        async with running(config) as bookie:
            await eventually(lambda: sound not in logs(config))
            await bookie._storages[0].flush_lane.run(lambda: None)
            assert hidden in logs(config)
            with pytest.raises(BookieIOError, match="damaged"):
                await bookie.read_entry(5, PER_LIFE - 1)
            for entry_id in set(range(2 * PER_LIFE)) - {PER_LIFE - 1}:
                assert await bookie.read_entry(5, entry_id) == entry(5, entry_id)

    asyncio.run(scenario())


class NotedIndex(LocationIndex):
    """``durable``: of each log that got a row whether it had been synced by then."""

    disk: WatchedDisk
    durable: dict[int, bool]

    def change_usage(self, change: UsageChange) -> None:
        for each in change.logs:
            name = log_path(self.path.parent, each.log_id).name
            self.durable.setdefault(each.log_id, ("sync", name) in self.disk.events)
        super().change_usage(change)


@asynccontextmanager
async def noted(config: BookieConfig, disk: WatchedDisk) -> AsyncIterator[dict[int, bool]]:
    durable: dict[int, bool] = {}

    def opened(path: Path) -> NotedIndex:
        index = NotedIndex(path)
        index.disk, index.durable = disk, durable
        return index

    bookie = Bookie(config, Metrics(), disk, opened)
    await bookie.start()
    try:
        yield durable
    finally:
        await bookie.close()


@pytest.mark.parametrize("footer", [False, True])
def test_a_log_is_durable_before_what_it_holds_is_stored(tmp_path: Path, footer: bool) -> None:
    """A process that was killed may have left the end of it to the kernel. A power cut takes that,
    and what was stored would keep the rest until its ledgers go."""

    async def scenario() -> None:
        await fill(idle(tmp_path))
        config = idle(tmp_path)
        before = logs(config)
        for log_id in before:
            if footer:
                unsettle(config, log_id)
            else:
                cut_off(config, log_id, b"")
        async with noted(config, WatchedDisk()) as durable:
            await eventually(lambda: set(before) <= {*durable})
        assert all(durable[log_id] for log_id in before)

    asyncio.run(scenario())


def test_a_log_that_cannot_be_synced_is_tried_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        await fill(idle(tmp_path))
        config = quick(tmp_path)
        before = logs(config)
        path = cut_off(config, before[0], b"")
        disk, failed = WatchedDisk(), list[str]()

        def fail(operation: str, name: str) -> None:
            if operation == "sync" and name == path.name and not failed:
                failed.append(name)
                raise OSError(errno.EIO, "Input/output error")

        disk.fail = fail
        async with running(config, disk) as bookie:
            await eventually(lambda: not set(logs(config)) & set(before))
            await check_whole(bookie)
        assert failed

    asyncio.run(scenario())


class OneOpenFails(WatchedDisk):
    """The first open of the log ``name`` behind a sync of it finds no descriptor."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.failed = False

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        if path.name == self.name and not self.failed and ("sync", self.name) in self.events:
            self.failed = True
            raise OSError(errno.EMFILE, "Too many open files")
        return super().open(path, create=create)


def test_a_count_that_failed_is_made_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        await fill(idle(tmp_path))
        config = quick(tmp_path)
        before = logs(config)
        disk = OneOpenFails(cut_off(config, before[0], b"").name)
        async with running(config, disk) as bookie:
            await eventually(lambda: not set(logs(config)) & set(before))
            await check_whole(bookie)
        assert disk.failed

    asyncio.run(scenario())


def test_a_compaction_cut_short_whose_sources_cannot_be_counted_is_settled_later(
    tmp_path: Path,
) -> None:
    """What it had written is removed by then: that there is no such log any more is no error."""

    async def scenario() -> None:
        await fill(idle(tmp_path))
        config = quick(tmp_path)
        before = logs(config)
        source, unfinished = before[0], before[-1] + 1
        unsettle(config, source)
        path = log_path(config.ledger_directories[0], unfinished)
        path.write_bytes(encode_header(unfinished, (source,)))
        disk = OneOpenFails(log_path(config.ledger_directories[0], source).name)
        async with running(config, disk) as bookie:
            await eventually(lambda: not set(logs(config)) & {*before, unfinished})
            await check_whole(bookie)
        assert disk.failed

    asyncio.run(scenario())


def test_counting_goes_in_steps_with_a_rest_after_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the log, and of the index where it has to be asked: a log of a gigabyte, or an index of
    many entries, is no one job that all others of the disk wait for."""
    rested, asked = list[int](), list[int]()

    async def rest(compactor: Compactor, byte_count: int) -> None:
        rested.append(byte_count)

    def noted(index: LocationIndex, ledger_id: int, first: int, most: int) -> Sequence[int]:
        asked.append(most)
        return entry_ids(index, ledger_id, first, most)

    entry_ids = LocationIndex.entry_ids
    monkeypatch.setattr(entry_log_format, "WALK_BYTES", 500)
    monkeypatch.setattr(log_counts, "ROWS_AT_ONCE", 4)

    async def scenario() -> None:
        await fill(idle(tmp_path))
        config = idle(tmp_path)
        cut, hidden, *_ = logs(config)
        size = cut_off(config, cut, b"").stat().st_size
        path = cut_off(config, hidden, b"")
        data = path.read_bytes()
        path.write_bytes(data[:HEADER_BYTES] + b"\xff" * 4 + data[HEADER_BYTES + 4 :])
        monkeypatch.setattr(Compactor, "_rest", rest)
        monkeypatch.setattr(LocationIndex, "entry_ids", noted)
        async with running(config):
            await eventually(lambda: len(asked) >= LIVES * PER_LIFE // 4)
        assert sum(rested) >= size - HEADER_BYTES
        assert len(rested) >= size // 1000
        assert max(rested) < 1000
        assert set(asked) == {4}

    asyncio.run(scenario())
