"""Asking other brokers, by Kafka's own protocol: for what only the owner of a topic, or a
transaction's coordinator, may do.

Owns the connections: one to each broker that was asked lately, ``LINES_MAX`` at most. A broker
answers the requests of a connection in order. A question whose answer does not come in
``ANSWER_S`` breaks its connection, with all that wait on it: the next question makes another.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, TypeVar

from magnetar.env.keyed_locks import KeyedLocks
from magnetar.env.network.connections import Connections
from magnetar.model.errors import ServiceNotReadyError
from magnetar.protocols.kafka.lines import BrokerWay, PeerLine, connect_line
from magnetar.wire.kafka.apis import ApiKey

ANSWER_S: Final = 30.0
LINES_MAX: Final = 100
OTHER: Final = "it may be of another release: ask again, and upgrade all brokers"
T = TypeVar("T")
E = TypeVar("E", bound=Enum)


def told_one(parts: Sequence[T]) -> T:
    """The only part of an answer about one thing. Raises ``ServiceNotReadyError``."""
    if len(parts) != 1:
        raise ServiceNotReadyError(f"a broker answers with {len(parts)} parts, not 1; {OTHER}")
    return parts[0]


def told_as(kind: type[E], value: int | str) -> E:
    """What another broker says of a few things that can be. Raises ``ServiceNotReadyError``."""
    try:
        return kind(value)
    except ValueError:
        raise ServiceNotReadyError(
            f"a broker answers {value!r} as {kind.__name__}; {OTHER}"
        ) from None


class PeerLines:
    """Of one broker to the others. ``way``: how they are reached."""

    def __init__(self, connections: Connections, way: BrokerWay | None = None) -> None:
        self._connections = connections
        self.way = way or BrokerWay()
        self._lines: dict[tuple[str, int], PeerLine] = {}
        """The one that was used last comes last."""
        self._connecting: KeyedLocks[tuple[str, int]] = KeyedLocks()
        self._closed = False

    @property
    def by_tls(self) -> bool:
        return self.way.tls is not None

    async def ask(self, host: str, port: int, api_key: ApiKey, version: int, request: Any) -> Any:
        """The answer of the broker there. Raises ``ServiceNotReadyError``."""
        line = await self._line((host, port))
        return await line.ask_api(api_key, version, request, ANSWER_S)

    async def _line(self, where: tuple[str, int]) -> PeerLine:
        async with self._connecting.held(where):  # who comes second has what the first has made
            line = self._lines.pop(where, None)
            if line is not None and line.is_stale:
                line.retire()  # a new one shows the token again
                line = None
            if line is None or line.why:
                line = await self._connect(*where)
            self._lines[where] = line
        self._bound(where)
        return line

    async def _connect(self, host: str, port: int) -> PeerLine:
        if self._closed:
            raise ServiceNotReadyError("this broker is ending; ask another one")
        line = await connect_line(PeerLine, self._connections, self.way, host, port)
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
