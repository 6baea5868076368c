"""A metadata store in memory: what the broker's control plane needs of one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from magnetar.env.metadata import CreateMode, SessionState, Versioned
from magnetar.env.metadata_stores.watches import Listeners, PathWatches
from magnetar.model.errors import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)


class MemoryMetadata:
    """No session: what is made ephemeral stays until somebody deletes it. ``reads`` counts what
    was asked of it."""

    def __init__(self) -> None:
        self.nodes: dict[str, Versioned] = {}
        self.reads = 0
        self._watches = PathWatches()
        self._sessions: Listeners[SessionState] = Listeners()

    async def get(self, path: str) -> Versioned:
        self.reads += 1
        await asyncio.sleep(0)
        return self._find(path)

    def _find(self, path: str) -> Versioned:
        if path not in self.nodes:
            raise NoNodeError(f"no node {path}")
        return self.nodes[path]

    async def create(
        self, path: str, value: bytes, mode: CreateMode = CreateMode.PERSISTENT
    ) -> str:
        await asyncio.sleep(0)
        assert mode in (CreateMode.PERSISTENT, CreateMode.EPHEMERAL)
        if path in self.nodes:
            raise NodeExistsError(f"{path} exists")
        self._make(path, value)
        return path

    def _make(self, path: str, value: bytes) -> None:
        parent = path.rpartition("/")[0]
        while parent:
            self.nodes.setdefault(parent, Versioned(b"", 0))
            parent = parent.rpartition("/")[0]
        self.nodes[path] = Versioned(value, 0)
        self.tell(path, path.rpartition("/")[0])

    def tell(self, *paths: str) -> None:
        """Tell those who watch: for tests that change ``nodes`` themselves, too."""
        self._watches.notify(asyncio.get_running_loop(), paths)

    def end_session(self, state: SessionState) -> None:
        self._sessions.notify(asyncio.get_running_loop(), state)

    async def put(self, path: str, value: bytes, version: int) -> int:
        await asyncio.sleep(0)
        node = self._find(path)
        if version not in (-1, node.version):
            raise BadVersionError(f"{path} has version {node.version}, not {version}")
        self.nodes[path] = Versioned(value, node.version + 1)
        self.tell(path)
        return node.version + 1

    async def put_beside(self, other: str, path: str, value: bytes, version: int) -> int:
        self._find(other)
        return await self.put(path, value, version)

    async def create_and_put(
        self, path: str, value: bytes, other: str, other_value: bytes, version: int
    ) -> int:
        await asyncio.sleep(0)
        node = self._find(other)
        if version not in (-1, node.version):
            raise BadVersionError(f"{other} has version {node.version}, not {version}")
        if path in self.nodes:
            raise NodeExistsError(f"{path} exists")
        self._make(path, value)
        self.nodes[other] = Versioned(other_value, node.version + 1)
        self.tell(other)
        return node.version + 1

    async def delete(self, path: str, version: int = -1) -> None:
        await asyncio.sleep(0)
        node = self._find(path)
        if version not in (-1, node.version):
            raise BadVersionError(f"{path} has version {node.version}, not {version}")
        if any(other.startswith(path + "/") for other in self.nodes):
            raise NotEmptyError(f"{path} has children")
        del self.nodes[path]
        self.tell(path, path.rpartition("/")[0])

    async def sync(self) -> None:
        """There is one copy."""

    async def children(self, path: str) -> list[str]:
        await self.get(path)
        prefix = path.rstrip("/") + "/"
        found = {
            other[len(prefix) :].split("/")[0] for other in self.nodes if other.startswith(prefix)
        }
        return sorted(found)

    async def children_stamp(self, path: str) -> int:
        return hash(tuple(await self.children(path)))

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        return self._watches.add(path, changed)

    watch_value = watch

    def watch_session(self, changed: Callable[[SessionState], None]) -> Callable[[], None]:
        return self._sessions.add(changed)

    async def close(self) -> None:
        self.nodes.clear()
