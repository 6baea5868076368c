"""kill -9 under load, again and again: every acknowledged entry is there afterwards."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from magnetar.bookie.bookie import Bookie
from magnetar.config import BookieConfig
from tests.unit.bookie.storage_kit import entry, ids_of, running, settings

LEDGERS = 3
KILLS = 5


def config_of(root: Path) -> BookieConfig:
    return settings(root, journals=1, ledgers=2, write_cache_bytes=2 << 20, flush_interval_ms=50)


def size_of(entry_id: int) -> int:
    return 200 + entry_id * 37 % 3000


async def next_id(bookie: Bookie, ledger_id: int) -> int:
    held = await bookie.list_entries(ledger_id) if ledger_id in await bookie.ledgers() else []
    ids = ids_of(held)
    assert ids == list(range(len(ids)))
    return len(ids)


async def load(root: Path) -> None:
    """The child: add without end; print what was acknowledged, unbuffered."""
    async with running(config_of(root)) as bookie:
        following = [await next_id(bookie, ledger_id) for ledger_id in range(LEDGERS)]
        print("ready", flush=True)
        rng = random.Random(os.getpid())
        while True:
            for ledger_id in range(LEDGERS):
                count = rng.randrange(1, 20)
                ids = range(following[ledger_id], following[ledger_id] + count)
                following[ledger_id] += count
                data = [entry(ledger_id, i, size=size_of(i)) for i in ids]

                def done(error: Exception | None, found: range, ledger_id: int = ledger_id) -> None:
                    assert error is None, error
                    os.write(1, f"{ledger_id} {found[-1]}\n".encode())

                bookie.add_entries(ledger_id, b"k" * 20, ids, data, 0, done)  # type: ignore[arg-type]
            await asyncio.sleep(0)
            if bookie.info().journal_pending_bytes > 500_000:
                await bookie.force(0)


def run_and_kill(root: Path, seconds: float) -> dict[int, int]:
    """Ledger id -> highest entry id that the child saw acknowledged before it was killed."""
    root.mkdir(exist_ok=True)
    output = root / "acknowledged"
    with output.open("wb") as file:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.bookie.test_bookie_kill", str(root)], stdout=file
        )
        deadline = time.monotonic() + 90
        while not output.read_bytes().partition(b"ready\n")[2]:  # something is acknowledged
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(seconds)
        child.send_signal(signal.SIGKILL)
        child.wait()
    highest: dict[int, int] = {}
    for line in output.read_text().splitlines():
        words = line.split()
        if len(words) == 2 and all(word.isdigit() for word in words):
            highest[int(words[0])] = max(int(words[1]), highest.get(int(words[0]), -1))
    return highest


def test_kill_under_load_loses_nothing_acknowledged(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")
    rng = random.Random(seed)
    root = tmp_path / "bookie"
    for _ in range(KILLS):
        highest = run_and_kill(root, rng.uniform(0.05, 0.5))
        assert highest, "the child acknowledged nothing: the test would prove nothing"
        asyncio.run(check(root, highest))


async def check(root: Path, highest: dict[int, int]) -> None:
    async with running(config_of(root)) as bookie:
        assert bookie.report is not None
        assert bookie.report.damages == ()
        for ledger_id, last in highest.items():
            assert await next_id(bookie, ledger_id) > last
            following = 0
            while following <= last:
                batch = await bookie.read_batch(ledger_id, following, 1000, 1 << 20)
                for data in batch:
                    assert data == entry(ledger_id, following, size=size_of(following))
                    following += 1


if __name__ == "__main__":
    asyncio.run(load(Path(sys.argv[1])))
