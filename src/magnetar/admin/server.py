"""The HTTP server: uvicorn in the process's own event loop.

The socket is bound (``env.listening``) before any of this is loaded, so its port is known and one
in use is found out at once. uvicorn's own main loop, which wakes ten
times a second, is not run: signals, the end and the ``Date`` header are not its business here, so
an idle server costs nothing.
"""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI

from magnetar.env.listening import port_of

CONNECTIONS_MAX = 512
KEEP_ALIVE_S = 30
SHUTDOWN_S = 1


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
        return port_of(self._socket)

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
