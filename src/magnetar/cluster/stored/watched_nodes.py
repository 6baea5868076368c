"""Nodes of the metadata store, kept in memory as long as the store would tell of a change.

Invariants:

* A value is served from memory only while its watch is set and the session is connected. The watch
  is set before the read, and the store tells of every change after it, so what is served is never
  older than the last thing the store told.
* What this process writes through ``forget`` (call it after every write, before answering) is
  seen by it at once. A change by another process is seen when the store tells, which for a
  connected session is the time of a message, and never later than the session's timeout: when
  the session is suspended or expired everything is forgotten, and every question goes to the store
  until it is connected again.
* A read that a change overtook is answered, and not kept.
* At most ``nodes_max`` nodes are kept; the one asked for longest ago goes first, with its watch.

Nodes that do not exist are kept too: most topics are not partitioned, and each is asked for.
One read is under way per node, however many ask.

Why: docs/adr/0077-names-from-memory.md.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, Generic, TypeVar

from magnetar.env.metadata import MetadataStore, SessionState
from magnetar.model.errors import NoNodeError

T = TypeVar("T")

NODES_MAX: Final = 20_000
"""About 1 kB each, most of it the watch."""


class _Node(Generic[T]):
    __slots__ = ("changes", "end_watch", "reading", "value")

    def __init__(self) -> None:
        self.value: T | None = None  # None: not known
        self.changes = 0
        self.reading: asyncio.Future[T] | None = None
        self.end_watch: Callable[[], None] = _nothing


class WatchedNodes(Generic[T]):
    """Values of nodes by path. ``decode(path, value)`` makes one out of a node's bytes, None if
    the node does not exist; it may raise, and nothing is kept then."""

    def __init__(
        self,
        store: MetadataStore,
        decode: Callable[[str, bytes | None], T],
        nodes_max: int = NODES_MAX,
    ) -> None:
        self._store = store
        self._decode = decode
        self._nodes_max = nodes_max
        self._nodes: OrderedDict[str, _Node[T]] = OrderedDict()
        self._connected = True
        self._watchers: list[Callable[[str], None]] = []
        self._end_session_watch = store.watch_session(self._session_changed)

    async def get(self, path: str) -> T:
        """The node's value. Raises ``MetadataError``, and what ``decode`` raises."""
        while True:
            node = self._nodes.get(path)
            if node is None:
                node = self._watch(path)
            if node.value is not None:
                self._nodes.move_to_end(path)
                return node.value
            reading = node.reading
            if reading is None:
                return await self._read(path, node)
            await asyncio.wait([reading])
            if not reading.cancelled():  # else whoever read was cancelled: look again
                return reading.result()

    def known(self, path: str) -> T | None:
        """As ``get`` would give it without asking the store; None: it would ask."""
        node = self._nodes.get(path)
        return None if node is None else node.value

    @property
    def connected(self) -> bool:
        """The store can be asked; what is ``known`` is so as long as it can."""
        return self._connected

    def _watch(self, path: str) -> _Node[T]:
        if len(self._nodes) >= self._nodes_max:
            _, oldest = self._nodes.popitem(last=False)
            oldest.end_watch()
        node: _Node[T] = _Node()
        self._nodes[path] = node
        # Before the read: a change after what is read is told of, whenever it comes.
        node.end_watch = self._store.watch_value(path, self.forget)
        return node

    async def _read(self, path: str, node: _Node[T]) -> T:
        reading: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        node.reading = reading
        changes = node.changes
        try:
            value = self._decode(path, await self._bytes(path))
            reading.set_result(value)
        except Exception as error:
            reading.set_exception(error)
            reading.exception()  # looked at: there may be nobody else who waits for it
            raise
        finally:
            if not reading.done():
                reading.cancel()
            if node.reading is reading:
                node.reading = None
        if self._connected and node.changes == changes:
            node.value = value
        return value

    async def _bytes(self, path: str) -> bytes | None:
        try:
            return (await self._store.get(path)).value
        except NoNodeError:
            return None

    def watch_changes(self, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call ``changed(path)`` whenever a node that somebody has asked for has changed, or may
        have. Of nodes that gave way to others nothing is told. Returns the function that ends
        it."""
        self._watchers.append(changed)
        return partial(self._watchers.remove, changed)

    def forget(self, path: str) -> None:
        """The node has changed, or may have."""
        node = self._nodes.get(path)
        if node is not None:
            for changed in tuple(self._watchers):  # one may end itself
                changed(path)
            node.changes += 1
            node.value = None
            node.reading = None  # whoever asks from now on must not get what was read before

    def _session_changed(self, state: SessionState) -> None:
        self._connected = state is SessionState.CONNECTED
        for path in self._nodes:
            self.forget(path)

    def __len__(self) -> int:
        return len(self._nodes)

    def close(self) -> None:
        """End every watch."""
        self._end_session_watch()
        for node in self._nodes.values():
            node.end_watch()
        self._nodes.clear()


def _nothing() -> None:
    """The watch is not set yet."""
