"""Entries of deleted ledgers given back in place: what lives stays, whatever comes between."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.space.holes import ByteRange, DeadRanges, punch
from magnetar.bookie.space.puncher import Puncher
from magnetar.bookie.storage import compaction_plan
from magnetar.bookie.storage.compaction_plan import wasteful
from magnetar.bookie.storage.entry_log import EntryLogReader, EntryLogWriter
from magnetar.bookie.storage.entry_log_format import (
    HEADER_BYTES,
    HOLE_HEAD_BYTES,
    RECORD_HEADER_BYTES,
    RecordWalk,
    encode_hole,
    hole_bytes,
    log_path,
    seed_of,
)
from magnetar.bookie.storage.log_usage import LogUse
from magnetar.config import BookieConfig
from magnetar.env.files.disk import BLOCK_BYTES, SECTOR_BYTES, Disk, DiskFile, DiskSpace, RealDisk
from magnetar.model.errors import NoLedgerError
from magnetar_sim.world.disk import SimDisk
from magnetar_sim.world.loop import SimLoop
from tests.unit.bookie.storage_kit import WatchedDisk, add, entry, flip_bit, running, settings

LOG = 1
BIG = 9000
LIFE = 8
"""Entries that a ledger has in each of its logs."""


def write_log(
    disk: Disk, directory: Path, rows: Sequence[tuple[int, int, bytes]]
) -> dict[tuple[int, int], int]:
    """(ledger, entry) -> offset, in a log with footer."""
    disk.make_dir(directory)
    writer = EntryLogWriter(disk, directory, 1 << 30)
    places = [place for row in rows for place in writer.append([row])]
    writer.sync()
    writer.finish()
    return {(ledger_id, entry_id): offset for ledger_id, entry_id, _, offset in places}


def random_rows(rng: random.Random, count: int) -> list[tuple[int, int, bytes]]:
    """Runs of ledgers 1 to 4, of entries of any size."""
    rows = []
    while len(rows) < count:
        ledger_id = rng.randint(1, 4)
        for _ in range(rng.randint(1, 12)):
            size = rng.choice((0, 30, 500, 4000, 20_000))
            rows.append((ledger_id, len(rows), entry(ledger_id, len(rows), size=size)))
    return rows


def records_end(disk: Disk, directory: Path) -> int:
    file = disk.open(log_path(directory, LOG))
    data = file.pread(disk.size(file.path), 0)
    file.close()
    return int.from_bytes(data[-16:-8], "big")


def test_the_head_of_a_hole_is_not_punched() -> None:
    """Wherever it begins: a walk over the log would meet zeros."""
    for start in (0, 1, BLOCK_BYTES - HOLE_HEAD_BYTES, BLOCK_BYTES - 1, BLOCK_BYTES):
        first, last = ByteRange(start, start + 5 * BLOCK_BYTES).blocks()
        assert start + HOLE_HEAD_BYTES <= first < last <= start + 5 * BLOCK_BYTES
        assert first % BLOCK_BYTES == last % BLOCK_BYTES == 0


def find(file: DiskFile, end: int, dead: set[int]) -> tuple[list[ByteRange], int | None]:
    """(all ranges, where damage was met)."""
    ranges, found, damaged_at = DeadRanges(file, LOG, end, dead), [], None
    while not ranges.whole and damaged_at is None:
        _, damaged_at = ranges.step()
        found += ranges.take()
    return found, damaged_at


def free_in_place(disk: Disk, directory: Path, dead: set[int]) -> int:
    file = disk.open(log_path(directory, LOG))
    found, damaged_at = find(file, records_end(disk, directory), dead)
    assert damaged_at is None
    try:
        return punch(file, LOG, found)
    finally:
        file.close()


def check(
    disk: Disk,
    directory: Path,
    places: dict[tuple[int, int], int],
    entries: dict[tuple[int, int], bytes],
    dead: set[int],
) -> None:
    """What lives is read by itself, and met by a walk to the very end."""
    reader = EntryLogReader(disk, directory)
    living = {key for key in entries if key[0] not in dead}
    for key in living:
        assert reader.read(LOG, places[key], *key, 1, 64) == [entries[key]]
        assert reader.read(LOG, places[key], *key, 50, 1 << 20)[0] == entries[key]
    reader.close()
    file = disk.open(log_path(directory, LOG))
    walk = RecordWalk(file, LOG, records_end(disk, directory))
    met = {(place.ledger_id, place.entry_id): place.offset for place in walk}
    assert walk.whole
    assert living <= met.keys()
    assert all(offset == places[key] for key, offset in met.items())
    file.close()


def test_the_head_of_a_hole() -> None:
    seed = seed_of(7)
    for byte_count in (HOLE_HEAD_BYTES, 4096, 1 << 30):
        head = encode_hole(byte_count, seed)
        assert len(head) == HOLE_HEAD_BYTES
        assert hole_bytes(b"xx" + head + b"any", 2, seed) == byte_count
        assert hole_bytes(head, 0, seed_of(8)) == 0
        assert hole_bytes(head[:-1], 0, seed) == 0
        for bit in range(8 * len(head)):
            damaged = bytearray(head)
            damaged[bit // 8] ^= 1 << bit % 8
            assert hole_bytes(bytes(damaged), 0, seed) == 0


@pytest.mark.parametrize("seed", range(12))
def test_what_lives_stays_while_more_and_more_is_given_back(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    disk, rows = RealDisk(), random_rows(rng, 300)
    entries = {row[:2]: row[2] for row in rows}
    places = write_log(disk, tmp_path, rows)
    path = log_path(tmp_path, LOG)
    size, stored = path.stat().st_size, path.stat().st_blocks
    dead: set[int] = set()
    freed = 0
    for ledger_id in rng.sample((1, 2, 3, 4), 3):
        dead.add(ledger_id)
        now = free_in_place(disk, tmp_path, dead)
        assert now >= freed
        freed = now
        check(disk, tmp_path, places, entries, dead)
        assert free_in_place(disk, tmp_path, dead) == freed  # again: nothing changes
        check(disk, tmp_path, places, entries, dead)
    dead_bytes = sum(
        RECORD_HEADER_BYTES + len(data) for row, data in entries.items() if row[0] in dead
    )
    assert dead_bytes * 0.5 < freed <= dead_bytes
    assert path.stat().st_size == size
    assert path.stat().st_blocks * 512 <= stored * 512 - freed * 0.9


@pytest.mark.parametrize("seed", range(6))
def test_heads_lie_in_one_sector_and_blocks_behind_them(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    disk = RealDisk()
    write_log(disk, tmp_path, random_rows(rng, 1500))
    file = disk.open(log_path(tmp_path, LOG))
    found, _ = find(file, records_end(disk, tmp_path), {1, 3})
    file.close()
    assert len(found) > 30
    for each in found:
        assert each.start // SECTOR_BYTES == (each.start + HOLE_HEAD_BYTES - 1) // SECTOR_BYTES
        first, last = each.blocks()
        assert each.start + HOLE_HEAD_BYTES <= first < last <= each.end
        assert first % BLOCK_BYTES == last % BLOCK_BYTES == 0


def test_nothing_is_given_back_behind_damage(tmp_path: Path) -> None:
    """A length that is damaged leads into an entry, and what lies in there looks like records of
    a deleted ledger that reach over living ones."""
    disk = RealDisk()
    trap = b"".join((200_000).to_bytes(4, "big") + bytes(4) + entry(2, 5)[:40] for _ in range(3000))
    rows = [(2, 0, entry(2, 0, size=BIG)), (1, 0, entry(1, 0)[:36] + trap)]
    rows += [(1, i, entry(1, i, size=BIG)) for i in range(1, 60)]
    rows += [(2, i, entry(2, i, size=BIG)) for i in range(1, 60)]
    places = write_log(disk, tmp_path, rows)
    path, end = log_path(tmp_path, LOG), records_end(disk, tmp_path)
    original = path.read_bytes()
    for bit in range(32):
        flip_bit(path, places[1, 0] + bit // 8)
        file = disk.open(path)
        found, damaged_at = find(file, end, {2})
        file.close()
        assert damaged_at == places[1, 0]
        assert found == []
        path.write_bytes(original)
    flip_bit(path, places[2, 30] + 100)  # in a dead one
    file = disk.open(path)
    found, damaged_at = find(file, end, {2})
    file.close()
    assert damaged_at == places[2, 30]
    assert [each.end for each in found] == [places[1, 0]]


@pytest.mark.parametrize("power", [True, False])
def test_a_crash_at_any_moment_leaves_what_lives(power: bool) -> None:
    loop = SimLoop(random.Random(1))
    freed = set()

    async def main() -> None:
        for seed in range(60):
            rng = random.Random(seed)
            disk, directory = SimDisk(loop, rng), Path("/bookie")
            rows = random_rows(rng, 120)
            places = write_log(disk, directory, rows)
            disk.sync_dir(directory)
            await asyncio.sleep(1)
            lane, before = disk.lane("compact"), disk.used_bytes
            lane.submit(partial(free_in_place, disk, directory, {1, 2, 3}))
            await asyncio.sleep(rng.random() * 0.012)
            disk.crash(power=power)
            freed.add(before - disk.used_bytes)
            check(disk, directory, places, {row[:2]: row[2] for row in rows}, {1, 2, 3})
            free_in_place(disk, directory, {1, 2, 3})  # and once more
            check(disk, directory, places, {row[:2]: row[2] for row in rows}, {1, 2, 3})
            assert disk.used_bytes < before

    try:
        loop.run_until_complete(main())
    finally:
        loop.finish()
    assert len(freed) > 10


# -- on a bookie's disk ---------------------------------------------------------------------------


class NoRoom(WatchedDisk):
    """Says that nothing is free, and lets no entry log begin, until something was punched."""

    def __init__(self, punches: bool = True) -> None:
        super().__init__()
        self.armed = False
        self.punched: dict[str, int] = {}
        self._punches = punches
        self.fail = self._fail

    def _fail(self, operation: str, name: str) -> None:
        if operation == "punch":
            if not self._punches:
                raise OSError(errno.EOPNOTSUPP, "Operation not supported")
            self.punched[name] = self.punched.get(name, 0) + 1

    def space(self, path: Path) -> DiskSpace:
        return DiskSpace(1 << 40, 0 if self.armed else 1 << 40)


def mixed(config: BookieConfig) -> Iterator[Path]:
    yield from sorted(config.ledger_directories[0].glob("*.log"))


def quick(root: Path) -> BookieConfig:
    return settings(root, flush_interval_ms=20, disk_check_interval_ms=10)


async def fill(config: BookieConfig, lives: int) -> None:
    # One flush, the last: one that an end cuts short is repeated, and its entries lie there twice.
    calm = replace(config, flush_interval_ms=60_000)
    for life in range(lives):
        async with running(calm) as bookie:
            for ledger_id in (1, 2, 3):
                ids = range(life * LIFE, (life + 1) * LIFE)
                data = [entry(ledger_id, i, size=BIG) for i in ids]
                await add(bookie, ledger_id, ids, entries=data)


async def check_bookie(bookie: Bookie, lives: int) -> None:
    for i in range(lives * LIFE):
        assert await bookie.read_entry(1, i) == entry(1, i, size=BIG)
    for ledger_id in (2, 3):
        with pytest.raises(NoLedgerError):
            await bookie.read_entry(ledger_id, 0)


@pytest.fixture
def passes_follow_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_plan, "PRESSING_S", 0.1)


@pytest.mark.usefixtures("passes_follow_soon")
def test_without_room_to_compact_logs_give_back_in_place_and_are_compacted_later(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        config, disk = quick(tmp_path), NoRoom()
        await fill(config, 3)
        logs = list(mixed(config))
        stored = {path: path.stat().st_blocks for path in logs}
        (logs[1]).write_bytes(logs[1].read_bytes()[:-88])  # as a crash leaves it: no footer
        async with running(config, disk) as bookie:
            await bookie.delete_ledger(2)
            await bookie.delete_ledger(3)
            disk.armed = True
            async with asyncio.timeout(120):
                while len(disk.punched) < 3:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.01)
            await check_bookie(bookie, 3)
        assert {path: path.exists() for path in logs} == dict.fromkeys(logs, True)
        for path in logs:
            assert path.stat().st_blocks < stored[path] * 0.5
        async with running(config) as bookie:  # holes are met when it is counted again
            assert bookie.report is not None
            assert bookie.report.damages == ()
            await check_bookie(bookie, 3)
        compacting = settings(
            tmp_path,
            compaction_minor_percent=60,
            compaction_minor_interval_ms=10,
            compaction_bytes_per_s=1 << 30,
        )
        async with running(compacting) as bookie:
            async with asyncio.timeout(120):
                while any(path.exists() for path in logs):  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.01)
            await check_bookie(bookie, 3)
        async with running(config) as bookie:
            await check_bookie(bookie, 3)

    asyncio.run(scenario())


@pytest.mark.usefixtures("passes_follow_soon")
def test_a_file_system_that_cannot_is_asked_once_and_nothing_is_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        config, disk = quick(tmp_path), NoRoom(punches=False)
        await fill(config, 3)
        before = {path: path.read_bytes() for path in mixed(config)}
        async with running(config, disk) as bookie:
            await bookie.delete_ledger(2)
            await bookie.delete_ledger(3)
            disk.armed = True
            async with asyncio.timeout(120):
                while not any(what == "punch" for what, _ in disk.events):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            assert [what for what, _ in disk.events].count("punch") == 1
            assert {path: path.read_bytes() for path in before} == before
            await check_bookie(bookie, 3)
        assert capsys.readouterr().out.count("cannot free parts of a file") == 1

    asyncio.run(scenario())


def test_the_log_with_most_to_give_comes_first_and_each_once() -> None:
    uses = [LogUse(1, 100, 20), LogUse(2, 500, 200), LogUse(3, 900, 890), LogUse(4, 50, 0)]
    done: dict[int, int] = {}
    order = []
    while (use := wasteful(uses, 0.9, done)) is not None:
        order.append(use.log_id)
        done[use.log_id] = use.live_bytes
    assert order == [2, 1]
    uses[0] = LogUse(1, 100, 10)  # another ledger was deleted
    again = wasteful(uses, 0.9, done)
    assert again is not None
    assert again.log_id == 1


def test_a_log_with_nothing_but_a_header_and_a_hole_is_walked_to_its_end(tmp_path: Path) -> None:
    disk = RealDisk()
    rows = [(2, i, entry(2, i, size=BIG)) for i in range(60)]
    places = write_log(disk, tmp_path, rows)
    free_in_place(disk, tmp_path, {2})
    file = disk.open(log_path(tmp_path, LOG))
    walk = RecordWalk(file, LOG, records_end(disk, tmp_path))
    assert list(walk) == []
    assert walk.whole
    assert hole_bytes(file.pread(HOLE_HEAD_BYTES, HEADER_BYTES), 0, seed_of(LOG)) > 60 * BIG
    assert places[2, 0] == HEADER_BYTES
    file.close()


def test_a_log_that_is_gone_is_not_chosen_again(tmp_path: Path) -> None:
    """Whoever looks for the next to punch goes on until there is none."""

    async def scenario() -> None:
        disk = RealDisk()
        lane = disk.lane("compact")
        puncher = Puncher(tmp_path, disk, lane, rested)
        use = LogUse(LOG, 100_000, 10_000)
        assert puncher.choose([use], 0.9) == use
        assert await puncher.punch(use, set(), use.byte_count) == 0
        assert puncher.choose([use], 0.9) is None
        await lane.close()

    asyncio.run(scenario())


async def rested(byte_count: int) -> None:
    """There is time."""


def test_nothing_of_a_disk_is_asked_on_the_loop(tmp_path: Path) -> None:
    class Noting(RealDisk):
        def drop_cached(self, path: Path, start: int, end: int) -> None:
            askers.append(threading.current_thread())
            super().drop_cached(path, start, end)

    askers: list[threading.Thread] = []

    async def scenario() -> None:
        disk = Noting()
        write_log(disk, tmp_path, [(1, i, entry(1, i, size=BIG)) for i in range(20)])
        size = records_end(disk, tmp_path) - HEADER_BYTES
        lane = disk.lane("compact")
        puncher = Puncher(tmp_path, disk, lane, rested)
        use = LogUse(LOG, size, 1)
        assert puncher.choose([use], 0.9) == use
        assert await puncher.punch(use, {1}, size) > 10 * BIG
        await lane.close()
        assert askers
        assert threading.main_thread() not in askers

    asyncio.run(scenario())
