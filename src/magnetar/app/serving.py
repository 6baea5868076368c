"""Builds the upper half: logs, broker, REST.

Why: docs/adr/0073-one-broker-per-cluster-name.md, docs/adr/0091-brokers-own-bundles.md.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog
from prometheus_client import GCCollector, PlatformCollector, ProcessCollector

from magnetar.app.broker import Broker
from magnetar.app.checks import (
    bookies_check,
    descriptors_check,
    metadata_check,
    other_process_check,
    partitions_check,
    tables_check,
    tls_check,
    topics_check,
    unread_check,
)
from magnetar.app.ending import end_within
from magnetar.app.kafka_doors import open_doors
from magnetar.app.partitions import open_partitions, partition_logs
from magnetar.app.process import Process
from magnetar.app.securing import open_authenticator, open_own_access
from magnetar.app.storage import METADATA_END_S, Cluster
from magnetar.cluster.security.own import OwnAccess
from magnetar.cluster.topic_name import parse_topic
from magnetar.config import KEPT_FOR_EVER, Config, LedgerConfig, keeps_everything
from magnetar.env.exclusive import ExclusiveClaim
from magnetar.env.metadata import MetadataStore
from magnetar.env.network.listening import (
    ANY_ADDRESS,
    advertised_host,
    bind,
    cannot_listen,
    host_port,
    port_of,
)
from magnetar.env.network.tls import TlsListener
from magnetar.env.tasks import TaskScope
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.connecting import LedgerAccess
from magnetar.ledger.directory import LedgerDirectory
from magnetar.ledger.values import LedgerValues
from magnetar.log.engines.store import LogStores
from magnetar.log.managed.quorums import quorums_of_logs
from magnetar.log.managed.store import ManagedLogStore
from magnetar.log.partition.leading import PartitionLeading
from magnetar.model.errors import SessionExpiredError
from magnetar.model.ledger import Quorums
from magnetar.protocols.entry_formats import EitherEntryFormat
from magnetar.protocols.kafka.services import CopyDefaults
from magnetar.staging.handing_out import HandingOut

if TYPE_CHECKING:
    from magnetar.admin.peers import Transport
    from magnetar.admin.server import HttpServer
    from magnetar.admin.topics import TopicService

log = structlog.get_logger(__name__)

LOGS_END_S = 10.0
LOST_END_S = 2.0
"""Of a broker that is no member any more: what it would store is another's, or recovered by it; the
store is mostly out of reach then, and answers nothing for as long as one waits."""
HAND_OVER_S = 30.0
ADMIN_MODULES = ("magnetar.admin.api", "magnetar.admin.server")


async def claim_cluster(process: Process, metadata: MetadataStore) -> None:
    """Be the only broker of the cluster's name. Raises ``StartError`` when there is one."""
    config = process.config

    def lost(why: str) -> None:
        process.fate.fail(
            SessionExpiredError(
                f"cluster {config.cluster!r} may have another broker by now: {why}; ending, so "
                "that only one serves its topics. Start this broker again"
            )
        )

    about = f"the broker at {process.outside.process}, pulsar port {config.broker.port or '(any)'}"
    claim = ExclusiveClaim(
        metadata,
        f"/magnetar/{config.cluster}/broker",
        about,
        config.metadata.session_timeout_ms,
        lost,
    )
    end_within(process.stack, METADATA_END_S, "claim of the cluster", claim.release)
    await claim.acquire(f"cluster {config.cluster!r}")


class Membership(NamedTuple):
    """What a broker is within its cluster. ``shares``: others serve topics, too. ``read_only``: it
    owns none."""

    http_url: str
    shares: bool
    read_only: bool = False
    http_url_tls: str = ""


class BrokerParts(NamedTuple):
    """A broker that serves clients, and what it stands on."""

    cluster: Cluster
    ledgers: LedgerAccess
    broker: Broker


