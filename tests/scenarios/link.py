"""A network link that can go silent: a TCP relay in front of a server. Cut, it keeps connections
open and takes new ones, and nothing comes through any more; that is what a partition looks like."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType

CHUNK_BYTES = 64 << 10


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def carry(near: Ends, far: Ends, passable: asyncio.Event) -> None:
    """What comes at one end of a connection goes out at the other, while it is ``passable``; until
    both have ended."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_pump(near[0], far[1], passable))
            group.create_task(_pump(far[0], near[1], passable))
    finally:
        near[1].close()
        far[1].close()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passable: asyncio.Event
) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            await passable.wait()
            writer.write(data)
            await writer.drain()
    writer.close()


class Link:
    """Relays ``address`` (host:port) on a port of its own, or ``at`` a host and port; a context
    manager."""

    def __init__(self, address: str, at: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._at = at
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)
        self.address = ""

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._open.clear)

    def heal(self) -> None:
        self._loop.call_soon_threadsafe(self._open.set)

    def __enter__(self) -> Link:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self._open.set()
        self._server = await asyncio.start_server(self._relay, *self._at)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def _stop(self) -> None:
        self._server.close()
        relays = asyncio.all_tasks() - {asyncio.current_task()}
        for task in relays:
            task.cancel()
        await asyncio.gather(*relays, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        await carry((reader, writer), (far_reader, far_writer), self._open)
