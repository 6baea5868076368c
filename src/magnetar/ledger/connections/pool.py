"""Clients of bookies by id: TCP connections made when first used, or bookies of this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from magnetar.env.connections import Connections
from magnetar.ledger.bookies import BookieClient
from magnetar.ledger.connections.add_frames import AddFrames
from magnetar.ledger.connections.channel import ConnectionOptions, Resolve
from magnetar.ledger.connections.connection import BookieConnection
from magnetar.model.ids import BookieId


class ConnectionPool:
    """``ledger.bookies.BookiePool``.

    ``resolve`` says where a bookie listens; ``available`` which bookies take new entries;
    ``local`` are clients of bookies in this process, which the pool closes too.
    """

    def __init__(
        self,
        resolve: Resolve,
        available: Callable[[], Awaitable[list[BookieId]]],
        local: Mapping[BookieId, BookieClient] | None = None,
        options: ConnectionOptions | None = None,
    ) -> None:
        self._resolve = resolve
        self._available = available
        self._clients: dict[BookieId, BookieClient] = dict(local or {})
        self._options = options or ConnectionOptions()
        self._frames = AddFrames()
        self._connections = Connections()  # apart from those that others make to us
        self._closed = False

    def client(self, bookie_id: BookieId) -> BookieClient:
        """The one client of that bookie. The pool must be open."""
        assert not self._closed, "the pool is closed"
        client = self._clients.get(bookie_id)
        if client is None:
            client = BookieConnection(
                bookie_id, self._resolve, self._options, self._frames, self._connections
            )
            self._clients[bookie_id] = client
        return client

    async def available(self) -> list[BookieId]:
        return sorted(await self._available())

    async def close(self) -> None:
        """Close every client. Idempotent."""
        self._closed = True
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()
