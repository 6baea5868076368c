"""The network between the processes of a stage: every server is reached through a relay that knows
who asks, so that any two can be cut off from one another.

A relay listens where a server is advertised. Who has connected is found by the process that owns
the other end of the connection (``/proc``): links are cut by names, not by addresses, which are all
of this machine.

A cut link is a black hole: what comes is dropped, in both directions, connections stay open, new
ones are taken and hear nothing. When it is healed, connections that lost something are closed, as
those of a real network are by the time that a packet comes through again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from types import TracebackType
from typing import Final, NamedTuple

from magnetar.proving.socket_owners import GONE, Address, inode_of, owns

CHUNK_BYTES: Final = 64 << 10
CLIENT: Final = "client"
CLIENT_HOST: Final = "127.0.9.1"
"""Clients of the stage come from there: they connect often, and need not be looked for."""
START_S: Final = 30.0
LOOKS: Final = 50
LOOK_PAUSE_S: Final = 0.1
UNKNOWN: Final = "unknown"
"""A process that has ended, or given the connection up, before it was looked for."""


class Pair(NamedTuple):
    source: str
    target: str


class _Connection:
    def __init__(self, pair: Pair, writer: asyncio.StreamWriter) -> None:
        self.pair = pair
        self.writers = [writer]
        self.lost_something = False

    def close(self) -> None:
        for writer in self.writers:
            writer.close()


class RelayNetwork:
    """A context manager; its relays run in a thread of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._names: dict[int, str] = {os.getpid(): CLIENT}
        self._cut: set[Pair] = set()
        self._connections: set[_Connection] = set()
        self._servers: list[asyncio.Server] = []

    def __enter__(self) -> RelayNetwork:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def name(self, pid: int, name: str) -> None:
        """The process has that name from now on; this one is ``CLIENT``."""
        self._names[pid] = name

    def relay(self, name: str, target: Address, at: Address) -> Address:
        """The server ``name`` is at ``target``, and reached at ``at`` (port 0: a free one)."""
        made = asyncio.run_coroutine_threadsafe(self._listen(name, target, at), self._loop)
        return made.result(START_S)

    def cut(self, *pairs: tuple[str, str]) -> None:
        """(who connects, to whom): nothing comes through any more."""
        self._cut.update(Pair(*pair) for pair in pairs)

    def heal(self, *pairs: tuple[str, str]) -> None:
        """Without any: all."""
        healed = {Pair(*pair) for pair in pairs} or set(self._cut)
        self._cut -= healed
        self._loop.call_soon_threadsafe(self._close_broken)

    def broken(self) -> int:
        """Connections that have lost something to a cut, and are open."""
        return sum(each.lost_something for each in list(self._connections))

    def _close_broken(self) -> None:
        for each in list(self._connections):
            if each.lost_something and each.pair not in self._cut:
                each.close()

    async def _listen(self, name: str, target: Address, at: Address) -> Address:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                ends = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
                source = await self._source(*ends)
            except asyncio.CancelledError:
                return
            connection = _Connection(Pair(source, name), writer)
            self._connections.add(connection)
            try:
                await self._carry(connection, reader, writer, target)
            except asyncio.CancelledError:
                return  # it is over; asyncio would print it
            finally:
                connection.close()
                self._connections.discard(connection)

        server = await asyncio.start_server(accepted, *at)
        self._servers.append(server)
        host, port = server.sockets[0].getsockname()[:2]
        return host, port

    async def _carry(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        target: Address,
    ) -> None:
        while connection.pair in self._cut:  # it is taken, and hears nothing
            connection.lost_something = True
            if not await reader.read(CHUNK_BYTES):
                return
        try:
            far_reader, far_writer = await asyncio.open_connection(*target)
        except OSError:
            return
        connection.writers.append(far_writer)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pump(connection, reader, far_writer))
            group.create_task(self._pump(connection, far_reader, writer))

    async def _pump(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if connection.pair in self._cut:
                    connection.lost_something = True
                    continue
                writer.write(data)
                await writer.drain()
        if connection.pair in self._cut:  # that an end has closed is not heard either
            connection.lost_something = True
            return
        writer.close()

    async def _source(self, peer: Address, here: Address) -> str:
        if peer[0] == CLIENT_HOST:
            return CLIENT
        for _ in range(LOOKS):
            inode = inode_of(peer, here)
            if inode == GONE:
                return UNKNOWN
            for pid, name in list(self._names.items()):
                if inode is not None and owns(pid, inode):
                    return name
            # The table may have changed while it was read; a link without a name could not be cut.
            await asyncio.sleep(LOOK_PAUSE_S)
        return UNKNOWN

    async def _stop(self) -> None:
        # A connection that is given up before it was looked at: asyncio would print it.
        self._loop.set_exception_handler(lambda _loop, _context: None)
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
