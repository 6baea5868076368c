"""The Kafka server: listens, and owns the sessions of its clients and the coordinator of groups.

Its end is in two steps, as that of Pulsar's (``protocols.pulsar.server``): ``stop_listening`` while
topics are closed, then ``close``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from magnetar.cluster.control_plane import ControlPlane
from magnetar.config import BrokerConfig, KafkaConfig
from magnetar.env.connections import Connections
from magnetar.env.listening import advertised_host
from magnetar.env.tasks import TaskScope
from magnetar.protocols.kafka.coordination.coordinator import Coordinator
from magnetar.protocols.kafka.coordination.transactions import Transactions
from magnetar.protocols.kafka.handlers.table import AuthorizedRequestTable, RequestTable
from magnetar.protocols.kafka.services import ClientConnection, KafkaServices, Node
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.topics.entry_format import EntryFormat
from magnetar.topics.registry import Topics

log = structlog.get_logger(__name__)

BACKLOG_CONNECTIONS: Final = 1024
SWEEP_S: Final = 5.0


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
    ) -> None:
        self._config = config
        self._frame_timeout_s = broker.frame_timeout_ms / 1000
        self._scope = scope
        self.services = KafkaServices(
            config, broker, control, topics, entry_format, scope, connections, clock
        )
        self.coordinator = Coordinator(self.services)
        self.transactions = Transactions(self.services, self.coordinator)
        self.services.takes_part = self.transactions.takes_part
        self._server: asyncio.Server | None = None

    async def start(self, start_number: int) -> None:
        """Listen; ``start_number``: the broker's number as a node. Raises ``OSError`` when
        the port is taken."""
        table, services = self._table(), self.services
        self._server = await asyncio.get_running_loop().create_server(
            lambda: KafkaSession(services, table),
            self._config.host,
            self._config.port,
            backlog=BACKLOG_CONNECTIONS,
        )
        port = self._server.sockets[0].getsockname()[1]
        host = advertised_host(self._config.host, self._config.advertised_host)
        services.node = Node(start_number, host, port)
        self._scope.spawn(self._sweep(), "kafka sweeper")
        self._scope.spawn(self.coordinator.run(), "kafka offsets")
        self._scope.spawn(self.transactions.run(), "kafka transactions")
        log.info("kafka listens", address=self.address)

    def _table(self) -> RequestTable:
        asked = self.services.access is not None
        kind = AuthorizedRequestTable if asked else RequestTable
        return kind(self.coordinator, self.transactions)

    @property
    def address(self) -> str:
        """``host:port`` that clients are told."""
        return f"{self.services.node.host}:{self.services.node.port}"

    async def _sweep(self) -> None:
        """Ends connections that are silent: no request for ``idle_connection_ms`` and none under
        way, or a frame that is not finished within ``broker.frame_timeout_ms``; or whose clients
        have not shown in that time who they are, whatever else they sent."""
        loop = asyncio.get_running_loop()
        seen: dict[ClientConnection, tuple[int, float]] = {}
        idle_s = self._config.idle_connection_ms / 1000
        while True:
            await asyncio.sleep(min(SWEEP_S, idle_s, self._frame_timeout_s))
            now = loop.time()
            before, seen = seen, {}
            for session in list(self.services.sessions):
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

    def stop_listening(self) -> None:
        self.services.closing = True
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        """End the connections. Idempotent."""
        self.stop_listening()
        self.coordinator.close()
        self.services.peers.close()
        for session in list(self.services.sessions):
            session.close()
