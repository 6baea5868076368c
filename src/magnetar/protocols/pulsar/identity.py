"""Who the client of a connection is, and until when: what it showed with CONNECT is asked for again
when its time is over.

A client that can (``supports_auth_refresh``) is sent AUTH_CHALLENGE and has ``ANSWER_S`` for its
AUTH_RESPONSE; the role must stay the same. One that cannot, or does not, is told
AuthenticationError and disconnected; it comes again with what its application has by then.

Why: docs/adr/0154-roles-and-what-proves-them.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from magnetar import __version__
from magnetar.cluster.security.principals import Principal
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand

ANSWER_S: Final = 30.0
LOOK_S_MAX: Final = 3600.0
"""A clock may be set: the time that is left is looked at again after this at the latest."""
REFRESH: Final = b"PulsarAuthRefresh"
"""What Pulsar puts into a challenge that asks for the same again."""


class ClientLine(Protocol):
    """What is known here of a client's connection."""

    protocol_version: int

    def send_command(self, command: BaseCommand) -> None: ...

    def end_refused(self, why: str) -> None:
        """Tell AuthenticationError, and close; ``why`` is for the log."""
        ...


class Identity:
    """``clock``: seconds since 1970. ``method``: by which it showed ``principal``; ``refreshes``:
    the client answers challenges."""

    __slots__ = ("_clock", "_line", "_refreshes", "_timer", "asked", "method", "principal")

    def __init__(
        self,
        line: ClientLine,
        principal: Principal,
        method: str,
        refreshes: bool,
        clock: Callable[[], float],
    ) -> None:
        self.principal = principal
        self.method = method
        self.asked = False
        """A challenge is on its way."""
        self._line = line
        self._refreshes = refreshes
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._wait()

    def _wait(self) -> None:
        expires_s = self.principal.expires_s
        if expires_s is not None:
            left_s = min(max(0.0, expires_s - self._clock()), LOOK_S_MAX)
            self._timer = asyncio.get_running_loop().call_later(left_s, self._look)

    def _look(self) -> None:
        if not self.principal.expired(self._clock()):
            self._wait()
        elif self._refreshes:
            self._challenge()
        else:
            self._line.end_refused("what the client showed has expired")

    def _challenge(self) -> None:
        command = BaseCommand(type=BaseCommand.AUTH_CHALLENGE)
        body = command.authChallenge
        body.server_version = f"Magnetar {__version__}"
        body.protocol_version = self._line.protocol_version
        body.challenge.auth_method_name, body.challenge.auth_data = self.method, REFRESH
        self._line.send_command(command)
        self.asked = True
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(
            ANSWER_S,
            self._line.end_refused,
            "what the client showed has expired, and it shows no more",
        )

    def renew(self, principal: Principal) -> None:
        """It has shown something again, as the same role."""
        assert principal.role == self.principal.role, "checked by the caller"
        self.end()
        self.principal, self.asked = principal, False
        self._wait()

    def end(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
