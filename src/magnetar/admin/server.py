"""The HTTP server: uvicorn in the process's own event loop.

The socket is bound by the caller's choice of port before anything is loaded, so the port is known
(0 takes a free one) and one in use is found out at once. uvicorn's own main loop, which wakes ten
times a second, is not run: signals, the end and the ``Date`` header are not its business here, so
an idle server costs nothing.
"""

from __future__ import annotations

import errno
import socket

import uvicorn
from fastapi import FastAPI

from magnetar.model.errors import StartError

CONNECTIONS_MAX = 512
KEEP_ALIVE_S = 30
SHUTDOWN_S = 1


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket. Raises ``StartError`` when the port is taken or not ours to use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise _cannot_bind(host, port, error) from error
    bound.setblocking(False)
    return bound


def _cannot_bind(host: str, port: int, error: OSError) -> StartError:
    if error.errno == errno.EADDRINUSE:
        return StartError(
            f"http.port = {port}: another process listens on {host}:{port}; "
            "choose another with --http-port (0 takes a free one)"
        )
    return StartError(f"cannot listen on {host}:{port} (http.host, http.port): {error.strerror}")


class HttpServer:
    """Serves one application on one bound socket."""

    def __init__(self, app: FastAPI, bound: socket.socket) -> None:
        self._socket = bound
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=SHUTDOWN_S,
            )
        )

    @property
    def port(self) -> int:
        port = self._socket.getsockname()[1]
        assert isinstance(port, int)
        return port

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
