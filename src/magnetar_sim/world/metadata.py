"""A simulated metadata store with sessions, as a ZooKeeper ensemble gives one.

Rules:

* Writes are linearizable; the requests of one session are carried out in the order they came.
* Reads come from the server that a session is connected to. It may lag: its clients then read, and
  hear of, a state of the whole tree that was true a while ago, while others have seen newer ones.
  A session never goes back: its own writes, also those that were refused, bring its server up to
  date. (A new session may begin behind the one before it.)
* A session lives while its process gets through. Without contact for the session timeout (killed,
  paused, cut off) it expires: its ephemeral nodes go. The process hears of it when it is in
  contact again, and then has a new session.
* While the store is down nobody gets through, and no session expires.
* An answer may be lost: the change was made, and its maker is told that the store is unavailable.
* It may be emptied, as by an operator's mistake, and restored from what it held: sessions live on.
* Watches fire late, in order; none is lost; after a time out of contact that was noticed, all.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from magnetar.env.metadata import CreateMode, SessionState, Versioned
from magnetar.env.metadata_stores.metadata_paths import (
    SEQUENCE_DIGITS,
    check_new_path,
    check_path,
    check_value,
    split,
)
from magnetar.env.metadata_stores.watches import Listeners, PathWatches
from magnetar.model.errors import (
    BadVersionError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from magnetar_sim.world.loop import SimLoop, SimProcess

R = TypeVar("R")

DELAY_S = (0.000_3, 0.004)
REQUEST_TIMEOUT_S = 3.0
BEATS_PER_TIMEOUT = 5

_EPHEMERAL = (CreateMode.EPHEMERAL, CreateMode.EPHEMERAL_SEQUENTIAL)
_SEQUENTIAL = (CreateMode.SEQUENTIAL, CreateMode.EPHEMERAL_SEQUENTIAL)


class _Node:
    __slots__ = ("children", "next_child", "session", "stamp", "value", "version")

    def __init__(self, value: bytes, session: int | None) -> None:
        self.value = value
        self.version = 0
        self.session = session
        self.next_child = 0
        self.children: dict[str, None] = {}
        self.stamp = 0
        """Of the list of children: another one after each change of it."""


class SavedNode(NamedTuple):
    """A node as it was. ``session``: whose it is, if it is ephemeral."""

    value: bytes
    version: int
    session: int | None
    next_child: int


class _Lagging(NamedTuple):
    """What a server that lags gives to read: each node's value and children as they were."""

    nodes: dict[str, tuple[Versioned, list[str]]]
    stamps: dict[str, int]
    told: dict[SimMetadataStore, dict[str, None]]
    """Changes that the clients will hear of when their server catches up."""


class _Session:
    def __init__(self, session_id: int, store: SimMetadataStore, now_s: float) -> None:
        self.session_id = session_id
        self.store = store
        self.contact_s = now_s


