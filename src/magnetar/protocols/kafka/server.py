"""The Kafka server: listens, and owns the sessions of its clients and the coordinator of groups.

Its end is in two steps, as that of Pulsar's (``protocols.pulsar.server``): ``stop_listening`` while
topics are closed, then ``close``.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from magnetar.cluster.control_plane import ControlPlane
from magnetar.config import BrokerConfig, KafkaConfig, TlsConfig
from magnetar.env.network.connections import Connections
from magnetar.env.network.hung_up import hung_up
from magnetar.env.network.listening import advertised_host, bind, host_port, port_of
from magnetar.env.network.tls import TlsFiles, TlsListener
from magnetar.env.tasks import TaskScope
from magnetar.protocols.kafka.coordination.coordinator import Coordinator
from magnetar.protocols.kafka.coordination.transactions import Transactions
from magnetar.protocols.kafka.handlers.table import (
    AuthorizedRequestTable,
    CoordinatedGroups,
    RequestTable,
)
from magnetar.protocols.kafka.lines import BrokerWay
from magnetar.protocols.kafka.services import ClientConnection, KafkaServices, Node
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.topics.entry_format import EntryFormat
from magnetar.topics.registry import Topics

log = structlog.get_logger(__name__)

BACKLOG_CONNECTIONS: Final = 1024
SECRET_BYTES: Final = 32
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
SWEEP_S: Final = 5.0
SWEPT_AT_ONCE: Final = 250
"""Connections in one turn of the loop."""


@dataclass(frozen=True, slots=True)
class KafkaDoors:
    """How clients come in by TLS (None: not at all; ``config.host`` empty: as the plain listener),
    and how other brokers are reached."""

    tls: TlsFiles | None = None
    config: TlsConfig = field(default_factory=TlsConfig)
    way: BrokerWay = field(default_factory=BrokerWay)


class KafkaServer:
    """Serves ``topics`` to Kafka's clients. ``clock``: seconds since 1970."""

    def __init__(
        self,
        config: KafkaConfig,
        broker: BrokerConfig,
        control: ControlPlane,
        topics: Topics,
        entry_format: EntryFormat,
        scope: TaskScope,
        connections: Connections,
        clock: Callable[[], float],
        doors: KafkaDoors | None = None,
    ) -> None:
        self._config = config
        self._doors = doors or KafkaDoors()
        self._frame_timeout_s = broker.frame_timeout_ms / 1000
        self._scope = scope
        self.services = KafkaServices(
            config, broker, control, topics, entry_format, scope, connections, clock
        )
        self.services.peers.way = self._doors.way
        self.coordinator = Coordinator(self.services)
        self.transactions = Transactions(self.services, self.coordinator)
        self.coordinated_groups = CoordinatedGroups.over(self.services, self.coordinator)
        self.services.takes_part = self.transactions.takes_part
        self._servers: list[asyncio.Server | TlsListener] = []

    async def start(self, start_number: int) -> None:
        """Listen; ``start_number``: the broker's number as a node. Raises ``OSError`` when
        a port is taken."""
        services, config = self.services, self._config
        if services.access is not None and not services.sasl_secret:
            services.sasl_secret = secrets.token_bytes(SECRET_BYTES)
        table = self._table()
        port = await self._listen(partial(KafkaSession, services, table))
        tls_port = self._listen_with_tls(partial(KafkaSession, services, table, True))
        host = advertised_host(config.host, config.advertised_host)
        services.node = Node(start_number, host, port, tls_port)
        self._scope.spawn(self._sweep(), "kafka sweeper")
        self._scope.spawn(self.coordinator.run(), "kafka offsets")
        self._scope.spawn(self.transactions.run(), "kafka transactions")
        log.info("kafka listens", address=self.address, tls_address=self.tls_address)

    async def _listen(self, made: Callable[[], KafkaSession]) -> int:
        """The port, which ``kafka.port`` 0 leaves free; -1: none."""
        config, services = self._config, self.services
        if config.port < 0:
            return -1
        if services.access is not None and config.host not in LOOPBACK:
            log.warning(
                "passwords and tokens of Kafka's clients come unencrypted, unless they take SCRAM; "
                "kafka.tls_port, and kafka.port=-1, have them encrypted",
                host=config.host,
                mechanisms=services.access.authenticator.mechanisms,
            )
        server = await asyncio.get_running_loop().create_server(
            made, config.host, config.port, backlog=BACKLOG_CONNECTIONS
        )
        self._servers.append(server)
        found = server.sockets[0].getsockname()[1]
        assert isinstance(found, int)
        return found

    def _listen_with_tls(self, made: Callable[[], KafkaSession]) -> int:
        """As ``_listen``. Raises ``StartError``."""
        doors, port = self._doors, self._config.tls_port
        if doors.tls is None or port < 0:
            return -1
        bound = bind(doors.config.host or self._config.host, port, "kafka.tls_port")
        listener = TlsListener(
            bound,
            made,
            doors.tls,
            self._scope,
            self.services.connections,
            doors.config.handshake_timeout_ms / 1000,
            doors.config.handshakes_max,
        )
        found = port_of(bound)
        listener.start()
        self._servers.append(listener)
        return found

    def _table(self) -> RequestTable:
        asked = self.services.access is not None
        kind = AuthorizedRequestTable if asked else RequestTable
        return kind(self.coordinator, self.transactions, self.coordinated_groups)

    @property
    def address(self) -> str:
        """``host:port`` that clients are told; empty: there is no plain listener."""
        return self._address(tls=False)

    @property
    def tls_address(self) -> str:
        """As ``address``, with TLS."""
        return self._address(tls=True)

    @property
    def listening(self) -> str:
        """For people: ``kafka HOST:PORT`` of each listener."""
        plain, tls = (self._shown(tls=by_tls) for by_tls in (False, True))
        return "  ".join(
            [*([f"kafka {plain}"] if plain else []), *([f"kafka+tls {tls}"] if tls else [])]
        )

    def _shown(self, *, tls: bool) -> str:
        """As clients are given it: an IPv6 address in brackets."""
        _, host, port = self.services.node.by(tls)
        return host_port(host, port) if port >= 0 else ""

    def _address(self, *, tls: bool) -> str:
        _, host, port = self.services.node.by(tls)
        return f"{host}:{port}" if port >= 0 else ""

    async def _sweep(self) -> None:
        """Ends connections that are silent: no request for ``idle_connection_ms`` and none under
        way, or a frame that is not finished within ``broker.frame_timeout_ms``; or whose clients
        have not shown in that time who they are, whatever else they sent. Those whose clients have
        gone while a request waits are not read, and are looked for."""
        loop = asyncio.get_running_loop()
        seen: dict[ClientConnection, tuple[int, float]] = {}
        idle_s = self._config.idle_connection_ms / 1000
        while True:
            await asyncio.sleep(min(SWEEP_S, idle_s, self._frame_timeout_s))
            now = loop.time()
            before, seen = seen, {}
            waiting: dict[int, ClientConnection] = {}
            for number, session in enumerate(list(self.services.sessions), 1):
                if number % SWEPT_AT_ONCE == 0:
                    _end_gone(waiting)
                    await asyncio.sleep(0)
                if session.waits and session.descriptor >= 0:
                    waiting[session.descriptor] = session
                frames, since = before.get(session, (-1, now))
                known = session.is_known
                if known and (frames != session.frames or session.waits):
                    frames, since = session.frames, now
                seen[session] = frames, since
                hurries = session.partial_frame_bytes or not known
                limit = self._frame_timeout_s if hurries else idle_s
                if now - since >= limit:
                    log.info("connection closed: silent", peer=session.peer)
                    session.abort()
            _end_gone(waiting)

    def stop_listening(self) -> None:
        self.services.closing = True
        for server in self._servers:
            server.close()
        self._servers.clear()

    def close(self) -> None:
        """End the connections. Idempotent."""
        self.stop_listening()
        self.coordinator.close()
        self.services.peers.close()
        for session in list(self.services.sessions):
            session.close()


def _end_gone(waiting: dict[int, ClientConnection]) -> None:
    """Those of a turn of the loop, by their descriptors."""
    for each in hung_up(waiting):
        log.info("connection closed: its client has gone", peer=waiting[each].peer)
        waiting[each].abort()
    waiting.clear()
