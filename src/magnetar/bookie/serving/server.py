"""The bookie's TCP server: listens, keeps its sessions, watches their deadlines, ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from magnetar.bookie.core import BookieCore
from magnetar.bookie.serving.lac_watch import LacWatch
from magnetar.bookie.serving.session import BookieSession, SessionLimits
from magnetar.env.network.connections import Connections
from magnetar.env.tasks import TaskScope, defect, fails
from magnetar.model.errors import MagnetarError

log = structlog.get_logger(__name__)

CONNECTIONS_MAX = 10_000
SWEEPS_PER_TIMEOUT = 4


class BookieServer:
    """Serves ``core`` over BookKeeper's protocol.

    ``host`` and ``port`` (0: a free one) are where to listen. Past ``connections_max``
    connections, new ones are closed at once. ``connections``: what they share with others of the
    process; their own by default. ``failed`` is told when the server cannot go on; it
    ends itself then.
    """

    def __init__(
        self,
        core: BookieCore,
        host: str,
        port: int,
        limits: SessionLimits | None = None,
        connections_max: int = CONNECTIONS_MAX,
        connections: Connections | None = None,
        failed: Callable[[MagnetarError], None] | None = None,
    ) -> None:
        self._core = core
        self._host = host
        self._port = port
        self._limits = limits or SessionLimits()
        self._connections_max = connections_max
        self._connections = connections or Connections()
        self._failed = failed
        self._watch = LacWatch()
        self._sessions: dict[BookieSession, None] = {}
        self._scope = TaskScope(f"bookie server {host}:{port}", fails(self._task_failed))
        self._server: asyncio.Server | None = None
        self._closed = False

    @property
    def port(self) -> int:
        """The port listened on. Requires ``start``."""
        assert self._server is not None, "start the server first"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connection_count(self) -> int:
        return len(self._sessions)

    async def start(self) -> None:
        """Listen. Raises ``OSError`` when the address cannot be had."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._session, self._host, self._port)
        self._scope.spawn(self._sweep(), "frame deadlines")

    def _session(self) -> BookieSession:
        return BookieSession(
            self._core,
            self._limits,
            self._connections,
            self._watch,
            self._scope,
            self._began,
            self._ended,
        )

    def _began(self, session: BookieSession) -> None:
        if self._closed:  # it was accepted in the turn in which the server closed
            session.abort()
            return
        if len(self._sessions) >= self._connections_max:
            most = f"a bookie takes {self._connections_max}"
            self._connections.say_refused(session.peer, most)
            session.abort()
            return
        self._sessions[session] = None

    def _ended(self, session: BookieSession) -> None:
        self._sessions.pop(session, None)

    def _stop(self) -> None:
        self._closed = True
        if self._server is not None:
            self._server.close()
        for session in tuple(self._sessions):
            session.close()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._limits.frame_timeout_s / SWEEPS_PER_TIMEOUT)
            now_s = loop.time()
            for session in tuple(self._sessions):
                session.check_frame_deadline(now_s)

    def _task_failed(self, task: str, error: BaseException) -> None:
        """Without deadlines a peer could hold what it likes: nobody is served any more."""
        self._stop()
        if self._failed is not None:
            self._failed(defect(task, error))

    async def close(self) -> None:
        """Stop listening, end every connection (answers already made leave first). Idempotent."""
        self._stop()
        await self._scope.close()
