"""Tenants and namespaces, as the metadata store holds them.

| path | value |
|---|---|
| ``/admin/policies/<tenant>`` | a JSON object, or nothing: ``adminRoles``, the tenant's admins |
| ``/admin/policies/<tenant>/<namespace>`` | a JSON object: its policies, by Pulsar's names |

A tenant or namespace exists when its node does; ``public/default`` is made at every start.
Whether a namespace exists, and what its policies are, is asked for with every lookup, producer and
subscription, and answered from memory (``watched_nodes``). Lists go to the store: only people ask
for them.

A namespace that is being deleted says ``deleted`` in its policies, as in Pulsar: nothing is opened
or made in it any more, what it has is deleted, and then its node. Who makes something below a
namespace asks the store again afterwards (``confirm``), and takes it back if the namespace goes;
who deletes one says so first, and lists what it has then. Each writes before it reads, so one of
them sees the other.

Why: docs/adr/0187-namespaces-say-that-they-go.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from magnetar.cluster.stored.counters import RACES_MAX
from magnetar.cluster.stored.shared_reads import shared_values
from magnetar.cluster.stored.watched_nodes import WatchedNodes
from magnetar.cluster.topic_name import DEFAULT_NAMESPACE, TopicName
from magnetar.env.metadata import MetadataStore
from magnetar.model.errors import (
    BadVersionError,
    BrokerMetadataError,
    NodeExistsError,
    NoNodeError,
    NotAllowedError,
    NotEmptyError,
    TopicNotFoundError,
)

POLICIES: Final = "/admin/policies"
DELETED: Final = "deleted"
"""Of a namespace's policies, Pulsar's name."""


class Namespaces:
    """Which tenants and namespaces there are."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._nodes = WatchedNodes(metadata, _node)
        self._reads = shared_values(metadata)

    async def prepare(self) -> None:
        """Make the default namespace, and so its tenant, if it is missing."""
        await self._create(f"{POLICIES}/{DEFAULT_NAMESPACE}")

    def watch_changes(self, changed: Callable[[str], None]) -> None:
        """Call ``changed`` with the name of a namespace (or tenant) whose node has changed, or may
        have, if it was asked for."""
        self._nodes.watch_changes(lambda path: changed(path.removeprefix(f"{POLICIES}/")))

    async def tenants(self) -> list[str]:
        return await self._children(POLICIES)

    async def namespaces(self, tenant: str) -> list[str]:
        """``tenant/namespace`` names. Raises ``TopicNotFoundError`` for an unknown tenant."""
        await self.check_tenant(tenant)
        return [f"{tenant}/{name}" for name in await self._children(f"{POLICIES}/{tenant}")]

    async def everywhere(self) -> list[str]:
        """Those of every tenant, but for tenants that go meanwhile."""
        return [
            f"{tenant}/{name}"
            for tenant in await self.tenants()
            for name in await self._children(f"{POLICIES}/{tenant}")
        ]

    async def create_tenant(self, tenant: str, about: Mapping[str, object] | None = None) -> bool:
        """False when it exists."""
        return await self._create(f"{POLICIES}/{tenant}", json.dumps(about or {}).encode())

    async def tenant_value(self, tenant: str) -> bytes | None:
        """The bytes of its node, the same object as long as it has not changed; None: it does not
        exist."""
        return (await self._nodes.get(f"{POLICIES}/{tenant}")).value

    async def about_tenant(self, tenant: str) -> Mapping[str, Any]:
        """What is said of it. Raises ``TopicNotFoundError``, ``BrokerMetadataError``."""
        value = await self.tenant_value(tenant)
        if value is None:
            raise _no_tenant(tenant)
        return _policies(tenant, value)

    async def change_tenant(self, tenant: str, about: Mapping[str, object]) -> None:
        """Put what is said of it. Raises ``TopicNotFoundError``, ``MetadataError``."""
        path = f"{POLICIES}/{tenant}"
        try:
            await self._metadata.put(path, json.dumps(about).encode(), -1)
        except NoNodeError:
            raise _no_tenant(tenant) from None
        finally:
            self._nodes.forget(path)

    async def create_namespace(
        self, namespace: str, policies: Mapping[str, object] | None = None
    ) -> bool:
        """``tenant/namespace``; False when it exists. Raises ``TopicNotFoundError`` when its
        tenant does not, ``NotAllowedError`` while it is being deleted."""
        tenant = namespace.split("/")[0]
        before = await self.tenant_value(tenant)
        if before is None:
            raise _no_tenant(tenant)
        path = f"{POLICIES}/{namespace}"
        if not await self._create(path, json.dumps(policies or {}).encode()):
            if (await self._nodes.get(path)).deleted:
                raise NotAllowedError(
                    f"namespace {namespace} is being deleted; create it when it is gone, which "
                    "deleting it again says"
                )
            return False
        # The tenant may have been deleted meanwhile, and its node was made again with this one.
        if before and not await self.tenant_value(tenant):
            await self._delete_quietly(path)
            await self._delete_quietly(f"{POLICIES}/{tenant}")
            raise _no_tenant(tenant)
        return True

    async def check_tenant(self, tenant: str) -> None:
        """Raise ``TopicNotFoundError`` if the tenant does not exist."""
        if await self.tenant_value(tenant) is None:
            raise _no_tenant(tenant)

    async def check(self, name: TopicName) -> None:
        """Raise ``TopicNotFoundError`` if the namespace of ``name`` does not exist, or is being
        deleted."""
        await self.check_namespace(name.namespace)

    async def check_namespace(self, namespace: str) -> None:
        node = await self._nodes.get(f"{POLICIES}/{namespace}")
        if node.value is None:
            raise _no_namespace(namespace)
        if node.deleted:
            raise _goes(namespace)

    async def confirm(self, namespace: str) -> None:
        """As ``check_namespace``, by the store: for who has just made something in it. Reads are
        shared by all who ask meanwhile, and no older than each asked."""
        path = f"{POLICIES}/{namespace}"
        value = await self._reads.get(path)
        if value is None:
            raise _no_namespace(namespace)
        if _node(path, value).deleted:
            raise _goes(namespace)

    async def value(self, namespace: str) -> bytes:
        """The bytes of its node, also while it is being deleted: the same object as long as it has
        not changed."""
        value = (await self._nodes.get(f"{POLICIES}/{namespace}")).value
        if value is None:
            raise _no_namespace(namespace)
        return value

    async def policies(self, namespace: str) -> Mapping[str, Any]:
        """What is set for ``tenant/namespace``. Raises ``TopicNotFoundError``,
        ``BrokerMetadataError`` for a node that cannot be read."""
        return _policies(namespace, await self.value(namespace))

    async def stored_policies(self, namespace: str) -> Mapping[str, Any]:
        """As ``policies``, read from the store: no older than this call."""
        path = f"{POLICIES}/{namespace}"
        try:
            value = (await self._metadata.get(path)).value
        except NoNodeError:
            raise _no_namespace(namespace) from None
        if value != (await self._nodes.get(path)).value:
            self._nodes.forget(path)
        return _policies(namespace, value)

    async def change_policies(self, namespace: str, changes: Mapping[str, object]) -> None:
        """Set some, None to leave one unsaid; the others stay as they are."""
        await self.change(namespace, lambda policies: {**policies, **changes})

    async def change(
        self, namespace: str, changed: Callable[[Mapping[str, Any]], Mapping[str, object]]
    ) -> None:
        """Set all, by those that are stored; None leaves one unsaid. Raises what ``changed``
        raises, ``TopicNotFoundError`` (also while it is being deleted), ``MetadataError``."""

        def unless_it_goes(policies: Mapping[str, Any]) -> Mapping[str, object]:
            if policies.get(DELETED):
                raise _goes(namespace)
            return changed(policies)

        await self._change(namespace, unless_it_goes)

    async def _change(
        self, namespace: str, changed: Callable[[Mapping[str, Any]], Mapping[str, object]]
    ) -> int:
        """The node's version after it."""
        path = f"{POLICIES}/{namespace}"
        try:
            for _ in range(RACES_MAX):
                # From the store, not from memory: the version to compare with is read here.
                node = await self._metadata.get(path)
                found = _policies(namespace, node.value)
                wanted = changed(found)
                kept = {name: value for name, value in wanted.items() if value is not None}
                if wanted is found:
                    return node.version
                try:
                    return await self._metadata.put(path, json.dumps(kept).encode(), node.version)
                except BadVersionError:
                    continue
        except NoNodeError:
            raise _no_namespace(namespace) from None
        finally:
            self._nodes.forget(path)  # one that failed may have happened
        raise BrokerMetadataError(f"{path} is changed by many at once; try again")

    # -- deleting -----------------------------------------------------------------------------

    async def begin_deletion(self, namespace: str) -> int:
        """From now on nothing is opened or made in it; what for ``end_deletion``. Raises
        ``TopicNotFoundError``, ``MetadataError``."""
        return await self._change(
            namespace, lambda said: said if said.get(DELETED) else {**said, DELETED: True}
        )

    async def undo_deletion(self, namespace: str) -> None:
        """It stays; fine if nobody was deleting it. Raises as ``begin_deletion``."""
        await self._change(
            namespace, lambda said: {**said, DELETED: None} if DELETED in said else said
        )

    async def end_deletion(self, namespace: str, version: int) -> None:
        """It has nothing any more: it is gone. Raises ``NotAllowedError`` if its deletion was
        undone meanwhile, ``TopicNotFoundError``, ``MetadataError``."""
        path = f"{POLICIES}/{namespace}"
        try:
            await self._metadata.delete(path, version)
        except NoNodeError:
            raise _no_namespace(namespace) from None
        except BadVersionError:
            raise NotAllowedError(
                f"namespace {namespace} was changed while it was being deleted; delete it again"
            ) from None
        finally:
            self._nodes.forget(path)

    async def delete_tenant(self, tenant: str) -> None:
        """Raises ``NotAllowedError`` while it has namespaces, ``TopicNotFoundError``."""
        path = f"{POLICIES}/{tenant}"
        try:
            await self._metadata.delete(path)
        except NoNodeError:
            raise _no_tenant(tenant) from None
        except NotEmptyError:
            names = await self._children(path)
            raise NotAllowedError(
                f"tenant {tenant} has {len(names)} namespaces ({', '.join(names)[:200]}); delete "
                "them first, or force it"
            ) from None
        finally:
            self._nodes.forget(path)

    async def _delete_quietly(self, path: str) -> None:
        """What others have used meanwhile stays."""
        try:
            await self._metadata.delete(path)
        except (NoNodeError, NotEmptyError):
            return
        finally:
            self._nodes.forget(path)

    async def _create(self, path: str, value: bytes = b"{}") -> bool:
        try:
            await self._metadata.create(path, value)
        except NodeExistsError:
            return False
        finally:
            # Its parent may be made with it; and a create that failed may have happened.
            self._nodes.forget(path)
            self._nodes.forget(path.rpartition("/")[0])
        return True

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._metadata.children(path)
        except NoNodeError:
            return []

    def close(self) -> None:
        self._nodes.close()


