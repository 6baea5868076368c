"""A metadata store in memory: what the broker's control plane needs of one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from magnetar.env.metadata import CreateMode, SessionState, Versioned
from magnetar.model.errors import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)


class MemoryMetadata:
    """Persistent nodes only."""

    def __init__(self) -> None:
        self.nodes: dict[str, Versioned] = {}

    async def get(self, path: str) -> Versioned:
        await asyncio.sleep(0)
        if path not in self.nodes:
            raise NoNodeError(f"no node {path}")
        return self.nodes[path]

    async def create(
        self, path: str, value: bytes, mode: CreateMode = CreateMode.PERSISTENT
    ) -> str:
        await asyncio.sleep(0)
        assert mode is CreateMode.PERSISTENT
        if path in self.nodes:
            raise NodeExistsError(f"{path} exists")
        parent = path.rpartition("/")[0]
        while parent:
            self.nodes.setdefault(parent, Versioned(b"", 0))
            parent = parent.rpartition("/")[0]
        self.nodes[path] = Versioned(value, 0)
        return path

    async def put(self, path: str, value: bytes, version: int) -> int:
        node = await self.get(path)
        if version not in (-1, node.version):
            raise BadVersionError(f"{path} has version {node.version}, not {version}")
        self.nodes[path] = Versioned(value, node.version + 1)
        return node.version + 1

    async def delete(self, path: str, version: int = -1) -> None:
        node = await self.get(path)
        if version not in (-1, node.version):
            raise BadVersionError(f"{path} has version {node.version}, not {version}")
        if any(other.startswith(path + "/") for other in self.nodes):
            raise NotEmptyError(f"{path} has children")
        del self.nodes[path]

    async def sync(self) -> None:
        """There is one copy."""

    async def children(self, path: str) -> list[str]:
        await self.get(path)
        prefix = path.rstrip("/") + "/"
        found = {
            other[len(prefix) :].split("/")[0] for other in self.nodes if other.startswith(prefix)
        }
        return sorted(found)

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        raise NotImplementedError("the broker watches nothing")

    def watch_session(self, changed: Callable[[SessionState], None]) -> Callable[[], None]:
        raise NotImplementedError("the broker watches nothing")

    async def close(self) -> None:
        self.nodes.clear()
