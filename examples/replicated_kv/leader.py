"""Who is to be active: a node in the metadata store that goes with its holder's session.

The lock decides who *tries*. It does not make anything safe: a holder that is paused loses its
session without knowing, and goes on as if it had the lock. What it writes then is refused because
its ledger is fenced (``log.take_over``). So the lock may be lost or even held twice for a moment,
and still nobody's confirmed write is lost and nobody's unconfirmed write is confirmed.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from magnetar.ledger import CreateMode, MetadataError, NodeExistsError, NoNodeError

LOOK_AGAIN_S = 5.0


class Node(Protocol):
    @property
    def value(self) -> bytes: ...


class Nodes(Protocol):
    """The part of ``LedgerClient.metadata`` that a lock needs."""

    async def get(self, path: str) -> Node: ...

    async def create(self, path: str, value: bytes, mode: CreateMode) -> str: ...

    async def delete(self, path: str, version: int = -1) -> None: ...

    def watch_value(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]: ...


class LeaderLock:
    """``address`` is what others are told of the holder."""

    def __init__(self, nodes: Nodes, path: str, address: str) -> None:
        self._nodes = nodes
        self._path = path
        # Two lives of one address differ: the node of the one before stays until its session ends.
        self._own = f"{address} {secrets.token_hex(8)}".encode()

    async def acquire(self) -> None:
        """Return when this process holds it."""
        while True:
            with _Changes(self._nodes, self._path) as changes:
                try:
                    await self._nodes.create(self._path, self._own, CreateMode.EPHEMERAL)
                    return
                except NodeExistsError:
                    if await self._value() == self._own:
                        return  # made by an attempt whose answer was lost
                await changes.wait()

    async def wait_lost(self) -> None:
        """Return when somebody else may hold it, or nobody."""
        while True:
            with _Changes(self._nodes, self._path) as changes:
                if await self._value() != self._own:
                    return
                await changes.wait()

    async def holder(self) -> str:
        """The address of who holds it; empty: nobody."""
        value = await self._value()
        return "" if value is None else value.decode().split(" ")[0]

    async def release(self) -> None:
        """Give it up, if we have it. It goes with the session if the store does not answer."""
        with suppress(MetadataError):
            if await self._value() == self._own:
                await self._nodes.delete(self._path)

    async def _value(self) -> bytes | None:
        try:
            return (await self._nodes.get(self._path)).value
        except NoNodeError:
            return None


class _Changes:
    """Of a node, from the moment on that this is made: no change is missed between a look and the
    wait for the next."""

    def __init__(self, nodes: Nodes, path: str) -> None:
        self._changed = asyncio.Event()
        self._end = nodes.watch_value(path, lambda _path: self._changed.set())

    def __enter__(self) -> _Changes:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    async def wait(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_AGAIN_S):
                await self._changed.wait()
        self._changed.clear()
