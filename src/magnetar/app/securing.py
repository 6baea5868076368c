"""What a process has of ``cluster.security``, by its settings."""

from __future__ import annotations

from collections.abc import Callable

from magnetar.cluster.security.authenticator import Authenticator
from magnetar.config import Config
from magnetar.model.errors import StartError


def open_authenticator(config: Config, clock: Callable[[], float]) -> Authenticator | None:
    """None while ``security.authentication`` is off. Raises ``ConfigError``, ``StartError``."""
    if not config.security.authentication:
        return None
    Authenticator(config.security, clock)
    raise StartError(
        "security.authentication is on, and the protocols of this version ask nobody who they are; "
        "leave it off"
    )
