"""Permissions of a running broker: ``permissions`` asked with what the metadata store says.

Asked when something is opened or administered, never for a message. Namespaces and tenants are
answered from memory (``cluster.namespaces``); a node is parsed again when its bytes have changed. A
change is in force for what is opened after it; what is open goes on until its client comes again.

Why: docs/adr/0155-permissions-are-asked-when-something-is-opened.md,
docs/adr/0223-what-brokers-keep-of-all-tenants-is-no-tenants.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from magnetar.cluster.namespaces import Namespaces
from magnetar.cluster.security.authenticator import NOBODY, Authenticator
from magnetar.cluster.security.permissions import Action, admin_roles, permitted
from magnetar.cluster.security.principals import Principal
from magnetar.cluster.security.stored_users import StoredUsers
from magnetar.cluster.security.users import ScramCredentials, Users
from magnetar.cluster.topic_name import KAFKA_GROUPS, TopicName
from magnetar.model.errors import AuthorizationError, BrokerMetadataError

PARSED_MAX: Final = 10_000
PASSWORDS_AT_ONCE: Final = 2


class Access:
    """What ``Authenticator`` and namespaces say together, for servers of every protocol."""

    def __init__(
        self,
        authenticator: Authenticator,
        namespaces: Namespaces | None,
        users: StoredUsers | None = None,
    ) -> None:
        """``namespaces``: None: this process has none, and serves super-users. ``users``: of the
        metadata store, who count if ``security.stored_users`` says so."""
        self.authenticator = authenticator
        self._namespaces = namespaces
        self._users = users if authenticator.stored_users else None
        self._super_users = authenticator.super_users
        self._passwords = asyncio.Semaphore(PASSWORDS_AT_ONCE)
        self._parsed: dict[str, tuple[bytes, Mapping[str, Any]]] = {}

    @classmethod
    def of(
        cls,
        authenticator: Authenticator | None,
        namespaces: Namespaces | None,
        users: StoredUsers | None = None,
    ) -> Access | None:
        """None where nobody is asked who he is."""
        return None if authenticator is None else cls(authenticator, namespaces, users)

    async def scram_credentials(self, name: str, mechanism: str) -> ScramCredentials:
        """``Authenticator.scram_credentials``, of users of the metadata store, too; of these nobody
        is a super-user. Raises ``AuthenticationError``, ``MetadataError``."""
        stored: Users = NOBODY
        if self._users is not None and name not in self._super_users:
            stored = {name: await self._users.of(name)}
        return self.authenticator.scram_credentials(name, mechanism, stored)

    async def by_password(self, name: str, password: str) -> Principal:
        """``Authenticator.by_password`` on a thread, a few at a time: guessing must not take all
        threads. Raises ``AuthenticationError``."""
        return await self._on_thread(self.authenticator.by_password, name, password)

    async def by_basic(self, data: str) -> Principal:
        """Of ``name:password``; as ``by_password``."""
        return await self._on_thread(self.authenticator.by_basic, data)

    async def by_header(self, header: str) -> Principal:
        """Of an HTTP header ``Authorization``, empty if there is none."""
        if header[:6].lower() == "basic ":
            return await self._on_thread(self.authenticator.by_authorization, header)
        return self.authenticator.by_authorization(header)

    async def _on_thread(self, prove: Callable[..., Principal], *shown: str) -> Principal:
        async with self._passwords:
            return await asyncio.to_thread(prove, *shown)

    def is_super_user(self, principal: Principal) -> bool:
        return principal.role in self._super_users

    async def allows(self, principal: Principal, action: Action, of: TopicName | str) -> bool:
        """``of``: a topic, or ``tenant/namespace``. Raises ``TopicNotFoundError`` for a namespace
        that is not there, which everybody is told alike, and ``MetadataError``."""
        namespace = of if isinstance(of, str) else of.namespace
        if self._namespaces is None:
            return self.is_super_user(principal)
        policies = self._object(namespace, await self._namespaces.value(namespace))
        if self.is_super_user(principal):
            return True
        # What is kept there is of all tenants, not of the one in whose name it lies.
        kept = namespace == KAFKA_GROUPS
        admins = () if kept else await self.admins(namespace.split("/")[0])
        topic = "" if isinstance(of, str) else str(of.partitioned)
        return permitted(principal.role, action, policies, admins, topic)

    async def check(self, principal: Principal, action: Action, of: TopicName | str) -> None:
        """Raises ``AuthorizationError``, and as ``allows``."""
        if not await self.allows(principal, action, of):
            how = (
                "that is for super-users, and for its tenant's adminRoles"  # it cannot be granted
                if action is Action.ADMIN
                else "an admin of its tenant can grant it (magnetar namespaces permissions grant)"
            )
            raise AuthorizationError(f"role {principal.role} may not {action} {of}; {how}")

    async def administers(self, principal: Principal, tenant: str) -> bool:
        """Whether it may do everything with the tenant's namespaces."""
        return self.is_super_user(principal) or principal.role in await self.admins(tenant)

    def check_super_user(self, principal: Principal, what: str) -> None:
        """Raises ``AuthorizationError``. ``what``: "list the brokers"."""
        if not self.is_super_user(principal):
            raise AuthorizationError(
                f"role {principal.role} may not {what}: that is for super-users "
                "(security.super_users)"
            )

    async def admins(self, tenant: str) -> Collection[str]:
        """Its roles; none of a tenant that is not there."""
        if self._namespaces is None:
            return ()
        value = await self._namespaces.tenant_value(tenant)
        if value is None:
            return ()
        return admin_roles(self._object(tenant, value))

    def _object(self, name: str, value: bytes) -> Mapping[str, Any]:
        known = self._parsed.get(name)
        if known is not None and known[0] is value:
            return known[1]
        try:
            found = json.loads(value or b"{}")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise BrokerMetadataError(f"the node of {name} holds no policies")
        if len(self._parsed) >= PARSED_MAX:
            self._parsed.clear()
        self._parsed[name] = value, found
        return found
