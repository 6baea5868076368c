"""A client that writes many ledgers at once, as a broker with many topics does.

In each turn it appends to some of them, so that a bookie gets adds of several ledgers in one chunk
(``Bookie.add_runs``). In most runs all bookies are killed or lose power soon after one of the first
turns of which every append was answered, while disks are slow: what was answered must be there.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from magnetar_sim.cluster.cluster import Client, Cluster
from magnetar_sim.cluster.ledger_workload import LedgerJob
from magnetar_sim.world.loop import until

CRASHED_SHARE = 0.8
"""Of the runs."""
NUMBER_FROM = 20
"""In the names of its ledgers."""
LOOK_S = 0.002
PAYLOAD_BYTES_MAX = 300
UNANSWERED_MAX = 200
"""Entries of a ledger."""


class AbreastJob(LedgerJob):
    """One of the ledgers: it is made and closed here, and written by ``AbreastWriter``."""

    def __init__(self, cluster: Cluster, index: int, rng: random.Random, client: Client) -> None:
        self.over = asyncio.Event()
        super().__init__(cluster, index, rng, 1.0, client)
        self.deferred = False

    async def _write(self) -> None:
        writer = self.begin_history(await self._create())
        await self.over.wait()
        if self.closing or writer.error is not None:
            assert self.history is not None
            await self._close(writer, self.history)

    @property
    def writable(self) -> bool:
        history, writer = self.history, self.writer
        if history is None or writer is None or writer.error is not None:
            return False
        return len(history.payloads) - history.answered < UNANSWERED_MAX

    @property
    def answered(self) -> bool:
        """Every append so far."""
        return self.history is None or self.history.settled


class AbreastWriter:
    """The client. ``when_answered`` is called with each turn of which all was answered, from
    ``heard_from_s`` on."""

    def __init__(self, cluster: Cluster, rng: random.Random, until_s: float) -> None:
        self.when_answered: Callable[[], None] = lambda: None
        self.heard_from_s = 0.0
        self._cluster = cluster
        self._random = rng
        self._until_s = until_s
        self.client = cluster.client("many")
        count = rng.randint(3, 10)
        self.jobs = [
            AbreastJob(cluster, NUMBER_FROM + number, rng, self.client) for number in range(count)
        ]
        self.client.process.spawn(self._write(), "turns")

    async def _write(self) -> None:
        rng, loop = self._random, self._cluster.loop
        pause_s = rng.choice((0.0, 0.01, 0.1))
        while loop.time() < self._until_s:
            writable = [job for job in self.jobs if job.writable]
            for job in rng.sample(writable, rng.randint(min(2, len(writable)), len(writable))):
                job.append(rng.choice((1, 1, 1, 3)), PAYLOAD_BYTES_MAX)
            if len(writable) > 1:
                self._cluster.count("turns with appends to several ledgers")
            begun_s = loop.time()
            await until(lambda: self._answered or loop.time() > self._until_s, LOOK_S)
            if self._answered and begun_s >= self.heard_from_s and writable:
                self.when_answered()
            await asyncio.sleep(pause_s * rng.random() if writable else 0.05)
        for job in self.jobs:
            job.over.set()

    @property
    def _answered(self) -> bool:
        return all(job.answered for job in self.jobs)
