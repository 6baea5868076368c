"""Tenants, namespaces and partitioned topics, as the metadata store holds them.

| path | value |
|---|---|
| ``/admin/policies/<tenant>/<namespace>`` | ``{}`` (room for policies) |
| ``/admin/partitioned-topics/<tenant>/<namespace>/persistent/<local>`` | ``{"partitions": n}`` |
| ``/admin/topic-epochs/<tenant>/<namespace>/persistent/<local>`` | the epoch, decimal |
| ``/admin/broker-starts`` | how many brokers have started, decimal |

Local names are percent-encoded. A namespace exists when its node does; ``public/default`` is made
at the first start.
"""

from __future__ import annotations

import json
from typing import Final
from urllib.parse import unquote

from magnetar.cluster.topic_name import (
    DEFAULT_NAMESPACE,
    PARTITIONS_MAX,
    TopicName,
)
from magnetar.env.metadata import MetadataStore
from magnetar.model.errors import (
    BadVersionError,
    BrokerMetadataError,
    NodeExistsError,
    NoNodeError,
    NotAllowedError,
    TopicNotFoundError,
)

POLICIES: Final = "/admin/policies"
PARTITIONED: Final = "/admin/partitioned-topics"
EPOCHS: Final = "/admin/topic-epochs"
STARTS: Final = "/admin/broker-starts"
RACES_MAX: Final = 100


class Namespaces:
    """The control plane's facts about topics. Every call asks the store; nothing is cached."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def prepare(self) -> None:
        """Make the default namespace if it is missing."""
        await self.create_namespace(DEFAULT_NAMESPACE)

    # -- tenants and namespaces ---------------------------------------------------------------

    async def tenants(self) -> list[str]:
        return await self._children(POLICIES)

    async def namespaces(self, tenant: str) -> list[str]:
        """Raises ``TopicNotFoundError`` for an unknown tenant."""
        if tenant not in await self.tenants():
            raise TopicNotFoundError(f"tenant {tenant} does not exist")
        return [f"{tenant}/{name}" for name in await self._children(f"{POLICIES}/{tenant}")]

    async def create_tenant(self, tenant: str) -> None:
        await self._create(f"{POLICIES}/{tenant}", b"{}")

    async def create_namespace(self, namespace: str) -> None:
        """``tenant/namespace``; no error when it exists."""
        await self._create(f"{POLICIES}/{namespace}", b"{}")

    async def check(self, name: TopicName) -> None:
        """Raise ``TopicNotFoundError`` if the namespace of ``name`` does not exist."""
        await self.check_namespace(name.namespace)

    async def check_namespace(self, namespace: str) -> None:
        try:
            await self._metadata.get(f"{POLICIES}/{namespace}")
        except NoNodeError:
            raise TopicNotFoundError(
                f"namespace {namespace} does not exist; create it first, or use {DEFAULT_NAMESPACE}"
            ) from None

    # -- partitioned topics -------------------------------------------------------------------

    async def partitions(self, name: TopicName) -> int:
        """The number of partitions of a partitioned topic; 0 if ``name`` is none."""
        try:
            node = await self._metadata.get(_partitioned_path(name))
        except NoNodeError:
            return 0
        return _count(name, node.value)

    async def partitioned_topics(self, namespace: str) -> list[TopicName]:
        tenant, part = namespace.split("/")
        found = await self._children(f"{PARTITIONED}/{namespace}/persistent")
        locals_ = sorted(unquote(item) for item in found)
        return [TopicName(tenant, part, local, -1) for local in locals_]

    async def create_partitioned(self, name: TopicName, partitions: int) -> bool:
        """False when it exists already. Raises ``NotAllowedError`` for a bad number or name."""
        _check_count(name, partitions)
        if name.partition >= 0:
            raise NotAllowedError(f"{name} is named like a partition; it cannot have partitions")
        value = json.dumps({"partitions": partitions}).encode()
        return await self._create(_partitioned_path(name), value)

    async def grow(self, name: TopicName, partitions: int) -> None:
        """Raises ``TopicNotFoundError``, and ``NotAllowedError`` for fewer than now."""
        _check_count(name, partitions)
        for _ in range(RACES_MAX):
            try:
                node = await self._metadata.get(_partitioned_path(name))
                now = _count(name, node.value)
                if partitions < now:
                    raise NotAllowedError(
                        f"{name} has {now} partitions; their number can grow, not shrink"
                    )
                value = json.dumps({"partitions": partitions}).encode()
                await self._metadata.put(_partitioned_path(name), value, node.version)
            except BadVersionError:
                continue
            except NoNodeError:
                raise TopicNotFoundError(f"{name} is not a partitioned topic") from None
            return
        raise BrokerMetadataError(f"{name}: its partitions are changed by many at once; try again")

    async def delete_partitioned(self, name: TopicName) -> None:
        try:
            await self._metadata.delete(_partitioned_path(name))
        except NoNodeError:
            return

    # -- counters -----------------------------------------------------------------------------

    async def topic_epoch(self, name: TopicName) -> int:
        """How many exclusive producers the topic has had."""
        try:
            node = await self._metadata.get(_epoch_path(name))
        except NoNodeError:
            return 0
        return _number(_epoch_path(name), node.value)

    async def raise_topic_epoch(self, name: TopicName) -> int:
        """Count one more exclusive producer; durable when it returns."""
        return await self._increment(_epoch_path(name))

    async def forget_topic(self, name: TopicName) -> None:
        """The topic was deleted."""
        try:
            await self._metadata.delete(_epoch_path(name))
        except NoNodeError:
            return

    async def count_start(self) -> int:
        """A number that no other start of a broker of this store gets."""
        return await self._increment(STARTS)

    async def _increment(self, path: str) -> int:
        for _ in range(RACES_MAX):
            try:
                node = await self._metadata.get(path)
                value = _number(path, node.value) + 1
                await self._metadata.put(path, str(value).encode(), node.version)
            except NoNodeError:
                if not await self._create(path, b"1"):
                    continue
                value = 1
            except BadVersionError:
                continue
            return value
        raise BrokerMetadataError(f"{path} is changed by many at once; try again")

    async def _create(self, path: str, value: bytes) -> bool:
        try:
            await self._metadata.create(path, value)
        except NodeExistsError:
            return False
        return True

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._metadata.children(path)
        except NoNodeError:
            return []


def _partitioned_path(name: TopicName) -> str:
    return f"{PARTITIONED}/{name.namespace}/persistent/{name.encoded_local}"


def _epoch_path(name: TopicName) -> str:
    return f"{EPOCHS}/{name.namespace}/persistent/{name.encoded_local}"


def _check_count(name: TopicName, partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise NotAllowedError(
            f"{name}: {partitions} partitions; between 1 and {PARTITIONS_MAX} are possible"
        )


def _number(path: str, value: bytes) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise BrokerMetadataError(f"{path} holds {value[:40]!r}, not a number") from error


def _count(name: TopicName, value: bytes) -> int:
    try:
        count = json.loads(value)["partitions"]
    except (ValueError, KeyError, TypeError) as error:
        raise BrokerMetadataError(f"{name}: its partition metadata cannot be read") from error
    if not isinstance(count, int) or count < 0:
        raise BrokerMetadataError(f"{name}: its partition metadata says {count!r} partitions")
    return count