class SimMetadataServer:
    """The ensemble. ``written`` is called with each change: path, bytes before and after (None:
    no such node)."""

    def __init__(self, loop: SimLoop, rng: random.Random, session_timeout_s: float) -> None:
        self.loop = loop
        self.random = rng
        self.session_timeout_s = session_timeout_s
        self.up = True
        self.cut_off: dict[str, None] = {}
        self.lost_answers = 0.0
        self.slow: dict[str, float] = {}
        """Host -> how much longer its answers take."""
        self._lagging: dict[str, _Lagging] = {}  # host -> what its server knows
        self.written: Callable[[str, bytes | None, bytes | None], None] = lambda *_: None
        self._nodes: dict[str, _Node] = {"/": _Node(b"", None)}
        self._sessions: dict[int, _Session] = {}
        self._session_ids = 0
        self._stamps = 0
        self._sweep()

    # -- sessions -----------------------------------------------------------------------------

    def open_session(self, store: SimMetadataStore) -> int:
        self._session_ids += 1
        session = _Session(self._session_ids, store, self.loop.time())
        self._sessions[self._session_ids] = session
        return self._session_ids

    def reachable(self, host: str) -> bool:
        return self.up and host not in self.cut_off

    def beat(self, session_id: int) -> bool:
        """Contact; False if the session is gone."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.contact_s = self.loop.time()
        return session is not None

    def _sweep(self) -> None:
        now_s = self.loop.time()
        for session in list(self._sessions.values()):
            if not self.up:
                session.contact_s = now_s
            elif now_s - session.contact_s > self.session_timeout_s:
                self.end_session(session.session_id)
        self.loop.call_later(
            self.session_timeout_s / BEATS_PER_TIMEOUT, self._sweep, context=contextvars.Context()
        )

    def end_session(self, session_id: int) -> None:
        """Its ephemeral nodes go."""
        if self._sessions.pop(session_id, None) is None:
            return
        for path in [p for p, node in self._nodes.items() if node.session == session_id]:
            self._remove(path)

    def expire(self, host: str) -> None:
        """The sessions of the processes of ``host`` end now, whatever their contact."""
        for session in list(self._sessions.values()):
            if session.store.process.name == host:
                self.end_session(session.session_id)

    # -- emptied, and restored ----------------------------------------------------------------

    def empty(self) -> dict[str, SavedNode]:
        """Every node goes, ephemeral ones too. Returns what ``restore`` needs."""
        saved = {}
        for path in sorted(self._nodes, reverse=True)[:-1]:  # children first, and not the root
            node = self._nodes[path]
            saved[path] = SavedNode(node.value, node.version, node.session, node.next_child)
            self._remove(path)
        return saved

    def restore(self, saved: Mapping[str, SavedNode]) -> None:
        """What was saved is there again, and nothing else, but for ephemeral nodes of sessions that
        are alive."""
        for path in sorted(self._nodes, reverse=True)[:-1]:
            node = self._nodes[path]
            if path not in saved and node.session is None and not node.children:
                self._remove(path)
        for path in sorted(saved):
            value, version, session, next_child = saved[path]
            if session is not None and (session not in self._sessions or path in self._nodes):
                continue
            if path not in self._nodes:
                self._insert(path, value, session)
            else:
                self.put(path, value, -1)
            self._nodes[path].version = version
            self._nodes[path].next_child = next_child

    # -- servers that lag -------------------------------------------------------------------

    def lag(self, host: str) -> None:
        """The server of ``host`` hears of nothing from now on, until it catches up."""
        self.catch_up(host)
        nodes = {
            path: (Versioned(node.value, node.version), sorted(node.children))
            for path, node in self._nodes.items()
        }
        stamps = {path: node.stamp for path, node in self._nodes.items()}
        self._lagging[host] = _Lagging(nodes, stamps, {})

    def catch_up(self, host: str) -> None:
        """Its server is up to date; its clients hear of what they missed."""
        lagging = self._lagging.pop(host, None)
        if lagging is not None:
            for store, paths in lagging.told.items():
                store.told([*paths])

    def heal(self) -> None:
        """Everybody gets through, and reads what is true."""
        self.up, self.lost_answers = True, 0.0
        self.cut_off.clear()
        self.slow.clear()
        for host in [*self._lagging]:
            self.catch_up(host)

    def read(self, host: str, path: str) -> tuple[Versioned, list[str]]:
        """A node's value and its children, as far as the server of ``host`` knows."""
        lagging = self._lagging.get(host)
        if lagging is None:
            return self.get(path), self.children(path)
        found = lagging.nodes.get(path)
        if found is None:
            raise NoNodeError(f"{path} does not exist")
        return found

    def children_stamp(self, host: str, path: str) -> int:
        """Likewise."""
        self.read(host, path)
        lagging = self._lagging.get(host)
        return self._nodes[path].stamp if lagging is None else lagging.stamps[path]

    # -- the tree -----------------------------------------------------------------------------

    def get(self, path: str) -> Versioned:
        node = self._node(path)
        return Versioned(node.value, node.version)

    def count_from(self, path: str, count: int) -> None:
        """Sequential children of ``path`` get numbers from ``count`` on."""
        self._make_ancestors(path)
        self._nodes[path].next_child = count

    def has(self, path: str) -> bool:
        return path in self._nodes

    def paths(self) -> list[str]:
        return list(self._nodes)

    def children(self, path: str) -> list[str]:
        return sorted(self._node(path).children)

    def create(self, path: str, value: bytes, mode: CreateMode, session_id: int | None) -> str:
        parent = split(path)[0] if not path.endswith("/") else path[:-1] or "/"
        self._make_ancestors(parent)
        if mode in _SEQUENTIAL:
            path = f"{path}{self._nodes[parent].next_child:0{SEQUENCE_DIGITS}d}"
        if path in self._nodes:
            raise NodeExistsError(f"{path} exists")
        self._insert(path, value, session_id if mode in _EPHEMERAL else None)
        return path

    def _make_ancestors(self, parent: str) -> None:
        missing = []
        while parent not in self._nodes:
            missing.append(parent)
            parent = split(parent)[0]
        if self._nodes[parent].session is not None:
            raise MetadataError(f"{parent} is ephemeral and cannot have children")
        for path in reversed(missing):
            self._insert(path, b"", None)

    def _insert(self, path: str, value: bytes, session_id: int | None) -> None:
        parent, name = split(path)
        self._nodes[path] = _Node(value, session_id)
        self._nodes[parent].children[name] = None
        self._nodes[parent].next_child += 1
        self._list_changed(path)
        self._list_changed(parent)
        self._changed(path, None, value, parent)

    def _list_changed(self, path: str) -> None:
        self._stamps += 1
        self._nodes[path].stamp = self._stamps

    def put(self, path: str, value: bytes, version: int) -> int:
        node = self._versioned(path, version)
        before, node.value = node.value, value
        node.version += 1
        self._changed(path, before, value)
        return node.version

    def create_and_put(
        self, path: str, value: bytes, other: str, other_value: bytes, version: int
    ) -> int:
        self._versioned(other, version)
        self.create(path, value, CreateMode.PERSISTENT, None)
        return self.put(other, other_value, version)

    def delete(self, path: str, version: int) -> None:
        if self._versioned(path, version).children:
            raise NotEmptyError(f"{path} has children")
        self._remove(path)

    def touch(self, path: str) -> None:
        """Somebody else rewrites the node as it is: only its version changes."""
        self.put(path, self._node(path).value, -1)

    def _remove(self, path: str) -> None:
        parent, name = split(path)
        node = self._nodes.pop(path)
        del self._nodes[parent].children[name]
        self._list_changed(parent)
        self._changed(path, node.value, None, parent)

    def _node(self, path: str) -> _Node:
        node = self._nodes.get(path)
        if node is None:
            raise NoNodeError(f"{path} does not exist")
        return node

    def _versioned(self, path: str, version: int) -> _Node:
        node = self._node(path)
        if version not in (-1, node.version):
            raise BadVersionError(f"{path} has version {node.version}, not {version}")
        return node

    def _changed(
        self, path: str, before: bytes | None, after: bytes | None, parent: str | None = None
    ) -> None:
        self.written(path, before, after)
        paths = [path] if parent is None else [path, parent]
        for session in self._sessions.values():
            lagging = self._lagging.get(session.store.process.name)
            if lagging is None:
                session.store.told(paths)
            else:
                lagging.told.setdefault(session.store, {}).update(dict.fromkeys(paths))


