"""When ledger directories are flushed, and what follows from a flush.

A flush of all directories is wanted when the active half of one has taken a quarter of the write
cache, or when ``flush_interval_ms`` has passed. All together, because the journals are held by
whichever directory is furthest behind: so the journal bytes behind the marks stay near half of
the write cache, and a restart replays no more than that. Adds that waited for room go on when a
flush has taken the full half. After a flush: journal files that no directory needs are spent, the
disks' free space is looked at.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

import structlog

from magnetar.bookie.ledgers.ledger_table import LedgerTable
from magnetar.bookie.ledgers.parking import Parking
from magnetar.bookie.space.upkeep import Upkeep
from magnetar.config import BookieConfig
from magnetar.env.tasks import TaskScope, fails
from magnetar.metrics import Metrics
from magnetar.model.errors import BookieIOError

log = structlog.get_logger(__name__)

RETRY_S = 1.0


class Flusher:
    """One task per ledger directory. ``flush_bytes``: of an active half, when to ``want``."""

    def __init__(
        self,
        table: LedgerTable,
        parkings: Sequence[Parking],
        config: BookieConfig,
        metrics: Metrics,
        upkeep: Upkeep,
    ) -> None:
        self.flush_bytes = config.write_cache_bytes // (4 * len(table.storages))
        self._upkeep = upkeep
        self._table = table
        self._parkings = parkings
        self._config = config
        self._metrics = metrics
        self._wanted = [asyncio.Event() for _ in table.storages]
        self._tasks = TaskScope("bookie", fails(upkeep.task_ended))
        self._stopped = False

    def start(self) -> None:
        for index in range(len(self._table.storages)):
            self._tasks.spawn(self._run(index), f"flush-{index}")

    async def stop(self) -> None:
        """No flush begins by itself any more, and none rests."""
        self._stopped = True
        for storage in self._table.storages:
            storage.hurried = True
        await self._tasks.close()

    def want(self) -> None:
        """Flush soon."""
        for event in self._wanted:
            if not event.is_set():
                event.set()

    async def flush_all(self) -> None:
        """Flush until nothing is left. Raises ``BookieIOError``."""
        for index, storage in enumerate(self._table.storages):
            if storage.has_failed_work:
                await self._flush(index)
            await self._flush(index)

    async def _run(self, index: int) -> None:
        event = self._wanted[index]
        interval_s = self._config.flush_interval_ms / 1000
        while not self._stopped:
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):  # wait_for may lose a cancellation
                    await event.wait()
            event.clear()
            try:
                await self._flush(index)
            except (BookieIOError, OSError) as error:
                self._metrics.bookie_flush_failures_total.inc()
                log.error("flush failed; trying again", error=str(error))
                await self._upkeep.flush_failed(index, error)
                await self._table.shrink()  # reads bring ledgers into memory all the same
                await asyncio.sleep(RETRY_S)
                event.set()

    async def _flush(self, index: int) -> None:
        table, storage = self._table, self._table.storages[index]
        started = time.perf_counter()
        await storage.encode_ahead()
        loop = asyncio.get_running_loop()
        loop.call_soon(self._go_on, index)  # behind the swap, which comes in this turn
        try:
            await storage.flush([journal.committed for journal in table.journals])
        finally:
            self._upkeep.look()
        self._upkeep.flush_worked(index)
        self._metrics.bookie_flush_seconds.observe(time.perf_counter() - started)
        for journal in table.journals:
            journal.trim(min(each.marks.positions[journal.index] for each in table.storages))
        self._go_on(index)
        await table.shrink()

    def _go_on(self, index: int) -> None:
        """Adds that waited for room are carried out, as far as there is some."""
        cache, parking = self._table.storages[index].cache, self._parkings[index]
        parking.drain(lambda: cache.full)
        if parking.waiting:
            self._wanted[index].set()
