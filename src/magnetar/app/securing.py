"""What a process has of ``cluster.security`` and of TLS, by its settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from magnetar.cluster.security.authenticator import Authenticator
from magnetar.cluster.security.own import OwnAccess, read_token
from magnetar.config import Config, TlsConfig
from magnetar.env.files.watched_file import WatchedFile
from magnetar.env.network.tls import TlsFiles, client_tls, server_tls
from magnetar.model.errors import AuthenticationError, StartError

log = structlog.get_logger(__name__)

OWN_TOKEN: Final = "security.own_token_file"


def open_authenticator(config: Config, clock: Callable[[], float]) -> Authenticator | None:
    """None while ``security.authentication`` is off. Raises ``ConfigError``."""
    if not config.security.authentication:
        return None
    made = Authenticator(config.security, clock, config.tls.client_certificates != "none")
    if not made.super_users:
        log.warning("nobody may administer this cluster", setting="security.super_users")
    return made


def open_server_tls(config: TlsConfig) -> TlsFiles:
    """For listeners. Raises ``ConfigError``."""
    trusted = Path(config.trusted_file) if config.trusted_file else None
    files = Path(config.certificate_file), Path(config.key_file)
    return server_tls(*files, trusted, config.client_certificates)


def open_own_access(config: Config, authenticator: Authenticator | None, shares: bool) -> OwnAccess:
    """How other brokers are asked; ``shares``: there may be some. Raises ``ConfigError``,
    ``StartError``."""
    tls = None
    if config.tls.between_brokers:
        trusted, certificate, key = (
            Path(name) if name else None
            for name in (
                config.tls.trusted_file,
                config.tls.certificate_file,
                config.tls.key_file,
            )
        )
        tls = client_tls(trusted, certificate, key)
    token = None if authenticator is None else open_own_token(config, authenticator, shares)
    return OwnAccess(token, tls)


def open_own_token(
    config: Config, authenticator: Authenticator, shares: bool
) -> Callable[[], str] | None:
    """What gives this broker's token; None: other brokers need none, or there are none. Raises as
    ``open_own_access``."""
    path = config.security.own_token_file
    if not path:
        by_certificate = config.tls.between_brokers and config.tls.client_certificates != "none"
        if shares and not by_certificate:
            raise StartError(
                "security.authentication is on, and brokers of a cluster ask one another: set "
                f"{OWN_TOKEN} to a file with a token of a super-user (magnetar tokens create)"
            )
        return None
    token = WatchedFile(Path(path), read_token, OWN_TOKEN)
    try:
        own = authenticator.by_token(token.value())
    except AuthenticationError as error:
        raise StartError(f"{OWN_TOKEN} = {path}: {error.why}") from error
    if own.role not in authenticator.super_users:
        raise StartError(
            f"{OWN_TOKEN} = {path}: its role {own.role} is not among security.super_users, so that "
            "other brokers would refuse this one"
        )
    return token.value
