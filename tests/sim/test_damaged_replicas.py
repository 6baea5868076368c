"""Ring 2 with brokers that replicate partitions: a leader is killed, a bit of what it wrote last
has changed, and it is back before its session has ended."""

from __future__ import annotations

import random
from functools import partial

import pytest

from magnetar.log.partition.batch_header import HEADER_BYTES, read_header
from magnetar.metrics import Metrics
from magnetar_sim import cluster_run
from magnetar_sim.cluster_run import run_cluster
from magnetar_sim.replicas import replica_run
from magnetar_sim.replicas.replica_faults import ReplicaFaults
from magnetar_sim.replicas.replica_machines import DATA, ReplicaMachine
from magnetar_sim.replicas.replica_run import ReplicaRun
from magnetar_sim.world.loop import SimLoop
from magnetar_sim.world.trace import Trace

DOWN_S = 0.2
SEEDS = (0, 1, 3, 7)
"""That damage what is above the recovery point."""


class DamagedRun(ReplicaRun):
    """No other faults."""

    def __init__(self, seed: int, loop: SimLoop, trace: Trace, metrics: Metrics) -> None:
        super().__init__(seed, loop, trace, metrics)
        self._has_read_only = self._has_failed_syncs = self._by_interval = False
        self._draw = random.Random(f"{seed}/damage")

    def _plan(self, faults: ReplicaFaults, begin_s: float, end_s: float) -> None:
        when_s = self._draw.uniform(begin_s, begin_s + 2) - self.loop.time()
        self.loop.call_later(when_s, partial(self._damage, end_s))

    def _damage(self, end_s: float) -> None:
        machine = self._leading()
        if machine is None or not _damaged_and_killed(machine, self.partitions[0]):
            assert self.loop.time() < end_s
            self.loop.call_later(0.1, partial(self._damage, end_s))
            return
        self.trace.note("run", "a batch is damaged")


def _damaged_and_killed(machine: ReplicaMachine, partition: tuple[str, int]) -> bool:
    """One bit of the last batch but one: behind the recovery point."""
    folder = DATA / f"{partition[0]}-{partition[1]}"
    directory = machine.disk._directories[folder]
    inode = directory.names[max(name for name in directory.names if name.endswith(".log"))]
    places, at = [], 0
    while at + HEADER_BYTES <= len(inode.data):
        places.append(at)
        at += read_header(inode.data, at).byte_count
    if len(places) < 3:
        return False
    at = places[-2] + HEADER_BYTES
    machine.crash(DOWN_S, power=False)
    for data in (inode.data, inode.durable):
        if at < len(data):
            data[at] ^= 1
    return True


def test_what_all_had_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cluster_run.KINDS, "replicated", DamagedRun)  # type: ignore[arg-type]
    for sizes in ("SIZES", "FEW_COUNT", "OTHERS_SUFFICE"):
        monkeypatch.setattr(replica_run, sizes, ((3, 3, 2),))
    for seed in SEEDS:
        outcome = run_cluster(seed, tracing=True, kind="replicated")
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        assert any("a batch is damaged" in line for line in outcome.trace)
        assert any("end of a partition's log is cut" in line for line in outcome.trace)
