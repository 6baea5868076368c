"""Users with passwords, as a file has them: SCRAM credentials (RFC 5802), never the passwords.
Pure.

The file is a JSON object:

    {"users": {"alice": {"SCRAM-SHA-256": {"salt", "iterations", "storedKey", "serverKey"},
                         "SCRAM-SHA-512": {...}}}}

with salt and keys in base64. From the password P, with ``salted = PBKDF2-HMAC-H(P, salt,
iterations)``: ``storedKey = H(HMAC-H(salted, "Client Key"))`` and ``serverKey = HMAC-H(salted,
"Server Key")``. What proves a password proves neither of them, and a password sent in the clear
(PLAIN, Basic) is held against the same keys. Passwords are UTF-8 as they come: Kafka's clients do
not normalize them.

Why: docs/adr/0154-roles-and-what-proves-them.md.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar.cluster.policies.policy_values import printable
from magnetar.cluster.security.principals import ROLE_CHARACTERS_MAX
from magnetar.model.errors import ConfigError

HASHES: Final[Mapping[str, str]] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Mechanism -> hash (RFC 7677; SHA-512 as Kafka has it)."""
STRONGEST: Final = "SCRAM-SHA-512"
ITERATIONS: Final = 16_384
"""About 10 ms. Clients of Kafka do them in each connection; its own tools allow no more."""
ITERATIONS_LEAST: Final = 4096
ITERATIONS_MAX: Final = 1_000_000
SALT_BYTES: Final = 24
PASSWORD_BYTES_MAX: Final = 1024
USERS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class ScramCredentials:
    """What is kept of a password for one mechanism."""

    mechanism: str
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"ScramCredentials({self.mechanism})"

    def proves(self, password: str) -> bool:
        """Whether it is of this password. Takes milliseconds of CPU: call it on a thread."""
        made = make_credentials(self.mechanism, password, self.salt, self.iterations)
        return hmac.compare_digest(made.stored_key, self.stored_key)

    def encode(self) -> dict[str, object]:
        texts = {
            name: base64.b64encode(value).decode()
            for name, value in (
                ("salt", self.salt),
                ("storedKey", self.stored_key),
                ("serverKey", self.server_key),
            )
        }
        return {"iterations": self.iterations, **texts}


def make_credentials(
    mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS
) -> ScramCredentials:
    salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
    return credentials_of(mechanism, salted, salt, iterations)


def credentials_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredentials:
    """``salted``: the password, as RFC 5802 salts it: who has it logs in, so it is not kept."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    return ScramCredentials(
        mechanism,
        salt,
        iterations,
        hashlib.new(name, client_key).digest(),
        hmac.digest(salted, b"Server Key", name),
    )


Users = Mapping[str, Mapping[str, ScramCredentials]]
"""Name -> mechanism -> credentials."""


def check_user(name: str, password: str) -> None:
    """Of a user that is to be added. Raises ``ConfigError``."""
    check_user_name(name)
    try:
        size = len(password.encode())
    except UnicodeEncodeError:  # bytes that are no UTF-8 come as halves of pairs
        size = 0
    if not 0 < size <= PASSWORD_BYTES_MAX or "\0" in password:
        raise ConfigError(
            f"the password of {name} cannot be used; accepted: 1 to {PASSWORD_BYTES_MAX} bytes of "
            "text in UTF-8"
        )


def check_user_name(name: str) -> None:
    """Raises ``ConfigError``."""
    if not 0 < len(name) <= ROLE_CHARACTERS_MAX or not printable(name) or set(name) & set(",=: "):
        raise ConfigError(
            f"user {name[:80]!r} cannot be used; accepted: 1 to {ROLE_CHARACTERS_MAX} characters "
            "without blanks, commas, colons and equals signs"
        )


def decode_users(data: bytes, name: str) -> dict[str, dict[str, ScramCredentials]]:
    """``name``: of the file. Raises ``ConfigError``."""
    try:
        found = json.loads(data or b"{}")
        users = found.get("users", {})
        if len(users) > USERS_MAX:
            raise ConfigError(f"{name} has {len(users)} users; accepted: at most {USERS_MAX}")
        return {
            str(user): {kind: _credentials(kind, about) for kind, about in kinds.items()}
            for user, kinds in users.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        # What is in it is not shown: it may be secret.
        raise ConfigError(
            f"{name} is no file of users ({type(error).__name__}); `magnetar users add` makes one"
        ) from None


def _credentials(mechanism: str, about: Mapping[str, Any]) -> ScramCredentials:
    size = hashlib.new(HASHES[mechanism]).digest_size
    iterations = about["iterations"]
    if not isinstance(iterations, int) or not ITERATIONS_LEAST <= iterations <= ITERATIONS_MAX:
        raise ValueError("iterations")
    try:
        salt, stored, server = (
            base64.b64decode(about[part], validate=True)
            for part in ("salt", "storedKey", "serverKey")
        )
    except binascii.Error:
        raise ValueError("base64") from None
    if not salt or len(stored) != size or len(server) != size:
        raise ValueError("length")
    return ScramCredentials(mechanism, salt, iterations, stored, server)


def encode_users(users: Users) -> bytes:
    table = {
        user: {kind: credentials.encode() for kind, credentials in kinds.items()}
        for user, kinds in sorted(users.items())
    }
    return json.dumps({"users": table}, indent=1).encode() + b"\n"
