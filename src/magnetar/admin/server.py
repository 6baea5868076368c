"""The HTTP server: uvicorn in the process's own event loop.

The socket is bound (``env.network.listening``) before any of this is loaded, so its port is known
and one in use is found out at once. uvicorn's own main loop, which wakes ten
times a second, is not run: signals, the end and the ``Date`` header are not its business here, so
an idle server costs nothing.

Why: docs/adr/0072-http-server-in-the-loop.md.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any, ClassVar

import structlog
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from magnetar.env.network.certificates import peer_name
from magnetar.env.network.listening import port_of

log = structlog.get_logger(__name__)

CONNECTIONS_MAX = 512
REQUEST_TIMEOUT_S = 15.0
KEEP_ALIVE_S = 30
SHUTDOWN_S = 1
LINGER_S = 2.0
LINGER_BYTES_MAX = 1 << 20
UNREAD_TIMEOUT_S = 30.0
READ_BYTES_LEAST = 32 << 10
UNREAD_BYTES_MAX = 128 << 20
CERTIFICATE_NAME = "certificate_name"
"""In a request's state: the common name of its connection's certificate, which TLS has verified."""
CALLER = "caller"
"""In a request's state: its ``Caller``."""
READ_ONLY = ("GET", "HEAD")
LEFT_MAX = 64
"""Requests of one address that go on though who asked has gone, from which on no more of its are
begun; an eighth of the connections."""


class Caller:
    """Who asks on a connection. ``reading``: the task of a request that changes nothing."""

    __slots__ = ("gone", "host", "reading")

    def __init__(self, host: str) -> None:
        self.host = host
        self.gone = False
        self.reading: asyncio.Task[Any] | None = None

    def leave(self) -> None:
        """The connection is lost: nobody waits for what is read."""
        self.gone = True
        if self.reading is not None:
            self.reading.cancel()


class _LingeringClose:
    """A transport whose ``close`` is ``protocol.end``."""

    def __init__(self, transport: asyncio.Transport, protocol: DeadlineProtocol) -> None:
        self._transport = transport
        self._protocol: DeadlineProtocol | None = protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        if self._protocol is not None:
            self._protocol.end(self._transport)

    def end(self) -> None:
        """The connection is lost."""
        self._protocol = None


