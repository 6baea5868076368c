"""An operator beside a run with auto-recovery: has bookies emptied, and thinks better of it.

Whoever is told to leave is marked in all of its ledgers within milliseconds, and who stays again is
sound at once. That makes what races with a mark, or with who is about to be named, happen often:

* *A look that is out of date.* As a bookie says what it holds, an auto-recovery is paused, and a
  bookie is told to leave or to stay. What was found to be whole may not be so any more, and who
  was to get copies may be none the better for them.
* *Copies that go.* As a bookie is about to delete what is nobody's, its answers of the metadata
  store take long, and another bookie is told to leave: the first may be chosen just then.

In the end everybody stays.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from magnetar.model.errors import MetadataError
from magnetar.model.ids import BookieId
from magnetar.repair.switches import Switches
from magnetar_sim.cluster.cluster import Cluster
from magnetar_sim.world.loop import SimProcess, call_from_outside, run_in, until

RETRY_S = 0.2
LISTED_CHANCE = 0.1
GIVEN_UP_CHANCE = 0.7
SLOW_S = 1.0


class Operator:
    """Works until ``end``. ``machines``: the processes that may be paused."""

    def __init__(
        self,
        cluster: Cluster,
        rng: random.Random,
        machines: Callable[[], Sequence[SimProcess]],
        crossings: int,
    ) -> None:
        self._cluster = cluster
        self._random = rng
        self._machines = machines
        self._crossings = crossings
        self._client = cluster.client("operator")
        self._switches = Switches(self._client.store)
        self._over = False
        self._task = self._client.process.spawn(self._work(), "operator")

    async def end(self) -> None:
        """Everybody stays."""
        self._over = True
        await until(self._task.done, 0.05)
        for name in await self._said(self._switches.leaving()):
            await self.stay(name)

    async def leave(self, name: str) -> None:
        self._cluster.trace.note("operator", f"{name} is to be emptied")
        self._cluster.count("bookies told to leave")
        await self._said(self._switches.leave(BookieId(name)))

    async def stay(self, name: str) -> None:
        self._cluster.trace.note("operator", f"{name} is to stay")
        await self._said(self._switches.stay(BookieId(name)))

    async def _said(self, saying: Coroutine[Any, Any, Any]) -> Any:
        return await run_in(self._client.process, saying, "operator's word")

    async def _work(self) -> None:
        rng = self._random
        while not self._over:
            await asyncio.sleep(rng.choice((0.2, 1.0, 2.0)) * rng.random())
            if not self._over:
                await self._flip(rng.choice(self._cluster.bookies).name)

    async def _flip(self, name: str) -> None:
        """To whoever leaves it is said to stay: few leave at a time."""
        switches = self._switches
        try:
            leaving = await switches.leaving()
            for each in leaving:
                self._cluster.trace.note("operator", f"{each} is to stay")
                await switches.stay(each)
            if name not in leaving:
                self._cluster.trace.note("operator", f"{name} is to be emptied")
                self._cluster.count("bookies told to leave")
                await switches.leave(BookieId(name))
        except MetadataError:
            await asyncio.sleep(RETRY_S)

    # -- crossings ----------------------------------------------------------------------------

    def listed(self, _ledger_id: int) -> None:
        """A bookie says what it holds of a ledger."""
        rng = self._random
        if self._crosses(LISTED_CHANCE) and self._machines():
            process = rng.choice(self._machines())
            self._cluster.count("looks that are out of date")
            self._at(rng.choice((0.0, 0.002, 0.01)) * rng.random(), self._pause, process)
            self._flip_soon(rng.choice(self._cluster.bookies).name)

    def gives_up(self, name: str, named: Sequence[str]) -> None:
        """``name`` has made sure that nobody counts on its copies of a ledger, of ``named``."""
        if self._crosses(GIVEN_UP_CHANCE):
            self._cluster.count("bookies chosen while they give up")
            self._cluster.metadata.slow[name] = SLOW_S * self._random.random()
            self._at(SLOW_S, lambda: self._cluster.metadata.slow.pop(name, None))
            self._flip_soon(self._random.choice(named))

    def _crosses(self, chance: float) -> bool:
        if self._over or not self._crossings or self._random.random() >= chance:
            return False
        self._crossings -= 1
        return True

    def _flip_soon(self, name: str) -> None:
        self._at(0.0, lambda: self._client.process.spawn(self._flip(name), "operator's word"))
        if self._random.random() < 0.5:  # and at once thinks better of it
            again_s = 0.1 * self._random.random()
            self._at(again_s, lambda: self._client.process.spawn(self._flip(name), "word"))

    def _pause(self, process: SimProcess) -> None:
        if process.alive:
            process.pause()
            lasts_s = self._random.uniform(0.2, 1.8)
            self._cluster.trace.note("fault", f"{process.name} is paused for {lasts_s:.1f} s")
            self._at(lasts_s, process.resume)

    def _at(self, in_s: float, act: Callable[..., object], *arguments: object) -> None:
        def happen() -> None:
            act(*arguments)

        loop = self._cluster.loop
        call_from_outside(loop, loop.time() + in_s, happen, lambda: False)
