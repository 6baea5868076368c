"""How clients of Kafka's protocol come in by TLS, and how a broker reaches others by it.

Why: docs/adr/0157-kafkas-clients-show-who-they-are.md.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from magnetar.cluster.security.authenticator import Authenticator
from magnetar.config import Config, TlsConfig
from magnetar.env.tls import client_tls, server_tls
from magnetar.env.watched_file import WatchedFile
from magnetar.model.errors import AuthenticationError, ConfigError, StartError
from magnetar.protocols.kafka.lines import BrokerWay
from magnetar.protocols.kafka.server import KafkaDoors

SETTING: Final = "security.own_token_file"


def open_doors(config: Config, authenticator: Authenticator | None, shares: bool) -> KafkaDoors:
    """``shares``: there are other brokers. Raises ``ConfigError``, ``StartError``."""
    kafka, tls = config.kafka, config.tls
    if not kafka.listens:
        return KafkaDoors()
    files = None
    if kafka.tls_port >= 0:
        trusted = _path(tls.trusted_file)
        files = server_tls(
            Path(tls.certificate_file), Path(tls.key_file), trusted, tls.client_certificates
        )
    between = None
    if shares and tls.between_brokers:
        if kafka.tls_port < 0:
            raise StartError(
                "tls.between_brokers is on, and brokers ask one another by Kafka's protocol, too: "
                "set kafka.tls_port, or turn Kafka's protocol off (kafka.port=-1)"
            )
        between = client_tls(
            _path(tls.trusted_file), _path(tls.certificate_file), _path(tls.key_file)
        ).context
    token = None if authenticator is None else _own_token(config, authenticator, shares)
    return KafkaDoors(files, tls, BrokerWay(token, between))


def _own_token(
    config: Config, authenticator: Authenticator, shares: bool
) -> Callable[[], str] | None:
    """None: other brokers need none, or there are none."""
    path = config.security.own_token_file
    if not path:
        if shares and not _by_certificate(config.tls):
            raise StartError(
                f"brokers of a cluster ask one another by Kafka's protocol, and "
                f"security.authentication is on: set {SETTING} to a file with a token of a "
                "super-user, or turn Kafka's protocol off (kafka.port=-1)"
            )
        return None
    token = WatchedFile(Path(path), read_token, SETTING)
    try:
        own = authenticator.by_token(token.value())
    except AuthenticationError as error:
        raise StartError(f"{SETTING} = {path}: {error.why}") from error
    if own.role not in authenticator.super_users:
        raise StartError(
            f"{SETTING} = {path}: its role {own.role} is not among security.super_users, so that "
            "other brokers would refuse this one"
        )
    return token.value


def _by_certificate(tls: TlsConfig) -> bool:
    """Brokers know one another by the certificates that they show."""
    return tls.between_brokers and tls.client_certificates != "none"


def _path(name: str) -> Path | None:
    return Path(name) if name else None


def read_token(data: bytes, name: str) -> str:
    """Raises ``ConfigError``."""
    try:
        token = data.decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if not token or not token.isprintable() or " " in token:
        raise ConfigError(f"{name} holds no token; `magnetar tokens create` makes one")
    return token
