"""What a process has of ``cluster.security``, by its settings."""

from __future__ import annotations

from collections.abc import Callable

from magnetar.cluster.security.authenticator import Authenticator
from magnetar.config import Config


def open_authenticator(config: Config, clock: Callable[[], float]) -> Authenticator | None:
    """None while ``security.authentication`` is off. Raises ``ConfigError``."""
    if not config.security.authentication:
        return None
    return Authenticator(config.security, clock)
