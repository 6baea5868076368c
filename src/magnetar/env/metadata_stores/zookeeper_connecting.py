"""How long kazoo tries one server of an ensemble, and what session it was granted.

kazoo waits for a connection for a whole session timeout, and for the answer to it for as much as
falls to each server. A session is missed after two thirds of its timeout: where one server of
three is cut off, or stands still, whoever tried that one first had lost its session, though the
others were well. Here:

* The last third is enough to try each server once: an attempt has its share of that.
* After a round in which none took the connection each has twice the time, up to kazoo's own: the
  ensemble may be slow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.protocol.serialization import Connect

from magnetar.env.metadata_stores.zookeeper_handler import DirectHandler
from magnetar.env.network.silence import SILENT_SHARE

KAZOO_READ_SHARE: Final = 2 / 3
"""Of the session timeout that was granted: for so long kazoo waits for an answer."""
DOUBLINGS_MAX: Final = 10


class Attempts:
    """At one server after the other; ``bound_s`` is the next one's. Pure."""

    def __init__(self, session_s: float, servers: int) -> None:
        self._first_s = session_s * (1 - SILENT_SHARE) / servers
        self._most_s = session_s
        self._servers = servers
        self._failures = 0

    @property
    def bound_s(self) -> float:
        rounds = min(self._failures // self._servers, DOUBLINGS_MAX)
        return min(self._first_s * 2.0**rounds, self._most_s)

    def ended(self, *, connected: bool) -> None:
        self._failures = 0 if connected else self._failures + 1


def bound_attempts(
    client: KazooClient,
    handler: DirectHandler,
    session_s: float,
    granted: Callable[[float], None],
) -> None:
    """Have ``client`` connect so; before it is started. ``granted`` is called in kazoo's thread
    with the session timeout, in seconds, that the server names in each answer to a connection."""
    attempts = Attempts(session_s, len(client.hosts))
    connection = client._connection
    connect: Callable[..., tuple[float, float]] = connection._connect
    invoke: Callable[..., Any] = connection._invoke

    def connect_once(*arguments: object) -> tuple[float, float]:
        handler.connect_s, connected = attempts.bound_s, False
        try:
            read_timeout_ms, connect_timeout_ms = connect(*arguments)
            connected = True
        finally:
            attempts.ended(connected=connected)
        granted(read_timeout_ms / KAZOO_READ_SHARE / 1000)
        return read_timeout_ms, connect_timeout_ms

    def invoke_in_time(timeout: float, request: object, *more: object, **named: object) -> Any:
        if isinstance(request, Connect):
            timeout = min(timeout, attempts.bound_s)
        return invoke(timeout, request, *more, **named)

    connection._connect, connection._invoke = connect_once, invoke_in_time
