"""What a mutant is, and the search for the seed that finds it."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Final
from unittest.mock import patch

from magnetar.metrics import Metrics
from magnetar_sim.brokers.broker_run import has_brokers
from magnetar_sim.brokers.deduplication import deduplicates
from magnetar_sim.cluster.upkeep_workload import has_upkeep
from magnetar_sim.cluster_run import PLAIN, run_cluster
from magnetar_sim.machines.ledger_run import run
from magnetar_sim.machines.partition_run import run_partition

NIGHTLY_SEEDS: Final = 1000
"""Every bug gets as many runs to be found as a night's. What runs cover shifts with every change of
the roles, so that a bound close to what was needed once tells nothing but that."""


MISFITS: Final = re.compile(r"\b(?:Attribute|Type|Name|UnboundLocal)Error\b")
"""What the code is told by that has been changed while a plant has not."""


class BrokenPlantError(Exception):
    """A bug that does not fit the code that it is planted in: what the run ended with is its own
    failure, and says nothing of the invariants."""


@dataclass(frozen=True)
class Mutant:
    """``known``: where the field met the bug, empty for an obvious way to get a rule wrong.
    ``seeds_more``: how many runs may be needed, if more than ``NIGHTLY_SEEDS``.
    ``kind``: of the runs of ring 2, as ``run_cluster`` has them. Of plain ones those that cannot
    have the bug are passed over: ``brokers``: it is a bug of topics, so those without brokers, and
    else those with; ``upkeep``: of collecting and compaction; ``deduplicated``: of topics that
    store nothing twice. ``partition``: of partitions' replicas, in ring 1."""

    name: str
    ring: int
    known: str
    plant: Callable[[], AbstractContextManager[object]]
    seeds_more: int
    kind: str = PLAIN
    brokers: bool = False
    upkeep: bool = False
    deduplicated: bool = False
    partition: bool = False

    @property
    def seeds_max(self) -> int:
        return max(self.seeds_more, NIGHTLY_SEEDS)

    def seeds(self, first: int) -> Iterator[int]:
        """The seeds to try, from ``first`` on."""
        return islice(filter(self._wants, count(first)), self.seeds_max)

    def _wants(self, seed: int) -> bool:
        if self.ring == 1 or self.kind != PLAIN:
            return True
        if self.deduplicated and not deduplicates(seed):
            return False
        return has_brokers(seed) == self.brokers and (not self.upkeep or has_upkeep(seed))


@dataclass(frozen=True)
class Found:
    """After how many seeds the mutant was found (None: not), the last of them, and what broke."""

    mutant: Mutant
    seeds: int | None
    seed: int
    failure: str


def search(mutant: Mutant, first: int = 0) -> Found:
    """Run seeds from ``first`` on until one breaks an invariant that holds without the bug. Raises
    ``BrokenPlantError``."""
    metrics = Metrics()
    seed = first
    for tried, seed in enumerate(mutant.seeds(first), 1):
        with mutant.plant():
            failure = _failure(mutant, seed, metrics)
        if failure is not None and MISFITS.search(failure):
            raise BrokenPlantError(f"seed {seed}: {failure}")
        if failure is not None and _failure(mutant, seed, metrics) is None:
            return Found(mutant, tried, seed, failure)
    return Found(mutant, None, seed, "")


def transcript(mutant: Mutant, seed: int) -> tuple[Sequence[str], str | None]:
    """What happens in the run of one seed with the bug in it, and what breaks."""
    with mutant.plant():
        if mutant.partition:
            told = run_partition(seed, tracing=True)
            return told.trace, told.failure
        if mutant.ring == 1:
            outcome = run(seed, tracing=True)
            return outcome.trace, outcome.failure
        whole = run_cluster(seed, None, tracing=True, kind=mutant.kind)
        return whole.trace, whole.failure


def _failure(mutant: Mutant, seed: int, metrics: Metrics) -> str | None:
    if mutant.partition:
        return run_partition(seed).failure
    if mutant.ring == 1:
        return run(seed).failure
    failure = run_cluster(seed, metrics, kind=mutant.kind).failure
    gc.collect()
    return failure


@contextmanager
def replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """(owner, attribute, replacement) for each; all come back at the end."""
    patches = [patch.object(owner, name, new) for owner, name, new in changes]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in reversed(patches):
            each.stop()
