"""``AskingConnection``: a connection on which many requests are under way, each with a number, and
their answers come in any order. Who has broken it, and why, is told to all who wait, and to whoever
asks later.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from magnetar.env.network.connections import Connections
from magnetar.env.network.framed import FramedConnection
from magnetar.model.errors import ProtocolError

T = TypeVar("T")


class AskingConnection(FramedConnection, Generic[T]):
    """``frames_received``, a subclass's, calls ``answered``. ``peer_role``: what the other side is,
    in words. ``gone``: the error of a request that is not answered; takes a text."""

    def __init__(
        self,
        frame_bytes_max: int,
        connections: Connections,
        peer_role: str,
        gone: type[Exception],
    ) -> None:
        super().__init__(frame_bytes_max, connections)
        self.why = ""
        """Not empty: it is of no use any more."""
        self._peer_role = peer_role
        self._gone = gone
        self._waiting: dict[int, asyncio.Future[T]] = {}

    async def ask(self, frame: bytes, request_id: int, within_s: float) -> T:
        """The answer to ``frame``. Raises ``gone``: it is broken, or breaks; no answer in time
        breaks it."""
        if self.why:
            raise self._gone(self.why)
        waiting: asyncio.Future[T] = self._loop.create_future()
        self._waiting[request_id] = waiting
        try:
            self.write(frame)
            async with asyncio.timeout(within_s):
                return await waiting
        except TimeoutError:
            self.end(f"no answer in {within_s:.0f} s")
            raise self._gone(self.why) from None
        finally:
            del self._waiting[request_id]

    def answered(self, request_id: int, answer: T) -> None:
        waiting = self._waiting.get(request_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def protocol_failed(self, error: ProtocolError) -> None:
        self.fail(str(error))

    def disconnected(self, error: Exception | None) -> None:
        self.fail(f"the connection broke ({error or f'the {self._peer_role} closed it'})")

    def end(self, why: str) -> None:
        self.fail(why)
        self.abort()

    def fail(self, why: str) -> None:
        """It is of no use any more. The first reason stays."""
        if self.why:
            return
        self.why = why
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._gone(why))
