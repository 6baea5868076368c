"""``SocketMetadataStore``: the metadata store of another process on this machine, through a Unix
socket (``socket_metadata_server``).

* The session is the connection: with it all ephemeral nodes go, at once when a process dies. It
  does not come back: whoever rests on it ends and is started again.
* Requests are carried out in the order in which they were made; a watch is set before what is asked
  after it.
* The other end drops a session that it has not heard of for the session timeout (a paused process);
  this end says SUSPENDED when the other is silent for most of that time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Final

from magnetar.env.metadata import CreateMode, SessionState, Versioned
from magnetar.env.metadata_stores.metadata_paths import check_new_path, check_path, check_value
from magnetar.env.metadata_stores.socket_metadata_wire import Frame, encode, error_of, read_frame
from magnetar.env.metadata_stores.watches import Listeners, PathWatches
from magnetar.env.tasks import TaskScope, fails
from magnetar.model.errors import (
    MetadataError,
    MetadataUnavailableError,
    ProtocolError,
    SessionExpiredError,
)

SCHEME: Final = "unix:"
PENDING_MAX: Final = 10_000
PINGS_PER_TIMEOUT: Final = 4


class SocketMetadataStore:
    """A ``MetadataStore``; ``await SocketMetadataStore.open("unix:PATH")`` makes one."""

    def __init__(
        self,
        url: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        session_timeout_ms: int,
    ) -> None:
        """Use ``open``."""
        self.url = url
        self._reader = reader
        self._writer = writer
        self._timeout_s = session_timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._scope = TaskScope(f"metadata {url}", fails(self._task_failed))
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._watches = PathWatches()
        self._session: Listeners[SessionState] = Listeners()
        self._state = SessionState.CONNECTED
        self._heard_s = self._loop.time()
        self._ending: asyncio.Future[None] | None = None

    @classmethod
    async def open(cls, url: str, *, session_timeout_ms: int = 10_000) -> SocketMetadataStore:
        """Raises ``MetadataUnavailableError`` when nobody listens there."""
        path = url.removeprefix(SCHEME)
        try:
            reader, writer = await asyncio.open_unix_connection(path)
        except OSError as error:
            raise MetadataUnavailableError(
                f"the metadata at {url} cannot be reached: {error.strerror}; the process that "
                "serves it has ended, or never was there"
            ) from error
        store = cls(url, reader, writer, session_timeout_ms)
        store._send({"do": "hello", "timeout_ms": session_timeout_ms})
        store._scope.spawn(store._read(), "read")
        store._scope.spawn(store._ping(), "ping")
        return store

    # -- MetadataStore ------------------------------------------------------------------------

    async def get(self, path: str) -> Versioned:
        head, value = await self._ask({"do": "get", "path": check_path(path)})
        return Versioned(value, head["version"])

    async def create(
        self, path: str, value: bytes, mode: CreateMode = CreateMode.PERSISTENT
    ) -> str:
        sequential = mode in (CreateMode.SEQUENTIAL, CreateMode.EPHEMERAL_SEQUENTIAL)
        check_new_path(path, sequential)
        check_value(path, value)
        head, _ = await self._ask({"do": "create", "path": path, "mode": mode.value}, value)
        return str(head["path"])

    async def put(self, path: str, value: bytes, version: int) -> int:
        check_path(path)
        check_value(path, value)
        head, _ = await self._ask({"do": "put", "path": path, "version": version}, value)
        return int(head["version"])

    async def delete(self, path: str, version: int = -1) -> None:
        await self._ask({"do": "delete", "path": check_path(path), "version": version})

    async def session_id(self) -> int:
        """There is one: no request is carried out after it."""
        return 0

    async def delete_within(self, session_id: int, path: str, version: int = -1) -> None:
        await self.delete(path, version)

    async def put_within(self, session_id: int, path: str, value: bytes, version: int) -> int:
        return await self.put(path, value, version)

    async def put_beside(self, other: str, path: str, value: bytes, version: int) -> int:
        check_path(other)
        check_path(path)
        check_value(path, value)
        asked = {"do": "put_beside", "other": other, "path": path, "version": version}
        head, _ = await self._ask(asked, value)
        return int(head["version"])

    async def create_and_put(
        self, path: str, value: bytes, other: str, other_value: bytes, version: int
    ) -> int:
        check_new_path(path, sequential=False)
        check_path(other)
        check_value(path, value + other_value)  # they are one frame's
        asked = {"do": "create_and_put", "path": path, "other": other, "version": version}
        head, _ = await self._ask({**asked, "first": len(value)}, value + other_value)
        return int(head["version"])

    async def children(self, path: str) -> list[str]:
        head, _ = await self._ask({"do": "children", "path": check_path(path)})
        return list(head["names"])

    async def children_stamp(self, path: str) -> int:
        head, _ = await self._ask({"do": "children_stamp", "path": check_path(path)})
        return int(head["stamp"])

    async def sync(self) -> None:
        await self._ask({"do": "sync"})

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        check_path(path)
        if path not in self._watches:
            self._send({"do": "watch", "path": path})
        end_watch = self._watches.add(path, changed)

        def end() -> None:
            watched = path in self._watches
            end_watch()
            if watched and path not in self._watches:
                self._send({"do": "unwatch", "path": path})

        return end

    watch_value = watch  # to be told of more costs nothing here

    def watch_session(self, changed: Callable[[SessionState], None]) -> Callable[[], None]:
        return self._session.add(changed)

    async def close(self) -> None:
        """Idempotent."""
        if self._ending is not None:
            await asyncio.shield(self._ending)
            return
        self._ending = self._loop.create_future()  # nothing is asked from now on
        try:
            if self._state is not SessionState.EXPIRED:
                await self._begin({"do": "end"}, b"")  # its nodes are gone when this is answered
        except MetadataError:
            pass  # the session has ended by itself
        finally:
            self._writer.close()
            await self._scope.close()
            self._fail_waiting(MetadataError(f"the metadata store {self.url} is closed"))
            self._ending.set_result(None)

    # -- the connection -----------------------------------------------------------------------

    async def _ask(self, head: dict[str, object], value: bytes = b"") -> Frame:
        if self._ending is not None:
            raise MetadataError(f"the metadata store {self.url} is closed")
        if self._state is SessionState.EXPIRED:
            raise SessionExpiredError(f"the connection to the metadata at {self.url} has broken")
        if len(self._waiting) >= PENDING_MAX:
            raise MetadataError(
                f"{PENDING_MAX} operations wait for the metadata at {self.url}; try again later"
            )
        return await self._begin(head, value)

    def _begin(self, head: dict[str, object], value: bytes) -> asyncio.Future[Frame]:
        number = next(self._numbers)
        answer: asyncio.Future[Frame] = self._loop.create_future()
        self._waiting[number] = answer
        self._send({"id": number, **head}, value)
        return answer

    def _send(self, head: dict[str, object], value: bytes = b"") -> None:
        if not self._writer.is_closing():
            self._writer.write(encode(head, value))

    async def _read(self) -> None:
        try:
            while True:
                self._take(await read_frame(self._reader))
        except (asyncio.IncompleteReadError, OSError, ProtocolError):
            self._gone()

    def _take(self, frame: Frame) -> None:
        self._heard_s = self._loop.time()
        if self._state is SessionState.SUSPENDED:
            self._tell(SessionState.CONNECTED)
        head = frame.head
        if "changed" in head:
            self._watches.notify(self._loop, [head["changed"]])
        elif "id" in head:
            answer = self._waiting.pop(head["id"], None)
            if answer is None or answer.done():  # its caller was cancelled
                return
            if "error" in head:
                answer.set_exception(error_of(head))
            else:
                answer.set_result(frame)

    async def _ping(self) -> None:
        pause_s = self._timeout_s / PINGS_PER_TIMEOUT
        while True:
            self._send({"do": "ping"})
            await asyncio.sleep(pause_s)
            silent_s = self._loop.time() - self._heard_s
            if silent_s > self._timeout_s - pause_s and self._state is SessionState.CONNECTED:
                self._tell(SessionState.SUSPENDED)

    def _tell(self, state: SessionState) -> None:
        self._state = state
        self._session.notify(self._loop, state)

    def _gone(self) -> None:
        """The session has ended, and not by ``close``."""
        if self._ending is None and self._state is not SessionState.EXPIRED:
            self._tell(SessionState.EXPIRED)
        self._fail_waiting(
            MetadataUnavailableError(
                f"the connection to the metadata at {self.url} has broken; what was asked may or "
                "may not have been done"
            )
        )

    def _fail_waiting(self, error: MetadataError) -> None:
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(error)

    def _task_failed(self, task: str, error: BaseException) -> None:
        self._writer.close()
        self._gone()