class DeadlineProtocol(H11Protocol):
    """HTTP/1.1 whose requests must be whole in ``request_timeout_s``, on ``connections_max``
    connections.

    uvicorn waits for ever for a request that is begun and not finished, or never begun; enough of
    those would use up ``connections_max``. It also closes under a body that is still coming, so
    that the kernel throws the answer away with it: here the answer leaves first, and what comes
    for ``LINGER_S`` more is dropped, up to ``LINGER_BYTES_MAX``.

    It waits for ever, too, until an answer is read, closed or not. Here a client that has not read
    ``READ_BYTES_LEAST`` of what waits for it in ``unread_timeout_s`` is disconnected; and if all
    have more than ``unread_bytes_max`` together, who has had the most time for it.
    """

    request_timeout_s = REQUEST_TIMEOUT_S
    connections_max = CONNECTIONS_MAX
    unread_timeout_s = UNREAD_TIMEOUT_S
    unread_bytes_max = UNREAD_BYTES_MAX
    unread: ClassVar[dict[DeadlineProtocol, int]]
    """Of one server: connections whose clients are behind with reading, and by how many bytes when
    that began; who has been so for the longest first."""
    _deadline: asyncio.TimerHandle | None = None
    _next_look: asyncio.TimerHandle | None = None
    _unread_bytes = sys.maxsize  # at the last look
    _dropped_bytes = -1  # of a body after the answer; -1: nothing is dropped

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._lingering = _LingeringClose(transport, self)
        super().connection_made(self._lingering)  # type: ignore[arg-type]
        self._caller = Caller(self.client[0] if self.client else "")
        self.app_state = {**self.app_state, CALLER: self._caller}
        name = peer_name(transport)
        if name is not None:
            self.app_state[CERTIFICATE_NAME] = name
        if len(self.connections) > self.connections_max:
            transport.abort()  # uvicorn's own answer at its limit would need descriptors as well
            return
        self._expect_request()

    def end(self, transport: asyncio.Transport) -> None:
        """The answer has been written, and no other request is to come."""
        cycle = self.cycle
        self._watch_reader()
        if cycle is None or not cycle.more_body or transport.is_closing():
            transport.close()
        elif self._dropped_bytes < 0:
            self._dropped_bytes = 0
            if transport.can_write_eof():  # TLS cannot
                transport.write_eof()
            transport.resume_reading()
            self._stop_waiting()
            self._deadline = self.loop.call_later(LINGER_S, transport.close)

    def data_received(self, data: bytes) -> None:
        if self._dropped_bytes >= 0:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > LINGER_BYTES_MAX:
                self.transport.abort()
            return
        super().data_received(data)
        if self._dropped_bytes >= 0:
            return
        cycle = self.cycle
        if cycle is None or cycle.more_body or cycle.response_complete:
            self._expect_request()
        else:
            self._stop_waiting()  # whole: the answer's turn, then keep-alive's

    # -- answers that are not read ------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unread[self] = self.transport.get_write_buffer_size()
        while len(self.unread) > 1 and sum(self.unread.values()) > self.unread_bytes_max:
            first = next(iter(self.unread))
            del self.unread[first]
            first.drop("memory for answers that clients do not read is used up")
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.unread.pop(self, None)
        self._unread_bytes = sys.maxsize  # it has read what there was; the next answer counts anew

    def _watch_reader(self) -> None:
        if self._next_look is None:
            self._unread_bytes = sys.maxsize
            self._look_at_reader()

    def _look_at_reader(self) -> None:
        self._next_look = None
        unread_bytes = self.transport.get_write_buffer_size()
        if unread_bytes > max(0, self._unread_bytes - READ_BYTES_LEAST):
            self.drop("its answer was not read")
        elif unread_bytes:
            self._unread_bytes = unread_bytes
            self._next_look = self.loop.call_later(self.unread_timeout_s, self._look_at_reader)

    def drop(self, why: str) -> None:
        log.info("http connection closed", reason=why, peer=self.client)
        self.transport.abort()

    # -- the end ------------------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._caller.leave()
        self.unread.pop(self, None)
        if self._next_look is not None:
            self._next_look.cancel()
        super().connection_lost(exc)
        # What leads back here, else each connection would be a cycle.
        self.cycle = None  # type: ignore[assignment] # as in uvicorn, before the first request
        self._lingering.end()

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing is wrong: Java's HttpClient offers HTTP/2 in each request, and is answered by
        HTTP/1.1. uvicorn would advise to install libraries for WebSockets, which are not served."""

    def _expect_request(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.request_timeout_s, self._too_slow)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        log.info("http connection closed: no whole request in time", peer=self.client)
        self.transport.close()


class EndingApp:
    """``app``, but what is being answered when the server's time is over gets a 503, so that the
    client asks again. uvicorn cancels it, and would log that as an application's failure.

    A request that changes nothing ends with its connection: of a list of ten thousand topics
    nobody wants the rest. One that changes something goes on to its end, whoever waits for it: half
    of a change is worse than all of it. Whoever asks for changes and leaves would have as many
    under way as it likes, so while ``LEFT_MAX`` of one address go on, it gets no more begun. Those
    that are under way by then may be left, too: ``connections_max`` at most.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._changing: dict[str, list[Caller]] = {}
        """By address: who has asked for the changes that are under way."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False
        caller: Caller = scope.get("state", {}).get(CALLER) or Caller("")

        async def noting(event: Message) -> None:
            nonlocal begun
            begun = True
            await send(event)

        try:
            if scope["method"] in READ_ONLY:
                await self._read(caller, scope, receive, noting)
            else:
                await self._change(caller, scope, receive, noting)
        except asyncio.CancelledError:
            if caller.gone:
                log.debug("http request ended: its client has gone", path=scope.get("path"))
                return
            log.info("http request not answered: this server ends", path=scope.get("path"))
            if not begun:
                answer = JSONResponse({"reason": "this server ends; ask again"}, status_code=503)
                await answer(scope, receive, send)

    async def _read(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        caller.reading = asyncio.current_task()
        try:
            await self._app(scope, receive, send)
        finally:
            caller.reading = None

    async def _change(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        changing = self._changing.setdefault(caller.host, [])
        if sum(each.gone for each in changing) >= LEFT_MAX:
            text = (
                f"{LEFT_MAX} requests of {caller.host} go on whose clients have gone; ask again "
                "when some have ended"
            )
            await JSONResponse({"reason": text}, status_code=503)(scope, receive, send)
            return
        changing.append(caller)
        try:
            await self._app(scope, receive, send)
        finally:
            changing.remove(caller)
            if not changing:
                self._changing.pop(caller.host, None)


class HttpServer:
    """Serves one application on one bound socket. Past ``connections_max`` connections, new ones
    are closed as they come."""

    def __init__(
        self,
        app: FastAPI,
        bound: socket.socket,
        protocol: type[DeadlineProtocol] = DeadlineProtocol,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self._socket = bound
        self._server = uvicorn.Server(
            uvicorn.Config(
                EndingApp(app),
                http=type(
                    "Protocol", (protocol,), {"connections_max": connections_max, "unread": {}}
                ),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                # By default what a client of this machine says it comes from would be its address.
                proxy_headers=False,
                date_header=False,
                limit_concurrency=connections_max,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=SHUTDOWN_S,
            )
        )

    @property
    def port(self) -> int:
        return port_of(self._socket)

    def protocol(self) -> asyncio.BaseProtocol:
        """Of a connection that somebody else has accepted, by TLS. Requires ``start``."""
        config: Any = self._server.config
        made = config.http_protocol_class(
            config=config,
            server_state=self._server.server_state,
            app_state=self._server.lifespan.state,
        )
        assert isinstance(made, asyncio.BaseProtocol)
        return made

    async def start(self) -> None:
        """Accept connections from now on."""
        config = self._server.config
        config.load()
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[self._socket])

    async def stop(self) -> None:
        """Finish what is being answered (a second at most), then close."""
        if self._server.started:
            await self._server.shutdown(sockets=[self._socket])
        else:
            self._socket.close()
