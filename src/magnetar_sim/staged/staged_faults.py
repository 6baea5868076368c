"""What goes wrong with owners that are behind with what queries have committed, by the seed.

Brokers get far from the bookies, so that they take in slowly and batches wait for them. One of two
that own topics of the same query gets nothing from there for a while, nor does it hear that what it
sends arrives. When enough waits for both it loses its metadata session, and the other one, in the
middle of the same batches, may take its topics.

Every fault ends by itself or when the run heals.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from magnetar_sim.brokers.brokers import BrokerMachine
from magnetar_sim.cluster.cluster import Cluster
from magnetar_sim.staged.staged_world import StagedWorld
from magnetar_sim.world.planned_faults import PlannedFaults

LASTS_S = (2.0, 4.0, 8.0)
BEHIND = 2
"""Batches of one query that wait for a topic whose owner is behind, or more."""


class StagedFaults(PlannedFaults):
    """Of one run. ``owner_of``: the name of the broker that owns a topic, None if nobody does."""

    def __init__(
        self,
        cluster: Cluster,
        rng: random.Random,
        brokers: Sequence[BrokerMachine],
        world: StagedWorld,
        owner_of: Callable[[str], str | None],
    ) -> None:
        super().__init__(cluster.loop, cluster.trace, rng, LASTS_S)
        self._cluster = cluster
        self._brokers = brokers
        self._world = world
        self._owner_of = owner_of
        self._left = 0
        self._cut_off: str | None = None

    def plan(self, begin_s: float) -> None:
        rng = self._random
        self._left = rng.choice((2, 4))
        delay_s = rng.choice((0.05, 0.1, 0.2))
        self._at(rng.uniform(begin_s, begin_s + 2.0), partial(self._go_far, delay_s))

    def _go_far(self, delay_s: float) -> None:
        def set_delay(seconds: float) -> None:
            for broker in self._brokers:
                for bookie in self._cluster.bookies:
                    self._cluster.network.slow(broker.name, bookie.name, seconds)
                    self._cluster.network.slow(bookie.name, broker.name, seconds)

        set_delay(delay_s)
        lasts_s = self._after(lambda: set_delay(0))
        self._note(f"brokers and bookies are up to {delay_s} s apart for {lasts_s:.1f} s")

    def record_written(self) -> None:
        """A query's record was written: a batch is committed, or a topic has its share."""
        if self.over or not self._left:
            return
        rng, now_s = self._random, self._cluster.loop.time()
        if self._cut_off is None:
            owners = self._owners(1)
            if owners:
                self._cut_off = rng.choice(owners)
                self._at(now_s, partial(self._block, self._cut_off))
        elif self._cut_off in self._owners(BEHIND) and rng.random() < 0.4:
            self._left -= 1
            self._at(now_s + rng.choice((0.0, 0.01, 0.05, 0.2)), partial(self._end, self._cut_off))
            self._cut_off = None

    def _owners(self, behind: int) -> list[str]:
        """Of topics for which so many batches of one query wait, where not all have the same."""
        found: dict[str, None] = {}
        for topics in self._world.behind(behind):
            owners = {name: None for topic in topics if (name := self._owner_of(topic)) is not None}
            if len(owners) > 1:
                found |= owners
        return [*found]

    def _block(self, name: str) -> None:
        network = self._cluster.network
        links = [(bookie.name, name) for bookie in self._cluster.bookies]
        for link in links:
            network.block(*link)

        def unblock() -> None:
            for link in links:
                network.unblock(*link)
            if self._cut_off == name:
                self._cut_off = None

        lasts_s = self._after(unblock)
        self._note(f"{name} gets no answer of a bookie for {lasts_s:.1f} s")

    def _end(self, name: str) -> None:
        self._cluster.count("owners that lost their session while they were behind")
        self._note(f"{name}, for which batches wait, loses its metadata session")
        self._cluster.metadata.expire(name)
