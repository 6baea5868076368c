"""The exchange of one mechanism: the client's messages, held against what this process knows.

``wire.sasl`` has the messages. What a client shows wrongly is one ``AuthenticationError`` with one
text, whichever part of it was wrong, and at the end of the exchange: a user who is not there is
given a salt like everybody else, always the same one.
"""

from __future__ import annotations

import base64
import secrets
from typing import NamedTuple, Protocol

from magnetar.cluster.security.access import Access
from magnetar.cluster.security.authenticator import Authenticator
from magnetar.cluster.security.principals import Principal, principal, refusal
from magnetar.cluster.security.users import ITERATIONS, SALT_BYTES
from magnetar.model.errors import AuthenticationError
from magnetar.wire.sasl.oauthbearer import OAUTHBEARER, read_bearer
from magnetar.wire.sasl.oauthbearer import refusal as refused_token
from magnetar.wire.sasl.plain import PLAIN, read_plain
from magnetar.wire.sasl.scram import ScramServer, unprovable

NONCE_BYTES = 24


class SaslStep(NamedTuple):
    """``principal``: who the client is, if that is the end. ``refused``: why it is nobody, where
    the mechanism has one more message for that; for this side's log."""

    answer: bytes
    principal: Principal | None = None
    refused: str = ""


class SaslExchange(Protocol):
    @property
    def is_refused(self) -> bool:
        """A step has said so already."""
        ...

    async def step(self, message: bytes) -> SaslStep:
        """Raises ``AuthenticationError``, and ``ProtocolError`` for what is no message."""
        ...


class PlainExchange:
    is_refused = False

    def __init__(self, access: Access) -> None:
        self._access = access

    async def step(self, message: bytes) -> SaslStep:
        login = read_plain(message)
        _check_acts_for(login.acts_for, login.name)
        return SaslStep(b"", await self._access.by_password(login.name, login.password))


class ScramExchange:
    """``secret``: what salts of users who are not there are made of."""

    is_refused = False

    def __init__(self, mechanism: str, access: Access, secret: bytes) -> None:
        self._mechanism = mechanism
        self._access = access
        self._secret = secret
        nonce = base64.b64encode(secrets.token_bytes(NONCE_BYTES)).decode()
        self._server = ScramServer(mechanism, nonce)
        self._why: AuthenticationError | None = None

    async def step(self, message: bytes) -> SaslStep:
        server = self._server
        if not server.name:
            name = server.first(message)
            _check_acts_for(server.acts_for, name)
            try:
                keys = await self._access.scram_credentials(name, self._mechanism)
                return SaslStep(server.challenge(keys))
            except AuthenticationError as error:
                self._why = error
                nobody = unprovable(self._mechanism, name, self._secret, SALT_BYTES, ITERATIONS)
                return SaslStep(server.challenge(nobody))
        proof = server.final(message)
        if self._why is not None:
            raise self._why
        if proof is None:
            raise refusal(f"wrong password for user {server.name[:80]!r}")
        return SaslStep(proof, principal(server.name))


class BearerExchange:
    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self.is_refused = False

    async def step(self, message: bytes) -> SaslStep:
        if self.is_refused:
            raise refusal("the token was refused")
        login = read_bearer(message)
        try:
            found = self._authenticator.by_token(login.token)
            _check_acts_for(login.acts_for, found.role)
        except AuthenticationError as error:
            # The client is to acknowledge it, and not all do: some go on as if nothing were said.
            self.is_refused = True
            return SaslStep(refused_token(), refused=error.why)
        return SaslStep(b"", found)


def _check_acts_for(acts_for: str, name: str) -> None:
    if acts_for and acts_for != name:
        raise refusal(f"{name[:80]!r} wants to act for {acts_for[:80]!r}, which nobody may")


def exchange_of(mechanism: str, access: Access, secret: bytes) -> SaslExchange:
    """Of a mechanism that the authenticator has."""
    if mechanism == PLAIN:
        return PlainExchange(access)
    if mechanism == OAUTHBEARER:
        return BearerExchange(access.authenticator)
    return ScramExchange(mechanism, access, secret)
