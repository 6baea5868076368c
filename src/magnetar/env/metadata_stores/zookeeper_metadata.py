"""``ZooKeeperMetadataStore``: the metadata tree in a ZooKeeper ensemble, through kazoo.

kazoo runs threads of its own. Every answer, event and state change is handed to the loop with
``call_soon_threadsafe``; what blocks in kazoo (stopping) runs in a thread; nothing else of it is
ever called that could block the loop.

Session: CONNECTED -> SUSPENDED (connection lost, the session may live on) -> CONNECTED again, or
EXPIRED (the ensemble dropped it with its ephemeral nodes) -> CONNECTED with a new session. A
client that cannot reach the ensemble cannot know that its session expired: SUSPENDED for longer
than the session timeout is to be taken for EXPIRED by whoever must not act twice. It is SUSPENDED
too when questions had no answer for two thirds of that time (``env.network.silence``; ZooKeeper's
own client has the same bound): kazoo looks whether the ensemble lives only while nothing is
asked, and goes on sending to one that is silent for as long as there is something to send.

Broken connections: reads are repeated on the next connection until ``operation_timeout_ms`` is
over; a write whose answer was lost raises ``MetadataUnavailableError`` (``SessionExpiredError``
when the session went with it), because it may have happened.

Watches: ZooKeeper's are one-shot. An event re-arms first and tells the callback then; requests of
one client are answered in order, so what the callback reads is never older than the new watch.
After a reconnection all are re-armed and all callbacks called: what happened meanwhile is merged.

Why: docs/adr/0031-zookeeper-through-kazoo.md.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

import structlog
from kazoo import exceptions as zk_errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import EventType, KazooState, WatchedEvent, ZnodeStat
from kazoo.retry import KazooRetry

from magnetar.env.metadata import CreateMode, SessionState, Versioned
from magnetar.env.metadata_stores.metadata_paths import (
    check_new_path,
    check_path,
    check_value,
    split,
)
from magnetar.env.metadata_stores.watches import Listeners, PathWatches
from magnetar.env.metadata_stores.zookeeper_connecting import bound_attempts
from magnetar.env.metadata_stores.zookeeper_handler import DirectHandler
from magnetar.env.metadata_stores.zookeeper_url import (
    ZooKeeperAddress,
    parse_zookeeper_url,
    unresolved,
)
from magnetar.env.network.silence import SILENT_SHARE, Silence
from magnetar.model.errors import (
    BadVersionError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)

log = structlog.get_logger(__name__)

_EPHEMERAL_MODES = (CreateMode.EPHEMERAL, CreateMode.EPHEMERAL_SEQUENTIAL)
_SEQUENTIAL_MODES = (CreateMode.SEQUENTIAL, CreateMode.EPHEMERAL_SEQUENTIAL)
_CREATE_ATTEMPTS = 8  # a parent may be pruned between making it and using it

_LOST_CONNECTION = (
    zk_errors.ConnectionLoss,
    zk_errors.ConnectionClosedError,
    zk_errors.OperationTimeoutError,
    KazooTimeoutError,
)


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class _Result(Protocol[T_co]):
    """kazoo's AsyncResult, as far as it is used here."""

    @property
    def exception(self) -> BaseException | None: ...

    @property
    def value(self) -> T_co: ...

    def rawlink(self, callback: Callable[[_Result[T_co]], None]) -> None: ...


class _Stat(Protocol):
    """What ZooKeeper says of a node."""

    version: int
    pzxid: int


_Request: TypeAlias = Callable[[], _Result[T]]