class _NamespaceNode(NamedTuple):
    """A node's bytes; None if there is none. ``deleted``: it is being deleted."""

    value: bytes | None
    deleted: bool


def _node(_path: str, value: bytes | None) -> _NamespaceNode:
    return _NamespaceNode(value, value is not None and _says_deleted(value))


def _says_deleted(value: bytes) -> bool:
    """What cannot be read says nothing here: who needs the policies says so."""
    if DELETED.encode() not in value:
        return False
    try:
        found = json.loads(value)
    except ValueError:
        return False
    return isinstance(found, dict) and found.get(DELETED) is True


def _no_tenant(tenant: str) -> TopicNotFoundError:
    return TopicNotFoundError(f"tenant {tenant} does not exist; create it first")


def _no_namespace(namespace: str) -> TopicNotFoundError:
    return TopicNotFoundError(
        f"namespace {namespace} does not exist; create it first, or use {DEFAULT_NAMESPACE}"
    )


def _goes(namespace: str) -> TopicNotFoundError:
    return TopicNotFoundError(f"namespace {namespace} is being deleted")


def _policies(namespace: str, value: bytes) -> dict[str, Any]:
    """Nodes that others made may be empty."""
    try:
        found = json.loads(value or b"{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BrokerMetadataError(
            f"the node of namespace {namespace} holds {value[:40]!r}, which are no policies"
        )
    return found
