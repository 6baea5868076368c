"""The broker: listens, owns every session and topic, and answers questions about them.

``app`` makes one out of a log engine and a metadata store; REST asks it. Start order: namespaces,
the number of this start (it makes generated producer names unique), then the port. Close order:
the port, clients are sent away, logs are closed, tasks end, connections end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import structlog

from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.topic_name import TopicName, parse_namespace, parse_topic
from magnetar.config import BrokerConfig
from magnetar.env.connections import Connections
from magnetar.env.listening import advertised_host
from magnetar.env.metadata import MetadataStore
from magnetar.env.tasks import TaskScope, defect, fails
from magnetar.log.seam import LogStats, LogStore
from magnetar.metrics import Metrics
from magnetar.model.errors import MagnetarError, TopicNotFoundError
from magnetar.protocols.pulsar.entry_format import PulsarEntryFormat
from magnetar.protocols.pulsar.handlers.table import make_table
from magnetar.protocols.pulsar.liveness import Sweeper
from magnetar.protocols.pulsar.services import Services
from magnetar.protocols.pulsar.session import Session
from magnetar.topics.registry import Topics
from magnetar.topics.stats import TopicStats, topic_stats
from magnetar.topics.topic import Topic
from magnetar.topics.traffic import Traffic

log = structlog.get_logger(__name__)

BACKLOG_CONNECTIONS = 1024


class Broker:
    """One broker. Topic names are strings here, full or short (see ``topic_name``).

    ``clock``: seconds since 1970. ``connections``: what clients' connections share with others of
    the process; their own by default. ``failed`` is told when the broker cannot go on; it takes no
    requests then. Neither the log store nor the metadata store is closed with the broker: who made
    them does that.
    """

    def __init__(
        self,
        config: BrokerConfig,
        log_store: LogStore,
        topic_metadata: MetadataStore,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.time,
        cluster: str = "standalone",
        connections: Connections | None = None,
        failed: Callable[[MagnetarError], None] | None = None,
    ) -> None:
        self.cluster = cluster
        self._config = config
        self._failed = failed
        self._scope = TaskScope("broker", fails(self._task_failed))
        self._control = ControlPlane.over(topic_metadata, cluster)
        self._traffic = Traffic()
        self._topics = Topics(
            config, log_store, self._control, self._scope, self._traffic, PulsarEntryFormat()
        )
        self._services = Services(
            config,
            self._control,
            self._topics,
            metrics or Metrics(),
            self._scope,
            connections or Connections(),
            clock,
        )
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen. Raises ``OSError`` when the port is taken, ``MetadataError``."""
        services, config = self._services, self._config
        await self._control.namespaces.prepare()
        services.name_prefix = f"{self.cluster}-{await self._control.counters.count_start()}"
        table = make_table()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Session(services, table),
            config.host,
            config.port,
            backlog=BACKLOG_CONNECTIONS,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        host = advertised_host(config.host, config.advertised_host)
        services.service_url = f"pulsar://{host}:{self.port}"
        self._scope.spawn(Sweeper(config, services.sessions).run(), "sweeper")
        log.info("broker listens", url=services.service_url)

    @property
    def service_url(self) -> str:
        """What clients are told to connect to."""
        return self._services.service_url

    @property
    def connections(self) -> int:
        """Clients connected now."""
        return len(self._services.sessions)

    @property
    def unsent_bytes(self) -> int:
        """Bytes waiting for clients to read them."""
        return sum(session.unsent_bytes for session in self._services.sessions)

    async def close(self) -> None:
        """Stop; what was acknowledged is stored. Idempotent."""
        self._services.closing = True
        if self._server is not None:
            self._server.close()
        await self._topics.close()
        await self._scope.close()
        for session in list(self._services.sessions):
            session.close()
        self._control.close()
        self._server = None

    def _task_failed(self, task: str, error: BaseException) -> None:
        self._services.closing = True
        if self._failed is not None:
            self._failed(defect(task, error))

    def fold_metrics(self) -> None:
        """Bring the metrics up to date; before they are read."""
        self._traffic.fold(self._services.metrics)

    # -- tenants and namespaces ---------------------------------------------------------------

    async def tenants(self) -> list[str]:
        return await self._control.namespaces.tenants()

    async def namespaces(self, tenant: str) -> list[str]:
        """``tenant/namespace`` names. Raises ``TopicNotFoundError`` for an unknown tenant."""
        return await self._control.namespaces.namespaces(tenant)

    async def create_tenant(self, tenant: str) -> None:
        """No error when it exists."""
        parse_namespace(f"{tenant}/x")
        await self._control.namespaces.create_tenant(tenant)

    async def create_namespace(self, namespace: str) -> None:
        """``tenant/namespace``; no error when it exists."""
        await self._control.namespaces.create_tenant(parse_namespace(namespace).split("/")[0])
        await self._control.namespaces.create_namespace(namespace)

    # -- topics -------------------------------------------------------------------------------

    async def topics(self, namespace: str) -> list[str]:
        """All topics of ``tenant/namespace``, each partition by itself, sorted."""
        await self._control.namespaces.check_namespace(parse_namespace(namespace))
        return [str(name) for name in await self._topics.names(namespace)]

    async def partitioned_topics(self, namespace: str) -> list[str]:
        await self._control.namespaces.check_namespace(parse_namespace(namespace))
        return [str(name) for name in await self._control.partitioned.names(namespace)]

    async def lookup(self, topic: str) -> str:
        """The ``pulsar://`` URL of the broker that serves the topic."""
        await self._control.namespaces.check(parse_topic(topic))
        return self._services.service_url

    async def partitions(self, topic: str, create: bool = False) -> int:
        """0 when the topic is not partitioned; ``create`` as PARTITIONED_METADATA says it.
        Raises ``TopicNotFoundError`` for an unknown namespace."""
        name = parse_topic(topic)
        if create:
            return await self._topics.partitions(name, True)
        await self._control.namespaces.check(name)
        return await self._control.partitioned.partitions(name)

    async def create_partitioned(self, topic: str, partitions: int) -> bool:
        """False when the topic exists already, partitioned or not."""
        name = parse_topic(topic)
        await self._control.namespaces.check(name)
        if await self._topics.exists(name):
            return False
        return await self._control.partitioned.create(name, partitions)

    async def grow_partitions(self, topic: str, partitions: int) -> None:
        """Raises ``NotAllowedError`` when that would be fewer than now. Partitions are opened on
        first use; the subscriptions of the others are made on the new ones at once, so that they
        miss nothing."""
        name = parse_topic(topic)
        before = await self._control.partitioned.partitions(name)
        await self._control.partitioned.grow(name, partitions)
        await self._topics.copy_subscriptions(name, before, partitions)

    async def create(self, topic: str) -> bool:
        """False when the topic exists already."""
        return await self._topics.create(parse_topic(topic))

    async def delete(self, topic: str, force: bool = False) -> None:
        """Delete a topic, or a partitioned topic with its partitions. With ``force`` connected
        clients are sent away; without, they are an error. Raises ``TopicNotFoundError``."""
        name = parse_topic(topic)
        count = await self._control.partitioned.partitions(name)
        if not count:
            await self._topics.delete(name, force)
            return
        parts = [name.of_partition(index) for index in range(count)]
        if not force:
            self._check_unused(parts)
        for part in parts:
            with contextlib.suppress(TopicNotFoundError):  # never used, or deleted already
                await self._topics.delete(part, force)
        await self._control.partitioned.delete(name)

    def _check_unused(self, parts: list[TopicName]) -> None:
        for part in parts:
            topic = self._topics.find(part)
            if topic is not None:
                topic.check_unused()

    # -- one topic ----------------------------------------------------------------------------

    async def _topic(self, topic: str) -> Topic:
        return await self._topics.get(parse_topic(topic), create=False)

    async def topic_stats(self, topic: str) -> TopicStats:
        """Raises ``TopicNotFoundError``."""
        return topic_stats(await self._topic(topic))

    async def log_stats(self, topic: str) -> LogStats:
        """What the topic's log holds. Raises ``TopicNotFoundError``."""
        return (await self._topic(topic)).log.stats()

    async def subscriptions(self, topic: str) -> list[str]:
        """Names, sorted; of a partitioned topic, those its partitions together."""
        name = parse_topic(topic)
        count = await self._control.partitioned.partitions(name)
        if not count:
            return sorted((await self._topic(topic)).subscriptions)
        names: dict[str, None] = {}
        for index in range(count):
            part = await self._topics.get(name.of_partition(index), create=False)
            names.update(dict.fromkeys(part.subscriptions))
        return sorted(names)

    async def delete_subscription(self, topic: str, subscription: str, force: bool = False) -> None:
        """Raises ``TopicNotFoundError``, ``SubscriptionNotFoundError``, ``NotAllowedError``."""
        name = parse_topic(topic)
        count = await self._control.partitioned.partitions(name)
        if not count:
            await (await self._topic(topic)).delete_subscription(subscription, force)
            return
        for index in range(count):
            part = await self._topics.get(name.of_partition(index), create=False)
            if subscription in part.subscriptions:
                await part.delete_subscription(subscription, force)
