"""OAUTHBEARER (RFC 7628): a token in one message, and what the server answers one that it refuses.

The client's message is a GS2 header, then ``^A auth=Bearer TOKEN ^A`` and further
``key=value ^A``, then ``^A`` (``^A``: the byte 1). A token that counts is answered with nothing.
One that does not is answered with a JSON object (``refusal``), which the client acknowledges with
one ``^A``; then the exchange has failed. Kafka's extensions (KIP-342) are such keys; they say
nothing here.

Pure. The token is in no ``repr`` and in no error.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final

from magnetar.model.errors import ProtocolError
from magnetar.wire.sasl.gs2 import read_gs2, utf8

OAUTHBEARER: Final = "OAUTHBEARER"
MESSAGE_BYTES_MAX: Final = 32 << 10
SEPARATOR: Final = b"\1"
_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
_KEY: Final = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True, slots=True)
class BearerLogin:
    """``acts_for``: empty if it does not say."""

    acts_for: str
    token: str = field(repr=False)


def read_bearer(message: bytes) -> BearerLogin:
    """Raises ``ProtocolError``."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise ProtocolError(f"an OAUTHBEARER message of {len(message)} bytes")
    header = read_gs2(message)
    pairs = header.rest.split(SEPARATOR)
    if len(pairs) < 4 or pairs[0] or pairs[-1] or pairs[-2]:
        raise ProtocolError("an OAUTHBEARER message whose pairs are not between ^A bytes")
    found: dict[str, str] = {}
    for pair in pairs[1:-2]:
        key, equals, value = utf8(pair, "a pair").partition("=")
        if not equals or not _KEY.fullmatch(key) or key in found:
            raise ProtocolError(
                "an OAUTHBEARER message with a pair that is none, or is there twice"
            )
        found[key] = value
    scheme, _, token = found.get("auth", "").partition(" ")
    token = token.strip(" ")
    if scheme.lower() != "bearer" or not _TOKEN.fullmatch(token):
        raise ProtocolError("an OAUTHBEARER message without a bearer token")
    return BearerLogin(header.acts_for, token)


def bearer_message(token: str) -> bytes:
    """What a client sends that has a token."""
    return b"n,,\1auth=Bearer " + token.encode() + b"\1\1"


def refusal() -> bytes:
    """Of a token that does not count; why is for the server's log only."""
    return json.dumps({"status": "invalid_token"}, separators=(",", ":")).encode()
