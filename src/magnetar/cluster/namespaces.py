"""Tenants and namespaces, as the metadata store holds them.

| path | value |
|---|---|
| ``/admin/policies/<tenant>`` | anything |
| ``/admin/policies/<tenant>/<namespace>`` | ``{}`` (policies will stand there) |

A tenant or namespace exists when its node does; ``public/default`` is made at the first start.
Whether a namespace exists is asked for with every lookup, producer and subscription, and answered
from memory (``watched_nodes``). Lists go to the store: only people ask for them.
"""

from __future__ import annotations

from typing import Final

from magnetar.cluster.topic_name import DEFAULT_NAMESPACE, TopicName
from magnetar.cluster.watched_nodes import WatchedNodes
from magnetar.env.metadata import MetadataStore
from magnetar.model.errors import NodeExistsError, NoNodeError, TopicNotFoundError

POLICIES: Final = "/admin/policies"


class Namespaces:
    """Which tenants and namespaces there are."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._exist = WatchedNodes(metadata, _exists)

    async def prepare(self) -> None:
        """Make the default namespace, and so its tenant, if it is missing."""
        await self._create(f"{POLICIES}/{DEFAULT_NAMESPACE}")

    async def tenants(self) -> list[str]:
        return await self._children(POLICIES)

    async def namespaces(self, tenant: str) -> list[str]:
        """``tenant/namespace`` names. Raises ``TopicNotFoundError`` for an unknown tenant."""
        await self.check_tenant(tenant)
        return [f"{tenant}/{name}" for name in await self._children(f"{POLICIES}/{tenant}")]

    async def create_tenant(self, tenant: str) -> bool:
        """False when it exists."""
        return await self._create(f"{POLICIES}/{tenant}")

    async def create_namespace(self, namespace: str) -> bool:
        """``tenant/namespace``; False when it exists. Raises ``TopicNotFoundError`` when its
        tenant does not."""
        await self.check_tenant(namespace.split("/")[0])
        return await self._create(f"{POLICIES}/{namespace}")

    async def check_tenant(self, tenant: str) -> None:
        """Raise ``TopicNotFoundError`` if the tenant does not exist."""
        if not await self._exist.get(f"{POLICIES}/{tenant}"):
            raise TopicNotFoundError(f"tenant {tenant} does not exist; create it first")

    async def check(self, name: TopicName) -> None:
        """Raise ``TopicNotFoundError`` if the namespace of ``name`` does not exist."""
        await self.check_namespace(name.namespace)

    async def check_namespace(self, namespace: str) -> None:
        if not await self._exist.get(f"{POLICIES}/{namespace}"):
            raise TopicNotFoundError(
                f"namespace {namespace} does not exist; create it first, or use {DEFAULT_NAMESPACE}"
            )

    async def _create(self, path: str) -> bool:
        try:
            await self._metadata.create(path, b"{}")
        except NodeExistsError:
            return False
        finally:
            # Its parent may be made with it; and a create that failed may have happened.
            self._exist.forget(path)
            self._exist.forget(path.rpartition("/")[0])
        return True

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._metadata.children(path)
        except NoNodeError:
            return []

    def close(self) -> None:
        self._exist.close()


def _exists(_path: str, value: bytes | None) -> bool:
    return value is not None
