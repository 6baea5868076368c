"""The metadata store seam: a small tree of versioned nodes, as ZooKeeper has.

Paths are absolute (``/ledgers/LAYOUT``), each node holds bytes and a version that starts at 0 and
grows by one with every ``put``. Parents are created as needed. Implementations: SQLite
(``sqlite_metadata``, one machine) and ZooKeeper (``zookeeper_metadata``); one shared test suite
holds them to the same behaviour.

Requires of every implementation: writes are durable before they return; compare-and-set is
atomic; a node made ephemeral disappears when the session ends and not before.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol, TypeGuard, runtime_checkable

from magnetar.env.capabilities import class_check


class Versioned(NamedTuple):
    """A node's bytes and the version to compare-and-set against."""

    value: bytes
    version: int


class CreateMode(Enum):
    PERSISTENT = "persistent"
    EPHEMERAL = "ephemeral"
    SEQUENTIAL = "sequential"  # persistent; a counter of ten digits is appended to the path
    EPHEMERAL_SEQUENTIAL = "ephemeral-sequential"


class SessionState(Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"  # out of sight; the session may still be alive
    EXPIRED = "expired"  # the store dropped the session and its ephemeral nodes


@runtime_checkable
class SilenceCounted(Protocol):
    """What a ``MetadataStore`` does whose server ends a session that it does not hear of, and
    cannot say so. Others end none by that, or say SUSPENDED as soon as they do not hear."""

    def silent_s(self) -> float:
        """For how long the server may have heard nothing of this session: since the last request
        was sent that it is known to have heard."""
        ...

    def granted_s(self) -> float | None:
        """How long the server keeps a session that it does not hear of, which may be less than was
        asked for; None: it has not said so yet."""
        ...


@runtime_checkable
class ListStamps(Protocol):
    """What a ``MetadataStore`` can do beside: tell whether a list of children has changed, to who
    has listed them. Those of this package can."""

    async def children_stamp(self, path: str) -> int:
        """A number that is another one after each change of the list of the node's children: who
        has it needs not list them again while it is the same. Numbers of two stores, or of one
        that was opened anew, say nothing of each other. Raises ``NoNodeError``."""
        ...


@runtime_checkable
class SessionWrites(Protocol):
    """What a ``MetadataStore`` can do beside: change nodes for who must hold an ephemeral node at
    that very moment. Those of this package can."""

    async def session_id(self) -> int:
        """Of the session that requests are part of now; another one after it has expired. Raises
        ``MetadataError``."""
        ...

    async def delete_within(self, session_id: int, path: str, version: int = -1) -> None:
        """As ``delete``, and only while the session is still that of ``session_id``: all ephemeral
        nodes that were made since it was read are there when the node goes. Raises
        ``SessionExpiredError`` if it is over."""
        ...

    async def put_within(self, session_id: int, path: str, value: bytes, version: int) -> int:
        """As ``put``, likewise."""
        ...


_writes_in_sessions = class_check(SessionWrites)


def has_session_writes(store: object) -> TypeGuard[SessionWrites]:
    """As ``isinstance``, for what is asked with each change of a log's record."""
    return _writes_in_sessions(type(store))


@runtime_checkable
class GuardedWrites(Protocol):
    """What a ``MetadataStore`` can do beside: change a node for who must know that another one is
    there at that very moment. Those of this package can."""

    async def put_beside(self, other: str, path: str, value: bytes, version: int) -> int:
        """As ``put``, and only if the node ``other`` exists then. Raises ``NoNodeError`` of
        either."""
        ...


@runtime_checkable
class PairedWrites(Protocol):
    """What a ``MetadataStore`` can do beside: change two nodes at once. Those of this package
    can."""

    async def create_and_put(
        self, path: str, value: bytes, other: str, other_value: bytes, version: int
    ) -> int:
        """``create`` of ``path``, persistent, and ``put`` of ``other``: both or neither. Returns
        the new version of ``other``. Raises ``NodeExistsError`` of ``path``, ``NoNodeError`` and
        ``BadVersionError`` of ``other``."""
        ...


class MetadataStore(Protocol):
    """A tree of versioned nodes. All methods may raise ``MetadataError``."""

    async def get(self, path: str) -> Versioned:
        """The node's value. Raises ``NoNodeError``."""
        ...

    async def create(
        self, path: str, value: bytes, mode: CreateMode = CreateMode.PERSISTENT
    ) -> str:
        """Create a node, and its parents if they are missing; returns its path (with the
        counter, for the sequential modes). Raises ``NodeExistsError``."""
        ...

    async def put(self, path: str, value: bytes, version: int) -> int:
        """Compare-and-set; returns the new version. ``version`` -1 matches any.
        Raises ``NoNodeError``, ``BadVersionError``."""
        ...

    async def delete(self, path: str, version: int = -1) -> None:
        """Raises ``NoNodeError``, ``BadVersionError``, ``NotEmptyError``."""
        ...

    async def children(self, path: str) -> list[str]:
        """The names (not paths) of the node's children, sorted. Raises ``NoNodeError``."""
        ...

    async def sync(self) -> None:
        """What is read after this is no older than this call: a server of an ensemble may lag
        behind others."""
        ...

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call ``changed(path)`` on the loop after each change of the node or of the list of
        its children (changes may be merged; there is at least one call after the last). The
        node need not exist. Returns the function that ends the watch."""
        ...

    def watch_value(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        """As ``watch``, of the node itself: it was made, changed or deleted. Changes of its
        children may be told of too. It is the cheaper one, for who does not list them."""
        ...

    def watch_session(self, changed: Callable[[SessionState], None]) -> Callable[[], None]:
        """Call ``changed`` on the loop when the session's state changes."""
        ...

    async def close(self) -> None:
        """End the session; ephemeral nodes go at once."""
        ...
