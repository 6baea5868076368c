"""Who a command is to the platform, and whose certificates it trusts: options of every command that
connects.

    --token TOKEN, --token-file FILE, MAGNETAR_TOKEN, MAGNETAR_TOKEN_FILE
    --tls-trust FILE, MAGNETAR_TRUST

They are no parameters of the commands: whoever connects asks for them (``shown``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click

from magnetar.model.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

KEPT: Final = "magnetar.credentials."


class Credentials(NamedTuple):
    """``token``: empty: nothing is shown. ``trust``: a file of certificates, else the system's."""

    token: str = ""
    trust: str = ""


def _keep(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value:
        context.meta[KEPT + str(parameter.name)] = value


def credential_options(command: F) -> F:
    """The options, for a command that connects."""
    for option in (
        click.option(
            "--tls-trust",
            metavar="FILE",
            envvar="MAGNETAR_TRUST",
            show_envvar=True,
            expose_value=False,
            callback=_keep,
            help="Certificates (PEM) that the platform's is held against.",
        ),
        click.option(
            "--token-file",
            metavar="FILE",
            envvar="MAGNETAR_TOKEN_FILE",
            show_envvar=True,
            expose_value=False,
            callback=_keep,
            help="A file with the token to show.",
        ),
        click.option(
            "--token",
            envvar="MAGNETAR_TOKEN",
            show_envvar=True,
            expose_value=False,
            callback=_keep,
            help="The token itself; others of this machine see arguments.",
        ),
    ):
        command = option(command)
    return command


def shown() -> Credentials:
    """Of the command that runs. Raises ``ConfigError`` for a file that cannot be read, and for what
    is no token: it could not be sent."""
    context = click.get_current_context(silent=True)
    kept = {} if context is None else context.meta
    token, path = kept.get(f"{KEPT}token", ""), kept.get(f"{KEPT}token_file", "")
    whence = "the token"
    if path and not token:
        whence = f"--token-file {path}"
        try:
            token = Path(path).read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{whence} cannot be read: {error}") from error
    if not all("!" <= each <= "~" for each in token):
        raise ConfigError(
            f"{whence} has spaces, or characters that no token has; accepted: one token, as "
            "`magnetar tokens create` prints it"
        )
    return Credentials(token, kept.get(f"{KEPT}tls_trust", ""))
