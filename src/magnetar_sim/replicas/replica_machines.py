"""Machines with brokers that replicate partitions: the product's log directory, controller, fetch
loops and their connections, on the simulated world (ring 2).

What stands above the engine in a whole broker (protocols of clients, topics) is left out: values
are given to whoever leads, and read from it, by ``ask``. A process ends with its metadata session,
as a broker does, and is started again by a supervisor.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from magnetar.app.partition_brokers import ReportedBrokers
from magnetar.cluster.brokers.brokers import Brokers, Registration
from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.env.network.connections import Connections
from magnetar.env.network.framed import FramedConnection
from magnetar.env.session_guard import SessionGuard
from magnetar.env.tasks import TaskScope, fails
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.log.partition.batch_header import HEADER_BYTES, read_header
from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.group_append import Outcome
from magnetar.log.partition.hosting import HostedReplica, PartitionHost
from magnetar.log.partition.limits import PartitionPolicy
from magnetar.log.partition.local_log import LocalLog
from magnetar.log.partition.replication.leader import AppendOutcome, PartitionLeader
from magnetar.log.partition.replication.node import ReplicationNode, ReplicationSettings
from magnetar.log.partition.replication.state_witness import StateWitness
from magnetar.model.errors import MagnetarError, NotLeaderError
from magnetar.protocols.kafka.lines import BrokerWay, LeaderLine, connect_line
from magnetar.wire.kafka.apis import ApiKey, encode_response, read_head, read_request
from magnetar.wire.kafka.batches import build_batch
from magnetar.wire.kafka.primitives import FieldReader
from magnetar_sim.replicas.replica_history import ReplicaHistory, StoredBatch, making
from magnetar_sim.world.disk import SimDisk
from magnetar_sim.world.loop import SimLoop, SimProcess, run_in
from magnetar_sim.world.metadata import SimMetadataServer, SimMetadataStore
from magnetar_sim.world.network import SimNetwork
from magnetar_sim.world.outside import SINCE_1970_S
from magnetar_sim.world.trace import Trace

KAFKA_PORT: Final = 9092
RESTART_S: Final = 0.3
DATA: Final = Path("/data")
READ_BYTES: Final = 4096
DATE_MS: Final = int(SINCE_1970_S) * 1000
"""When runs begin: what is stored has dates, which are nothing to wait by."""

T = TypeVar("T")


@dataclass
class ReplicaWorld:
    """What the machines of a run share."""

    loop: SimLoop
    trace: Trace
    network: SimNetwork
    metadata: SimMetadataServer
    history: ReplicaHistory
    policy: PartitionPolicy
    settings: ReplicationSettings
    session_timeout_s: float
    lag_ms_max: int
    grace_ms: int


class FetchSession(FramedConnection):
    """The listener's side of a follower's connection."""

    def __init__(self, node: ReplicationNode, scope: TaskScope) -> None:
        super().__init__(1 << 20, Connections())
        self._node = node
        self._scope = scope

    def frames_received(self, view: memoryview, bounds: Sequence[tuple[int, int]]) -> None:
        if self._scope.closed:  # the process ends
            self.abort()
            return
        for start, end in bounds:
            reader = FieldReader(memoryview(bytes(view[start:end])))
            head = read_head(reader)
            assert head.api_key == ApiKey.FETCH
            request = read_request(head, reader)
            self._scope.spawn(self._answer(head.version, head.correlation_id, request), "fetch")

    async def _answer(self, version: int, number: int, request: Any) -> None:
        answer = await self._node.replicas.fetches.serve(request)
        if not self.closed:
            parts, size = encode_response(ApiKey.FETCH, version, number, answer)
            self.write_parts(parts, size)


class ReplicaMachine:
    """A machine with a disk, and the process that runs on it, again and again."""

    def __init__(self, world: ReplicaWorld, number: int, rng: random.Random) -> None:
        self.name = f"r{number}"
        self.number = number
        self.world = world
        self.process: SimProcess | None = None
        self.node: ReplicationNode | None = None
        """While it serves."""
        self.host: PartitionHost | None = None
        self.starts = 0
        self.disk = SimDisk(world.loop, rng)
        self.read_only = False
        """Its file system takes no writes any more, for good."""
        self._random = rng
        self._stopped: asyncio.Event | None = None
        self._in_order = False

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        if self.up:
            return
        self.starts += 1
        self._in_order = False
        self.process = self.world.loop.new_process(self.name)
        self.world.network.host_back(self.name)
        self.process.spawn(self._run(), f"replicas, start {self.starts}")

    async def _run(self) -> None:
        self._stopped = stopped = asyncio.Event()
        scope = TaskScope("broker", fails(lambda task, error: stopped.set()))
        try:
            await self._serve(scope, stopped)
        except (MagnetarError, OSError) as error:
            self.world.trace.note(self.name, f"ends: {error}")
        self._end("exits", power=False)
        self._restart_later(RESTART_S)

    async def _serve(self, scope: TaskScope, stopped: asyncio.Event) -> None:
        world, process = self.world, self.process
        assert process is not None
        store = SimMetadataStore(world.metadata, process)

        def lost(why: str) -> None:
            world.trace.note(self.name, why)
            stopped.set()

        manager = LedgerManager(
            store, new_instance_id=lambda: f"cluster-{self._random.randrange(1 << 62)}"
        )
        cluster = await manager.initialize()
        guard = SessionGuard(store, int(world.session_timeout_s * 1000), lost)
        clock_s = world.loop.time
        host = await PartitionHost.open(
            self.disk,
            DATA,
            world.policy,
            scope.inner("partitions", fails(lambda task, error: stopped.set())),
            now_ms=lambda: DATE_MS + int(clock_s() * 1000),
            draw=lambda: self._random.randrange(1, 1 << 62),
            broker=self.number,
            lag_ms_max=world.lag_ms_max,
            cluster=cluster,
            witness=StateWitness(store, manager.stored_instance_id),
            grace_ms=world.grace_ms,
        )
        brokers = Brokers(store)
        peers = ReportedBrokers(store, brokers.reports)
        connections = Connections()
        connect = partial(connect_line, LeaderLine, connections, BrokerWay())
        node = ReplicationNode(host, store, peers, connect, scope, clock_s, world.settings)
        server = await world.loop.create_server(
            lambda: FetchSession(node, scope), self.name, KAFKA_PORT
        )
        report = BrokerReport(
            f"{self.name}:8080",
            self.starts,
            f"pulsar://{self.name}:6650",
            "",
            kafka_address=f"{self.name}:{KAFKA_PORT}",
            node_id=host.me.broker,
            lineage=host.me.lineage,
            process=host.start,
        )
        registration = Registration(store, report, lost)
        await registration.begin()
        node.begin()
        self.node, self.host = node, host
        world.trace.note(self.name, f"serves (start {self.starts})")
        await stopped.wait()
        self.node = self.host = None
        if self._in_order:
            await node.leave()
        node.close()
        server.close()
        await scope.close()
        await host.close()
        await registration.end()
        guard.close()
        brokers.close()
        await store.close()

    # -- clients ------------------------------------------------------------------------------

    async def ask(self, question: Callable[[ReplicationNode], Awaitable[T]]) -> T | None:
        """In its process; None: there was no answer, or a refusal."""
        node, process = self.node, self.process
        if node is None or process is None or not process.alive:
            return None

        async def asked() -> T | None:
            try:
                return await question(node)
            except MagnetarError as error:
                self.world.trace.note(self.name, f"refuses: {error}")
                return None

        return await run_in(process, asked(), "asked")

    async def produce(
        self, partition: Partition, value: int, node: ReplicationNode
    ) -> tuple[Partition, StoredBatch]:
        """At acks=all; to which making of it, and what. Raises ``MagnetarError``."""
        hosted, leader = self._leading(partition, node)
        leader.check_append()
        made = making(partition, hosted.topic_id)
        self.world.history.writes(made, value)
        told: asyncio.Future[Sequence[Outcome]] = self.world.loop.create_future()
        now_ms = DATE_MS + int(self.world.loop.time() * 1000)
        data = build_batch(
            b"%d" % value,
            count=1,
            last_offset_delta=0,
            base_timestamp_ms=now_ms,
            max_timestamp_ms=now_ms,
        )
        hosted.append([bytearray(data)], leader.epoch, told.set_result)
        outcome = (await told)[0]
        if isinstance(outcome, MagnetarError):
            raise outcome
        moved = asyncio.Event()
        end_watch = hosted.watch(moved.set)
        try:
            while hosted.machine.leader is leader:
                found = leader.outcome(outcome.last_offset)
                if found is AppendOutcome.COMMITTED:
                    return made, StoredBatch(outcome.first_offset, leader.epoch, value)
                if found is AppendOutcome.TOO_FEW:
                    break
                moved.clear()
                await moved.wait()
        finally:
            end_watch()
        raise NotLeaderError(f"{partition}: what was appended may be lost")

    def _leading(
        self, partition: Partition, node: ReplicationNode
    ) -> tuple[HostedReplica, PartitionLeader]:
        hosted = node.replicas.find(partition)
        leader = None if hosted is None else hosted.machine.leader
        if hosted is None or leader is None or hosted.failure is not None:
            raise NotLeaderError(f"{self.name} does not lead {partition}")
        assert self.host is not None
        made = making(partition, hosted.topic_id)
        self.world.history.leads(made, leader.epoch, (self.number, self.starts))
        return hosted, leader

    async def consume(
        self, partition: Partition, offset: int, node: ReplicationNode
    ) -> tuple[Partition, list[StoredBatch]]:
        """What a consumer is given from there on, and of which making. Raises ``MagnetarError``."""
        hosted, leader = self._leading(partition, node)
        made = making(partition, hosted.topic_id)
        end = leader.readable_end
        offset = max(offset, hosted.source.log_start)  # as a consumer that starts at the earliest
        if offset >= end:
            return made, []
        source = hosted.source
        data = await hosted.run(partial(_read, source, offset, end))
        if hosted.machine.leader is not leader:
            return made, []  # a client that was told so asks the next one
        return made, [each for each in parse(data) if each.offset < end]

    async def delete_records(
        self, partition: Partition, share: float, told: bool, node: ReplicationNode
    ) -> bool:
        """As the topic's owner does, of what is committed. Not ``told``: the owner ends before it
        can say where the log begins now. Raises ``MagnetarError``."""
        hosted, leader = self._leading(partition, node)
        source = hosted.source
        wanted = source.log_start + int(share * (leader.readable_end - source.log_start))
        self.world.history.deletes(making(partition, hosted.topic_id), wanted)
        try:
            await hosted.run(partial(_delete_before, source, wanted))
            if told and hosted.machine.leader is leader:
                leader.trimmed(source.first_base)
            await hosted.store_start()
        except OSError as error:
            hosted.fail(error)
            raise NotLeaderError(f"records of {partition} are not deleted: {error}") from error
        return True

    async def delete(self, partition: Partition, node: ReplicationNode) -> bool:
        """As the topic's owner does. Raises ``MagnetarError``."""
        await node.image.store.delete(*partition)
        if self.host is not None:
            await self.host.doom(partition)
        return True

    # -- faults -------------------------------------------------------------------------------

    def close_in_order(self) -> None:
        if self.process is not None and self.process.running and self._stopped is not None:
            self.world.trace.note(self.name, "is told to end")
            self._in_order = True
            self.process.call(self._stopped.set)

    def crash(self, down_s: float, *, power: bool) -> None:
        self._end("loses power" if power else "is killed", power)
        self._restart_later(down_s)

    def _end(self, how: str, power: bool) -> None:
        self.node = self.host = None
        process = self.process
        if process is not None and process.alive:
            self.world.trace.note(self.name, how)
            process.kill()
            self.world.network.process_ended(process, silently=power)
            self.disk.crash(power)

    def _restart_later(self, delay_s: float) -> None:
        """The supervisor's; called by nobody's code, so that it outlives the process."""
        self.world.loop.call_later(delay_s, self.start, context=Context())

    def heal(self) -> None:
        if self.process is not None:
            self.process.resume()
        self.disk.slowness = 1.0
        self.mend_disk()
        self.start()

    def mend_disk(self) -> None:
        self.disk.fails_writes = self.read_only
        self.disk.fails_syncs = False

    def make_read_only(self) -> None:
        self.read_only = self.disk.fails_writes = True


def _read(source: LocalLog, offset: int, end: int) -> bytes:
    found = source.range_from(offset, end, READ_BYTES)
    return b"" if found is None else found.read()


def _delete_before(source: LocalLog, offset: int) -> None:
    source.delete_records(max(offset, source.log_start))
    source.drop_deleted()


def whole(source: LocalLog) -> list[StoredBatch]:
    """All of a log, for the last look."""
    found: list[StoredBatch] = []
    at = source.log_start
    while at < source.log_end:
        some = parse(_read(source, at, source.log_end))
        assert some, "a log has no holes here"
        found += some
        at = some[-1].offset + 1
    return found


def parse(data: bytes) -> list[StoredBatch]:
    """The whole batches in ``data``."""
    found = []
    at = 0
    while len(data) - at >= HEADER_BYTES:
        header = read_header(data, at)
        if header.byte_count > len(data) - at:
            break
        value = int(data[at + HEADER_BYTES : at + header.byte_count])
        found.append(StoredBatch(header.base_offset, header.leader_epoch, value))
        at += header.byte_count
    return found
