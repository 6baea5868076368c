"""SaslHandshake, SaslAuthenticate: a SASL exchange within Kafka's protocol (KIP-152, KIP-368).

Facts of Kafka's own message definitions; the names of fields are ours. See ``schema``. What the
exchange says is in no ``repr``: it may be a password.
"""

from __future__ import annotations

from magnetar.wire.kafka.schema import TEXTS, array, blob, int16, int64, message, text


@message()
class SaslHandshakeRequest:
    mechanism: str = text()


@message()
class SaslHandshakeResponse:
    error_code: int = int16()
    mechanisms: list[str] = array(TEXTS)


@message(flexible=2)
class SaslAuthenticateRequest:
    auth_bytes: bytes = blob()

    def __repr__(self) -> str:
        return f"SaslAuthenticateRequest({len(self.auth_bytes)} bytes)"


@message(flexible=2)
class SaslAuthenticateResponse:
    """``session_lifetime_ms`` 0: as long as the connection."""

    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    auth_bytes: bytes = blob()
    session_lifetime_ms: int = int64(since=1)

    def __repr__(self) -> str:
        return f"SaslAuthenticateResponse({self.error_code}, {len(self.auth_bytes)} bytes)"
