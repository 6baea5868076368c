"""Clients of bookies by id: TCP connections made when first used, or bookies of this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from magnetar.env.network.connections import Connections
from magnetar.ledger.bookies import AsksForLacs, BookieClient, EntryLister, LacSource
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
        self._local = dict(local or {})
        self._connections_of: dict[BookieId, BookieConnection] = {}
        self._options = options or ConnectionOptions()
        self._frames = AddFrames()
        self._connections = Connections()  # apart from those that others make to us
        self._closed = False

    def client(self, bookie_id: BookieId) -> BookieClient:
        """The one client of that bookie. The pool must be open."""
        assert not self._closed, "the pool is closed"
        local = self._local.get(bookie_id)
        return local if local is not None else self._connection(bookie_id)

    def lister(self, bookie_id: BookieId) -> EntryLister:
        """Whom to ask what that bookie holds (one of this process is connected to as well). The
        pool must be open."""
        assert not self._closed, "the pool is closed"
        return self._connection(bookie_id)

    def _connection(self, bookie_id: BookieId) -> BookieConnection:
        connection = self._connections_of.get(bookie_id)
        if connection is None:
            connection = self._connections_of[bookie_id] = BookieConnection(
                bookie_id, self._resolve, self._options, self._frames, self._connections
            )
        return connection

    def let_ask(self, source: LacSource) -> frozenset[BookieId]:
        asking = {name: each for name, each in self._local.items() if isinstance(each, AsksForLacs)}
        for client in asking.values():
            client.ask_for_lacs(source)
        return frozenset(asking)

    async def available(self) -> list[BookieId]:
        return sorted(await self._available())

    async def close(self) -> None:
        """Close every client. Idempotent."""
        self._closed = True
        local, self._local = self._local, {}
        connections, self._connections_of = self._connections_of, {}
        for client in (*local.values(), *connections.values()):
            await client.close()
