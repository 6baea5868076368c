"""What clients show, held against what this process was given: tokens, passwords, SCRAM,
certificates.

Made once from settings; files of keys and users are read again when they change. Everything that is
wrong with what a client shows is one ``AuthenticationError`` with one text
(``principals.REFUSED``); its ``why`` is for the log of this side.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Final

from magnetar.cluster.security.principals import Principal, principal, refusal, role_names
from magnetar.cluster.security.tokens import TokenRules, public_key, secret_key
from magnetar.cluster.security.users import (
    HASHES,
    ITERATIONS,
    PASSWORD_BYTES_MAX,
    SALT_BYTES,
    STRONGEST,
    ScramCredentials,
    Users,
    decode_users,
    make_credentials,
)
from magnetar.config import SecurityConfig
from magnetar.env.files.watched_file import WatchedFile
from magnetar.model.errors import ConfigError

BASIC_CHARACTERS_MAX = 4 * PASSWORD_BYTES_MAX
NOBODY: Final[Users] = MappingProxyType({})


class Authenticator:
    """``clock``: seconds since 1970. The constructor reads the files that ``config`` names, and
    raises ``ConfigError`` if one cannot be used, or if it names none at all."""

    def __init__(
        self, config: SecurityConfig, clock: Callable[[], float], certificates: bool = False
    ) -> None:
        """``certificates``: clients may show certificates, which is enough to have."""
        self._clock = clock
        self._anonymous_role = config.anonymous_role
        self.super_users = role_names(config.super_users)
        self.stored_users = config.stored_users
        """Users of the metadata store count, too, for SCRAM (``access``)."""
        self._role_claim, self._audience = config.token_role_claim, config.token_audience
        self._keys = [
            WatchedFile(Path(path), read, setting)
            for path, read, setting in (
                (config.token_secret_key_file, secret_key, "security.token_secret_key_file"),
                (config.token_public_key_file, public_key, "security.token_public_key_file"),
            )
            if path
        ]
        self._users: WatchedFile[Users] | None = None
        if config.users_file:
            self._users = WatchedFile(Path(config.users_file), decode_users, "security.users_file")
        if not self._keys and self._users is None and not certificates:
            raise ConfigError(
                "security.authentication is on, and nobody could show anything; set "
                "security.token_secret_key_file, security.token_public_key_file, "
                "security.users_file or tls.trusted_file"
            )

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """SASL's: what there is for ``by_password``, SCRAM and ``by_token``."""
        plain = ("PLAIN",) if self._users is not None else ()
        scram = tuple(HASHES) if self._users is not None or self.stored_users else ()
        return (*plain, *scram, *(("OAUTHBEARER",) if self._keys else ()))

    def by_token(self, token: str) -> Principal:
        """Of a JSON Web Token. Raises ``AuthenticationError``."""
        keys = tuple(key.value() for key in self._keys)
        return TokenRules(keys, self._role_claim, self._audience).check(token, self._clock())

    def by_password(self, name: str, password: str) -> Principal:
        """Of a user of the file. Takes milliseconds of CPU, as long for a name that is not there:
        call it on a thread. Raises ``AuthenticationError``."""
        if len(password) > PASSWORD_BYTES_MAX:
            raise refusal("the password is too long")
        kinds = self._known().get(name, {})
        credentials = kinds.get(STRONGEST) or next(iter(kinds.values()), None)
        if credentials is None:
            make_credentials(STRONGEST, password, bytes(SALT_BYTES), ITERATIONS)
            raise refusal(f"there is no user {name[:80]!r}")
        if not credentials.proves(password):
            raise refusal(f"wrong password for user {name[:80]!r}")
        return principal(name)

    def by_basic(self, data: str) -> Principal:
        """Of ``name:password``. Raises and takes as ``by_password``."""
        name, colon, password = data.partition(":")
        if not colon or len(data) > BASIC_CHARACTERS_MAX:
            raise refusal("no name and password")
        return self.by_password(name, password)

    def by_authorization(self, header: str) -> Principal:
        """Of an HTTP header ``Authorization``: Bearer or Basic; empty: anonymous. Raises
        ``AuthenticationError``; Basic takes as ``by_password``."""
        if not header:
            return self.anonymous()
        scheme, _, rest = header.partition(" ")
        if scheme.lower() == "bearer":
            return self.by_token(rest.strip())
        if scheme.lower() == "basic" and len(rest) <= 2 * BASIC_CHARACTERS_MAX:
            try:
                return self.by_basic(base64.b64decode(rest.strip(), validate=True).decode())
            except (binascii.Error, UnicodeDecodeError):
                raise refusal("Basic is no base64 of name:password") from None
        raise refusal("the Authorization header is neither Bearer nor Basic")

    @property
    def file_users(self) -> Users:
        """Of ``security.users_file``."""
        return self._known()

    def scram_credentials(
        self, name: str, mechanism: str, stored: Users = NOBODY
    ) -> ScramCredentials:
        """What is kept of a user's password for ``SCRAM-SHA-256`` or ``-512``, by the file, else by
        ``stored``. Raises ``AuthenticationError``."""
        known = self._known()
        found = (known if name in known else stored).get(name, {}).get(mechanism)
        if found is None:
            raise refusal(f"user {name[:80]!r} has no credentials for {mechanism[:40]}")
        return found

    def by_certificate(self, common_name: str) -> Principal:
        """Of a certificate that TLS has verified. Raises ``AuthenticationError``."""
        return principal(common_name)

    def anonymous(self, why: str = "the client shows nothing") -> Principal:
        """Of a client that shows nothing, or (``why``) nothing that could be judged here. Raises
        ``AuthenticationError`` where it must."""
        if not self._anonymous_role:
            raise refusal(f"{why}, and security.anonymous_role is not set")
        return Principal(self._anonymous_role)

    def _known(self) -> Users:
        return {} if self._users is None else self._users.value()
