"""A connection of a Kafka client to one broker.

Requests are numbered, several may be under way, and a broker answers them in the order in which it
got them: an answer out of turn is a failure of the run. A request without an answer in time breaks
the connection, and whatever else waits on it has none either.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from magnetar.wire.kafka.apis import ApiKey, encode_request, read_response
from magnetar.wire.kafka.primitives import FieldReader

BUFFER_BYTES: Final = 1 << 16


class LinkError(Exception):
    """The connection is gone, or could not be had: what became of a request is not known."""


class _Asked(NamedTuple):
    api_key: ApiKey
    version: int
    number: int
    answer: asyncio.Future[Any]


class KafkaLink(asyncio.BufferedProtocol):
    """``broken`` is told what a broker must not do."""

    def __init__(self, client_id: str, broken: Callable[[str], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self.gone = False
        self._client_id = client_id
        self._broken = broken
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray(BUFFER_BYTES)
        self._unread = bytearray()
        self._asked: deque[_Asked] = deque()
        self._number = 0

    # -- asyncio's side -----------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        unread = self._unread
        unread += self._buffer[:nbytes]
        while len(unread) >= 4:
            size = int.from_bytes(unread[:4], "big")
            if len(unread) < 4 + size:
                break
            frame = bytes(unread[4 : 4 + size])
            del unread[: 4 + size]
            self._answered(frame)

    def eof_received(self) -> None:
        """The transport closes by itself."""

    def pause_writing(self) -> None:
        """What a client has under way is bounded by itself."""

    def resume_writing(self) -> None:
        """See ``pause_writing``."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        asked, self._asked = self._asked, deque()
        for each in asked:
            if not each.answer.done():
                each.answer.set_exception(LinkError("the connection is gone"))
                each.answer.exception()  # whoever asked may be gone as well

    # -- requests -----------------------------------------------------------------------------

    def _answered(self, frame: bytes) -> None:
        number = int.from_bytes(frame[:4], "big", signed=True)
        if not self._asked or self._asked[0].number != number:
            self._broken(f"answer {number} comes out of turn")
            return
        asked = self._asked.popleft()
        reader = FieldReader(memoryview(frame))
        _, response = read_response(asked.api_key, asked.version, reader)
        if not asked.answer.done():
            asked.answer.set_result(response)

    def send(self, api_key: ApiKey, version: int, request: Any) -> asyncio.Future[Any]:
        """It is on its way when this returns. The future raises ``LinkError``."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self.gone or self.transport is None:
            answer.set_exception(LinkError("the connection is gone"))
            answer.exception()
            return answer
        self._number += 1
        self._asked.append(_Asked(api_key, version, self._number, answer))
        frame = encode_request(api_key, version, self._number, self._client_id, request)
        self.transport.write(frame)
        return answer

    async def heard(self, answer: asyncio.Future[Any], within_s: float) -> Any:
        """What ``send`` has given. Raises ``LinkError``."""
        try:
            async with asyncio.timeout(within_s):
                return await answer
        except TimeoutError:
            self.abort()
            raise LinkError(f"no answer in {within_s:.1f} s") from None

    async def ask(self, api_key: ApiKey, version: int, request: Any, within_s: float) -> Any:
        """Raises ``LinkError``."""
        return await self.heard(self.send(api_key, version, request), within_s)

    def abort(self) -> None:
        if self.transport is not None and not self.gone:
            self.transport.abort()
