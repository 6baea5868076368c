"""Keys, tokens and users for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from magnetar.cluster.security.tokens import create_token, secret_key
from magnetar.cluster.security.users import HASHES, encode_users, make_credentials

SECRET = bytes(range(32))
LEAST = 4096


def token(role: str = "", secret: bytes = SECRET, **claims: object) -> str:
    said: Mapping[str, Any] = {"sub": role, **claims} if role else claims
    return create_token(secret_key(secret, "test"), said)


def write_secret(directory: Path) -> Path:
    path = directory / "secret.key"
    path.write_bytes(SECRET)
    return path


def write_users(directory: Path, **passwords: str) -> Path:
    path = directory / "users.json"
    users = {
        name: {kind: make_credentials(kind, password, b"salt", LEAST) for kind in HASHES}
        for name, password in passwords.items()
    }
    path.write_bytes(encode_users(users))
    return path
