"""Reads of the metadata that are shared by all who ask while the one before is under way, and are
yet no older than their question: who asks while a read is under way gets the next one's answer.

For a thousand topics that are opened at once one read, or two, and not a thousand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from magnetar.env.metadata import MetadataStore
from magnetar.model.errors import NoNodeError

T = TypeVar("T")


class SharedReads(Generic[T]):
    """By ``read``, of a path. Nothing is kept longer than a read is under way."""

    def __init__(self, read: Callable[[str], Awaitable[T]]) -> None:
        self._ask = read
        self._reading: dict[str, asyncio.Future[None]] = {}
        self._next: dict[str, asyncio.Future[T]] = {}

    async def get(self, path: str) -> T:
        """What ``read`` gives for ``path``. Raises what it raises."""
        answer = self._next.get(path)
        if answer is not None:
            return await self._share(path, answer)
        under_way = self._reading.get(path)
        answer = self._next[path] = asyncio.get_running_loop().create_future()
        try:
            if under_way is not None:
                await asyncio.wait([under_way])
            return await self._read(path, answer)
        finally:
            if self._next.get(path) is answer:
                del self._next[path]
            if not answer.done():
                answer.cancel()

    async def _share(self, path: str, answer: asyncio.Future[T]) -> T:
        await asyncio.wait([answer])
        if answer.cancelled():  # whoever read was cancelled: ask again
            return await self.get(path)
        return answer.result()

    async def _read(self, path: str, answer: asyncio.Future[T]) -> T:
        """From here on who comes waits for the read after this one."""
        del self._next[path]
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reading[path] = done
        try:
            value = await self._ask(path)
            answer.set_result(value)
            return value
        except Exception as error:
            answer.set_exception(error)
            answer.exception()  # looked at: there may be nobody else who waits for it
            raise
        finally:
            done.set_result(None)
            if self._reading.get(path) is done:
                del self._reading[path]


def shared_values(metadata: MetadataStore) -> SharedReads[bytes | None]:
    """Of a node's bytes; None if there is none. They raise ``MetadataError``."""

    async def value(path: str) -> bytes | None:
        try:
            return (await metadata.get(path)).value
        except NoNodeError:
            return None

    return SharedReads(value)


def shared_children(metadata: MetadataStore) -> SharedReads[list[str]]:
    """Of the names of a node's children; none if there is no node. They raise ``MetadataError``."""

    async def children(path: str) -> list[str]:
        try:
            return await metadata.children(path)
        except NoNodeError:
            return []

    return SharedReads(children)
