"""What a server process does about garbage."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.cli import process
from magnetar.cli.process import GarbageLooks, memory, tune_collector
from magnetar.env.collecting import (
    LOOK_INTERVAL_S,
    THRESHOLDS,
    YOUNG_INTERVAL_IDLE_S,
    Memory,
)
from magnetar_sim.world.virtual_time import run_virtual


class Cyclic:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _collector_as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_what_is_old_is_not_looked_at_by_count() -> None:
    tune_collector()
    assert gc.get_threshold()[:2] == THRESHOLDS[:2]
    old = Cyclic()
    gc.collect(0)  # it has outlived a look at the youngest
    gone = weakref.ref(old)
    del old
    kept = []
    for _ in range(30):
        kept += [[] for _ in range(THRESHOLDS[0])]
    assert gone() is not None
    gc.collect()
    assert gone() is None


def test_the_youngest_are_looked_at_by_the_clock() -> None:
    """However few they are by the interpreter's count, which what is gone brings down."""

    async def scenario() -> None:
        gc.disable()
        try:
            GarbageLooks(asyncio.get_running_loop()).begin()
            young = Cyclic()
            gone = weakref.ref(young)
            del young
            await asyncio.sleep(YOUNG_INTERVAL_IDLE_S + 0.01)
            assert gone() is None
        finally:
            gc.enable()

    run_virtual(scenario())


def test_memory_is_measured() -> None:
    before = memory()
    kept = [object() for _ in range(100_000)]
    assert memory().blocks - before.blocks > 90_000
    assert before.resident_bytes > 1 << 20
    del kept


def test_all_is_looked_at_when_memory_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Memory(0, 0)
    monkeypatch.setattr(process, "memory", lambda: now)

    async def scenario() -> None:
        nonlocal now
        gc.disable()
        try:
            GarbageLooks(asyncio.get_running_loop()).begin()
            old = Cyclic()
            gc.collect(0)  # it has outlived a look at the youngest
            gone = weakref.ref(old)
            del old
            await asyncio.sleep(3 * LOOK_INTERVAL_S)
            assert gone() is not None
            now = Memory(100_000_000, 0)
            await asyncio.sleep(2 * LOOK_INTERVAL_S)
            assert gone() is None
        finally:
            gc.enable()

    run_virtual(scenario())


NEVER_ENDS = """
import asyncio
from magnetar.cli import process
from magnetar.config import Config

async def stays():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def role(ready, stopped):
    role.task = asyncio.get_running_loop().create_task(stays(), name="one that stays")
    ready("ready")

process.LEFT_S = 0.1
process.serve(Config(), role)
"""


def test_a_process_ends_whatever_is_left_of_its_role() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", NEVER_ENDS], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "ready\n")
    assert "does not end by itself" in ended.stderr
    assert "one that stays" in ended.stderr


ENDS = """
import signal
from magnetar.cli import process
from magnetar.config import Config

async def role(ready, stopped):
    ready("ready")
    signal.raise_signal(signal.SIGTERM)
    await stopped.wait()

process.serve(Config(), role)
"""


def test_who_ends_a_server_that_starts_hears_that_it_will() -> None:
    """Nothing was said, for as long as it waited for ZooKeeper, say."""
    line = '    ready("ready")\n'
    begins = ENDS.replace(line, "").replace(".wait()\n", f".wait()\n{line}")
    for program, said in ((ENDS, False), (begins, True)):
        ended = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
        )
        assert ended.returncode == 0
        assert ("as soon as it has started" in ended.stderr) is said


def test_a_server_goes_on_without_a_place_for_its_line() -> None:
    """With its output on a full disk, or to a reader that has ended, it ended once it was ready."""
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ended = subprocess.run(
            [sys.executable, "-c", ENDS],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert ended.returncode == 0
    assert "standard output takes nothing" in ended.stderr
