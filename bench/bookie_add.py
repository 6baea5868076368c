"""The bookie's add path alone: entries per second and CPU per entry, from ``add_entries`` to
``done``, without a network.

    python bench/bookie_add.py --directory /path/on/the/disk [--seconds 2]

Keeps a fixed number of batches under way (``--window``), so the journal groups as it would under
load. CPU is the whole process: loop, journal thread, flushes; the making of entries is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from magnetar.bookie.bookie import Bookie
from magnetar.config import BookieConfig, JournalConfig
from magnetar.metrics import Metrics

KEY = b"k" * 20
_HEAD = struct.Struct(">qqqq")
KIB = 1024


def make_entries(count: int, entry_bytes: int) -> list[bytes]:
    """Entries 0 to count - 1 of ledger 1, of ``entry_bytes`` bytes each."""
    filler = bytes(range(256)) * (entry_bytes // 256 + 1)
    return [
        (_HEAD.pack(1, entry_id, entry_id - 1, 0) + filler)[:entry_bytes]
        for entry_id in range(count)
    ]


class Load:
    """Adds batches of ready-made entries, over and over, ``window`` batches under way."""

    def __init__(self, bookie: Bookie, entries: list[bytes], batch: int, window: int) -> None:
        self.bookie = bookie
        self.batches = [
            (list(range(start, start + batch)), entries[start : start + batch])
            for start in range(0, len(entries), batch)
        ]
        self.window = window
        self.added = self.answered = self.refused = 0
        self.deadline_s = 0.0
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies_s: list[float] = []

    def submit(self) -> None:
        ids, entries = self.batches[self.added % len(self.batches)]
        self.added += 1
        started = time.perf_counter()

        def done(error: Exception | None, entry_ids: Sequence[int]) -> None:
            self.answered += 1
            if error is not None:
                self.refused += 1
            now = time.perf_counter()
            self.latencies_s.append(now - started)
            if now < self.deadline_s:
                self.submit()
            elif self.answered == self.added and not self.finished.done():
                self.finished.set_result(None)

        self.bookie.add_entries(1, KEY, ids, entries, 0, done)


async def measure(
    directory: Path, entry_bytes: int, batch: int, sync: bool, seconds: float, window: int
) -> dict[str, float | int | bool]:
    data = Path(tempfile.mkdtemp(dir=directory))
    journal = JournalConfig(directories=(data / "journal",), sync=sync)
    bookie = Bookie(
        BookieConfig(ledger_directories=(data / "ledgers",), journal=journal), Metrics()
    )
    await bookie.start()
    count = max(batch, min(20_000, (64 << 20) // entry_bytes) // batch * batch)
    load = Load(bookie, make_entries(count, entry_bytes), batch, window)
    started, cpu = time.perf_counter(), time.process_time()
    load.deadline_s = started + seconds
    for _ in range(window):
        load.submit()
    await load.finished
    elapsed = time.perf_counter() - started
    cpu = time.process_time() - cpu
    entries = load.answered * batch
    load.latencies_s.sort()
    await bookie.close()
    shutil.rmtree(data)
    return {
        "entry_bytes": entry_bytes,
        "batch": batch,
        "sync": sync,
        "entries_per_s": round(entries / elapsed),
        "mb_per_s": round(entries * entry_bytes / elapsed / 1e6, 1),
        "cpu_us_per_entry": round(cpu / entries * 1e6, 2),
        "p50_ms": round(load.latencies_s[len(load.latencies_s) // 2] * 1e3, 2),
        "p99_ms": round(load.latencies_s[len(load.latencies_s) * 99 // 100] * 1e3, 2),
        "refused_batches": load.refused,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--window", type=int, default=64, help="batches under way")
    parser.add_argument("--switch-interval", type=float, default=0.0001, help="seconds")
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 16, 128])
    parser.add_argument("--entry-kib", type=int, nargs="*", default=[1, 128])
    args = parser.parse_args()
    sys.setswitchinterval(args.switch_interval)
    for entry_kib in args.entry_kib:
        for batch in args.batches:
            for sync in (True, False):
                window = max(1, min(args.window, (32 << 10) // entry_kib // batch))
                result = asyncio.run(
                    measure(args.directory, entry_kib * KIB, batch, sync, args.seconds, window)
                )
                print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
