"""What a process of the pipeline shows to brokers, and whose certificates it trusts: by its
environment, which a cluster gives to driver and executors, and which no plan, checkpoint or table
of options keeps.

| variable | |
|---|---|
| ``MAGNETAR_TOKEN`` | the token |
| ``MAGNETAR_TOKEN_FILE`` | a file with it, where that is not set |
| ``MAGNETAR_TRUST`` | certificates (PEM) for ``pulsar+ssl://``; else the system's |
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Final

from magnetar.env.network.tls import trusting
from magnetar.model.errors import ConfigError
from magnetar.wire.pulsar.pulsar_pb2 import CommandConnect

TOKEN: Final = "MAGNETAR_TOKEN"
TOKEN_FILE: Final = "MAGNETAR_TOKEN_FILE"
TRUST: Final = "MAGNETAR_TRUST"


class TlsAddress(tuple[str, int]):
    """Host and port that are spoken to by TLS."""

    __slots__ = ()


def show(connect: CommandConnect) -> None:
    """Put the token of this process into CONNECT, if it has one. Raises ``ConfigError``."""
    token, path = os.environ.get(TOKEN, ""), os.environ.get(TOKEN_FILE, "")
    if path and not token:
        try:
            token = Path(path).read_text(encoding="ascii")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{TOKEN_FILE}={path} cannot be read: {error}") from error
    if token:
        connect.auth_method_name = "token"
        connect.auth_data = token.strip().encode()


def tls_of(address: tuple[str, int]) -> ssl.SSLContext | None:
    """To speak to ``address``; None: without TLS. Raises ``ConfigError``."""
    if not isinstance(address, TlsAddress):
        return None
    trust = os.environ.get(TRUST) or None
    try:
        return trusting(trust)
    except OSError as error:
        raise ConfigError(f"{TRUST}={trust} cannot be used: {error}") from error
