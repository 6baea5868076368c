"""CPU microseconds per entry of a partition behind the log's seam: appended, and read back.

``python -m bench.partition_entries`` prints user and system time of the process, all threads, per
entry of 1 KiB as Pulsar's clients make them, and writes ``bench/results/partition_entries.json``
and ``.md``. The files are real and synced as by default; the metadata store is in memory, and there
is no socket: what is measured is what ``log/partition`` and the disk take.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
from collections.abc import Sequence
from dataclasses import replace

from bench.measure import machine
from bench.results import store, table
from magnetar.config import LedgerConfig
from magnetar.log.managed.store import policy_of
from magnetar.log.partition.limits import PartitionPolicy
from magnetar.log.policy import Engine
from magnetar.log.seam import Content, Run, WritableLog
from magnetar.model.errors import MagnetarError
from magnetar.model.ids import Position
from tests.unit.log.doubles import NAME, Process, World
from tests.unit.log.partition.world import PartitionWorld

CONFIG = LedgerConfig(cursor_flush_interval_ms=1000)
ENTRY = bytes(1060)
OUTSTANDING = 1024
SPAN = 1 << 31
READ_ENTRIES, READ_BYTES = 1000, 1 << 20


def cpu_s() -> tuple[float, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_stime


class Measured:
    """CPU time from here on."""

    def __init__(self) -> None:
        self._before = cpu_s()

    def per(self, count: int) -> tuple[float, float]:
        """User and system, us."""
        pairs = zip(cpu_s(), self._before, strict=True)
        user, system = ((now - before) / count * 1e6 for now, before in pairs)
        return round(user, 2), round(system, 2)


async def append_all(log: WritableLog, count: int, run: int) -> None:
    """``run`` entries an append, ``OUTSTANDING`` entries under way."""
    room = asyncio.Semaphore(OUTSTANDING // run)
    content = Content([1] * run, [1_700_000_000_000] * run)
    payloads = [ENTRY] * run
    failed: list[MagnetarError] = []

    def done(error: MagnetarError | None, runs: Sequence[Run]) -> None:
        if error is not None:
            failed.append(error)
        room.release()

    for _ in range(count // run):
        await room.acquire()
        log.append(payloads, done, content)
    for _ in range(OUTSTANDING // run):
        await room.acquire()
    if failed:
        raise failed[0]


async def read_all(log: WritableLog) -> int:
    """From the files: the tail in memory is a small part of it."""
    position, found = log.positions.first, 0
    while position <= log.positions.readable:
        entries = await log.read(position, READ_ENTRIES, READ_BYTES)
        found += len(entries)
        end = entries[-1]
        position = log.positions.next_position(Position(end.ledger_id, end.entry_id))
    return found


async def measure(count: int) -> dict[str, tuple[float, float]]:
    figures = {}
    for run in (1, 16, 256):
        parts = PartitionWorld(PartitionPolicy())
        process = Process(World())
        policy = replace(policy_of(CONFIG), engine=Engine.PARTITION)
        async with parts.running():
            log = await parts.store(process, process.store(CONFIG), policy, SPAN).open(NAME)
            await append_all(log, count // 4, run)
            begun = Measured()
            await append_all(log, count, run)
            figures[f"append, {run} a call"] = begun.per(count)
            if run == 1:
                begun = Measured()
                figures["read back"] = begun.per(await read_all(log))
            await log.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--entries", type=int, default=100_000, help="measured in each row")
    given = parser.parse_args()
    where = machine()
    figures = asyncio.run(measure(given.entries))
    rows = [[name, *map(str, pair)] for name, pair in figures.items()]
    text = table(["1 KiB, 1024 outstanding", "user us an entry", "system"], rows)
    store("partition_entries", {"figures": figures}, text, where)


if __name__ == "__main__":
    main()
