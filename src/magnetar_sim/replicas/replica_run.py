"""One run of ring 2 with brokers that replicate partitions among themselves: producers that wait
for all in-sync replicas, consumers, faults; then healing, progress and the last look.

What must hold: ``replica_history``. In some runs a broker lives on with a disk that takes no writes
any more: whatever it led must be led by others then. In some, syncs fail for a while, and the power
is cut when that is forgotten. In some, syncs are not waited for, and one broker loses what it has
not synced: it must not be believed then. In some, owners delete records.

Phases, in seconds of virtual time: faults and work until ``HEAL_S``, then every fault ends, and
within ``PROGRESS_S`` all that must hold is there.

Why: docs/adr/0114-brokers-replicate-partitions.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.hosting import HostedReplica
from magnetar.log.partition.limits import PartitionPolicy, SegmentLimits, SyncPolicy
from magnetar.log.partition.replication.fetcher import FetchLimits
from magnetar.log.partition.replication.node import ReplicationNode, ReplicationSettings
from magnetar.log.partition.replication.partition_state import PartitionState
from magnetar.metrics import Metrics
from magnetar_sim.replicas.replica_faults import ReplicaFaults
from magnetar_sim.replicas.replica_history import ReplicaHistory, StoredBatch, making
from magnetar_sim.replicas.replica_machines import ReplicaMachine, ReplicaWorld, whole
from magnetar_sim.world.checked_run import CheckedRun
from magnetar_sim.world.loop import SimLoop, run_in
from magnetar_sim.world.metadata import SimMetadataServer
from magnetar_sim.world.network import SimNetwork
from magnetar_sim.world.trace import Trace

SIZES: Final = ((1, 1, 1), (2, 2, 1), (3, 3, 2), (3, 3, 2), (3, 3, 2), (3, 3, 1), (3, 2, 2),
                (3, 3, 3), (4, 3, 2))  # fmt: skip
"""Brokers, replicas, ``min_isr``."""
OTHERS_SUFFICE: Final = ((3, 3, 2), (3, 3, 2), (4, 3, 2))
"""Sizes that can do without one broker: enough are left to commit, and they have what it has."""
READ_ONLY_SHARE: Final = 0.15
FAILED_SYNCS_SHARE: Final = 0.1
INTERVAL_SHARE: Final = 0.1
DELETING_SHARE: Final = 0.3
FEW_COUNT: Final = ((1, 1, 1), (1, 1, 1), (2, 2, 1), (3, 3, 2))
"""Sizes where one broker's disk decides what is there."""
TOPIC: Final = "t"
FAULTS_FROM_S: Final = 1.0
HEAL_S: Final = 8.0
PROGRESS_S: Final = 90.0
ANSWER_S: Final = 3.0


