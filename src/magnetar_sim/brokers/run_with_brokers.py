"""What runs of ring 2 with brokers share, whatever protocol their clients speak."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from magnetar.config import PartitionConfig
from magnetar_sim.brokers.broker_faults import ClientHost
from magnetar_sim.brokers.brokers import BrokerMachine
from magnetar_sim.cluster.cluster import Cluster
from magnetar_sim.world.checked_run import CheckedRun
from magnetar_sim.world.scheduler import SimulationError

DIRECTORY: Final = Path("/partitions")
SIZES: Final = ((1, 1, 1), (2, 2, 1), (3, 3, 2), (3, 3, 2), (3, 3, 1), (3, 2, 1))
"""Brokers, replicas, ``min_isr``, where topics are on partitions."""
SEGMENT_BYTES: Final = (1 << 14, 1 << 30)


class RunWithBrokers(CheckedRun):
    """Of ``brokers`` over the bookies of ``cluster``."""

    cluster: Cluster
    brokers: list[BrokerMachine]

    def note_error(self, who: str, what: str) -> None:
        for machine in self.cluster.bookies:
            if machine.name == who:
                machine.told_error(what)

    def check(self) -> None:
        super().check()
        if self.cluster.problem is not None:
            raise SimulationError(self.cluster.problem)

    def _heal(self, hosts: Sequence[ClientHost]) -> None:
        self.trace.note("run", "all faults heal")
        self.cluster.heal()
        for broker in self.brokers:
            broker.heal()
        for host in hosts:
            host.process.resume()
            for link in host.links:
                if link.transport is not None:
                    link.transport.resume_reading()


def plan_partitions(rng: random.Random, replicas: int, min_isr: int) -> PartitionConfig:
    """Short lags and small caches, so that replicas leave and come back, and logs are read from
    files."""
    return PartitionConfig(
        directory=DIRECTORY,
        replication_factor=replicas,
        min_insync_replicas=min_isr,
        replica_lag_ms_max=rng.choice((600, 1500)),
        deletion_grace_ms=rng.choice((300, 2000)),
        segment_bytes_max=rng.choice(SEGMENT_BYTES),
        tail_cache_bytes=rng.choice((1024, 1 << 20)),
        preferred_leader_interval_ms=rng.choice((0, 1500)),
    )
