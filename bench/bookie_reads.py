"""What long sequential reads of one bookie cost: CPU us a KiB of its process, and of the reader's.

    python -m bench.bookie_reads [--source DIR ...] [--mib 512] [--rounds 3] [--sizes 1 16 64 256]

Ledgers of entries of so many KiB are written once, then a bookie that has just begun serves each of
them over TCP to a reader in a process of its own: as Spark's tasks read (``told``: a loop in a
thread, requests of 4 MiB), or as brokers do (``reader``: requests of a MiB). *Cold*: the kernel
has given back what it had of the files; *warm*: it has them. The kernel's part is in both figures.
Each ``--source`` is the ``src`` directory of a checkout, for both processes; they take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.bookie_tcp import serve
from bench.measure import CpuClock
from bench.server import work_directory
from bench.trees import ROOT, environment_of

KIB = 1024
KEY = b"k" * 20
APPENDED = 2 << 20
"""Bytes of an append; the next one is made when it is durable."""


@dataclass(frozen=True)
class Ledger:
    """Of ``count`` entries with payloads of ``payload_bytes``."""

    payload_bytes: int
    count: int

    @property
    def ledger_id(self) -> int:
        return self.payload_bytes

    @property
    def kib(self) -> float:
        return self.payload_bytes * self.count / KIB


def fill(folder: Path, ledgers: list[Ledger]) -> None:
    """Write them, and end the bookie."""
    from magnetar.bookie.bookie import Bookie
    from magnetar.metrics import Metrics
    from magnetar.model.ledger import DigestType
    from magnetar.wire.bookie.digest import EntryDigest

    async def add(bookie: Bookie, ledger: Ledger, first: int, count: int) -> None:
        digest = EntryDigest(DigestType.CRC32C, ledger.ledger_id, b"")
        payloads = [os.urandom(ledger.payload_bytes)] * count
        entries, _ = digest.build_run(first, first - 1, first * ledger.payload_bytes, payloads)
        answered = asyncio.get_running_loop().create_future()
        left = count

        def done(error: Exception | None, ids: object) -> None:
            nonlocal left
            left -= len(ids)  # type: ignore[arg-type]
            if not left or error:
                answered.set_result(error)

        ids = range(first, first + count)
        bookie.add_entries(ledger.ledger_id, KEY, ids, entries, 0, done)
        assert await answered is None

    async def main() -> None:
        bookie = Bookie(_config(folder), Metrics())
        await bookie.start()
        for ledger in ledgers:
            step = max(1, APPENDED // ledger.payload_bytes)
            for first in range(0, ledger.count, step):
                await add(bookie, ledger, first, min(step, ledger.count - first))
        await bookie.close()

    asyncio.run(main())


def _config(folder: Path):  # type: ignore[no-untyped-def]  # of the tree that is measured
    from magnetar.config import BookieConfig, JournalConfig

    journal = JournalConfig(directories=(folder / "journal",))
    return BookieConfig(ledger_directories=(folder / "ledgers",), journal=journal)


def read(port: int, pid: int, how: str, ledger: Ledger) -> None:
    """Read it all; prints CPU seconds: the reader's own, the bookie's."""
    from magnetar.env.allocator import tune_allocator
    from magnetar.ledger.reading.reader import LedgerReader
    from magnetar.ledger.told_ledgers import ToldLedgers
    from magnetar.model.ids import BookieId, LedgerId
    from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata, LedgerState
    from magnetar.wire.bookie.metadata import encode_ledger_metadata

    metadata = LedgerMetadata(
        LedgerId(ledger.ledger_id), 1, 1, 1, DigestType.CRC32C, b"",
        (Fragment(0, (BookieId("b"),)),), LedgerState.CLOSED, ledger.count - 1,
    )  # fmt: skip

    def by_told() -> Iterator[int]:
        with ToldLedgers({"b": ("127.0.0.1", port)}, frame_bytes_max=64 << 20) as ledgers:
            told = encode_ledger_metadata(metadata)
            for entry in ledgers.entries(ledger.ledger_id, told, 0, ledger.count):
                yield len(entry.data)

    async def by_reader() -> int:
        from magnetar.config import LedgerConfig
        from magnetar.ledger.connections.pool import ConnectionPool

        async def resolve(_bookie_id: BookieId) -> tuple[str, int]:
            return "127.0.0.1", port

        async def available() -> list[BookieId]:
            return [BookieId("b")]

        pool = ConnectionPool(resolve, available)
        reader = LedgerReader(metadata, ledger.count - 1, pool, LedgerConfig())
        total = at = 0
        while at < ledger.count:
            found = await reader.read(at, 20_000, 4 << 20)
            at += len(found)
            total += sum(len(entry.data) for entry in found)
        await pool.close()
        return total

    tune_allocator()
    own, bookie, begun = CpuClock([os.getpid()]), CpuClock([pid]), time.perf_counter()
    total = sum(by_told()) if how == "told" else uvloop.run(by_reader())
    assert total > ledger.payload_bytes * ledger.count
    seconds = time.perf_counter() - begun
    print(json.dumps([own.total_s(), bookie.total_s(), bookie.system_s(), seconds]))


def forget(folder: Path) -> None:
    """The kernel gives back what it has of the entry logs."""
    for path in folder.rglob("????????.log"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _begin(source: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.bookie_reads", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=ROOT, env=environment_of(source), stdin=pipe, stdout=pipe, text=True
    )


def one(source: Path, folder: Path, ledger: Ledger, how: str, cold: bool) -> list[float]:
    """CPU us a KiB of the reader, of the bookie, of the bookie in the kernel; and seconds a GiB."""
    if cold:
        forget(folder)
    bookie = _begin(source, "serve", str(folder))
    assert bookie.stdout is not None
    line = bookie.stdout.readline()
    while line and not line.strip().isdigit():
        line = bookie.stdout.readline()
    sizes = f"{ledger.payload_bytes}", f"{ledger.count}"
    reader = _begin(source, "read", line.strip(), str(bookie.pid), how, *sizes)
    told = reader.communicate()[0]
    bookie.communicate(timeout=60)
    own_s, bookie_s, system_s, seconds = json.loads(told.splitlines()[-1])
    us = [each / ledger.kib * 1e6 for each in (own_s, bookie_s, system_s)]
    return [*us, seconds / ledger.kib * 2**20]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--source", type=Path, nargs="*", default=[ROOT / "src"])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1, 16, 64, 256], help="KiB")
    parser.add_argument("--how", nargs="*", default=["told"], choices=["told", "reader"])
    parser.add_argument("--states", nargs="*", default=["cold", "warm"], choices=["cold", "warm"])
    parser.add_argument("--directory", type=Path, help="keep what is written here")
    args = parser.parse_args()
    ledgers = [Ledger(size * KIB, (args.mib << 10) // size) for size in args.sizes]
    with work_directory() as folder:
        folder = args.directory or folder
        if not folder.exists() or not any(folder.iterdir()):
            folder.mkdir(parents=True, exist_ok=True)
            fill(folder, ledgers)
        cases = [(x, how, state) for how in args.how for x in ledgers for state in args.states]
        for ledger, how, state in cases:
            found: dict[Path, list[list[float]]] = {source: [] for source in args.source}
            if state == "warm":
                one(args.source[0], folder, ledger, how, cold=False)
            for _ in range(args.rounds):
                for source in args.source:
                    found[source].append(one(source, folder, ledger, how, state == "cold"))
            for source in args.source:
                columns = zip(*found[source], strict=True)
                own, bookie, system, gib_s = map(statistics.median, columns)
                print(
                    f"{how:6} {state:4} {ledger.payload_bytes // KIB:4} KiB {str(source)[-18:]:18} "
                    f"bookie {bookie:5.2f} (kernel {system:4.2f})  reader {own:5.2f} us/KiB  "
                    f"{1073.7 / gib_s:5.0f} MB/s",
                    flush=True,
                )


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["read"]:
        read(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Ledger(*map(int, sys.argv[5:7])))
    else:
        main()
