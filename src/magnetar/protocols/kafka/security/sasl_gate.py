"""What a connection may ask for before its client is known, and until when it is (``sasl_states``).

Rules:

* Before a client is known it may ask for ApiVersions, choose a mechanism, and go through it. Any
  other request ends the connection, as in Kafka.
* Whoever need not show anything by SASL (a certificate was verified, or there is a role for who
  shows nothing) is known with the first request that is none of these.
* When a token's time, or the longest that is set, is over, only SASL is served: the client shows
  again who it is, by the same mechanism and as the same role, or its next request ends the
  connection.

Pure: times are given, in seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from magnetar.cluster.security.principals import Principal
from magnetar.model.errors import ProtocolError
from magnetar.protocols.kafka.security.sasl_states import NEXT, SaslEvent, SaslState
from magnetar.wire.kafka.apis import ApiKey

FREE: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""What a client may ask for that is not known."""


class SaslGate:
    """Of one connection. ``without``: who the client is without SASL; None: it must show it.
    ``lifetime_s``: how long it is known at most; 0: there is no bound."""

    __slots__ = (
        "_lifetime_s",
        "_until_s",
        "_without",
        "mechanism",
        "mechanisms",
        "principal",
        "state",
    )

    def __init__(
        self, mechanisms: Sequence[str], without: Principal | None, lifetime_s: float
    ) -> None:
        self.mechanisms = mechanisms
        self._without = without
        self._lifetime_s = lifetime_s
        self._until_s: float | None = None
        self.mechanism = ""
        self.principal: Principal | None = None
        self.state = SaslState.NEW

    def _move(self, event: SaslEvent) -> None:
        self.state = NEXT[self.state, event]

    @property
    def exchanging(self) -> bool:
        return self.state in (SaslState.CHOSEN, SaslState.RENEWING)

    def check(self, api_key: int, now_s: float) -> None:
        """Before each request. Raises ``ProtocolError``, which ends the connection."""
        if api_key in FREE and not (self.exchanging and api_key == ApiKey.API_VERSIONS):
            return
        if self.state is SaslState.KNOWN:
            if self._until_s is None or now_s < self._until_s:
                return
            assert self.principal is not None
            raise ProtocolError(
                f"request {api_key} of role {self.principal.role}, whose time is over; the client "
                "must show again who it is"
            )
        if self.state is SaslState.NEW and self._without is not None:
            self._move(SaslEvent.WITHOUT)
            self._known(self._without, now_s)
            return
        before = self.state
        if before is not SaslState.REFUSED:
            self._move(SaslEvent.REQUEST)
        raise ProtocolError(
            f"request {api_key} of a client that has not shown who it is (its exchange: {before}); "
            f"security.protocol must name SASL, and sasl.mechanism one of "
            f"{', '.join(self.mechanisms) or 'none'}"
        )

    def choose(self, mechanism: str) -> bool:
        """A SaslHandshake; False: it is not offered, and the connection is to end. Raises
        ``ProtocolError``."""
        if self.exchanging or self.state is SaslState.REFUSED:
            raise ProtocolError("SaslHandshake within an exchange")
        # Who was known without SASL may show more; else the mechanism stays.
        renewed = self.mechanism or mechanism
        offered = mechanism in self.mechanisms and mechanism == renewed
        self._move(SaslEvent.HANDSHAKE if offered else SaslEvent.OTHER_MECHANISM)
        if offered:
            self.mechanism = mechanism
        return offered

    def proved(self, principal: Principal, now_s: float) -> bool:
        """The exchange has ended well; False: a client that was known shows another role, and
        the connection is to end."""
        if self.principal is not None and self.principal.role != principal.role:
            self.failed()
            return False
        self._move(SaslEvent.PROVED)
        self._known(principal, now_s)
        return True

    def went_on(self) -> None:
        """The exchange goes on with the client's next message."""
        self._move(SaslEvent.MESSAGE)

    def failed(self) -> None:
        self._move(SaslEvent.FAILED)

    def _known(self, principal: Principal, now_s: float) -> None:
        bounds = [] if principal.expires_s is None else [principal.expires_s]
        if self._lifetime_s:
            bounds.append(now_s + self._lifetime_s)
        self.principal = principal
        self._until_s = min(bounds, default=None)

    def lifetime_ms(self, now_s: float) -> int:
        """How long the client is known from now on, as SaslAuthenticate says it; 0: without
        bound."""
        return 0 if self._until_s is None else max(1, int((self._until_s - now_s) * 1000))
