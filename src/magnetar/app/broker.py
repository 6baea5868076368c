"""A broker's parts: control plane, topics, Pulsar's server. Made here for every role, for the
library's tests and for the simulator.

Order of the end: topics go to other brokers, if there are any (``leave``); no new clients; topics
answer what is under way, send clients away and close their logs; tasks end; connections end.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial

from magnetar import __version__
from magnetar.app.balancing import Balancing
from magnetar.app.checks import tables_lag
from magnetar.app.handing_over import cut_large_bundles
from magnetar.app.partition_compaction import PartitionCompaction
from magnetar.app.partition_directory import HostDirectory
from magnetar.app.replication import Replication
from magnetar.cluster.brokers.reporting import Load
from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.brokers.tls_addresses import TlsAddresses
from magnetar.cluster.bundles import Bundle
from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.ownership import SoleBroker, TellClients
from magnetar.cluster.schemas.policies import SchemaPolicy
from magnetar.cluster.schemas.registry import ValueStore
from magnetar.cluster.security.access import Access
from magnetar.cluster.security.authenticator import Authenticator
from magnetar.cluster.security.own import OwnAccess
from magnetar.cluster.sharing.led_topics import LedTopics
from magnetar.cluster.sharing.shared_topics import SharedTopics
from magnetar.cluster.topic_name import TopicName
from magnetar.config import BrokerConfig, KafkaConfig, PartitionConfig, TlsConfig
from magnetar.env.metadata import MetadataStore
from magnetar.env.network.connections import Connections
from magnetar.env.network.tls import TlsFiles
from magnetar.env.tasks import TaskScope, defect, fails
from magnetar.log.partition.leading import PartitionLeading
from magnetar.log.seam import LogStore
from magnetar.metrics import Metrics
from magnetar.model.errors import MagnetarError
from magnetar.model.schema import SchemaStrategy
from magnetar.protocols.entry_formats import EitherEntryFormat
from magnetar.protocols.kafka.server import KafkaDoors, KafkaServer
from magnetar.protocols.pulsar.compact_format import PulsarCompactFormat
from magnetar.protocols.pulsar.owner_links import OwnerLinks, ReadOnlyBroker
from magnetar.protocols.pulsar.server import PulsarServer
from magnetar.protocols.pulsar.staged_writes import StagedWrites
from magnetar.protocols.pulsar.stored_ledgers import StoredLedgers
from magnetar.staging.collecting import Leftovers
from magnetar.staging.queries import Queries
from magnetar.staging.reading import StagedReading
from magnetar.staging.seams import ReadableStagedLedgers
from magnetar.topics.bindings import OwnerBindings
from magnetar.topics.compacting import TopicCompactions
from magnetar.topics.following.followed_topics import FollowedTopics
from magnetar.topics.intakes import Intakes
from magnetar.topics.name_lists import NameLists
from magnetar.topics.quota_keeping import QuotaKeeping
from magnetar.topics.rates import Rates
from magnetar.topics.registry import Topics
from magnetar.topics.steering import ReadSteering
from magnetar.topics.traffic import Traffic
from magnetar.topics.upkeep import PolicyUpkeep, Upkept
from magnetar.wire.pulsar.topic_lists import topics_hash

LEFTOVERS_S = 3600.0
"""Each ledger is read once, and the next hour only those that are new."""
ALONE = 0
"""The number of a broker that is alone, to Kafka's clients."""


