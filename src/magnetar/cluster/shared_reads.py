"""Reads of a node that are shared by all who ask while the one before is under way, and are yet no
older than their question: who asks while a read is under way gets the next one's answer.

For a thousand topics that are opened at once one read, or two, and not a thousand.
"""

from __future__ import annotations

import asyncio

from magnetar.env.metadata import MetadataStore
from magnetar.model.errors import NoNodeError


class SharedReads:
    """Nothing is kept longer than a read is under way."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._reading: dict[str, asyncio.Future[None]] = {}
        self._next: dict[str, asyncio.Future[bytes | None]] = {}

    async def get(self, path: str) -> bytes | None:
        """The node's bytes; None if there is none. Raises ``MetadataError``."""
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

    async def _share(self, path: str, answer: asyncio.Future[bytes | None]) -> bytes | None:
        await asyncio.wait([answer])
        if answer.cancelled():  # whoever read was cancelled: ask again
            return await self.get(path)
        return answer.result()

    async def _read(self, path: str, answer: asyncio.Future[bytes | None]) -> bytes | None:
        """From here on who comes waits for the read after this one."""
        del self._next[path]
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reading[path] = done
        try:
            value = await self._bytes(path)
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

    async def _bytes(self, path: str) -> bytes | None:
        try:
            return (await self._metadata.get(path)).value
        except NoNodeError:
            return None
