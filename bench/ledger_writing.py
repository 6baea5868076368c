"""Writers to measure a ledger store with: a pipeline that is kept full, and a fixed rate.

    python -m bench.ledger_writing pipelined|paced JSON

They use ``magnetar.ledger`` as the broker does (``LedgerWriter.append``). What they do themselves
per append, a call and two readings of the clock, is in the writer's CPU time.
"""

from __future__ import annotations

import asyncio
import os
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from bench.ledger_clients import Client, Report, main, percentile_ms
from bench.measure import CpuClock, resident_mib
from magnetar.ledger import LedgerClient, LedgerWriter, MagnetarError, connect

CREATING_AT_ONCE = 32
PACE_S = 0.0005
DRAIN_S = 30.0


@dataclass(frozen=True)
class PipelinedLoad(Client):
    """``depth`` entries outstanding over all ``ledgers`` in turn, ``batch`` of them an append.

    ``pids``: the bookies, charged for what is confirmed after ``warmup_s``. ``close``: leave the
    ledgers closed (to be read), not just given up.
    """

    payload_bytes: int
    ledgers: int
    batch: int
    depth: int
    seconds: float
    warmup_s: float = 1.0
    entries_max: int = 1 << 40
    pids: tuple[int, ...] = ()
    close: bool = False


class Pipeline:
    """Keeps the pipeline full; one pass per turn of the loop over what was answered in it."""

    def __init__(self, writers: Sequence[LedgerWriter], load: PipelinedLoad) -> None:
        self.confirmed = 0
        self.latencies_s: array[float] = array("d")
        self._writers = writers
        self._payloads = [os.urandom(load.payload_bytes)] * load.batch
        self._load = load
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._next = self._outstanding = self._appended = 0
        self._stopped = self._woken = False

    def fill(self) -> None:
        self._woken = False
        load, writers = self._load, self._writers
        while not self._stopped and self._outstanding < load.depth:
            writer = writers[self._next]
            self._next = (self._next + 1) % len(writers)
            self._outstanding += load.batch
            self._appended += load.batch
            self._stopped = self._appended >= load.entries_max
            writer.append(self._payloads, partial(self._done, time.perf_counter()))

    def _done(
        self, began: float, error: MagnetarError | None, _ledger: int, _first: int, count: int
    ) -> None:
        self._outstanding -= count
        self.confirmed += count
        self.latencies_s.append(time.perf_counter() - began)
        if error is not None and not self._ended.done():
            self._ended.set_exception(error)
        if self._stopped and not self._outstanding and not self._ended.done():
            self._ended.set_result(None)
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self.fill)

    def forget(self) -> None:
        """Count from now."""
        self.confirmed = 0
        self.latencies_s = array("d")

    async def run(self, seconds: float) -> None:
        """Let it run; returns sooner at its end. Raises what an append failed with."""
        await asyncio.wait([self._ended], timeout=seconds)
        if self._ended.done():
            self._ended.result()

    async def stop(self) -> None:
        """Append no more; returns when all is confirmed."""
        self._stopped = True
        if self._outstanding or self._ended.done():
            async with asyncio.timeout(DRAIN_S):
                await self._ended


async def create(client: LedgerClient, count: int) -> list[LedgerWriter]:
    """New ledgers, some at once."""
    writers: list[LedgerWriter] = []
    while len(writers) < count:
        more = min(CREATING_AT_ONCE, count - len(writers))
        writers += await asyncio.gather(*(client.create() for _ in range(more)))
    return writers


async def pipelined(load: PipelinedLoad) -> Report:
    """Entries per second, latencies, CPU of bookies and writer, memory."""
    async with connect(load.url, load.config()) as client:
        began = time.perf_counter()
        writers = await create(client, load.ledgers)
        created_s = time.perf_counter() - began
        report = await _measure(Pipeline(writers, load), load)
        report["create_ms_per_ledger"] = round(created_s / load.ledgers * 1e3, 2)
        report["ledger_id"] = writers[0].ledger_id
        for writer in writers:
            await (writer.close() if load.close else writer.abandon())
        return report


async def _measure(pipeline: Pipeline, load: PipelinedLoad) -> Report:
    pipeline.fill()
    await pipeline.run(load.warmup_s)
    pipeline.forget()
    own, bookies = CpuClock([os.getpid()]), CpuClock(load.pids)
    began = time.perf_counter()
    await pipeline.run(load.seconds)
    await pipeline.stop()
    seconds = time.perf_counter() - began
    entries = max(1, pipeline.confirmed)
    copies = load.quorums[1]
    memory = [resident_mib(pid) for pid in load.pids] or [0.0]
    latencies_s = pipeline.latencies_s
    return {
        "entries": pipeline.confirmed,
        "entries_per_s": round(entries / seconds),
        "mb_per_s": round(entries * load.payload_bytes / seconds / 1e6, 1),
        "p50_ms": percentile_ms(latencies_s, 50) if latencies_s else 0.0,
        "p99_ms": percentile_ms(latencies_s, 99) if latencies_s else 0.0,
        "bookie_cpu_us": round(bookies.total_s() / entries / copies * 1e6, 2),
        "bookie_system_us": round(bookies.system_s() / entries / copies * 1e6, 2),
        "writer_cpu_us": round(own.total_s() / entries * 1e6, 2),
        "writer_system_us": round(own.system_s() / entries * 1e6, 2),
        "bookie_resident_mib": round(max(memory)),
        "writer_resident_mib": round(resident_mib(os.getpid())),
    }


@dataclass(frozen=True)
class PacedLoad(Client):
    """Entries due at a fixed rate, each timed from when it was due."""

    payload_bytes: int
    rate: int
    seconds: float


class Pace:
    """Appends what is due; entry i is due at start + i / rate."""

    def __init__(self, writer: LedgerWriter, load: PacedLoad) -> None:
        self.latencies_s: array[float] = array("d")
        self._writer = writer
        self._load = load
        self._payload = os.urandom(load.payload_bytes)
        self._error: MagnetarError | None = None
        self._began = 0.0

    async def run(self) -> None:
        load, sent = self._load, 0
        self._began = time.perf_counter()
        while (elapsed := time.perf_counter() - self._began) < load.seconds:
            due = int(elapsed * load.rate)
            if due > sent:
                self._writer.append([self._payload] * (due - sent), self._done)
                sent = due
            await asyncio.sleep(PACE_S)
        async with asyncio.timeout(DRAIN_S):
            await self._writer.wait_confirmed()
        if self._error is not None:
            raise self._error

    def _done(self, error: MagnetarError | None, _ledger: int, first: int, count: int) -> None:
        self._error = self._error or error
        late = time.perf_counter() - self._began
        rate = self._load.rate
        self.latencies_s.extend(late - entry_id / rate for entry_id in range(first, first + count))


async def paced(load: PacedLoad) -> Report:
    async with connect(load.url, load.config()) as client:
        writer = await client.create()
        pace = Pace(writer, load)
        await pace.run()
        await writer.close()
    return {
        "entries": len(pace.latencies_s),
        "p50_ms": percentile_ms(pace.latencies_s, 50),
        "p99_ms": percentile_ms(pace.latencies_s, 99),
    }


if __name__ == "__main__":
    main({"pipelined": (PipelinedLoad, pipelined), "paced": (PacedLoad, paced)})
