"""``magnetar tokens``: keys, and tokens signed with them. As Pulsar's ``tokens`` tool, whose files
these commands read and whose commands read theirs."""

from __future__ import annotations

import base64
import json
import os
import secrets
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import click

from magnetar.cluster.security.principals import principal
from magnetar.cluster.security.tokens import (
    SECONDS_MAX,
    TokenKey,
    TokenRules,
    create_token,
    private_key,
    public_key,
    secret_key,
)
from magnetar.config_loading import whole_number
from magnetar.model.errors import AuthenticationError, ConfigError
from magnetar.model.json_bounded import load_bounded

SECRET_BYTES: Final = 32
TIMES: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}
CURVES: Final = {"ES256": "SECP256R1", "ES384": "SECP384R1", "ES512": "SECP521R1"}
OURS_ALONE: Final = 0o600
LEVELS_MAX: Final = 64
"""Of what a token says: it may have been made by anybody."""

secret_option = click.option("--secret-key", metavar="FILE", help="The secret to check with.")
public_option = click.option("--public-key", metavar="FILE", help="The public key to check with.")


@click.group()
def tokens() -> None:
    """Make keys, and tokens that clients show.

    \b
    Examples:
      magnetar tokens create-secret-key --output secret.key
      magnetar tokens create --secret-key secret.key --subject alice --expiry-time 30d
      magnetar tokens create-key-pair --output-private-key a.key --output-public-key a.pub
      magnetar tokens create --private-key a.key --subject alice
      magnetar tokens validate --secret-key secret.key --token-file alice.token
    """


@tokens.command("create-secret-key")
@click.option("--output", metavar="FILE", help="Where to; else it is printed in base64.")
def create_secret_key(output: str | None) -> None:
    """Make a secret that signs and checks tokens (HS256)."""
    secret = secrets.token_bytes(SECRET_BYTES)
    if output is None:
        click.echo(base64.b64encode(secret).decode())
    else:
        write_secret(Path(output), secret)
        click.echo(f"wrote {output}", err=True)


@tokens.command("create-key-pair")
@click.option("--output-private-key", metavar="FILE", required=True)
@click.option("--output-public-key", metavar="FILE", required=True)
@click.option(
    "--algorithm",
    type=click.Choice(["RS256", *CURVES]),
    default="RS256",
    show_default=True,
)
def create_key_pair(output_private_key: str, output_public_key: str, algorithm: str) -> None:
    """Make a key pair: the private key signs, the public one checks."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    if algorithm in CURVES:
        key = ec.generate_private_key(getattr(ec, CURVES[algorithm])())
    else:
        key = rsa.generate_private_key(65_537, 2048)
    der = serialization.Encoding.DER
    private = key.private_bytes(
        der, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(der, serialization.PublicFormat.SubjectPublicKeyInfo)
    # First: without a place for it the private key of a pair that is there would be lost.
    _write_public(Path(output_public_key), public)
    write_secret(Path(output_private_key), private)
    click.echo(f"wrote {output_private_key} and {output_public_key}", err=True)


@tokens.command("create")
@click.option("--secret-key", metavar="FILE", help="The secret to sign with.")
@click.option("--private-key", metavar="FILE", help="The private key to sign with.")
@click.option("--subject", required=True, help="The role.")
@click.option("--expiry-time", metavar="TIME", help="As 3600s, 12h, 30d, 1y; default: never.")
@click.option("--audience", help="Whom it is for (security.token_audience).")
@click.option("--algorithm", default="", help="As HS512, RS512; default: the key's first.")
def create(
    secret_key: str | None,
    private_key: str | None,
    subject: str,
    expiry_time: str | None,
    audience: str | None,
    algorithm: str,
) -> None:
    """Print a token for a role."""
    key = _signing(secret_key, private_key)
    try:
        principal(subject)
    except AuthenticationError as error:  # so would every server
        raise ConfigError(f"--subject {subject[:80]!r} cannot be used: {error.why}") from None
    claims: dict[str, object] = {"sub": subject}
    if expiry_time is not None:
        claims["exp"] = int(time.time()) + _seconds(expiry_time)
    if audience is not None:
        claims["aud"] = audience
    click.echo(create_token(key, claims, algorithm))


@tokens.command("show")
@click.argument("token", required=False)
@click.option("--token-file", metavar="FILE")
def show(token: str | None, token_file: str | None) -> None:
    """Print what a token says, without checking it; - or nothing: standard input."""
    for part in _given(token, token_file).split(".")[:2]:
        try:
            said = load_bounded(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)), LEVELS_MAX)
        except ValueError:
            raise ConfigError("that is no token: three parts of base64 with dots") from None
        click.echo(json.dumps(said))


@tokens.command("validate")
@click.argument("token", required=False)
@click.option("--token-file", metavar="FILE")
@secret_option
@public_option
def validate(
    token: str | None, token_file: str | None, secret_key: str | None, public_key: str | None
) -> None:
    """Check a token's signature and time; prints the role, or fails."""
    key = _checking(secret_key, public_key)
    try:
        found = TokenRules((key,)).check(_given(token, token_file), time.time())
    except AuthenticationError as error:
        raise ConfigError(error.why) from None
    until = "" if found.expires_s is None else f" until {time.ctime(found.expires_s)}"
    click.echo(f"valid: role {found.role}{until}")


def _write_public(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def _given(token: str | None, file: str | None) -> str:
    if token and token != "-":
        return token.strip()
    text = sys.stdin.read() if file is None else _read(file).decode("ascii", "replace")
    return text.strip()


def _signing(secret: str | None, private: str | None) -> TokenKey:
    if (secret is None) == (private is None):
        raise click.UsageError("sign with --secret-key or with --private-key")
    if secret is not None:
        return secret_key(_read(secret), secret)
    assert private is not None
    return private_key(_read(private), private)


def _checking(secret: str | None, public: str | None) -> TokenKey:
    if (secret is None) == (public is None):
        raise click.UsageError("check with --secret-key or with --public-key")
    if secret is not None:
        return secret_key(_read(secret), secret)
    assert public is not None
    return public_key(_read(public), public)


def _read(name: str) -> bytes:
    """A file, also as ``file://PATH`` or ``data:;base64,...``, which Pulsar's tool takes."""
    try:
        if name.startswith("data:"):
            return base64.b64decode(name.partition(",")[2], validate=True)
        path = unquote(name.removeprefix("file://")) if name.startswith("file://") else name
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name[:80]} cannot be read: {error}") from error


def _seconds(text: str) -> int:
    found = whole_number(text, TIMES)
    if found is None or not 0 < found <= SECONDS_MAX // 2:  # with the time now no server takes more
        raise ConfigError(f"--expiry-time {text!r} cannot be used; accepted: 3600s, 12h, 30d, 1y")
    return found


def write_secret(path: Path, data: bytes) -> None:
    """Whole or not at all, and for nobody else to read."""
    if not path.name:
        raise ConfigError(f"'{path}' names no file to write; accepted: a path")
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        made = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OURS_ALONE)
        with os.fdopen(made, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
