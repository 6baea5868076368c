"""Asking other brokers, by Kafka's own protocol: for what only the owner of a topic, or a
transaction's coordinator, may do.

Owns the connections: one to each broker that was asked lately, ``LINES_MAX`` at most. A broker
answers the requests of a connection in order. A question whose answer does not come in
``ANSWER_S`` breaks its connection, with all that wait on it: the next question makes another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from magnetar.env.asking import AskingConnection
from magnetar.env.connections import Connections
from magnetar.model.errors import ServiceNotReadyError
from magnetar.wire.kafka.apis import ApiKey, encode_request, read_response
from magnetar.wire.kafka.primitives import FieldReader

ANSWER_BYTES_MAX: Final = 16 << 20
ANSWER_S: Final = 30.0
CONNECT_S: Final = 5.0
LINES_MAX: Final = 100
NUMBER_MAX: Final = 0x7FFF_FFFF


class PeerLine(AskingConnection[Any]):
    """A connection to one broker."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(ANSWER_BYTES_MAX, connections, "broker", ServiceNotReadyError)
        self._asked: dict[int, tuple[ApiKey, int]] = {}
        """Which API in which version the question with that number is of."""
        self._number = 0

    @property
    def waits(self) -> bool:
        """Some question has no answer yet."""
        return bool(self._asked)

    def frames_received(self, view: memoryview, bounds: Sequence[tuple[int, int]]) -> None:
        for start, end in bounds:
            # Its bytes are of use in this call only, and byte fields are views of them.
            frame = memoryview(bytes(view[start:end]))
            asked = self._asked.get(int.from_bytes(frame[:4], "big"))
            if asked is not None:
                self.answered(*read_response(*asked, FieldReader(frame)))

    async def ask_api(self, api_key: ApiKey, version: int, request: Any) -> Any:
        """Raises ``ServiceNotReadyError``."""
        number = self._number = (self._number + 1) & NUMBER_MAX
        frame = encode_request(api_key, version, number, "magnetar", request)
        self._asked[number] = api_key, version
        try:
            return await self.ask(frame, number, ANSWER_S)
        finally:
            del self._asked[number]


class PeerLines:
    """Of one broker to the others."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._lines: dict[tuple[str, int], PeerLine] = {}
        """The one that was used last comes last."""
        self._connecting: dict[tuple[str, int], asyncio.Lock] = {}
        self._closed = False

    async def ask(self, host: str, port: int, api_key: ApiKey, version: int, request: Any) -> Any:
        """The answer of the broker there. Raises ``ServiceNotReadyError``."""
        line = await self._line((host, port))
        return await line.ask_api(api_key, version, request)

    async def _line(self, where: tuple[str, int]) -> PeerLine:
        lock = self._connecting.setdefault(where, asyncio.Lock())
        try:
            async with lock:  # who comes second has what the first has made
                line = self._lines.pop(where, None)
                if line is None or line.why:
                    line = await self._connect(*where)
                self._lines[where] = line
        finally:
            if not lock.locked():
                self._connecting.pop(where, None)
        self._bound(where)
        return line

    async def _connect(self, host: str, port: int) -> PeerLine:
        if self._closed:
            raise ServiceNotReadyError("this broker is ending; ask another one")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, line = await loop.create_connection(
                    lambda: PeerLine(self._connections), host, port
                )
        except (OSError, TimeoutError) as error:
            why = str(error) or f"no answer in {CONNECT_S:.0f} s"
            raise ServiceNotReadyError(
                f"broker {host}:{port} is not reached ({why}); ask again"
            ) from error
        if self._closed:  # meanwhile
            line.abort()
            raise ServiceNotReadyError("this broker is ending; ask another one")
        return line

    def _bound(self, but: tuple[str, int]) -> None:
        """Those that are broken go, and of the others the ones that were used least lately; not
        ``but``, which is about to be used."""
        for where in [where for where, line in self._lines.items() if line.why]:
            del self._lines[where]
        for where in [where for where, line in self._lines.items() if not line.waits]:
            if len(self._lines) > LINES_MAX and where != but:
                self._lines.pop(where).close()

    def close(self) -> None:
        """End the connections. Idempotent."""
        self._closed = True
        for line in self._lines.values():
            line.end("this broker is ending")
        self._lines.clear()
