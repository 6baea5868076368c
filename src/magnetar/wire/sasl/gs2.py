"""How messages of SCRAM and of OAUTHBEARER begin: the GS2 header (RFC 5801, section 4; RFC 5802,
section 7).

====================  ====================================================================
``n,``                the client has no channel binding
``y,``                it has, and thinks that the server has none: so it is here
``p=NAME,``           it binds to its channel: refused, it was never offered
``a=NAME`` or empty   for whom it wants to act, then a comma
====================  ====================================================================

Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from magnetar.model.errors import ProtocolError


class Gs2Header(NamedTuple):
    """``raw``: its bytes as they came, with the last comma. ``acts_for``: empty if it does not
    say."""

    raw: bytes
    acts_for: str
    rest: bytes


def read_gs2(message: bytes) -> Gs2Header:
    """The header, and what follows it. Raises ``ProtocolError``."""
    binding, comma, after = message.partition(b",")
    acts_for, second, rest = after.partition(b",")
    if not (comma and second):
        raise ProtocolError("a SASL message without a GS2 header")
    if binding.startswith(b"p="):
        raise ProtocolError("channel binding is asked for, which is not offered here")
    if binding not in (b"n", b"y"):
        raise ProtocolError("a SASL message whose GS2 header is none")
    if acts_for and not acts_for.startswith(b"a="):
        raise ProtocolError("a SASL message whose GS2 header names nobody after its first comma")
    header = message[: len(message) - len(rest)]
    return Gs2Header(header, sasl_name(acts_for[2:]) if acts_for else "", rest)


def sasl_name(data: bytes) -> str:
    """A name in which ``=2C`` stands for a comma and ``=3D`` for an equals sign. Raises
    ``ProtocolError``."""
    text = utf8(data, "a name")
    plain = text.replace("=2C", "").replace("=3D", "")
    if not text or "=" in plain or "," in plain or "\0" in plain:
        raise ProtocolError("a SASL message with a name that is none")
    return text.replace("=2C", ",").replace("=3D", "=")


def utf8(data: bytes, what: str) -> str:
    """Raises ``ProtocolError``, which does not show the bytes: they may be a secret."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ProtocolError(f"a SASL message with {what} that is not UTF-8") from None