class ZooKeeperMetadataStore:
    """A ``MetadataStore`` below a root in ZooKeeper; ``await open(url)`` makes one."""

    def __init__(
        self, address: ZooKeeperAddress, session_timeout_ms: int, operation_timeout_ms: int
    ) -> None:
        """Use ``open``."""
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._operation_timeout_s = operation_timeout_ms / 1000
        self._watches = PathWatches()
        self._value_watches = PathWatches()
        self._sessions: Listeners[SessionState] = Listeners()
        self._connected = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._silence = Silence(session_timeout_ms / 1000 * SILENT_SHARE)
        self._silent = False
        """Nothing is heard, and kazoo has not said that the connection is lost."""
        self._handler = DirectHandler()
        self._client = KazooClient(
            hosts=address.hosts,
            timeout=session_timeout_ms / 1000,
            handler=self._handler,
            logger=_kazoo_logger(),
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0),
        )
        self._client.add_listener(self._on_state)
        self._asked_s = session_timeout_ms / 1000
        self._granted_s: float | None = None
        bound_attempts(self._client, self._handler, self._asked_s, self._granted)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        session_timeout_ms: int = 10_000,
        operation_timeout_ms: int = 15_000,
    ) -> ZooKeeperMetadataStore:
        """Connect to ``zk://HOST:PORT[,HOST:PORT...]/ROOT``, making ROOT if it is missing.

        ``session_timeout_ms``: how long the ensemble keeps ephemeral nodes of a silent client
        (it may negotiate another). ``operation_timeout_ms`` bounds every operation, connecting
        included. Raises ``ConfigError`` for a bad URL and ``MetadataUnavailableError``.
        """
        store = cls(parse_zookeeper_url(url), session_timeout_ms, operation_timeout_ms)
        try:
            await asyncio.to_thread(store._client.start_async)
            await store._connect_first()
            if store.address.root:
                await store._make_ancestors(f"{store.address.root}/x")
        except BaseException:
            await store.close()
            raise
        return store

    async def _connect_first(self) -> None:
        try:
            await self._wait_connected(self._loop.time() + self._operation_timeout_s)
        except MetadataUnavailableError as error:
            names = await asyncio.to_thread(unresolved, self.address.hosts)
            if not names:
                raise
            raise MetadataUnavailableError(
                f"{error}; this machine knows no address of {', '.join(names)}: correct the URL, "
                "or how names are looked up here (/etc/hosts, DNS)"
            ) from error

    @property
    def session(self) -> tuple[int, bytes] | None:
        """The session's id and password while connected; tests end a session with them."""
        identity: tuple[int, bytes] | None = self._client.client_id
        return identity

    # -- MetadataStore ------------------------------------------------------------------------

    async def get(self, path: str) -> Versioned:
        full = self._full(path)
        found: tuple[bytes, _Stat] = await self._read(path, partial(self._client.get_async, full))
        return Versioned(found[0], found[1].version)

    async def create(
        self, path: str, value: bytes, mode: CreateMode = CreateMode.PERSISTENT
    ) -> str:
        sequential = mode in _SEQUENTIAL_MODES
        check_new_path(path, sequential)
        check_value(path, value)
        full = self.address.root + path
        for _ in range(_CREATE_ATTEMPTS):
            try:
                created = await self._create_once(path, full, value, mode)
                return created[len(self.address.root) :]
            except NoNodeError:
                await self._make_ancestors(full)
        raise self._no_parents(path)

    async def put(self, path: str, value: bytes, version: int) -> int:
        full = self._full(path)
        check_value(path, value)
        request = partial(self._client.set_async, full, value, version)
        stat: _Stat = await self._write(path, request)
        return stat.version

    async def delete(self, path: str, version: int = -1) -> None:
        full = self._full(path)
        if path == "/":
            raise MetadataError("the root / cannot be deleted")
        await self._write(path, partial(self._client.delete_async, full, version))

    async def session_id(self) -> int:
        deadline_s = self._loop.time() + self._operation_timeout_s
        while True:
            await self._wait_connected(deadline_s)
            if (identity := self.session) is not None:
                return identity[0]
            # kazoo has lost the connection, and the loop has not heard of it yet
            if self._loop.time() >= deadline_s:
                raise self._unavailable("connecting")
            await asyncio.sleep(0.01)

    async def delete_within(self, session_id: int, path: str, version: int = -1) -> None:
        delete = partial(self._client.delete_async, self._full(path), version)
        await self._write(path, self._in_session(session_id, delete))

    async def put_within(self, session_id: int, path: str, value: bytes, version: int) -> int:
        check_value(path, value)
        put = partial(self._client.set_async, self._full(path), value, version)
        stat: _Stat = await self._write(path, self._in_session(session_id, put))
        return stat.version

    async def put_beside(self, other: str, path: str, value: bytes, version: int) -> int:
        guard, full = self._full(other), self._full(path)
        check_value(path, value)

        def both() -> _Result[list[object]]:
            transaction = self._client.transaction()
            transaction.check(guard, -1)  # -1: any version
            transaction.set_data(full, value, version)
            return transaction.commit_async()  # type: ignore[no-any-return]  # kazoo is untyped

        checked, put = await self._write(path, both)
        if isinstance(checked, zk_errors.NoNodeError):
            raise self._translated(other, checked)
        if isinstance(put, zk_errors.KazooException):
            raise self._translated(path, put)
        assert isinstance(put, ZnodeStat)
        return int(put.version)

    async def create_and_put(
        self, path: str, value: bytes, other: str, other_value: bytes, version: int
    ) -> int:
        check_new_path(path, sequential=False)
        check_value(path, value)
        check_value(other, other_value)
        full = self.address.root + path
        changed = self._full(other)

        def both() -> _Result[list[object]]:
            transaction = self._client.transaction()
            transaction.create(full, value)
            transaction.set_data(changed, other_value, version)
            return transaction.commit_async()  # type: ignore[no-any-return]  # kazoo is untyped

        for _ in range(_CREATE_ATTEMPTS):
            created, put = await self._write(path, both)
            if isinstance(created, zk_errors.NoNodeError):
                await self._make_ancestors(full)
                continue
            if isinstance(created, zk_errors.RolledBackError):  # for what is wrong with the other
                assert isinstance(put, zk_errors.KazooException)
                raise self._translated(other, put)
            if isinstance(created, zk_errors.KazooException):
                raise self._translated(path, created)
            assert isinstance(put, ZnodeStat)
            return int(put.version)
        raise self._no_parents(path)

    def _in_session(self, session_id: int, request: _Request[T]) -> _Request[T]:
        def guarded() -> _Result[T]:
            # What is sent in a session is refused by the ensemble once that has expired, and never
            # repeated in another: it is enough to know which one it is sent in.
            if (identity := self.session) is not None and identity[0] != session_id:
                raise zk_errors.SessionExpiredError
            return request()

        return guarded

    async def children(self, path: str) -> list[str]:
        full = self._full(path)
        request = partial(self._client.get_children_async, full)
        names: list[str] = await self._read(path, request)
        return sorted(names)

    async def children_stamp(self, path: str) -> int:
        """The transaction that changed the list last."""
        request = partial(self._client.exists_async, self._full(path))
        stat: _Stat | None = await self._read(path, request)
        if stat is None:
            raise self._translated(path, zk_errors.NoNodeError())
        return stat.pzxid

    async def sync(self) -> None:
        await self._read("/", partial(self._client.sync_async, self._full("/")))

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        check_path(path)
        if path not in self._watches:
            self._arm(path, data=path not in self._value_watches, children=True)
        return self._watches.add(path, changed)

    def watch_value(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        check_path(path)
        if path not in self._watches and path not in self._value_watches:
            self._arm(path, data=True, children=False)
        return self._value_watches.add(path, changed)

    def watch_session(self, changed: Callable[[SessionState], None]) -> Callable[[], None]:
        return self._sessions.add(changed)

    def silent_s(self) -> float:
        return self._loop.time() - self._handler.heard_s

    def granted_s(self) -> float | None:
        return self._granted_s

    def _granted(self, seconds: float) -> None:  # in kazoo's thread
        if seconds < self._asked_s and seconds != self._granted_s:
            log.warning(
                "ZooKeeper grants shorter sessions than metadata.session_timeout_ms; what is "
                "granted counts. Its maxSessionTimeout, 20 ticks unless it is set, allows more",
                hosts=self.address.hosts,
                granted_ms=round(seconds * 1000),
                asked_ms=round(self._asked_s * 1000),
            )
        self._granted_s = seconds

    async def close(self) -> None:
        """End the session; ephemeral nodes go at once (or with the session's timeout, if the
        ensemble cannot be reached). Idempotent."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._stop(), name="ZooKeeper close")
        await asyncio.shield(self._closing)

    async def _stop(self) -> None:
        self._watches.clear()
        self._value_watches.clear()
        try:
            await _in_daemon(self._client.stop)
        except zk_errors.KazooException as error:
            log.warning(
                "ZooKeeper session not closed in time; it ends with its timeout",
                hosts=self.address.hosts,
                error=repr(error),
            )
            return
        await _in_daemon(self._client.close)

    # -- operations ---------------------------------------------------------------------------

    def _full(self, path: str) -> str:
        check_path(path)
        return (self.address.root if path == "/" else self.address.root + path) or "/"

    async def _create_once(self, path: str, full: str, value: bytes, mode: CreateMode) -> str:
        """One attempt; ``path`` names the node in errors, ``full`` is below the ensemble's root."""
        request = partial(
            self._client.create_async,
            full,
            value,
            ephemeral=mode in _EPHEMERAL_MODES,
            sequence=mode in _SEQUENTIAL_MODES,
        )
        created: str = await self._write(path, request)
        return created

    async def _make_ancestors(self, full: str) -> None:
        """Make what is missing above ``full``, topmost first; others may do the same. Two round
        trips, however many there are: requests of one client are carried out in their order."""
        parts = full.split("/")[1:-1]
        ancestors = ["/" + "/".join(parts[:end]) for end in range(1, len(parts) + 1)]
        missing = await _all_of([self._is_missing(each) for each in ancestors])
        # Not without asking first: to make one that is there may be forbidden.
        await _all_of(
            [
                self._make_ancestor(each)
                for each, gone in zip(ancestors, missing, strict=True)
                if gone
            ]
        )

    async def _is_missing(self, ancestor: str) -> bool:
        request = partial(self._client.exists_async, ancestor)
        exists: _Stat | None = await self._read(ancestor, request)
        return exists is None

    async def _make_ancestor(self, ancestor: str) -> None:
        try:
            await self._create_once(ancestor, ancestor, b"", CreateMode.PERSISTENT)
        except (NodeExistsError, NoNodeError):
            return  # made by another just now, or pruned: the caller's create finds out

    async def _read(self, path: str, request: _Request[T]) -> T:
        """Repeat an idempotent request over broken connections."""
        deadline_s = self._loop.time() + self._operation_timeout_s
        while True:
            await self._wait_connected(deadline_s)
            try:
                return await self._ask(request, deadline_s)
            except _LOST_CONNECTION as error:
                if self._loop.time() >= deadline_s or self._closing is not None:
                    raise self._unavailable(f"reading {path}") from error
            except zk_errors.SessionExpiredError:
                continue  # reads need no session of ours: go on with the next one
            except zk_errors.KazooException as error:
                raise self._translated(path, error) from error

    async def _write(self, path: str, request: _Request[T]) -> T:
        deadline_s = self._loop.time() + self._operation_timeout_s
        await self._wait_connected(deadline_s)
        try:
            return await self._ask(request, deadline_s)
        except _LOST_CONNECTION as error:
            doing = f"changing {path}, which may or may not have happened"
            broken = not isinstance(error, KazooTimeoutError)
            raise self._unavailable(doing, broken) from error
        except zk_errors.SessionExpiredError as error:
            raise SessionExpiredError(
                f"the ZooKeeper session at {self.address.hosts} expired while changing {path}, "
                f"which may or may not have happened; its ephemeral nodes are gone, create them "
                f"again"
            ) from error
        except zk_errors.KazooException as error:
            raise self._translated(path, error) from error

    async def _ask(self, request: _Request[T], deadline_s: float) -> T:
        """One request; raises kazoo's errors, or its time-out at ``deadline_s``."""
        answer: asyncio.Future[T] = self._loop.create_future()

        request().rawlink(partial(self._tell, self._settle, answer))  # called in kazoo's thread
        self._look_in(self._silence.asked(self._loop.time()))
        try:
            async with asyncio.timeout_at(deadline_s):
                return await answer
        except TimeoutError as error:
            raise KazooTimeoutError(f"no answer in {self._operation_timeout_s} s") from error
        finally:
            # It holds its error, whose traceback holds this frame: work for the collector, which
            # stops the loop, for each node that is not there.
            del answer

    def _settle(self, answer: asyncio.Future[T], result: _Result[T]) -> None:
        self._silence.heard(self._loop.time())
        unheard = (*_LOST_CONNECTION, zk_errors.SessionExpiredError)
        if self._silent and not isinstance(result.exception, unheard):
            self._session_changed(SessionState.CONNECTED)
        if answer.done():  # its caller was cancelled or gave up
            return
        if result.exception is not None:
            answer.set_exception(result.exception)
        else:
            answer.set_result(result.value)

    def _look_in(self, seconds: float | None) -> None:
        if seconds is not None:
            self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        silent, again_s = self._silence.look(self._loop.time())
        if self._closing is not None:
            return
        if silent and self._connected.is_set():
            # kazoo would ask once more, and wait for as long as is left of the session and more.
            self._silent = True
            self._handler.end_connection()
            self._session_changed(SessionState.SUSPENDED)
        self._look_in(again_s)

    async def _wait_connected(self, deadline_s: float) -> None:
        if self._closing is not None:
            raise MetadataError(f"the metadata store {self.address.url} is closed")
        if self._connected.is_set():
            return
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._connected.wait()
        except TimeoutError as error:
            raise self._unavailable("connecting") from error

    def _unavailable(self, doing: str, broken: bool = False) -> MetadataUnavailableError:
        """``broken``: not too late, but the connection ended before the answer."""
        what = (
            "was lost before it answered"
            if broken
            else f"did not answer within {self._operation_timeout_s:g} s"
        )
        return MetadataUnavailableError(
            f"ZooKeeper at {self.address.hosts} {what}, {doing}; check that it runs (echo srvr | "
            f"nc HOST PORT), that a quorum of it is up, and the address in the metadata URL "
            f"{self.address.url}"
        )

    @staticmethod
    def _no_parents(path: str) -> MetadataError:
        return MetadataError(
            f"{path} could not be created: its parents were removed {_CREATE_ATTEMPTS} times "
            f"meanwhile; look for who deletes them"
        )

    def _translated(self, path: str, error: zk_errors.KazooException) -> MetadataError:
        place = f"{path} in ZooKeeper at {self.address.url}"
        if isinstance(error, zk_errors.NoNodeError):
            return NoNodeError(f"{place} does not exist")
        if isinstance(error, zk_errors.NodeExistsError):
            return NodeExistsError(f"{place} exists already")
        if isinstance(error, zk_errors.BadVersionError):
            return BadVersionError(f"{place} was changed since it was read; read it again")
        if isinstance(error, zk_errors.NotEmptyError):
            return NotEmptyError(f"{place} has children; delete them first")
        if isinstance(error, zk_errors.NoChildrenForEphemeralsError):
            return MetadataError(
                f"{split(path)[0]} is ephemeral and cannot have children (for {place})"
            )
        if isinstance(error, zk_errors.NoAuthError):
            return MetadataError(f"{place} is not ours to read or change: its ACL forbids it")
        return MetadataError(f"{place}: ZooKeeper refused: {error!r}")

    # -- watches and the session ----------------------------------------------------------------

    def _arm(self, path: str, *, data: bool, children: bool) -> None:
        """Set the one-shot watches of ``path``. An answer is not waited for: if the connection
        breaks before it, the reconnection arms again."""
        full = self._full(path)
        if data:
            self._client.exists_async(full, watch=self._on_event)
        if children:  # answers "no node" without a watch if it is missing; then `data` sees it
            self._client.get_children_async(full, watch=self._on_event)

    def _on_event(self, event: WatchedEvent) -> None:  # in kazoo's thread
        if event.type != EventType.NONE:
            self._tell(self._changed, event.type, event.path)

    def _changed(self, kind: str, full: str) -> None:
        path = full[len(self.address.root) :] or "/"
        listed = path in self._watches
        if not listed and path not in self._value_watches:
            return
        # A node that is deleted has no children to watch; its next creation is told of.
        children = listed and kind not in (EventType.CHANGED, EventType.DELETED)
        self._arm(path, data=kind != EventType.CHILD, children=children)
        self._watches.notify(self._loop, [path])
        if kind != EventType.CHILD:
            self._value_watches.notify(self._loop, [path])

    def _on_state(self, state: str) -> None:  # in kazoo's thread
        states = {
            KazooState.CONNECTED: SessionState.CONNECTED,
            KazooState.SUSPENDED: SessionState.SUSPENDED,
            KazooState.LOST: SessionState.EXPIRED,
        }
        self._tell(self._connection_changed, states[state])

    def _connection_changed(self, state: SessionState) -> None:
        told, self._silent = self._silent, False
        if not (told and state is SessionState.SUSPENDED):
            self._session_changed(state)

    def _session_changed(self, state: SessionState) -> None:
        if self._closing is not None:
            self._connected.set()  # whoever waits for a connection hears that we are closed
            return
        if state is SessionState.CONNECTED:
            self._silent = False
            self._connected.set()
            listed, valued = self._watches.paths(), self._value_watches.paths()
            for path in dict.fromkeys((*listed, *valued)):
                self._arm(path, data=True, children=path in self._watches)
            self._watches.notify(self._loop, listed)
            self._value_watches.notify(self._loop, valued)
            log.info("ZooKeeper session", state=state.value, hosts=self.address.hosts)
        else:
            self._connected.clear()
            log.warning("ZooKeeper session", state=state.value, hosts=self.address.hosts)
        self._sessions.notify(self._loop, state)

    def _tell(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop was closed without closing the store; nobody listens
            log.debug("ZooKeeper client outlives its loop", hosts=self.address.hosts)


async def _all_of(requests: Sequence[Awaitable[T]]) -> list[T]:
    """Their answers; sent in this order. Raises the first error, when nothing is under way."""
    found: list[T] = []
    for outcome in await asyncio.gather(*requests, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        found.append(outcome)
    return found


def _kazoo_logger() -> logging.Logger:
    """kazoo warns of every connection attempt; the session's states, logged here, say it once."""
    logger = logging.getLogger(f"{__name__}.kazoo")
    logger.setLevel(logging.ERROR)
    return logger


async def _in_daemon(job: Callable[[], object]) -> None:
    """Run ``job`` in a thread that the end of the process does not wait for, as it does for those
    of ``to_thread``: kazoo waits for an ensemble that does not answer as long as a session may
    last. Raises what ``job`` raises."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            job()
        except Exception as failed:  # noqa: BLE001 (told)
            error = failed
        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(tell, error)

    threading.Thread(target=run, name="ZooKeeper close", daemon=True).start()
    await done
