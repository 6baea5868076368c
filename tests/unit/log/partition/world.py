"""Partitions behind the seam: one process's replicas in a directory, and stores over them."""

from __future__ import annotations

import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from magnetar.env.files.disk import Disk, RealDisk
from magnetar.env.files.disk_space import SpaceRules
from magnetar.env.metadata import MetadataStore
from magnetar.env.tasks import TaskScope, fails
from magnetar.log.engines.partition_store import PartitionLogStore
from magnetar.log.engines.store import LogStores
from magnetar.log.managed.store import ManagedLogStore
from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.doom import StoreAnswer
from magnetar.log.partition.hosting import PartitionHost
from magnetar.log.partition.leading import PartitionLeading
from magnetar.log.partition.limits import PartitionPolicy, SegmentLimits
from magnetar.log.partition.replication.state_store import StateStore
from magnetar.log.partition.replication.state_witness import StateWitness
from magnetar.log.policy import LogPolicy
from magnetar.log.seam import LogStore
from magnetar.model.errors import MetadataUnavailableError
from tests.unit.log.doubles import Process

CLUSTER = "cluster-1"
NOW_MS = 1_700_000_000_000
SMALL = PartitionPolicy(segments=SegmentLimits(segment_bytes_max=600, index_interval_bytes=100))


class WorldWitness:
    """Of the store that was used last. ``cluster``: what that says that it is."""

    def __init__(self) -> None:
        self.cluster = CLUSTER
        self.metadata: MetadataStore | None = None

    def _asked(self) -> StateWitness:
        if self.metadata is None:
            raise MetadataUnavailableError("no store is in use")
        return StateWitness(self.metadata, self._cluster_id)

    async def _cluster_id(self) -> str:
        return self.cluster

    async def ask(self, partition: Partition, held_id: str = "") -> StoreAnswer:
        return await self._asked().ask(partition, held_id)

    async def listed(self) -> frozenset[Partition]:
        return await self._asked().listed()


class PolicyStores(LogStores):
    """With a policy of its own for logs that are opened without one."""

    def __init__(
        self, ledgers: ManagedLogStore, partitions: PartitionLogStore, policy: LogPolicy
    ) -> None:
        super().__init__(ledgers, partitions)
        self._policy = policy

    @property
    def policy(self) -> LogPolicy:
        return self._policy


class PartitionWorld:
    """What a process has while ``running``. Its directory is kept from one run to the next, as by
    a process that was killed, unless it is closed in order."""

    def __init__(self, policy: PartitionPolicy = SMALL) -> None:
        self.host: PartitionHost | None = None
        self.now_ms = NOW_MS
        self.grace_ms = 0
        self.witness = WorldWitness()
        self.defects: list[BaseException] = []
        self._policy = policy
        self._directory = tempfile.TemporaryDirectory(prefix="partitions-")
        self._rng = random.Random(5)

    @property
    def path(self) -> Path:
        return Path(self._directory.name) / "partitions"

    @asynccontextmanager
    async def running(
        self, closing: bool = True, disk: Disk | None = None, space: SpaceRules | None = None
    ) -> AsyncIterator[None]:
        """``closing``: it ends in order."""
        scope = TaskScope("partitions", fails(lambda _task, error: self.defects.append(error)))
        self.host = await PartitionHost.open(
            disk or RealDisk(),
            self.path,
            self._policy,
            scope,
            now_ms=lambda: self.now_ms,
            draw=lambda: self._rng.getrandbits(63),
            cluster=CLUSTER,
            witness=self.witness,
            grace_ms=self.grace_ms,
            space=space,
        )
        try:
            yield
            if closing:
                await self.host.close()
        finally:
            await scope.close()
        assert not self.defects

    def store(
        self, process: Process, ledgers: ManagedLogStore, policy: LogPolicy, span: int
    ) -> LogStore:
        """A store as another owner has it, with ``span`` offsets a ledger id."""
        assert self.host is not None, "it runs"
        self.witness.metadata = process.metadata
        leading = PartitionLeading(self.host, StateStore(process.metadata))
        partitions = PartitionLogStore(
            process.metadata,
            ledgers,
            leading,
            RealDisk(),
            tail_bytes_max=1 << 20,
            now_ms=lambda: self.now_ms,
            span=span,
        )
        return PolicyStores(ledgers, partitions, policy)
