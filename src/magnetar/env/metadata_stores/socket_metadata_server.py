"""``MetadataServer``: this process's metadata store for others on its machine, through a Unix
socket (``socket_metadata``).

Each connection is a session. Invariants:

* An ephemeral node goes with the connection through which it was made, however that ends; one that
  is made while its connection ends goes too. The process that has the store makes and deletes no
  such node itself.
* Requests of a connection reach the store in the order in which they came.
* A connection from which nothing comes for its session timeout is ended: its process is paused.

Only this user may connect: the socket lies in a directory of its own, closed to others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import structlog

from magnetar.env.metadata import (
    CreateMode,
    GuardedWrites,
    ListStamps,
    MetadataStore,
    PairedWrites,
)
from magnetar.env.metadata_stores.socket_metadata_wire import Frame, encode, error_head, read_frame
from magnetar.env.tasks import FailurePolicy, TaskScope
from magnetar.model.errors import MetadataError, NoNodeError, ProtocolError

log = structlog.get_logger(__name__)

OPEN_REQUESTS_MAX: Final = 1_000
"""Of a connection; it is not read while it has as many."""
UNSENT_BYTES_MAX: Final = 16 << 20
LOOKS_PER_TIMEOUT: Final = 4
"""Silence is counted in looks, not in time: after a pause of this process nobody is to blame."""
EPHEMERAL: Final = (CreateMode.EPHEMERAL, CreateMode.EPHEMERAL_SEQUENTIAL)

Answer: TypeAlias = tuple[dict[str, object], bytes]


class MetadataServer:
    """``start`` listens; ``close`` ends every session, not the store. ``failed``: what a defect of
    it means."""

    def __init__(self, store: MetadataStore, failed: FailurePolicy) -> None:
        self.store = store
        self.owners: dict[str, _Session] = {}
        """By path of an ephemeral node: through whose connection it was made."""
        self._scope = TaskScope("metadata server", failed)
        self._sessions: dict[_Session, asyncio.Task[None]] = {}
        self._server: asyncio.AbstractServer | None = None

    async def start(self, path: Path) -> None:
        """Listen at ``path``, in a directory that nobody else may enter. Raises ``OSError``."""
        self._server = await asyncio.start_unix_server(self._connected, path)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = _Session(self, reader, writer, self._scope)
        task = self._scope.spawn(session.run(), "session")
        self._sessions[session] = task
        task.add_done_callback(lambda _: self._sessions.pop(session, None))

    async def close(self) -> None:
        """Idempotent."""
        if self._server is not None:
            self._server.close()
        for session in list(self._sessions):
            session.drop()
        if self._sessions:
            await asyncio.wait(list(self._sessions.values()))
        await self._scope.close()


class _Session:
    """One connection."""

    def __init__(
        self,
        server: MetadataServer,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        scope: TaskScope,
    ) -> None:
        self._server = server
        self._store = server.store
        self._reader = reader
        self._writer = writer
        self._scope = scope
        self._room = asyncio.Semaphore(OPEN_REQUESTS_MAX)
        self._watches: dict[str, Callable[[], None]] = {}
        self._heard = 0
        self._ended = False

    async def run(self) -> None:
        watching: asyncio.Task[None] | None = None
        try:
            hello = (await read_frame(self._reader)).head
            pause_s = hello["timeout_ms"] / 1000 / LOOKS_PER_TIMEOUT
            watching = self._scope.spawn(self._watch_silence(pause_s), "silence")
            while True:
                await self._take(await read_frame(self._reader))
        except (asyncio.IncompleteReadError, OSError):
            pass  # its process has ended, or ends the session
        except (ProtocolError, KeyError, TypeError, ValueError) as error:
            log.warning("a client of the metadata store was sent away", error=repr(error))
        finally:
            if watching is not None:
                watching.cancel()
            self._writer.close()
            await self._end()

    def drop(self) -> None:
        """End the connection; ``run`` ends by it."""
        self._writer.transport.abort()

    async def _watch_silence(self, pause_s: float) -> None:
        silent = 0
        while silent < LOOKS_PER_TIMEOUT:
            heard = self._heard
            await asyncio.sleep(pause_s)
            silent = silent + 1 if self._heard == heard else 0
        log.warning("a client of the metadata store is silent: its session ends")
        self.drop()

    async def _take(self, frame: Frame) -> None:
        self._heard += 1
        do = frame.head["do"]
        if do == "ping":
            self._send({"do": "pong"})
        elif do == "watch":
            path = frame.head["path"]
            if path not in self._watches:
                self._watches[path] = self._store.watch(path, self._changed)
        elif do == "unwatch":
            self._watches.pop(frame.head["path"], _nothing)()
        else:
            await self._room.acquire()
            action = ACTIONS[do]
            # Tasks begin in the order in which they are made, and the store is asked as they begin.
            task = self._scope.spawn(self._answer(action, frame), do)
            task.add_done_callback(lambda _: self._room.release())

    async def _answer(self, action: Action, frame: Frame) -> None:
        try:
            head, value = await action(self, frame.head, frame.value)
        except MetadataError as error:
            head, value = error_head(error), b""
        self._send({"id": frame.head["id"], **head}, value)

    def _changed(self, path: str) -> None:
        self._send({"changed": path})

    def _send(self, head: Mapping[str, object], value: bytes = b"") -> None:
        transport = self._writer.transport
        if self._writer.is_closing():
            return
        if transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self.drop()  # it reads nothing, and what changes must be told
            return
        self._writer.write(encode(head, value))

    # -- the end ------------------------------------------------------------------------------

    async def _end(self) -> None:
        """What is under way may still make nodes: they go when they are made (``create``)."""
        for end_watch in self._watches.values():
            end_watch()
        self._watches.clear()
        await self._delete_nodes()

    async def _delete_nodes(self) -> None:
        self._ended = True
        for path in [path for path, owner in self._server.owners.items() if owner is self]:
            await self._delete_own(path)

    async def _delete_own(self, path: str) -> None:
        try:
            await self._store.delete(path)
        except NoNodeError:
            pass
        except MetadataError as error:  # it goes with this process then
            log.warning("a node outlives its session", path=path, error=str(error))
            return
        if self._server.owners.get(path) is self:
            del self._server.owners[path]

    # -- requests -----------------------------------------------------------------------------

    async def get(self, head: Mapping[str, Any], _value: bytes) -> Answer:
        value, version = await self._store.get(head["path"])
        return {"version": version}, value

    async def create(self, head: Mapping[str, Any], value: bytes) -> Answer:
        mode = CreateMode(head["mode"])
        path = await self._store.create(head["path"], value, mode)
        if mode in EPHEMERAL:
            self._server.owners[path] = self
            if self._ended:
                await self._delete_own(path)
        return {"path": path}, b""

    async def put(self, head: Mapping[str, Any], value: bytes) -> Answer:
        return {"version": await self._store.put(head["path"], value, head["version"])}, b""

    async def put_beside(self, head: Mapping[str, Any], value: bytes) -> Answer:
        assert isinstance(self._store, GuardedWrites), "a store of another package"
        put = self._store.put_beside(head["other"], head["path"], value, head["version"])
        return {"version": await put}, b""

    async def create_and_put(self, head: Mapping[str, Any], value: bytes) -> Answer:
        assert isinstance(self._store, PairedWrites), "a store of another package"
        first = head["first"]  # bytes of the new node's value, which the other's follows
        change = self._store.create_and_put(
            head["path"], value[:first], head["other"], value[first:], head["version"]
        )
        return {"version": await change}, b""

    async def delete(self, head: Mapping[str, Any], _value: bytes) -> Answer:
        await self._store.delete(head["path"], head["version"])
        self._server.owners.pop(head["path"], None)
        return {}, b""

    async def children(self, head: Mapping[str, Any], _value: bytes) -> Answer:
        return {"names": await self._store.children(head["path"])}, b""

    async def children_stamp(self, head: Mapping[str, Any], _value: bytes) -> Answer:
        assert isinstance(self._store, ListStamps), "a store of another package"
        return {"stamp": await self._store.children_stamp(head["path"])}, b""

    async def end(self, _head: Mapping[str, Any], _value: bytes) -> Answer:
        await self._delete_nodes()
        return {}, b""

    async def sync(self, _head: Mapping[str, Any], _value: bytes) -> Answer:
        await self._store.sync()
        return {}, b""


Action: TypeAlias = Callable[[Any, Mapping[str, Any], bytes], Awaitable[Answer]]
ACTIONS: Final[Mapping[str, Action]] = {
    "get": _Session.get,
    "create": _Session.create,
    "put": _Session.put,
    "put_beside": _Session.put_beside,
    "create_and_put": _Session.create_and_put,
    "delete": _Session.delete,
    "children": _Session.children,
    "children_stamp": _Session.children_stamp,
    "sync": _Session.sync,
    "end": _Session.end,
}


def _nothing() -> None:
    """It is not watched."""
