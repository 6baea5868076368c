"""The Pulsar server: listens, and owns the sessions of its clients.

Start order: the number of this start (it makes generated producer names unique), then the port.
Its end is in two steps, so that topics can send clients away in between: ``stop_listening``, then
``close``. Topics belong to the broker (``app.broker``), which other protocols may share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from magnetar.cluster.control_plane import ControlPlane
from magnetar.config import BrokerConfig, TlsConfig
from magnetar.env.network.connections import Connections
from magnetar.env.network.listening import advertised_host, bind, host_port, port_of
from magnetar.env.network.tls import TlsFiles, TlsListener
from magnetar.env.tasks import TaskScope
from magnetar.metrics import Metrics
from magnetar.protocols.pulsar.handlers.table import make_table
from magnetar.protocols.pulsar.liveness import Sweeper
from magnetar.protocols.pulsar.services import Services
from magnetar.protocols.pulsar.session import Session
from magnetar.topics.registry import Topics

log = structlog.get_logger(__name__)

BACKLOG_CONNECTIONS = 1024


class PulsarServer:
    """Serves ``topics`` to Pulsar's clients. ``clock``: seconds since 1970."""

    def __init__(
        self,
        config: BrokerConfig,
        control: ControlPlane,
        topics: Topics,
        metrics: Metrics,
        scope: TaskScope,
        connections: Connections,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._scope = scope
        self.services = Services(config, control, topics, metrics, scope, connections, clock)
        self._server: asyncio.Server | None = None
        self._listener: TlsListener | None = None
        self.tls: tuple[TlsFiles, TlsConfig] | None = None
        """With which ``tls_port`` is served; set before ``start``."""
        self.port = 0
        self.start_number = 0
        """No other start of a broker has it."""

    async def start(self) -> None:
        """Listen. Raises ``OSError`` when the port is taken, ``MetadataError``."""
        services, config = self.services, self._config
        control = services.control
        self.start_number = await control.counters.count_start()
        services.name_prefix = f"{control.name}-{self.start_number}"
        table = make_table()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Session(services, table),
            config.host,
            config.port,
            backlog=BACKLOG_CONNECTIONS,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        host = advertised_host(config.host, config.advertised_host)
        services.service_url = f"pulsar://{host_port(host, self.port)}"
        if self.tls is not None and config.tls_port >= 0:
            self._listen_tls(*self.tls, lambda: Session(services, table))
        self._scope.spawn(Sweeper(config, services.sessions).run(), "sweeper")
        log.info("broker listens", url=services.service_url)

    def _listen_tls(self, files: TlsFiles, tls: TlsConfig, factory: Callable[[], Session]) -> None:
        config = self._config
        bound = bind(tls.host or config.host, config.tls_port, "broker.tls_port")
        self._listener = TlsListener(
            bound,
            factory,
            files,
            self._scope,
            self.services.connections,
            tls.handshake_timeout_ms / 1000,
            tls.handshakes_max,
        )
        self._listener.start()
        host = advertised_host(tls.host or config.host, config.advertised_host)
        self.services.service_url_tls = f"pulsar+ssl://{host_port(host, port_of(bound))}"
        log.info("broker listens by TLS", url=self.services.service_url_tls)

    @property
    def service_url(self) -> str:
        """What clients are told to connect to."""
        return self.services.service_url

    @property
    def connections(self) -> int:
        """Clients connected now."""
        return len(self.services.sessions)

    @property
    def unsent_bytes(self) -> int:
        """Bytes waiting for clients to read them."""
        return sum(session.unsent_bytes for session in self.services.sessions)

    def stop_listening(self) -> None:
        """Take no new client; those there are hear that topics are closing."""
        self.services.closing = True
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def close(self) -> None:
        """End the connections. Idempotent."""
        self.stop_listening()
        for session in list(self.services.sessions):
            session.close()