class Broker:
    """One broker.

    ``values`` keeps what is too large for the metadata. ``clock``: seconds since 1970.
    ``connections``: what clients' connections share with others of the process; their own by
    default. ``failed`` is told when the broker cannot go on; it takes no requests then.
    ``shares``: other brokers of the cluster serve topics, too. ``read_only``: it owns none of them,
    and serves subscriptions of theirs.
    ``stored_ledgers`` knows where the logs' entries lie, if that may be told. ``ledgers``: where
    staged writes are read; without it none are taken in. ``living``: the ids of all ledgers, looked
    through for staged ones that nobody needs. ``staged_writes``: what is done for clients that
    write such ledgers and reach no metadata store.

    ``partitions``: where this broker leads logs on partitions; they are replicated if it ``shares``
    its cluster and listens for Kafka's protocol. ``authenticator``: who clients are; without one
    everybody may do everything. ``doors``: of Kafka's protocol.

    Neither the log store nor the metadata store is closed with the broker: who made them does that.
    """

    tls_addresses: TlsAddresses | None = None
    http_url_tls = ""
    own = OwnAccess()
    """See ``secure``."""

    def __init__(
        self,
        config: BrokerConfig,
        log_store: LogStore,
        topic_metadata: MetadataStore,
        values: ValueStore,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.time,
        cluster: str = "standalone",
        connections: Connections | None = None,
        failed: Callable[[MagnetarError], None] | None = None,
        stored_ledgers: StoredLedgers | None = None,
        ledgers: ReadableStagedLedgers | None = None,
        living: Callable[[], AsyncIterable[int]] | None = None,
        staged_writes: StagedWrites | None = None,
        shares: bool = False,
        read_only: bool = False,
        kafka: KafkaConfig | None = None,
        partitions: PartitionLeading | None = None,
        partition_config: PartitionConfig | None = None,
        authenticator: Authenticator | None = None,
        doors: KafkaDoors | None = None,
    ) -> None:
        self._config = config
        self._doors = doors or KafkaDoors()
        self._metrics = metrics or Metrics()
        self._failed = failed
        self._partitions, self._partition_config = partitions, partition_config or PartitionConfig()
        self._scope = TaskScope("broker", fails(self._task_failed))
        self._traffic = Traffic()
        self._unloaded = self._evicted = 0
        """Idle topics unloaded, and entries evicted, as far as the metrics know."""

        def now_ms() -> int:
            return int(clock() * 1000)

        self.control = self._control_plane(topic_metadata, values, cluster, now_ms, shares)
        self.access = Access.of(authenticator, self.control.namespaces, self.control.users)
        """Who may do what; None: everybody everything."""
        self.replication: Replication | None = None
        """Where others of the cluster have replicas of partitions, too."""
        connections = connections or Connections()
        if partitions is not None and shares and kafka is not None and kafka.listens:
            self._replicate(partitions, partition_config, topic_metadata, connections)
        self._format = EitherEntryFormat()
        parts = self.control, self._scope, self._traffic, self._format, now_ms
        self.topics = Topics(config, log_store, *parts)
        self.bindings = self._owner_bindings(config)
        self._links: OwnerLinks | None = None
        self.followed: FollowedTopics | None = None
        """At a read-only broker, which has no other topics."""
        if read_only:
            self._links = OwnerLinks(self.control.ownership, connections, self._scope)
            self.followed = self._follow_topics(config, log_store, self._links, now_ms)
        self.rates = Rates(self.topics if self.followed is None else self.followed)
        upkept: Upkept = self.topics if self.followed is None else self.followed
        self._compaction_scope = self._scope.inner("compaction", fails(self._task_failed))
        self.compactions = TopicCompactions(PulsarCompactFormat(), self._compaction_scope)
        look, every_ms = self.compactions.look, config.expiry_check_interval_ms
        self.upkeep = PolicyUpkeep(upkept, every_ms, now_ms, look)
        self._intake_scope = self._scope.inner("staged writes", fails(self._task_failed))
        self._intakes: Intakes | None = None
        self._leftovers: Leftovers | None = None
        self._living = living
        if ledgers is not None:
            self._take_in(Queries(topic_metadata), ledgers, staged_writes, now_ms)
        self.pulsar = self._pulsar_server(config, log_store, connections, clock)
        self.pulsar.services.stored_ledgers = stored_ledgers
        self.pulsar.services.staged_writes = staged_writes
        self.kafka = None if read_only else self._kafka_server(kafka, connections, clock)

    def _control_plane(
        self,
        metadata: MetadataStore,
        values: ValueStore,
        cluster: str,
        now_ms: Callable[[], int],
        shares: bool,
    ) -> ControlPlane:
        bundles_scope = self._scope.inner("bundles", fails(self._task_failed))
        ownership = partial(SharedTopics, metadata, bundles_scope) if shares else SoleBroker
        schemas = _schema_policy(self._config)
        return ControlPlane.over(metadata, values, cluster, schemas, now_ms, ownership)

    def secure(
        self, tls: tuple[TlsFiles, TlsConfig] | None, own: OwnAccess, http_url_tls: str = ""
    ) -> None:
        """Before ``start``. ``tls``: with which TLS listeners are opened; ``own``: what other
        brokers are shown; ``http_url_tls``: where REST is by TLS."""
        self.pulsar.tls, self.http_url_tls, self.own = tls, http_url_tls, own
        if tls is not None or own.tls is not None:
            self.tls_addresses = TlsAddresses(self.control.bundles.reports)
            self.pulsar.services.tls_addresses = self.tls_addresses
        if self._links is not None:
            self._links.own, self._links.tls_addresses = own, self.tls_addresses

    @cached_property
    def quotas(self) -> QuotaKeeping:
        """Of this broker's topics."""
        every_ms = self._config.backlog_quota_check_interval_ms
        return QuotaKeeping(self.topics, every_ms, self._scope)

    async def look_at_backlogs(self) -> None:
        """Hold this broker's topics against their quotas, also those that were said just now."""
        await self.upkeep.apply_now()
        await self.quotas.look()

    @cached_property
    def partition_compaction(self) -> PartitionCompaction | None:
        """Of this broker's replicas; None: it has no partitions."""
        if self._partitions is None:
            return None
        host, policies = self._partitions.host, self.topics.policies
        return PartitionCompaction(host, policies, self._partition_config, host.now_ms)

    def _owner_bindings(self, config: BrokerConfig) -> OwnerBindings:
        topics, silence_s = self.topics, config.binding_silence_ms / 1000
        return OwnerBindings(topics.loaded, topics.find, self._read_only_starts, silence_s)

    def _replicate(
        self,
        partitions: PartitionLeading,
        config: PartitionConfig | None,
        metadata: MetadataStore,
        connections: Connections,
    ) -> None:
        """With the other brokers that listen for Kafka's protocol: replicas are fetched by it."""
        control, way = self.control, self._doors.way
        config = config or PartitionConfig()
        scope = self._scope.inner("replication", fails(self._task_failed))
        self.replication = Replication(
            partitions, config, metadata, control.bundles.reports, connections, scope, way
        )
        bundles = control.bundles
        led = LedTopics(control.ownership, self.replication, bundles.reports, bundles.find_gone)
        self.control = replace(control, ownership=led)

    def _kafka_server(
        self, kafka: KafkaConfig | None, connections: Connections, clock: Callable[[], float]
    ) -> KafkaServer | None:
        """Where it has a port: docs/adr/0108-kafka-beside-pulsar.md."""
        if kafka is None or not kafka.listens:
            return None
        made = KafkaServer(
            kafka,
            self._config,
            self.control,
            self.topics,
            self._format,
            self._scope,
            connections,
            clock,
            self._doors,
        )
        made.services.replicated = self.replication
        if self._partitions is not None:
            made.services.directory = HostDirectory(self._partitions.host)
        made.services.access = self.access
        return made

    def _pulsar_server(
        self,
        config: BrokerConfig,
        log_store: LogStore,
        connections: Connections,
        clock: Callable[[], float],
    ) -> PulsarServer:
        made = PulsarServer(
            config, self.control, self.topics, self._metrics, self._scope, connections, clock
        )
        made.services.bindings = self.bindings if self.followed is None else None
        made.services.followed = self.followed
        made.services.access = self.access
        lists = NameLists(log_store, self.control.partitioned, self._scope, topics_hash)
        made.services.name_lists = lists
        return made

    def _follow_topics(
        self,
        config: BrokerConfig,
        log_store: LogStore,
        owners: OwnerLinks,
        now_ms: Callable[[], int],
    ) -> FollowedTopics:
        return FollowedTopics(
            config,
            log_store,
            self.control,
            self.topics.policies,
            owners,
            self._scope,
            self._traffic,
            self._format,
            now_ms,
        )

    def _take_in(
        self,
        queries: Queries,
        ledgers: ReadableStagedLedgers,
        staged_writes: StagedWrites | None,
        now_ms: Callable[[], int],
    ) -> None:
        """What queries have written beside topics, from ``start`` on."""
        self._intakes = Intakes(
            queries,
            StagedReading(ledgers),
            self.topics,
            self.control.ownership,
            self._intake_scope,
        )
        if staged_writes is not None:
            staged_writes.record_written = self._intakes.told
        self._leftovers = Leftovers(queries, ledgers, now_ms)

    async def start(self) -> None:
        """Serve. Raises ``OSError`` when a port is taken, ``MetadataError``."""
        await self.control.namespaces.prepare()
        await self.pulsar.start()
        if self.kafka is not None:
            await self.kafka.start(self._node_id)
        self._scope.spawn(self.rates.run(), "rates")
        if self.partition_compaction is not None:
            self._scope.spawn(self.partition_compaction.run(), "compaction of partitions")
        self._scope.spawn(self.upkeep.follow_changes(), "policies")
        if self._links is None:
            self._scope.spawn(self.upkeep.run(), "expiry")
            self._scope.spawn(self.quotas.run(), "backlog quotas")
            self._scope.spawn(self.bindings.run(), "bindings")
        else:
            self._scope.spawn(self._links.run(), "connections to owners")
        if self._intakes is not None:
            self._intake_scope.spawn(self._intakes.run(), "queries")
        if self._leftovers is not None and self._living is not None:
            leftovers = self._leftovers.run(self._living, LEFTOVERS_S)
            self._intake_scope.spawn(leftovers, "leftovers")

    @property
    def _node_id(self) -> int:
        """By which Kafka's clients know this broker."""
        if self.replication is not None:
            return self.replication.me.node_id
        # Alone there is none to be told from, and Kafka's brokers keep their numbers.
        return ALONE if isinstance(self.control.bundles, SoleBroker) else self.pulsar.start_number

    async def join(
        self,
        http_url: str,
        zone: str,
        session_timeout_ms: int,
        lost: Callable[[str], None],
        read_only: bool = False,
    ) -> None:
        """Be one of the brokers of the cluster: from now on topics are served here, unless it is
        ``read_only``. ``http_url``: where REST is; empty if nowhere. ``lost`` is told when the
        broker is none any more. Raises ``MetadataError``."""
        report = BrokerReport(
            (http_url or self.service_url).partition("://")[2],
            self.pulsar.start_number,
            self.service_url,
            http_url,
            __version__,
            zone,
            read_only=read_only,
            kafka_address="" if self.kafka is None else self.kafka.address,
            kafka_tls_address="" if self.kafka is None else self.kafka.tls_address,
            service_url_tls=self.pulsar.services.service_url_tls,
            http_url_tls=self.http_url_tls,
        )
        replication = self.replication
        if replication is not None:
            report = replace(
                report,
                node_id=replication.me.node_id,
                lineage=replication.lineage,
                process=replication.me.process,
            )
        if self._links is not None:
            self._links.me = ReadOnlyBroker(report.broker_id, report.start, report.service_url)
        bundles = self.control.bundles
        if isinstance(bundles, SoleBroker):
            report = replace(report, node_id=self._node_id)
            bundles.begin(report, self._close_topics, self._load)
        elif isinstance(bundles, SharedTopics):
            self._steer(bundles, report)
            cut_off = partial(self._cut_off, lost)
            await bundles.begin(
                report,
                session_timeout_ms,
                self._close_topics,
                cut_off,
                partial(self._before_drain, bundles),
            )
            if replication is not None:  # registered: from now on it may be elected
                replication.node.begin()
            self._scope.spawn(bundles.run(self._load), "report")
            if self._config.balance_interval_ms:
                balancing = Balancing(self._config, bundles, self.topics, self.rates)
                self._scope.spawn(balancing.run(), "balance")

    def _cut_off(self, lost: Callable[[str], None], why: str) -> None:
        """Others may have the topics by now, this process may have been paused for minutes: its
        clients must not wait for the rest of its end."""
        for topic in self.topics.loaded():
            topic.disconnect()
        self.pulsar.close()
        if self.kafka is not None:
            self.kafka.close()
        lost(why)

    def _steer(self, bundles: SharedTopics, report: BrokerReport) -> None:
        """Before the first client is served here."""
        if self.followed is None:
            steering = ReadSteering(bundles.reports, self.topics.loaded, self.bindings)
            self.pulsar.services.steering = steering
        else:  # it sends back whom it is not to serve; the owner alone sends on
            steering = ReadSteering(
                bundles.reports, self.followed.loaded, self.bindings, report.broker_id
            )
        self._scope.spawn(steering.run(), "read-only brokers")

    async def _close_topics(self, bundle: Bundle) -> TellClients:
        return await self.topics.hand_over(
            lambda name: bundle.holds(name) and not self._led_here(name)
        )

    def _led_here(self, name: TopicName) -> bool:
        """It stays, whoever has its bundle: who leads its log serves it."""
        replication = self.replication
        return replication is not None and replication.known(name) == replication.me

    async def _before_drain(self, bundles: SharedTopics) -> None:
        if self.replication is not None:
            await self.replication.node.relieve()
        await cut_large_bundles(bundles, [topic.name for topic in self.topics.loaded()])

    def _load(self) -> Load:
        rates, followed = self.rates, 0 if self.followed is None else len(self.followed)
        return Load(len(self.topics) + followed, rates.messages_in_per_s, rates.messages_out_per_s)

    async def leave(self) -> None:
        """Hand the topics over to other brokers, if there are any, before ``close``. Lookups are
        answered meanwhile. With the membership lost there is nothing to hand over; clients were
        sent away then (``_cut_off``), and the metadata store, which has to be asked for that, is
        mostly out of reach."""
        bundles = self.control.bundles
        if not isinstance(bundles, SharedTopics):
            return
        if bundles.session_lost:
            return
        if self.followed is not None:
            await bundles.drain()  # first: nobody is sent here any more
            await self.followed.close()
        if self.replication is not None:  # first: clients are sent to the next leaders then
            await self.replication.node.leave()
        await bundles.end()

    async def _read_only_starts(self) -> Mapping[str, int]:
        """Of the read-only brokers that are registered."""
        reports = await self.control.bundles.reports()
        return {name: each.start for name, each in reports.items() if each.read_only}

    @property
    def service_url(self) -> str:
        """What Pulsar's clients are told to connect to."""
        return self.pulsar.services.service_url

    async def close(self) -> None:
        """Stop; what was acknowledged is stored. Idempotent."""
        self.pulsar.stop_listening()
        if self.kafka is not None:
            self.kafka.stop_listening()
        try:
            await self._intake_scope.close()  # before topics: nothing begins any more
            await self._compaction_scope.close()
            if self.followed is not None:
                await self.followed.close()
            await self.topics.close()
            self._end_tasks()
            await self._scope.close()
        finally:
            # Also if that is given up: what ran on would use logs, which are closed next.
            self._end_tasks()
            if self._links is not None:
                self._links.close()
            self.pulsar.close()
            if self.kafka is not None:
                self.kafka.close()
            self.control.close()

    def _end_tasks(self) -> None:
        if self.replication is not None:
            self.replication.node.close()
        self._scope.cancel()

    def _task_failed(self, task: str, error: BaseException) -> None:
        self.pulsar.services.closing = True
        if self.kafka is not None:
            self.kafka.services.closing = True
        if self._failed is not None:
            self._failed(defect(task, error))

    def fold_metrics(self) -> None:
        """Bring the metrics up to date; before they are read."""
        self._traffic.fold(self._metrics)
        if self.kafka is not None:
            services = self.kafka.services
            services.traffic.fold(self._metrics, len(services.sessions))
        followed = 0 if self.followed is None else len(self.followed)
        self._metrics.broker_open_topics.set(len(self.topics) + followed)
        self._fold_tables()
        if self._partitions is not None:
            self._metrics.broker_doomed_partitions.set(len(self._partitions.host.doomed))
        if self.partition_compaction is not None:
            self.partition_compaction.fold(self._metrics)
        self._metrics.broker_unloaded_idle_topics_total.inc(self.topics.unloaded - self._unloaded)
        self._unloaded = self.topics.unloaded
        self._fold_quotas()

    def _fold_quotas(self) -> None:
        self._metrics.broker_over_quota_topics.set(self.quotas.topics_over)
        self._metrics.broker_evicted_entries_total.inc(self.quotas.evicted_entries - self._evicted)
        self._evicted = self.quotas.evicted_entries

    def _fold_tables(self) -> None:
        lags = (topic.log.tabled.lag for topic in self.topics.loaded())
        sums, metrics = tables_lag(lag for lag in lags if lag is not None), self._metrics
        metrics.table_topics.set(sums.topics)
        metrics.table_failing_topics.set(sums.failing)
        metrics.table_waiting_ledgers.set(sums.ledgers)
        metrics.table_waiting_bytes.set(sums.stored_bytes)
        waiting_s = time.time() - sums.closed_ms / 1000 if sums.closed_ms else 0
        metrics.table_waiting_seconds.set(max(0, waiting_s))


def _schema_policy(config: BrokerConfig) -> SchemaPolicy:
    """What holds where a namespace says nothing."""
    return SchemaPolicy(
        SchemaStrategy(config.schema_compatibility_strategy),
        config.schema_validation_enforced,
        config.schema_auto_update,
    )
