"""A lock for each key that somebody has or waits for, and none for all others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _KeyLock:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class KeyedLocks(Generic[K]):
    """Keys are independent of each other; who waits for one key is served in order."""

    def __init__(self) -> None:
        self._held: dict[K, _KeyLock] = {}

    def __len__(self) -> int:
        """Keys that somebody has or waits for."""
        return len(self._held)

    @asynccontextmanager
    async def held(self, key: K) -> AsyncIterator[None]:
        """As long as the ``async with`` lasts nobody else has ``key``."""
        held = self._held.setdefault(key, _KeyLock())
        held.users += 1
        try:
            async with held.lock:
                yield
        finally:
            held.users -= 1
            if not held.users:
                del self._held[key]
