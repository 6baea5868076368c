"""A metadata store whose connection breaks on demand, before or after the operation happened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from magnetar.env.metadata import CreateMode, MetadataStore, SessionState, Versioned
from magnetar.model.errors import MetadataUnavailableError

T = TypeVar("T")


class LossyStore:
    """Passes everything to ``store``. ``losses`` maps an operation's name to what becomes of the
    next calls of it: ``request`` (it never happens) or ``answer`` (it happens, unheard)."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.losses: dict[str, list[str]] = {}
        self.sessions: list[Callable[[SessionState], None]] = []
        self.silent = 0.0
        self.granted: float | None = None

    async def _pass(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        pending = self.losses.get(name, [])
        lost = pending.pop(0) if pending else ""
        if lost == "request":
            raise MetadataUnavailableError(f"{name}: request lost")
        result = await call()
        if lost == "answer":
            raise MetadataUnavailableError(f"{name}: answer lost")
        return result

    async def get(self, path: str) -> Versioned:
        return await self._pass("get", lambda: self._store.get(path))

    async def create(
        self, path: str, value: bytes, mode: CreateMode = CreateMode.PERSISTENT
    ) -> str:
        return await self._pass("create", lambda: self._store.create(path, value, mode))

    async def put(self, path: str, value: bytes, version: int) -> int:
        return await self._pass("put", lambda: self._store.put(path, value, version))

    async def delete(self, path: str, version: int = -1) -> None:
        return await self._pass("delete", lambda: self._store.delete(path, version))

    async def children(self, path: str) -> list[str]:
        return await self._pass("children", lambda: self._store.children(path))

    async def children_stamp(self, path: str) -> int:
        return await self._pass("children_stamp", lambda: self._store.children_stamp(path))

    async def sync(self) -> None:
        await self._pass("sync", self._store.sync)

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        return self._store.watch(path, changed)

    watch_value = watch

    def watch_session(self, changed: Callable[[SessionState], None]) -> Callable[[], None]:
        self.sessions.append(changed)
        return lambda: self.sessions.remove(changed) if changed in self.sessions else None

    def silent_s(self) -> float:
        return self.silent

    def granted_s(self) -> float | None:
        return self.granted

    def tell_session(self, *states: SessionState) -> None:
        for state in states:
            for changed in list(self.sessions):
                changed(state)

    async def close(self) -> None:
        await self._store.close()