class SimMetadataStore:
    """``env.metadata.MetadataStore`` of one process. Made in that process."""

    def __init__(self, server: SimMetadataServer, process: SimProcess) -> None:
        self.process = process
        self._server = server
        self._loop = server.loop
        self._watches = PathWatches()
        self._listeners: Listeners[SessionState] = Listeners()
        self._session_id = server.open_session(self)
        self._connected = True
        self._closed = False
        self._missed: dict[str, None] = {}  # watched, and changed while out of contact
        self._last_request_s = 0.0
        self._last_answer_s = 0.0
        self._beat()

    # -- MetadataStore ------------------------------------------------------------------------

    async def get(self, path: str) -> Versioned:
        check_path(path)
        return (await self._ask(lambda: self._read(path), f"read of {path}"))[0]

    async def create(
        self, path: str, value: bytes, mode: CreateMode = CreateMode.PERSISTENT
    ) -> str:
        check_new_path(path, mode in _SEQUENTIAL)
        check_value(path, value)

        def create() -> str:
            return self._up_to_date().create(path, value, mode, self._session_id)

        return await self._ask(create, f"create of {path}")

    async def put(self, path: str, value: bytes, version: int) -> int:
        check_path(path)
        check_value(path, value)
        return await self._ask(
            lambda: self._up_to_date().put(path, value, version), f"put of {path}"
        )

    async def delete(self, path: str, version: int = -1) -> None:
        check_path(path)
        await self._ask(lambda: self._up_to_date().delete(path, version), f"delete of {path}")

    async def session_id(self) -> int:
        return self._session_id

    async def delete_within(self, session_id: int, path: str, version: int = -1) -> None:
        check_path(path)

        def delete() -> None:
            if self._session_id != session_id:
                raise SessionExpiredError(f"the session of the delete of {path} has expired")
            self._up_to_date().delete(path, version)

        await self._ask(delete, f"delete of {path}")

    async def put_within(self, session_id: int, path: str, value: bytes, version: int) -> int:
        check_path(path)
        check_value(path, value)

        def put() -> int:
            if self._session_id != session_id:
                raise SessionExpiredError(f"the session of the put of {path} has expired")
            return self._up_to_date().put(path, value, version)

        return await self._ask(put, f"put of {path}")

    async def put_beside(self, other: str, path: str, value: bytes, version: int) -> int:
        check_path(other)
        check_path(path)
        check_value(path, value)

        def put() -> int:
            server = self._up_to_date()
            server.get(other)
            return server.put(path, value, version)

        return await self._ask(put, f"put of {path}")

    async def create_and_put(
        self, path: str, value: bytes, other: str, other_value: bytes, version: int
    ) -> int:
        check_new_path(path, sequential=False)
        check_path(other)
        check_value(path, value)
        check_value(other, other_value)

        def both() -> int:
            return self._up_to_date().create_and_put(path, value, other, other_value, version)

        return await self._ask(both, f"create of {path}")

    async def children(self, path: str) -> list[str]:
        check_path(path)
        return (await self._ask(lambda: self._read(path), f"list of {path}"))[1]

    async def children_stamp(self, path: str) -> int:
        check_path(path)
        host = self.process.name
        return await self._ask(lambda: self._server.children_stamp(host, path), f"stamp of {path}")

    async def sync(self) -> None:
        await self._ask(self._up_to_date, "sync")

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        return self._watches.add(check_path(path), changed)

    watch_value = watch  # to be told of more costs nothing here

    def watch_session(self, changed: Callable[[SessionState], None]) -> Callable[[], None]:
        return self._listeners.add(changed)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._server.end_session(self._session_id)

    # -- requests -----------------------------------------------------------------------------

    def _read(self, path: str) -> tuple[Versioned, list[str]]:
        return self._server.read(self.process.name, path)

    def _up_to_date(self) -> SimMetadataServer:
        """A write's answer comes in the order of all writes."""
        self._server.catch_up(self.process.name)
        return self._server

    async def _ask(self, run: Callable[[], R], what: str) -> R:
        """Have the server ``run``, and give its answer; FIFO both ways."""
        if self._closed:
            raise MetadataError(f"{what}: the metadata store is closed")
        answer: asyncio.Future[R] = self._loop.create_future()
        self._last_request_s = self._later(self._last_request_s)
        self._loop.call_at(self._last_request_s, self._arrive, run, answer, what)
        return await answer

    def _later(self, last_s: float) -> float:
        low, high = DELAY_S
        delay_s = low + (high - low) * self._server.random.random()
        return max(last_s, self._loop.time() + delay_s)

    def _arrive(self, run: Callable[[], R], answer: asyncio.Future[R], what: str) -> None:
        server = self._server
        if not self._in_contact() or not server.beat(self._session_id):
            lost = MetadataUnavailableError(f"{what}: the metadata store is out of reach")
            self._loop.call_later(REQUEST_TIMEOUT_S, _settle, answer, lost, None)
            return
        error: MetadataError | None = None
        result: R | None = None
        try:
            result = run()
        except MetadataError as raised:
            error = raised
        if server.random.random() < server.lost_answers:
            error = MetadataUnavailableError(f"{what}: the connection broke before the answer")
            self._loop.call_later(
                REQUEST_TIMEOUT_S * server.random.random(), _settle, answer, error, None
            )
            return
        slow_s = server.slow.get(self.process.name, 0.0)
        self._last_answer_s = self._later(self._last_answer_s) + slow_s
        self._loop.call_at(self._last_answer_s, _settle, answer, error, result)

    # -- the session --------------------------------------------------------------------------

    def _in_contact(self) -> bool:
        return self._server.reachable(self.process.name)

    def _beat(self) -> None:
        if self._closed:
            return
        server = self._server
        if not self._in_contact():
            self._become(False, SessionState.SUSPENDED)
        elif server.beat(self._session_id):
            self._become(True, SessionState.CONNECTED)
            missed, self._missed = self._missed, {}
            self._watches.notify(self._loop, missed)
        else:
            self._become(False, SessionState.SUSPENDED)
            self._listeners.notify(self._loop, SessionState.EXPIRED)
            self._session_id = server.open_session(self)
            self._become(True, SessionState.CONNECTED)
        self._loop.call_later(server.session_timeout_s / BEATS_PER_TIMEOUT / 2, self._beat)

    def _become(self, connected: bool, state: SessionState) -> None:
        if self._connected == connected:
            return
        self._connected = connected
        if connected:
            self._watches.notify(self._loop, self._watches.paths())
        self._listeners.notify(self._loop, state)

    def told(self, paths: list[str]) -> None:
        """On the server's side: these nodes have changed."""
        wanted = [path for path in paths if path in self._watches]
        if wanted and self._in_contact():
            self._last_answer_s = when_s = self._later(self._last_answer_s)
            self._loop.call_at(when_s, self._notify, wanted, context=self.process.context)
        else:
            self._missed.update(dict.fromkeys(wanted))

    def _notify(self, paths: list[str]) -> None:
        if self._connected:
            self._watches.notify(self._loop, paths)
        else:
            self._missed.update(dict.fromkeys(paths))


def _settle(answer: asyncio.Future[R], error: MetadataError | None, result: R | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)  # type: ignore[arg-type]
