"""The power goes under a real bookie process on real files: what it acknowledged is there.

Here a short run, and that the means are sound: the shim sees every change, the model forgets what
it should, planted defects are found. The long run: ``make power-cuts``. What holds, and the counts:
docs/guarantees.md.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from magnetar.ledger.connections.connection import BookieConnection
from magnetar.model.errors import BookieUnavailableError, FencedError, MagnetarError
from magnetar.proving.power_cut.disk import Directory, File, ModelDisk
from magnetar.proving.power_cut.shim import NoCompilerError, build_shim
from magnetar.proving.power_cut.trace import DURABLE, ChangeKind, FileChange, read_trace
from tests.power_cuts.bookie import PLANTS
from tests.power_cuts.machine import Machine
from tests.power_cuts.run import BrokenPromiseError, Counts, PowerCuts, shared_metadata

PLANT_CUTS_MAX = 40


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build_shim(tmp_path_factory.mktemp("shim"))
    except NoCompilerError as error:
        pytest.skip(str(error))


async def cut(
    folder: Path, shim: Path, cuts: int, seed: int, plant: str = "none", doubt: int | None = None
) -> Counts:
    async with shared_metadata() as (store, url):
        machine = Machine(folder, shim, url, plant)
        powered = PowerCuts(machine, store, seed)
        try:
            return await powered.run(cuts, doubt)
        finally:
            machine.kill()


def test_power_cuts_take_nothing_that_was_acknowledged(tmp_path: Path, shim: Path) -> None:
    counts = asyncio.run(cut(tmp_path, shim, cuts=5, seed=1))
    assert counts.cuts == 5
    assert counts.acknowledged > 0
    assert counts.read_back > 0


class _Bookie:
    """It answers no fence, and refuses adds once it was asked for one (or at once)."""

    def __init__(self, fenced: bool) -> None:
        self.fenced = fenced
        self.adds = 0

    async def read_lac(self, *_arguments: object) -> None:
        self.fenced = True
        raise BookieUnavailableError("the power is gone")

    def add_entries(
        self,
        _ledger: int,
        _key: bytes,
        ids: Sequence[int],
        _entries: object,
        _flags: int,
        done: Callable[[MagnetarError | None, Sequence[int]], None],
    ) -> None:
        self.adds += 1
        gone = BookieUnavailableError("the power is gone") if self.adds > 1000 else None
        done(FencedError("it is fenced") if self.fenced and gone is None else gone, ids)


def test_a_fence_in_doubt_may_hold_and_one_that_nobody_asked_for_may_not(tmp_path: Path) -> None:
    """A life ended while a fence was under way; in the next one it was taken for a broken
    promise."""

    async def write(bookie: _Bookie) -> None:
        async with shared_metadata() as (store, url):
            powered = PowerCuts(Machine(tmp_path, tmp_path, url), store, seed=1)
            await powered._manager.initialize()
            await powered._new_ledger()
            while bookie.adds <= 1000:  # until a fence is asked for, and after it
                with pytest.raises(BookieUnavailableError):
                    await powered._write(cast(BookieConnection, bookie), 0)
            assert bookie.fenced

    asyncio.run(write(_Bookie(fenced=False)))
    (tmp_path / "disk").rmdir()
    with pytest.raises(BrokenPromiseError, match="an add is refused"):
        asyncio.run(write(_Bookie(fenced=True)))


@pytest.mark.slow
def test_a_bookie_in_doubt_stays_in_doubt(tmp_path: Path, shim: Path) -> None:
    counts = asyncio.run(cut(tmp_path, shim, cuts=8, seed=2, doubt=3))
    assert counts.in_doubt > 0


@pytest.mark.slow
@pytest.mark.parametrize("plant", [name for name in PLANTS if name != "none"])
def test_a_missing_sync_is_found(tmp_path: Path, shim: Path, plant: str) -> None:
    with pytest.raises(BrokenPromiseError):
        asyncio.run(cut(tmp_path, shim, PLANT_CUTS_MAX, 3, plant))


def test_the_shim_sees_every_change(tmp_path: Path, shim: Path) -> None:
    """What the trace makes of an empty disk is what is there, but for RocksDB's own log of events,
    which it writes through a stream."""

    async def scenario() -> None:
        async with shared_metadata() as (store, url):
            machine = Machine(tmp_path, shim, url)
            powered = PowerCuts(machine, store, 4)
            await powered._manager.initialize()
            disk = ModelDisk(machine.root)
            assert await asyncio.to_thread(machine.start, 0), machine.log
            using = asyncio.create_task(powered._use(last=False))
            await asyncio.sleep(3)
            assert machine.process is not None
            machine.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(machine.process.wait, 60)
            await using
            changes = list(read_trace(machine.trace_path))
            disk.feed(changes)
            there = {
                str(path.relative_to(machine.root)): path.read_bytes()
                for path in machine.root.rglob("*")
                if path.is_file()
            }
            seen = disk.contents()
            streams = {name for name in there if Path(name).name.startswith("LOG")}
            assert set(seen) == set(there)
            differ = [name for name in there if seen[name] != there[name]]
            assert set(differ) <= streams
            synced = {change.inode for change in changes if change.kind is ChangeKind.SYNCED}
            index = {c.inode for c in changes if c.path.endswith(".log") and "/index/" in c.path}
            assert synced & index, "RocksDB syncs its log"
            assert any(c.kind is ChangeKind.WRITTEN and c.flags & DURABLE for c in changes)
            machine.kill()

    asyncio.run(scenario())


# -- the model ------------------------------------------------------------------------------------


def change(kind: ChangeKind, first: int = 0, data: bytes = b"", flags: int = 0) -> FileChange:
    return FileChange(kind, 0, first, 0, flags, "", "", data)


def test_of_a_file_survives_what_was_written_before_a_sync_began() -> None:
    file = File()
    file.pending.append(change(ChangeKind.WRITTEN, 0, b"one"))
    file.sync_begins(7)
    file.pending.append(change(ChangeKind.WRITTEN, 3, b"two"))
    assert file.after_a_cut(random.Random(0), 0.0) == b""
    file.synced(7)
    assert file.after_a_cut(random.Random(0), 0.0) == b"one"
    file.pending.append(change(ChangeKind.WRITTEN, 6, b"three", DURABLE))
    assert file.after_a_cut(random.Random(0), 0.0) == b"one\0\0\0three"


def test_writes_are_torn_at_sectors() -> None:
    file = File(bytearray(2048))
    file.pending.append(change(ChangeKind.WRITTEN, 100, b"x" * 1500))
    seen = set()
    for seed in range(50):
        left = file.after_a_cut(random.Random(seed), 1.0)
        borders = (100, 512, 1024, 1536, 1600)
        parts = [left[a:b] for a, b in pairwise(borders)]
        assert all(part in (b"x" * len(part), bytes(len(part))) for part in parts)
        seen.add(tuple(part[:1] for part in parts))
    assert len(seen) > 5


def test_of_a_directory_survives_a_beginning_of_what_was_not_synced() -> None:
    node = Directory()
    first, second = File(), File()
    node.change(None, "a", first)
    node.sync_begins(1)
    node.change("a", "b", first)
    node.change(None, "c", second)
    node.synced(1)
    assert node.after_a_cut(random.Random(0), 0.0) == {"a": first}
    seen = {tuple(node.after_a_cut(random.Random(seed), 0.5)) for seed in range(50)}
    assert seen == {("a",), ("b",), ("b", "c")}
