"""PLAIN (RFC 4616): one message, ``[acts for] NUL name NUL password``, in the clear.

Pure. What is read is shown nowhere: the password is in no ``repr`` and in no error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from magnetar.model.errors import ProtocolError
from magnetar.wire.sasl.gs2 import utf8

PLAIN: Final = "PLAIN"
NAME_BYTES_MAX: Final = 255
PASSWORD_BYTES_MAX: Final = 4096
"""RFC 4616 says 255, which some services' passwords pass."""


@dataclass(frozen=True, slots=True)
class PlainLogin:
    """``acts_for``: empty if it does not say."""

    acts_for: str
    name: str
    password: str = field(repr=False)


def read_plain(message: bytes) -> PlainLogin:
    """Raises ``ProtocolError``."""
    if len(message) > 2 * NAME_BYTES_MAX + PASSWORD_BYTES_MAX + 2:
        raise ProtocolError(f"a PLAIN message of {len(message)} bytes")
    parts = message.split(b"\0")
    if len(parts) != 3:
        raise ProtocolError(f"a PLAIN message with {len(parts) - 1} NULs; it has two")
    acts_for, name, password = parts
    if not name or not password:
        raise ProtocolError("a PLAIN message without a name or a password")
    if max(len(acts_for), len(name)) > NAME_BYTES_MAX or len(password) > PASSWORD_BYTES_MAX:
        raise ProtocolError(
            f"a PLAIN message with a name past {NAME_BYTES_MAX} bytes, or a password past "
            f"{PASSWORD_BYTES_MAX}"
        )
    return PlainLogin(utf8(acts_for, "a name"), utf8(name, "a name"), utf8(password, "a password"))
