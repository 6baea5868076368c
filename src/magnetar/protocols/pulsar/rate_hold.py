"""A connection that is held back: its next SEND may not pass a topic's limited rate yet.

It is not read meanwhile. An answer to its client's PING would wait behind that SEND, and the client
closes a connection on which nothing comes for 30 s after its PING: so it is told PONG now and then.

Why: docs/adr/0217-rates-hold-back.md.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from magnetar.topics.throttle import TopicThrottle
from magnetar.wire.pulsar.commands import PONG_FRAME

PONG_S: Final = 10.0


class HeldBack(Exception):
    """No error: a SEND may not pass yet, and the connection is not read until it may."""


class HeldConnection(Protocol):
    """What is held back."""

    def write(self, part: bytes) -> None: ...

    def pause(self, reason: int) -> None: ...

    def resume(self, reason: int) -> None: ...


class RateHold:
    """Of one connection; ``reason``: why it is not read while it is held back."""

    __slots__ = ("_connection", "_pong", "_reason", "_throttle")

    def __init__(self, connection: HeldConnection, reason: int) -> None:
        self._connection = connection
        self._reason = reason
        self._throttle: TopicThrottle | None = None
        self._pong: asyncio.TimerHandle | None = None

    def check(self, throttle: TopicThrottle) -> None:
        """Raises ``HeldBack``: what is to be sent comes again when its turn has come."""
        if throttle.admits(self, self.end) is not None:
            return
        self._connection.pause(self._reason)
        self._throttle = throttle
        self._plan_pong()
        raise HeldBack

    def end(self) -> None:
        """Its turn has come, or nobody waits any more. Fine if it is not held back."""
        throttle, self._throttle = self._throttle, None
        if throttle is None:
            return
        throttle.forget(self)
        if self._pong is not None:
            self._pong.cancel()
            self._pong = None
        self._connection.resume(self._reason)

    def _plan_pong(self) -> None:
        self._pong = asyncio.get_running_loop().call_later(PONG_S, self._say_pong)

    def _say_pong(self) -> None:
        self._connection.write(PONG_FRAME)
        self._plan_pong()
