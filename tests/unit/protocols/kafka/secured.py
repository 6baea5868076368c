"""A broker that asks its clients who they are, and clients that say it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from magnetar.cluster.security.authenticator import Authenticator
from magnetar.config import SecurityConfig
from magnetar.protocols.kafka.handlers.table import AuthorizedRequestTable
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.sasl_messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tests.unit.cluster.security.files import token, write_secret, write_users
from tests.unit.protocols.kafka.harness import KafkaPeer, KafkaWorld, run_in
from tests.unit.protocols.pulsar.harness import FakeTransport

CLOCK_S = 1e6
"""When the worlds begin."""
ROOT = "root"
"""A super-user."""


class SecuredWorld(KafkaWorld):
    """Users ``alice`` and ``bob``, whose passwords are ``NAME's``; tokens of anybody."""

    def __init__(
        self, directory: Path, anonymous: str = "", stored_users: bool = False, **settings: Any
    ) -> None:
        config = SecurityConfig(
            authentication=True,
            token_secret_key_file=str(write_secret(directory)),
            users_file=str(write_users(directory, alice="alice's", bob="bob's")),
            stored_users=stored_users,
            super_users=ROOT,
            anonymous_role=anonymous,
        )
        super().__init__(authenticator=Authenticator(config, lambda: CLOCK_S), **settings)

    def peer(self) -> SecuredPeer:
        return SecuredPeer(self)

    async def known(self, role: str) -> SecuredPeer:
        """A client that has shown to be it."""
        peer = self.peer()
        answer = await peer.bears(token(role))
        assert answer.error_code == ErrorCode.NONE
        return peer

    async def grant(self, role: str, *actions: str, namespace: str = "public/default") -> None:
        """And nothing to any other."""
        said = {"auth_policies": {"namespace_auth": {role: list(actions)}}}
        await self.services.control.namespaces.change_policies(namespace, said)


class SecuredPeer(KafkaPeer):
    def __init__(self, world: SecuredWorld) -> None:
        self.world = world
        self.transport = FakeTransport()
        table = AuthorizedRequestTable(
            world.server.coordinator, world.server.transactions, world.server.coordinated_groups
        )
        self.session = KafkaSession(world.services, table)
        self.session.connection_made(self.transport)
        self._sent = []

    async def chooses(self, mechanism: str, version: int = 1) -> SaslHandshakeResponse:
        request = SaslHandshakeRequest(mechanism)
        answer = await self.ask(ApiKey.SASL_HANDSHAKE, request, version)
        assert isinstance(answer, SaslHandshakeResponse)
        return answer

    async def says(self, message: bytes, version: int = 2) -> SaslAuthenticateResponse:
        request = SaslAuthenticateRequest(message)
        answer = await self.ask(ApiKey.SASL_AUTHENTICATE, request, version)
        assert isinstance(answer, SaslAuthenticateResponse)
        return answer

    async def says_bare(self, message: bytes) -> bytes | None:
        """As after version 0 of SaslHandshake, both ways without a header. None: the connection
        ended without an answer."""
        self.feed(len(message).to_bytes(4, "big") + message)
        await asyncio.sleep(1)
        self.session._flush()
        data = bytes(self.transport.data)
        self.transport.data.clear()
        if not data:
            assert self.session.closed
            return None
        assert int.from_bytes(data[:4], "big") == len(data) - 4
        return data[4:]

    async def bears(self, token: str) -> SaslAuthenticateResponse:
        chosen = await self.chooses("OAUTHBEARER")
        assert chosen.error_code == ErrorCode.NONE
        return await self.says(b"n,,\1auth=Bearer " + token.encode() + b"\1\1")


def run_secured(
    directory: Path, scenario: Callable[[SecuredWorld], Awaitable[None]], **settings: Any
) -> None:
    run_in(lambda: SecuredWorld(directory, **settings), scenario)