async def start_broker(
    process: Process, cluster: Cluster, ledgers: LedgerAccess, membership: Membership
) -> Broker:
    """A broker that serves clients. Ends in the order: topics to other brokers, clients, logs."""
    config, outside, stack = process.config, process.outside, process.stack
    metadata, authenticator = cluster.metadata, open_authenticator(config, outside.clock_s)
    own = open_own_access(config, authenticator, membership.shares)
    if keeps_everything(config.ledger):
        log.warning("nothing is ever deleted", what=KEPT_FOR_EVER)
    history = outside.make_history()
    end_within(stack, LOGS_END_S, "tables", history.close)
    of_ledgers = ManagedLogStore(
        metadata, ledgers.client, config.ledger, now_ms=outside.clock_ms, history=history
    )
    leading = None if membership.read_only else await open_partitions(process, cluster)
    partitions = None
    if leading is not None:
        partitions = partition_logs(process, metadata, of_ledgers, leading)
    logs = LogStores(of_ledgers, partitions)
    end_within(stack, partial(_logs_end_s, process), "logs", logs.close)
    directory = LedgerDirectory(ledgers.manager, ledgers.registry)

    async def quorums_for(topic: str) -> Quorums:
        return await staged_quorums(config.ledger, metadata, ledgers.client, topic)

    broker = Broker(
        config.broker,
        logs,
        metadata,
        LedgerValues(ledgers.client),
        process.metrics,
        outside.clock_s,
        config.cluster,
        process.connections,
        process.fate.fail,
        directory,
        None if membership.read_only else ledgers.client,
        cluster.living_ledgers,
        HandingOut(metadata, ledgers.manager, quorums_for, directory.bookies),
        membership.shares,
        membership.read_only,
        config.kafka,
        leading,
        config.partition,
        authenticator,
        open_doors(config, own, membership.shares and not membership.read_only),
    )
    broker.control.partitioned.new_id = outside.new_uuid
    tls = None if process.tls is None else (process.tls, config.tls)
    broker.secure(tls, own, membership.http_url_tls)
    end_within(stack, partial(_logs_end_s, process), "broker", broker.close)
    end_within(stack, HAND_OVER_S, "hand-over of the topics", broker.leave)
    _add_checks(process, broker, ledgers, metadata, leading)
    if broker.kafka is not None:
        copies = CopyDefaults(quorums_of_config(config.ledger), config.partition.replication_factor)
        broker.kafka.services.defaults = copies
    try:
        await broker.start()
    except OSError as error:
        if broker.kafka is not None and broker.pulsar.port:  # that one listens
            place = config.kafka.host, config.kafka.port, "kafka.port"
        else:
            place = config.broker.host, config.broker.port, "broker.port"
        raise cannot_listen(*place, error) from error
    zone, timeout_ms = config.broker.zone, config.metadata.session_timeout_ms
    lost = partial(_membership_lost, process)
    await broker.join(membership.http_url, zone, timeout_ms, lost, membership.read_only)
    return broker


def _logs_end_s(process: Process) -> float:
    return LOST_END_S if process.fate.membership_lost else LOGS_END_S


def _add_checks(
    process: Process,
    broker: Broker,
    ledgers: LedgerAccess,
    metadata: MetadataStore,
    leading: PartitionLeading | None,
) -> None:
    config = process.config
    process.health.add("metadata", metadata_check(metadata))
    process.health.add("topics", topics_check(broker.topics))
    if broker.kafka is not None:
        process.health.add("kafka", unread_check(broker.kafka.services.unread))
    process.health.add(
        "tables",
        tables_check(
            broker.topics, config.ledger.table_lag_ms_max, lambda: time.time_ns() // 10**6
        ),
    )
    if leading is not None:
        process.health.add("partitions", partitions_check(leading.host))
    if broker.partition_compaction is not None:
        process.health.add("compaction", broker.partition_compaction.check())
    process.health.add("bookies", bookies_check(ledgers.registry, config.ledger))
    process.health.add("descriptors", descriptors_check(process.descriptors, process.connections))
    if max(config.broker.tls_port, config.http.tls_port, config.kafka.tls_port) >= 0:
        process.health.add("tls", tls_check(config.tls, process.outside.clock_s))


async def staged_quorums(
    config: LedgerConfig, metadata: MetadataStore, ledgers: LedgerClient, topic: str
) -> Quorums:
    """Of what is written beside the topic, to be as safe as it; else those of new ledgers."""
    names = parse_topic(topic).first_logs if topic else ()
    found = await quorums_of_logs(metadata, ledgers, names)
    return found or quorums_of_config(config)


def quorums_of_config(config: LedgerConfig) -> Quorums:
    """Of new ledgers, where no policy says."""
    return Quorums(config.ensemble_size, config.write_quorum, config.ack_quorum)


def _membership_lost(process: Process, why: str) -> None:
    process.fate.fail(
        SessionExpiredError(
            f"other brokers of cluster {process.config.cluster!r} may have this one's topics by "
            f"now: {why}; ending, so that nobody is served twice. Start this broker again"
        )
    )


async def storage_warning(process: Process) -> str:
    """A line to print below "ready" if nothing can be stored for now; empty if it can."""
    problem = await process.health.problem_of("bookies")
    return f"\nwarning: {problem}" if problem else ""


