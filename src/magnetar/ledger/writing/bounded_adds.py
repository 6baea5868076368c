"""Appends for callers that await: a byte budget, first come, first served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from magnetar.model.errors import MagnetarError
from magnetar.model.ids import EntryId

Buffer: TypeAlias = bytes | bytearray | memoryview
Append: TypeAlias = Callable[
    [Sequence[Buffer], Callable[[MagnetarError | None, int, int, int], None]], object
]


class _Add:
    """One call of ``add`` under way."""

    __slots__ = ("first", "future", "left", "size")

    def __init__(self, future: asyncio.Future[EntryId], size: int, count: int) -> None:
        self.future = future
        self.size = size
        self.left = count
        self.first = -1


class BoundedAdds:
    """Waits while more than ``bytes_max`` are unconfirmed. A single add may be larger: it then
    goes alone."""

    def __init__(self, append: Append, bytes_max: int) -> None:
        self._append = append
        self._bytes_max = bytes_max
        self._bytes = 0
        self._turn = asyncio.Lock()  # keeps the order of the callers
        self._room = asyncio.Event()

    async def add(self, payloads: Sequence[Buffer]) -> EntryId:
        """Append ``payloads`` under consecutive ids; returns the first when all are confirmed.
        Raises what the append failed with."""
        size = sum(map(len, payloads))
        async with self._turn:
            while self._bytes and self._bytes + size > self._bytes_max:
                self._room.clear()
                await self._room.wait()
            self._bytes += size
            future: asyncio.Future[EntryId] = asyncio.get_running_loop().create_future()
            try:
                self._append(payloads, partial(self._done, _Add(future, size, len(payloads))))
            except BaseException:  # a payload that is none: nothing was appended
                self._bytes -= size
                raise
        return await future

    def _done(
        self, add: _Add, error: MagnetarError | None, _ledger: int, first: int, count: int
    ) -> None:
        if add.first < 0:
            add.first = first
        add.left -= count
        if error is not None and not add.future.done():
            add.future.set_exception(error)
        if add.left == 0:
            self._bytes -= add.size
            self._room.set()
            if not add.future.done():
                add.future.set_result(add.first)
