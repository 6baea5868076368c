"""Readers to measure a ledger store with: one that catches up, and one that takes a ledger over.

python -m bench.ledger_reading catch_up|recover JSON
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import dataclass

from bench.ledger_clients import BEGUN, Client, Report, main
from bench.measure import CpuClock
from magnetar.ledger import LedgerReader, MagnetarError, connect


@dataclass(frozen=True)
class CatchUpLoad(Client):
    """Read a closed ledger from its beginning, ``parallel`` ranges of ``range_bytes`` at once;
    ``again``: over and over, until a line comes on the input."""

    ledger_id: int
    parallel: int = 1
    range_bytes: int = 1 << 20
    pids: tuple[int, ...] = ()
    again: bool = False


class CatchUp:
    """One pass over a ledger."""

    def __init__(self, reader: LedgerReader, load: CatchUpLoad) -> None:
        self.read_bytes = 0
        self.stopped = False
        self._reader = reader
        self._parallel = load.parallel
        entry_bytes = max(1, reader.length // (reader.last_add_confirmed + 1))
        self._range_entries = max(1, load.range_bytes // entry_bytes)
        self._next = 0

    async def run(self) -> None:
        """All of it. A pass that does not give every byte of the ledger is an error."""
        self._next, before = 0, self.read_bytes
        async with asyncio.TaskGroup() as group:
            for _ in range(self._parallel):
                group.create_task(self._read())
        if not self.stopped and self.read_bytes - before != self._reader.length:
            raise SystemExit(f"read {self.read_bytes - before} of {self._reader.length} bytes")

    async def _read(self) -> None:
        last = self._reader.last_add_confirmed
        while self._next <= last and not self.stopped:
            first = self._next
            self._next = min(first + self._range_entries, last + 1)
            entries = await self._reader.read_range(first, self._next - 1)
            self.read_bytes += sum(len(entry.payload) for entry in entries)


async def catch_up(load: CatchUpLoad) -> Report:
    """MB/s of payload, CPU, and how much of it the bookies had from the disk."""
    async with connect(load.url, load.config()) as client:
        reader = await client.open(load.ledger_id)
        catching = CatchUp(reader, load)
        own, bookies, disk = CpuClock([os.getpid()]), CpuClock(load.pids), disk_bytes(load.pids)
        began = time.perf_counter()
        print(BEGUN, flush=True)
        if load.again:
            await _read_until_told(catching)
        else:
            await catching.run()
        seconds, megabytes = time.perf_counter() - began, max(1, catching.read_bytes) / 1e6
        return {
            "mb_per_s": round(megabytes / seconds, 1),
            "reader_cpu_s_per_gb": round(own.total_s() / megabytes * 1e3, 2),
            "bookie_cpu_s_per_gb": round(bookies.total_s() / megabytes * 1e3, 2),
            "from_disk_percent": round((disk_bytes(load.pids) - disk) / megabytes / 1e4, 1),
        }


async def _read_until_told(catching: CatchUp) -> None:
    told = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

    def stop(_: object) -> None:
        catching.stopped = True

    told.add_done_callback(stop)
    while not catching.stopped:
        await catching.run()


def disk_bytes(pids: tuple[int, ...]) -> int:
    """What these processes had read from storage, not from the page cache."""
    found = 0
    for pid in pids:
        with open(f"/proc/{pid}/io") as counters:
            found += sum(int(x.split()[1]) for x in counters if x.startswith("read_bytes:"))
    return found


@dataclass(frozen=True)
class RecoverLoad(Client):
    """Take over a ledger that has ``entries`` past its last confirmed one."""

    entries: int
    payload_bytes: int


async def recover(load: RecoverLoad) -> Report:
    """The time of ``open``: fence, read forward, write again, close."""
    ledger_id = await _leave_open(load)
    async with connect(load.url, load.config()) as client:
        async with await client.open_no_recovery(ledger_id) as tail:
            known = tail.last_add_confirmed
        if known != -1:
            raise SystemExit(f"the bookies know that entry {known} is confirmed: nothing measured")
        own, began = CpuClock([os.getpid()]), time.perf_counter()
        reader = await client.open(ledger_id)
        seconds = time.perf_counter() - began
        if reader.last_add_confirmed != load.entries - 1:
            raise SystemExit(f"recovered to {reader.last_add_confirmed} of {load.entries} entries")
        return {
            "entries": load.entries,
            "seconds": round(seconds, 3),
            "us_per_entry": round(seconds / load.entries * 1e6, 1),
            "recoverer_cpu_us": round(own.total_s() / load.entries * 1e6, 1),
        }


async def _leave_open(load: RecoverLoad) -> int:
    """One append of all entries, so that none of them tells that another is confirmed."""
    async with connect(load.url, load.config()) as client:
        writer = await client.create()
        failed: list[MagnetarError] = []

        def done(error: MagnetarError | None, _ledger: int, _first: int, _count: int) -> None:
            if error is not None:
                failed.append(error)

        writer.append([os.urandom(load.payload_bytes)] * load.entries, done)
        await writer.wait_confirmed()
        await writer.abandon()
        if failed:
            raise failed[0]
        return writer.ledger_id


if __name__ == "__main__":
    main({"catch_up": (CatchUpLoad, catch_up), "recover": (RecoverLoad, recover)})
