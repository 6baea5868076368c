"""Machines with brokers: the product's broker role, as ``magnetar.app`` builds it, on the simulated
world. HTTP is left out; what REST asks of a broker can be asked by ``ask``.

They share the topics. One that ends is started again by a supervisor.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from contextvars import Context
from dataclasses import dataclass, replace
from typing import TypeVar

from magnetar.admin.peers import NoPeers
from magnetar.admin.topics import TopicService
from magnetar.app.fate import Fate
from magnetar.app.process import Process
from magnetar.app.roles import open_broker
from magnetar.app.serving import topic_service
from magnetar.bookie.bookie import Bookie
from magnetar.cli.process import LEFT_S
from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.sharing.shared_topics import SharedTopics
from magnetar.cluster.topic_name import DEFAULT_NAMESPACE
from magnetar.config import (
    BookieConfig,
    BrokerConfig,
    Config,
    ConnectionsConfig,
    KafkaConfig,
    MetadataConfig,
    PartitionConfig,
)
from magnetar.log.managed.history import NoHistory, ProcessHistory
from magnetar.metrics import Metrics
from magnetar.model.errors import MagnetarError
from magnetar_sim.cluster.cluster import DATA, FRAME_BYTES_MAX, Cluster
from magnetar_sim.world.disk import SimDisk
from magnetar_sim.world.loop import SimProcess, run_in
from magnetar_sim.world.outside import Skew, simulated

BROKER_PORT = 6650
CLUSTER = "sim"
RESTART_S = 0.3

T = TypeVar("T")


@dataclass(frozen=True)
class BrokerPlan:
    """What brokers are like. Small caches and bounds: they are met all the time."""

    brokers: int
    config: BrokerConfig


def plan_brokers(rng: random.Random) -> BrokerPlan:
    """Brokers by the seed."""
    return BrokerPlan(
        brokers=rng.choice((1, 2, 3)),
        config=BrokerConfig(
            port=BROKER_PORT,
            message_bytes_max=64 << 10,
            pending_publish_bytes_per_connection=rng.choice((1024, 8 << 10, 1 << 20)),
            unacknowledged_per_consumer_max=rng.choice((3, 20, 50_000)),
            balance_interval_ms=0,
            handshake_timeout_ms=2000,
            frame_timeout_ms=3000,
            keep_alive_ms=rng.choice((800, 3000)),
        ),
    )


class BrokerMachine:
    """A machine and the broker that runs on it, again and again."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        config: BrokerConfig,
        rng: random.Random,
        read_only: bool = False,
    ) -> None:
        self.name = name
        self.read_only = read_only
        self.cluster = cluster
        self.skew = Skew()
        self.process: SimProcess | None = None
        self.topics: TopicService | None = None
        """What REST asks of the broker that serves; None: none does."""
        self.bundles: SharedTopics | None = None
        """What it owns, while it serves."""
        self.control: ControlPlane | None = None
        self.unloaded: Callable[[], int] = int
        """Idle topics that the broker that serves has unloaded."""
        self.starts = 0
        self.down = False
        """It stays down until somebody starts it."""
        self.config = config
        self.connections = ConnectionsConfig()
        self.kafka = KafkaConfig()
        self.partition = PartitionConfig()
        self.make_history: Callable[[], ProcessHistory] = NoHistory
        """What reads ledgers that are in tables only."""
        self._random = rng
        self.disk = SimDisk(cluster.loop, rng)
        self._stopped: asyncio.Event | None = None

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        self.down = False
        if self.up:
            return
        self.starts += 1
        self.process = self.cluster.loop.new_process(self.name)
        self.cluster.network.host_back(self.name)
        self.process.spawn(self._run(), f"broker, start {self.starts}")

    async def _run(self) -> None:
        stopped = asyncio.Event()
        try:
            async with AsyncExitStack() as stack:
                await self._serve(stack, Fate(stopped), stopped)
        except (MagnetarError, OSError) as error:
            self.cluster.trace.note(self.name, f"ends: {error}")
        else:
            self.cluster.trace.note(self.name, "has closed")
        assert self.process is not None
        if left := await self.process.end_tasks(LEFT_S):
            self.cluster.broken(f"{self.name} has ended, and does not exit: {', '.join(left)}")
        self._end("exits", power=False)
        self._restart_later(RESTART_S)

    async def _serve(self, stack: AsyncExitStack, fate: Fate, stopped: asyncio.Event) -> None:
        cluster, process = self.cluster, self.process
        assert process is not None
        plan = cluster.plan
        config = Config(
            data_dir=DATA,
            cluster=CLUSTER,
            bookie=BookieConfig(entry_bytes_max=FRAME_BYTES_MAX),
            ledger=plan.ledger,
            broker=self._config_here(),
            connections=self.connections,
            kafka=replace(self.kafka, host=self.name),
            partition=self.partition,
            metadata=MetadataConfig(session_timeout_ms=int(plan.session_timeout_s * 1000)),
        )
        outside = simulated(
            process,
            cluster.metadata,
            self.disk,
            self._random,
            _no_bookie,
            self.skew,
            self.make_history,
        )
        try:
            building = Process(config, outside, stack, fate, cluster.metrics)
            role = await open_broker(building, read_only=self.read_only)
            self.topics, self._stopped = (
                topic_service(building, role.broker, "", NoPeers()),
                stopped,
            )
            bundles = role.broker.control.bundles
            assert isinstance(bundles, SharedTopics)
            self.bundles = bundles
            self.unloaded = lambda: role.broker.topics.unloaded
            self.control = role.broker.control
            cluster.trace.note(self.name, "serves")
            cluster.count("brokers that served")
            await fate.wait()
        finally:
            self.topics, self.bundles, self.unloaded, self.control = None, None, int, None

    def _config_here(self) -> BrokerConfig:
        return replace(self.config, host=self.name)

    async def ask(self, question: Callable[[TopicService], Awaitable[T]]) -> T | None:
        """What an operator asks by REST; None: there was no answer."""
        topics, process = self.topics, self.process
        if topics is None or process is None or not process.alive:
            return None

        async def asked() -> tuple[T] | None:
            try:
                return (await question(topics),)
            except MagnetarError as error:
                self.cluster.trace.note(self.name, f"refuses: {error}")
                return None

        answer = await run_in(process, asked(), "asked")
        return None if answer is None else answer[0]

    async def set_policy(self, field: str, value: object) -> bool:
        """Of the default namespace, as an operator does by REST; False: there was no answer."""
        control = self.control
        if control is None:
            return False

        async def say(_topics: TopicService) -> bool:
            await control.policies.set_namespace(DEFAULT_NAMESPACE, field, value)
            return True

        return await self.ask(say) is True

    # -- faults -------------------------------------------------------------------------------

    def close_in_order(self) -> None:
        """As an operator does; the supervisor starts it again."""
        if self.process is not None and self.process.running and self._stopped is not None:
            self.cluster.trace.note(self.name, "is told to end")
            self.process.call(self._stopped.set)

    def kill(self, down_s: float | None) -> None:
        """As ``kill -9``. None: it stays down."""
        self._crash("is killed", False, down_s)

    def cut_power(self, down_s: float | None) -> None:
        self._crash("loses power", True, down_s)

    def _crash(self, how: str, power: bool, down_s: float | None) -> None:
        self._end(how, power)
        self.down = down_s is None
        if down_s is not None:
            self._restart_later(down_s)

    def _end(self, how: str, power: bool) -> None:
        self.topics, self._stopped, self.unloaded = None, None, int
        self.bundles = self.control = None
        process = self.process
        if process is not None and process.alive:
            self.cluster.trace.note(self.name, how)
            process.kill()
            self.cluster.network.process_ended(process, silently=power)
            self.disk.crash(power)

    def _restart_later(self, delay_s: float) -> None:
        """The supervisor's; called by nobody's code, so that it outlives the process."""
        self.cluster.loop.call_later(delay_s, self._start_unless_down, context=Context())

    def _start_unless_down(self) -> None:
        if not self.down:
            self.start()

    def heal(self) -> None:
        self.skew.seconds = 0.0
        if self.process is not None:
            self.process.resume()
        self.start()


def _no_bookie(_config: BookieConfig, _metrics: Metrics) -> Bookie:
    raise AssertionError("a broker has no bookie")
