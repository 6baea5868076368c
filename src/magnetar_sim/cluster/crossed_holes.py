"""Two holes that cross: of two runs of confirmed entries one bookie lacks the first, another one
the second, and the third, which has both, is away when the ledger is recovered.

In a share of the runs (``SHARE``), on three bookies with (E, Qw, Qa) = (3, 3, 2). A recovery that
took a bookie's "no such entry" for more than that entry would drop the second run. All of it lies
behind the last add confirmed that any bookie knows: the writer gives both runs before the first is
confirmed, and dies when the second is.

    the writer                                      bookies
    cannot connect to ``late``
    gives the first run                             ``both`` and ``other`` have it
    cannot reach ``other`` any more, is slow to
    hear its answer, gives the second run           ``both`` has it
    is told that the first run is confirmed
    connects to ``late``, and sends what is not
    confirmed                                       ``late`` has the second run
    is told that the second run is confirmed, dies
"""

from __future__ import annotations

import asyncio
import random
from contextvars import Context
from dataclasses import replace
from functools import partial

from magnetar.config import LedgerConfig
from magnetar_sim.cluster.cluster import Cluster
from magnetar_sim.cluster.ledger_workload import LedgerJob, recover
from magnetar_sim.world.loop import until

SHARE = 0.04
BOOKIES = 3
OTHERS_FROM_S = 3.5
"""What else goes wrong begins then: the writer has done it by that time."""
FAR_S = 0.3
AWAY_S = 4.0
LOOK_S = 0.001
LIMIT_S = 3.0


def has_crossed_holes(seed: int) -> bool:
    return random.Random(f"{seed}/crossed").random() < SHARE


def plan_quorums(config: LedgerConfig) -> LedgerConfig:
    return replace(config, ensemble_size=BOOKIES, write_quorum=BOOKIES, ack_quorum=2)


class CrossedHoles(LedgerJob):
    """The ledger with these holes, its writer, and the client that takes it."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        rng = random.Random(f"{seed}/crossed holes")
        super().__init__(cluster, 8, rng, 1.0)
        self.deferred = False
        self._recovery = cluster.client(f"r{self.name[1:]}a")

    async def _write(self) -> None:
        writer = self.begin_history(await self._create())
        bookies = writer.metadata.fragments[0].bookies
        late, both, other = self._random.sample(bookies, BOOKIES)
        try:
            async with asyncio.timeout(LIMIT_S):
                await self._cross(late, other)
        except TimeoutError:
            self.cluster.trace.note(self.name, "could not make holes that cross")
            self._connect(late, other)
        else:
            self._die(both)
        assert self.history is not None
        self._recovery.process.spawn(recover(self._recovery, self.history), "recovery")

    async def _cross(self, late: str, other: str) -> None:
        rng, name, network = self._random, self.name, self.cluster.network
        entries = self._append(rng.randrange(5))
        await until(lambda: self._confirmed >= entries, LOOK_S)
        network.weather.refused[name, late] = None
        network.break_between(name, late)
        network.slow(other, name, FAR_S)
        first_run = self._append(rng.choice((1, 1, 4)))
        await until(lambda: self._has(other, first_run), LOOK_S)
        network.block(name, other)
        second_run = self._append(rng.choice((1, 1, 4)))
        await until(lambda: self._confirmed >= first_run, LOOK_S)
        network.weather.refused.pop((name, late), None)
        await until(lambda: self._confirmed >= second_run, LOOK_S)
        self.cluster.count("holes that cross")
        self.cluster.trace.note("fault", f"{late} and {other} each lack what the other one has")

    def _die(self, both: str) -> None:
        """And the bookie that has everything is away from who takes the ledger."""
        cluster, taker = self.cluster, self._recovery.name
        for link in ((taker, both), (both, taker)):
            cluster.network.block(*link)
            unblock = partial(cluster.network.unblock, *link)
            cluster.loop.call_later(AWAY_S, unblock, context=Context())
        cluster.loop.call_soon(self.client.kill, context=Context())

    def _connect(self, late: str, other: str) -> None:
        network = self.cluster.network
        network.weather.refused.pop((self.name, late), None)
        network.slow(other, self.name, 0)
        network.unblock(self.name, other)

    def _append(self, count: int) -> int:
        """Returns how many entries the ledger has with these."""
        if count:
            self.append(count, 100)
        assert self.history is not None
        return len(self.history.payloads)

    @property
    def _confirmed(self) -> int:
        assert self.history is not None
        return self.history.confirmed

    def _has(self, name: str, entries: int) -> bool:
        assert self.history is not None
        bookie = self.cluster.bookie(name).bookie
        ledger_id = self.history.ledger_id
        return bookie is not None and bookie.read_cached(ledger_id, entries - 1) is not None
