"""Bookies killed, paused, resumed and started at random under writers that close, crash, or give
up; afterwards every acknowledged entry is read, and counted on the bookies named for it.

A failure prints the seed; ``STORM_SEED`` in the environment repeats it (as far as real processes
can), ``STORM_ROUNDS`` sets how many rounds it takes.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable

import pytest

from magnetar.ledger.bookies import BookiePool
from magnetar.model.errors import BookieUnavailableError, MagnetarError
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata
from tests.scenarios.cluster import BookieMachine, Cluster
from tests.scenarios.counts import Counts
from tests.scenarios.ledgers import RETURN_S, Load, client, lost, opened
from tests.scenarios.replicas import copies

pytestmark = pytest.mark.zookeeper

BOOKIES = 5
FAULT_INTERVAL_S = 0.25
REST_S = 0.005
SHAPES = ((3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 3, 2), (3, 2, 1))
ROUNDS = int(os.environ.get("STORM_ROUNDS", "12"))
SEED = int(os.environ.get("STORM_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)


class Machine:
    """A bookie under random faults."""

    def __init__(self, bookie: BookieMachine, rng: random.Random) -> None:
        self._bookie = bookie
        self._rng = rng
        self._paused = False

    async def fault(self) -> None:
        if not self._bookie.role.running:
            await asyncio.to_thread(self._bookie.start)
        elif self._paused:
            self._resume()
        elif self._rng.random() < 0.5:
            self._bookie.role.pause()
            self._paused = True
        else:
            await asyncio.to_thread(self._bookie.kill)

    def _resume(self) -> None:
        self._bookie.role.resume()
        self._paused = False

    async def heal(self) -> None:
        if self._paused:
            self._resume()
        if not self._bookie.role.running:
            await asyncio.to_thread(self._bookie.start)


async def write_in_the_storm(
    url: str, shape: tuple[int, int, int], machines: list[Machine], faults: int, rng: random.Random
) -> dict[int, int]:
    """Ledger id -> entries acknowledged, of two writers."""
    async with client(url, shape, add_timeout_ms=2000) as owner:
        loads = [Load(await owner.ledgers.create(), rest_s=REST_S) for _ in range(2)]
        for _ in range(faults):
            await asyncio.sleep(rng.uniform(0, 2 * FAULT_INTERVAL_S))
            await rng.choice(machines).fault()
        for load in loads:
            if rng.random() < 0.5:
                await load.writer.abandon()
            await load.stop()
            if rng.random() < 0.5 and not isinstance(load.error, MagnetarError):
                await load.writer.close()
            await load.writer.abandon()
    return {load.writer.ledger_id: load.confirmed for load in loads}


async def judge(url: str, shape: tuple[int, int, int], acknowledged: dict[int, int]) -> None:
    async with client(url, shape) as other:
        for ledger_id, count in acknowledged.items():
            reader = await opened(other, ledger_id)
            cut_off = max(0, count - 1 - reader.last_add_confirmed)
            assert cut_off == 0
            await until_back(other.pool, reader.metadata)
            assert await lost(reader) == {}
            held = await copies(other.pool, reader.metadata, reader.last_add_confirmed + 1)
            assert min(held, default=shape[2]) >= shape[2]


async def until_back(pool: BookiePool, ledger: LedgerMetadata) -> None:
    """Until the ledger's bookies can be reached: one that was paused past its session registers
    anew once it notices. Whoever does not come back is told of by what follows."""
    named = {bookie_id for each in ledger.fragments for bookie_id in each.bookies}
    deadline_s = time.monotonic() + RETURN_S
    while time.monotonic() < deadline_s:
        found = await asyncio.gather(
            *(reachable(pool, bookie_id, ledger.ledger_id) for bookie_id in named)
        )
        if all(found):
            return
        await asyncio.sleep(0.5)


async def reachable(pool: BookiePool, bookie_id: BookieId, ledger_id: int) -> bool:
    """Whether the bookie answers, whatever it says."""
    try:
        await pool.client(bookie_id).read_lac(ledger_id)
    except BookieUnavailableError:
        return False
    except MagnetarError:
        pass  # an answer
    return True


def storm(cluster: Cluster, rounds: int, faults: int, counts: Counts) -> None:
    rng = random.Random(SEED)
    print(f"STORM_SEED={SEED}")
    machines = [Machine(bookie, rng) for bookie in cluster.bookies]

    async def rounds_of_faults() -> None:
        every: dict[int, int] = {}
        for number in range(rounds):
            shape = rng.choice(SHAPES)
            acknowledged = await write_in_the_storm(
                cluster.metadata_url, shape, machines, faults, rng
            )
            for machine in machines:
                await machine.heal()
            print(f"round {number}: E/Qw/Qa {shape}, acknowledged {acknowledged}")
            await judge(cluster.metadata_url, shape, acknowledged)
            every |= acknowledged
        counts(f"{rounds} rounds, {sum(every.values())} entries acknowledged: lost 0")

    asyncio.run(rounds_of_faults())


@pytest.mark.slow
@pytest.mark.timeout(120 + 40 * ROUNDS)
def test_a_storm(start_cluster: Callable[[int], Cluster], counts: Counts) -> None:
    storm(start_cluster(BOOKIES), ROUNDS, faults=8, counts=counts)
