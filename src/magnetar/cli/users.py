"""``magnetar users``: the file of users with passwords (``security.users_file``)."""

from __future__ import annotations

import fcntl
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from magnetar.cli.output import json_option, print_json
from magnetar.cli.tokens import write_secret
from magnetar.cluster.security.users import (
    HASHES,
    ITERATIONS,
    ITERATIONS_LEAST,
    ITERATIONS_MAX,
    SALT_BYTES,
    ScramCredentials,
    check_user,
    decode_users,
    encode_users,
    make_credentials,
)
from magnetar.model.errors import ConfigError

file_option = click.option(
    "--file",
    "file",
    required=True,
    envvar="MAGNETAR_USERS_FILE",
    show_envvar=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="security.users_file of the servers.",
)


@click.group()
def users() -> None:
    """Users who show passwords: Kafka's clients by PLAIN and SCRAM, Pulsar's and REST's by Basic.

    What is kept of a password does not log in. Servers read the file again when it changes.

    \b
    Examples:
      magnetar users add alice --file users.json          (asks for the password)
      echo secret | magnetar users add alice --file users.json --password-stdin
      magnetar users list --file users.json
      magnetar users remove alice --file users.json
    """


@users.command()
@click.argument("name")
@file_option
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@click.option(
    "--iterations",
    type=click.IntRange(ITERATIONS_LEAST, ITERATIONS_MAX),
    default=ITERATIONS,
    show_default=True,
    help="What guessing costs; Kafka's clients do them, too, when they connect.",
)
def add(name: str, file: Path, password_stdin: bool, iterations: int) -> None:
    """Add user NAME, or give it another password."""
    if password_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    check_user(name, password)
    made = {
        kind: make_credentials(kind, password, secrets.token_bytes(SALT_BYTES), iterations)
        for kind in HASHES
    }
    with _alone(file):
        write_secret(file, encode_users({**_read(file), name: made}))
    click.echo(f"{file} has user {name}")


@users.command("list")
@file_option
@json_option
def list_users(file: Path, as_json: bool) -> None:
    """List the names of users."""
    names = sorted(_read(file, needed=True))
    if as_json:
        print_json(names)
    else:
        for name in names:
            click.echo(name)


@users.command()
@click.argument("name")
@file_option
def remove(name: str, file: Path) -> None:
    """Remove user NAME. What it has open goes on until its clients come again."""
    with _alone(file):
        known = _read(file, needed=True)
        if name not in known:
            raise ConfigError(f"{file} has no user {name!r}")
        del known[name]
        write_secret(file, encode_users(known))
    click.echo(f"{file} has no user {name} any more")


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Whoever changes the file meanwhile waits: it is written whole, and one of two changes at once
    would be lost. Its directory is locked; the file itself is another one after each change."""
    try:
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _read(file: Path, needed: bool = False) -> dict[str, dict[str, ScramCredentials]]:
    """``needed``: the file must be there. Raises ``ConfigError``."""
    try:
        return decode_users(file.read_bytes(), str(file))
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not needed:
            return {}
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