class RestServer:
    """REST of this process. Its libraries are imported on a thread from ``prepare`` on, while
    the loop opens everything else."""

    def __init__(self, scope: TaskScope, process: Process, bound: socket.socket) -> None:
        """``bound``: of ``http.port``; ``http.tls_port`` is bound here. Raises ``StartError``."""
        config, connections_max = process.config, process.descriptors.http_connections_max
        self._scope = scope
        self._bound = bound
        self._tls_bound: socket.socket | None = None
        if config.http.tls_port >= 0:
            host = config.tls.host or config.http.host
            self._tls_bound = bind(host, config.http.tls_port, "http.tls_port")
            process.stack.callback(self._tls_bound.close)
        self._connections_max = connections_max
        self._imported = scope.spawn(asyncio.to_thread(_import_admin), "import REST")

    def url(self, config: Config) -> str:
        """Where others find it."""
        known_as = config.broker.advertised_host if config.http.host in ANY_ADDRESS else ""
        return "http://" + host_port(
            advertised_host(config.http.host, known_as), port_of(self._bound)
        )

    def tls_url(self, config: Config) -> str:
        """As ``url``, by TLS; empty: not served."""
        if self._tls_bound is None:
            return ""
        listens = config.tls.host or config.http.host
        known_as = config.broker.advertised_host if listens in ANY_ADDRESS else ""
        return "https://" + host_port(advertised_host(listens, known_as), port_of(self._tls_bound))

    async def start(self, process: Process, parts: BrokerParts) -> str:
        """Serve until the process ends; returns the URL."""
        await self._imported
        from magnetar.admin import api
        from magnetar.admin.backlogs import BacklogService
        from magnetar.admin.brokers import BrokerService
        from magnetar.admin.compaction import CompactionService
        from magnetar.admin.deletions import DeletionService
        from magnetar.admin.ledgers import LedgerService
        from magnetar.admin.messages import MessageService
        from magnetar.admin.namespaces import NamespaceService
        from magnetar.admin.peers import HttpTransport, Peers
        from magnetar.admin.policies import PolicyService, quorums_of
        from magnetar.admin.schemas import SchemaService
        from magnetar.admin.server import HttpServer
        from magnetar.admin.termination import TerminationService

        config, metrics = process.config, process.metrics
        cluster, ledgers, broker = parts
        http_url = self.url(config)
        transport = HttpTransport(broker.own, broker.tls_addresses)
        process.stack.push_async_callback(transport.close)
        if config.http.health_of:
            # Without TLS, and whatever brokers ask one another by: it is on the same machine.
            plain = HttpTransport(OwnAccess(broker.own.token))
            process.stack.push_async_callback(plain.close)
            check = other_process_check(plain, config.http.health_of)
            process.health.add("the process with the bookies", check)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=metrics.registry)
        topics = topic_service(process, broker, http_url, transport)
        peers = Peers(transport)
        brokers = BrokerService(broker.control, http_url, peers, broker.topics.names, config)
        messages = MessageService(topics, EitherEntryFormat())
        app = api.create(
            metrics.registry,
            NamespaceService(
                broker.control,
                broker.service_url,
                http_url,
                (broker.pulsar.services.service_url_tls, broker.http_url_tls),
            ),
            topics,
            LedgerService(cluster.manager, ledgers.pool, config.ledger, process.waiting_spaces),
            [broker.fold_metrics, process.fold_metrics],
            process.health,
            SchemaService(broker.control),
            PolicyService(broker.control, broker.topics, quorums_of(config.ledger)),
            brokers,
            CompactionService(broker.control, broker.topics, broker.compactions, peers),
            messages,
            None if broker.access is None else (broker.access, config.security),
            DeletionService(broker.control, topics, brokers),
            TerminationService(topics, messages, peers),
            BacklogService(topics, broker.look_at_backlogs),
        )
        server = HttpServer(app, self._bound, connections_max=self._connections_max)
        process.stack.push_async_callback(server.stop)
        app.state.tls_addresses = broker.tls_addresses
        await server.start()
        self._serve_tls(process, server)
        return http_url

    def _serve_tls(self, process: Process, server: HttpServer) -> None:
        """The same, by TLS, if there is a port for it."""
        if self._tls_bound is not None and process.tls is not None:
            tls = process.config.tls
            listener = TlsListener(
                self._tls_bound,
                server.protocol,
                process.tls,
                self._scope,
                process.connections,
                tls.handshake_timeout_ms / 1000,
                tls.handshakes_max,
            )
            process.stack.callback(listener.close)
            listener.start()


def topic_service(
    process: Process, broker: Broker, http_url: str, transport: Transport
) -> TopicService:
    """What REST does with topics; other brokers are reached by ``transport``."""
    from magnetar.admin.peers import Peers
    from magnetar.admin.topics import TopicService

    now_ms, url, peers = process.outside.clock_ms, broker.service_url, Peers(transport)
    return TopicService(
        broker.control,
        broker.topics,
        broker.rates,
        url,
        http_url,
        now_ms,
        peers,
        broker.followed,
        broker.pulsar.services.tls_url,
    )


def _import_admin() -> None:
    for name in ADMIN_MODULES:
        importlib.import_module(name)