class ReplicaRun(CheckedRun):
    """The run of ``seed``."""

    def __init__(self, seed: int, loop: SimLoop, trace: Trace, metrics: Metrics) -> None:
        super().__init__(loop, trace)
        self.random = rng = random.Random(f"{seed}/replicas")
        brokers, self._replicas, self._min_isr = rng.choice(SIZES)
        self._disk_ends = random.Random(f"{seed}/read-only")
        drawn = self._disk_ends.random()
        self._has_read_only = drawn < READ_ONLY_SHARE
        self._has_failed_syncs = 0 <= drawn - READ_ONLY_SHARE < FAILED_SYNCS_SHARE
        drawn -= READ_ONLY_SHARE + FAILED_SYNCS_SHARE
        self._by_interval = 0 <= drawn < INTERVAL_SHARE
        if self._has_read_only or self._has_failed_syncs or self._by_interval:
            sizes = FEW_COUNT if self._has_failed_syncs else OTHERS_SUFFICE
            brokers, self._replicas, self._min_isr = self._disk_ends.choice(sizes)
        self.history = ReplicaHistory()
        session_s = rng.choice((1.0, 2.0))
        network = SimNetwork(loop, random.Random(f"{seed}/network"))
        loop.network = network
        self.world = ReplicaWorld(
            loop,
            trace,
            network,
            SimMetadataServer(loop, random.Random(f"{seed}/metadata"), session_s),
            self.history,
            PartitionPolicy(
                sync=SyncPolicy.INTERVAL if self._by_interval else SyncPolicy.EACH_BATCH,
                sync_interval_ms=self._disk_ends.choice((200, 1000)) if self._by_interval else 1000,
                segments=SegmentLimits(segment_bytes_max=rng.choice((300, 2000, 1 << 20))),
            ),
            ReplicationSettings(
                preferred_leader_interval_ms=rng.choice((0, 1500)),
                fetch=FetchLimits(
                    wait_ms=rng.choice((50, 500)),
                    partition_bytes_max=rng.choice((1, 300, 1 << 20)),
                ),
            ),
            session_s,
            lag_ms_max=rng.choice((600, 1500)),
            grace_ms=random.Random(f"{seed}/grace").choice((300, 2000)),
        )
        self.machines = [
            ReplicaMachine(self.world, number, random.Random(f"{seed}/r{number}"))
            for number in range(1, brokers + 1)
        ]
        self.partitions: list[Partition] = [(TOPIC, n) for n in range(rng.choice((1, 1, 2, 4)))]
        self._values = 0
        self._pause_s = rng.choice((0.03, 0.1, 0.3))
        self._over = False
        self._faults: ReplicaFaults | None = None
        self._emptying = random.Random(f"{seed}/emptied")
        self._remaking = random.Random(f"{seed}/remade")
        self._deleting = random.Random(f"{seed}/deleted")

    @property
    def confirmed(self) -> int:
        """Values that producers were told are stored."""
        return len(self.history.acknowledged)

    @property
    def ledgers(self) -> int:
        """Epochs that somebody led."""
        return self.history.elections

    def note_error(self, who: str, what: str) -> None:
        """A replica is given up for its disk, and for files that are another cluster's."""
        if self._faults is None or not (self._faults.disks_broken or self._faults.emptied):
            self.note_bug(f"{who} logs an error, and nothing is wrong: {what}")

    async def main(self) -> None:
        self.trace.note(
            "run",
            f"brokers={len(self.machines)} replicas={self._replicas} min_isr={self._min_isr} "
            f"partitions={len(self.partitions)}",
        )
        for machine in self.machines:
            machine.start()
        await self._make_topic()
        actors = [
            self.loop.create_task(self._produce(partition, name), name=f"{name} {partition}")
            for partition in self.partitions
            for name in ("p1", "p2")
        ]
        actors += [self.loop.create_task(self._consume(each)) for each in self.partitions]
        begin_s = self.loop.time()
        rng = self.random
        faults = ReplicaFaults(self.world, rng, self.machines, self._leading)
        self._faults = faults
        self._plan(faults, begin_s + FAULTS_FROM_S, begin_s + HEAL_S - 1)
        if self._has_read_only:
            when_s = self._disk_ends.uniform(FAULTS_FROM_S, HEAL_S - 1)
            faults.plan_read_only(begin_s + when_s)
        if self._has_failed_syncs:
            faults.plan_failed_syncs(self._disk_ends, begin_s + FAULTS_FROM_S)
        remaking = self.loop.create_task(self._remake(), name="makes topics again")
        deleting = self.loop.create_task(self._delete_records(), name="deletes records")
        while self.loop.time() < begin_s + HEAL_S:
            await asyncio.sleep(0.5)
            self.check()
        faults.over = True
        self.trace.note("run", "all faults heal")
        self.world.network.heal()
        faults.restore()
        self.world.metadata.heal()
        for machine in self.machines:
            machine.heal()
        async with self.progress(PROGRESS_S):
            await remaking
            await deleting
            await self._make_topic()  # one that a restored store has no state of
            await self._last_look(actors)
        self.check()

    def _plan(self, faults: ReplicaFaults, begin_s: float, end_s: float) -> None:
        count = self.random.choice((1, 3, 8, 15))
        if self._by_interval:
            faults.plan_harmless(count, begin_s, end_s)
            faults.plan_lost_writes(self._disk_ends, begin_s, end_s)
        else:
            faults.plan(count, begin_s, end_s)
            faults.plan_emptying(self._emptying, begin_s, end_s)

    async def _make_topic(self) -> None:
        numbers = [number for _, number in self.partitions]

        async def make(node: ReplicationNode) -> bool:
            if len(await node.brokers.look()) < len(self.machines):
                return False
            await node.create(TOPIC, numbers, self._replicas, self._min_isr)
            return True

        at = 0
        while not await self._asked_once(self.machines[at % len(self.machines)], make):
            at += 1
            await asyncio.sleep(0.1)

    async def _remake(self) -> None:
        """Now and then, in some runs, a partition is deleted and made again."""
        rng = self._remaking
        if rng.random() < 0.6:
            return
        while self.loop.time() < HEAL_S:
            await asyncio.sleep(rng.uniform(0.5, 4.0))
            partition = rng.choice(self.partitions)
            machine = rng.choice(self.machines)
            if await self._asked_once(machine, partial(machine.delete, partition)):
                self.trace.note("run", f"{partition} is deleted by {machine.name}")
                await asyncio.sleep(rng.choice((0.0, 0.0, 0.2, 1.5)))
                await self._make_topic()

    async def _delete_records(self) -> None:
        """Now and then, in some runs, by whoever leads."""
        rng = self._deleting
        if rng.random() >= DELETING_SHARE:
            return
        while self.loop.time() < HEAL_S:
            await asyncio.sleep(rng.uniform(0.2, 2.0))
            partition = rng.choice(self.partitions)
            share, told = rng.choice((0.3, 1.0)), rng.random() < 0.7
            for machine in self.machines:
                if self._leads(machine, partition):
                    delete = partial(machine.delete_records, partition, share, told)
                    await self._asked_once(machine, delete)

    async def _asked_once(
        self, machine: ReplicaMachine, question: Callable[[ReplicationNode], Awaitable[bool]]
    ) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await machine.ask(question) or False
        except TimeoutError:
            return False

    # -- clients ------------------------------------------------------------------------------

    def _leading(self) -> ReplicaMachine | None:
        """Of the first partition."""
        found = [machine for machine in self.machines if self._leads(machine, self.partitions[0])]
        return found[0] if found else None

    def _leads(self, machine: ReplicaMachine, partition: Partition) -> bool:
        node = machine.node
        hosted = None if node is None else node.replicas.find(partition)
        return hosted is not None and hosted.machine.leader is not None

    def _asked(self, partition: Partition) -> ReplicaMachine:
        """Old leaders are asked too, by clients that have not heard of new ones."""
        leading = [each for each in self.machines if self._leads(each, partition)]
        return self.random.choice(leading or self.machines)

    async def _produce(self, partition: Partition, name: str) -> None:
        while not self._over:
            await asyncio.sleep(self._pause_s * self.random.uniform(0.5, 1.5))
            await self._produce_one(partition, name)

    async def _produce_one(self, partition: Partition, name: str) -> StoredBatch | None:
        self._values += 1
        machine = self._asked(partition)
        produce = partial(machine.produce, partition, self._values)
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await machine.ask(produce)
        except TimeoutError:
            return None
        if found is None:
            return None
        self.history.acknowledge(found[0], name, found[1])
        return found[1]

    async def _consume(self, partition: Partition) -> None:
        offset = 0
        while not self._over:
            await asyncio.sleep(self._pause_s * self.random.uniform(1, 3))
            if self.random.random() < 0.05:
                offset = 0
            machine = self._asked(partition)
            try:
                async with asyncio.timeout(ANSWER_S):
                    found = await machine.ask(partial(machine.consume, partition, offset))
            except TimeoutError:
                continue
            made, batches = found or (partition, [])
            for batch in batches:
                self.history.show(made, batch, machine.name)
                offset = batch.offset + 1

    # -- the end ------------------------------------------------------------------------------

    async def _last_look(self, actors: list[asyncio.Task[None]]) -> None:
        for partition in self.partitions:
            while await self._produce_one(partition, "last") is None:
                self.check()
                await asyncio.sleep(0.2)
        self._over = True
        for actor in actors:
            await actor
        while not all(map(self._is_whole, self.partitions)):
            self.check()
            await asyncio.sleep(0.5)
        while any(
            machine.host is not None and len(machine.host.doomed)
            for machine in self.machines
            if not machine.read_only
        ):
            self.check()
            await asyncio.sleep(0.5)
        for partition in self.partitions:
            state = self._state(partition)
            assert state is not None
            made = making(partition, state.topic_id)
            self.history.ended(made, await self._logs(partition))

    def _state(self, partition: Partition) -> PartitionState | None:
        for machine in self.machines:
            if machine.node is not None:
                found = machine.node.image.states.get(partition)
                return None if found is None else found.state
        return None

    def _is_whole(self, partition: Partition) -> bool:
        """All replicas that can be are in sync, and have the same end."""
        state = self._state(partition)
        if state is None:
            return False
        in_sync = {member.broker for member in state.isr}
        ends = set()
        for machine in self._replicas_of(state):
            hosted = machine.node.replicas.find(partition) if machine.node else None
            if hosted is None or machine.number not in in_sync:
                return False
            ends.add(hosted.source.log_end)
        return len(ends) == 1

    def _replicas_of(self, state: PartitionState) -> list[ReplicaMachine]:
        """Those with disks that take writes."""
        return [
            machine
            for machine in self.machines
            if machine.number in state.replicas and not machine.read_only
        ]

    async def _logs(self, partition: Partition) -> dict[int, list[StoredBatch]]:
        state = self._state(partition)
        assert state is not None
        found = {}
        for machine in self._replicas_of(state):
            assert machine.node is not None
            assert machine.process is not None
            hosted = machine.node.replicas.find(partition)
            assert hosted is not None
            log = await run_in(machine.process, _all_of(hosted), "last look")
            assert log is not None
            found[machine.number] = log
        return found


async def _all_of(hosted: HostedReplica) -> list[StoredBatch]:
    return await hosted.run(partial(whole, hosted.source))
