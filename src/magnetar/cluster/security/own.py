"""What a broker shows to others of its cluster, and holds their certificates against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from magnetar.env.network.tls import TlsFiles
from magnetar.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class OwnAccess:
    """``token``: this broker's, read when it is needed; None: nobody asks. ``tls``: brokers are
    reached by TLS; None: they are not."""

    token: Callable[[], str] | None = None
    tls: TlsFiles | None = None


def read_token(data: bytes, name: str) -> str:
    """Of a file that holds a token. Raises ``ConfigError``."""
    try:
        token = data.decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if not token or not token.isprintable() or " " in token:
        raise ConfigError(f"{name} holds no token; `magnetar tokens create` makes one")
    return token
