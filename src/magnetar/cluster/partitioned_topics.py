"""Partitioned topics: which there are, and how many partitions each has.

Node ``/admin/partitioned-topics/<tenant>/<namespace>/persistent/<local>``:
``{"partitions": n, "id": hex}``; local names are percent-encoded. A count is asked for with every
lookup, producer and subscription and answered from memory (``watched_nodes``); lists of a namespace
go to the store. One that is being deleted says so first (``"deleted": true``, as Pulsar's): no
partition of it is made from then on (``begin_deletion``).

The id is a UUID that a topic gets when it is made: one that is made anew under its name has
another. Nodes of before there were ids have none; neither have topics without partitions.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import structlog

from magnetar.cluster.stored.counters import RACES_MAX
from magnetar.cluster.stored.watched_nodes import WatchedNodes
from magnetar.cluster.topic_name import PARTITIONS_MAX, TopicName
from magnetar.env.emptied_nodes import delete_emptied
from magnetar.env.metadata import MetadataStore
from magnetar.model.errors import (
    BadVersionError,
    BrokerMetadataError,
    DamagedTopicError,
    NodeExistsError,
    NoNodeError,
    NotAllowedError,
    TopicNotFoundError,
    UnknownTopicIdError,
)

log = structlog.get_logger(__name__)

PARTITIONED: Final = "/admin/partitioned-topics"
READS_AT_A_TIME: Final = 64
PATHS_KEPT: Final = 20_000
DELETED: Final = "deleted"
ANY_VERSION: Final = -1


class PartitionedTopic(NamedTuple):
    """``partitions`` 0: there is none; ``topic_id`` None: it has none. ``goes``: it is being
    deleted, and has the partitions that it had."""

    partitions: int
    topic_id: uuid.UUID | None
    goes: bool = False


class PartitionedTopics:
    """The partitioned topics of a cluster."""

    def __init__(
        self, metadata: MetadataStore, confirm: Callable[[str], Awaitable[None]] | None = None
    ) -> None:
        """``confirm``: raises ``TopicNotFoundError`` if the namespace is gone, or goes."""
        self.new_id: Callable[[], str] = lambda: str(uuid.uuid4())
        """Of a topic, unlike any other."""
        self._metadata = metadata
        self._confirm = confirm
        self._counts = WatchedNodes(metadata, _topic_or_none)

    async def partitions(self, name: TopicName) -> int:
        """The number of partitions of a partitioned topic; 0 if ``name`` is none."""
        return (await self.topic(name)).partitions

    async def topic(self, name: TopicName) -> PartitionedTopic:
        return await self._counts.get(_path(name))

    def known(self, name: TopicName) -> PartitionedTopic | None:
        """As ``topic``, without asking the store; None: it would have to be asked."""
        return self._counts.known(_path(name))

    async def sync(self) -> None:
        """What is asked for after this is no older than this call. Raises ``MetadataError``."""
        await self._metadata.sync()

    @property
    def connected(self) -> bool:
        """The store can be asked."""
        return self._counts.connected

    async def names(self, namespace: str) -> list[TopicName]:
        """The partitioned topics of ``tenant/namespace``, sorted."""
        tenant, part = namespace.split("/")
        try:
            found = await self._metadata.children(f"{PARTITIONED}/{namespace}/persistent")
        except NoNodeError:
            return []
        return [TopicName(tenant, part, local, -1) for local in sorted(map(unquote, found))]

    async def partition_names(self, namespace: str) -> list[TopicName]:
        """Every partition of every partitioned topic of ``tenant/namespace``, but for topics whose
        node cannot be read: whoever asks for one of those is told why."""
        topics = await self.names(namespace)
        found: list[TopicName] = []
        for start in range(0, len(topics), READS_AT_A_TIME):
            batch = topics[start : start + READS_AT_A_TIME]
            counts = await asyncio.gather(*map(self._listed, batch))
            for topic, count in zip(batch, counts, strict=True):
                found += map(topic.of_partition, range(count))
        return found

    async def _listed(self, topic: TopicName) -> int:
        try:
            return await self.partitions(topic)
        except BrokerMetadataError as error:
            log.warning("partitions are left out of a list", topic=str(topic), error=str(error))
            return 0

    def watch_names(self, namespace: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` on the loop after a partitioned topic of ``tenant/namespace`` was made
        or deleted, or one of those that were asked for has got partitions. Returns the function
        that ends it."""
        path = f"{PARTITIONED}/{namespace}/persistent"

        def count_changed(of: str) -> None:
            if of.startswith(f"{path}/"):
                changed()

        ends = (
            self._metadata.watch(path, lambda _path: changed()),
            self._counts.watch_changes(count_changed),
        )

        def end() -> None:
            for each in ends:
                each()

        return end

    async def create(
        self,
        name: TopicName,
        partitions: int,
        make: Callable[[str, bytes], Awaitable[object]] | None = None,
    ) -> bool:
        """False when it exists already. ``make``: makes its node, as ``MetadataStore.create``, with
        something beside. Raises ``NotAllowedError`` for a bad number or name,
        ``TopicNotFoundError`` if its namespace is gone meanwhile, and what ``make`` does."""
        _check_count(name, partitions)
        if name.partition >= 0:
            raise NotAllowedError(f"{name} is named like a partition; it cannot have partitions")
        make = make or self._metadata.create
        try:
            await make(_path(name), _value(partitions, uuid.UUID(self.new_id())))
        except NodeExistsError:
            return False
        finally:
            self._counts.forget(_path(name))  # one that failed may have happened
        if self._confirm is not None:
            try:
                # After it is made: who deletes the namespace finds it, or is seen here.
                await self._confirm(name.namespace)
            except TopicNotFoundError:
                await self.delete(name)
                await self.forget_namespace(name.namespace)
                raise
        return True

    async def grow(self, name: TopicName, partitions: int) -> None:
        """Raises ``TopicNotFoundError``, and ``NotAllowedError`` for fewer than now."""
        _check_count(name, partitions)

        def grown(now: PartitionedTopic) -> PartitionedTopic:
            if now.goes:
                raise TopicNotFoundError(f"{name} is being deleted")
            if partitions < now.partitions:
                raise NotAllowedError(
                    f"{name} has {now.partitions} partitions; their number can grow, not shrink"
                )
            return now._replace(partitions=partitions)

        await self._change(name, grown)

    async def _change(
        self, name: TopicName, changed: Callable[[PartitionedTopic], PartitionedTopic]
    ) -> tuple[PartitionedTopic, int]:
        """The topic after it, and the version of its node. Raises what ``changed`` raises,
        ``TopicNotFoundError``, ``MetadataError``, and ``BrokerMetadataError``."""
        path = _path(name)
        try:
            for _ in range(RACES_MAX):
                # From the store, not from memory: the version to compare with is read here.
                node = await self._metadata.get(path)
                now = _topic(path, node.value)
                wanted = changed(now)
                if wanted == now:
                    return now, node.version
                try:
                    return wanted, await self._metadata.put(path, _value(*wanted), node.version)
                except BadVersionError:
                    continue
        except NoNodeError:
            raise TopicNotFoundError(f"{name} is not a partitioned topic") from None
        finally:
            self._counts.forget(path)  # one that failed may have happened
        raise BrokerMetadataError(f"{name}: its partitions are changed by many at once; try again")

    async def delete(self, name: TopicName, version: int = ANY_VERSION) -> None:
        """No error when it is not there. Its partitions are topics of their own, and stay. Raises
        ``BadVersionError`` if its node has another version than that."""
        try:
            await self._metadata.delete(_path(name), version)
        except NoNodeError:
            return
        finally:
            self._counts.forget(_path(name))

    async def forget_namespace(self, namespace: str) -> None:
        """It was deleted, with all its topics."""
        await delete_emptied(self._metadata, f"{PARTITIONED}/{namespace}/persistent", PARTITIONED)

    # -- deleting with all partitions ---------------------------------------------------------

    async def begin_deletion(
        self, name: TopicName, topic_id: uuid.UUID | None = None
    ) -> tuple[PartitionedTopic, int]:
        """No partition of it is made from now on. The topic, and what for ``end_deletion``.
        ``topic_id``: of the one that is meant. Raises ``UnknownTopicIdError`` if the name is
        another topic's by now, ``TopicNotFoundError``, ``MetadataError``, ``BrokerMetadataError``
        for a node that cannot be read."""

        def going(now: PartitionedTopic) -> PartitionedTopic:
            # One without an id has that of its name, and so has whoever asks for it.
            if topic_id is not None and now.topic_id not in (None, topic_id):
                raise UnknownTopicIdError(f"{name} has another id than {topic_id}")
            return now._replace(goes=True)

        return await self._change(name, going)

    async def check_deletion(self, name: TopicName, version: int) -> None:
        """The topic whose deletion began with ``version`` is still there, and goes. Raises
        ``TopicNotFoundError`` if another deletion has ended, and as ``end_deletion``."""
        if version == ANY_VERSION:
            return
        path = _path(name)
        try:
            node = await self._metadata.get(path)
        except NoNodeError:
            raise TopicNotFoundError(f"{name} is deleted already") from None
        # Versions begin anew with each topic: of one that has grown it may be the same.
        if node.version != version or not _topic(path, node.value).goes:
            raise _changed(name)

    async def undo_deletion(self, name: TopicName) -> None:
        """It stays; fine if nobody was deleting it. Raises as ``begin_deletion``."""
        await self._change(name, lambda now: now._replace(goes=False))

    async def end_deletion(self, name: TopicName, version: int) -> None:
        """It has no partition any more: it is gone. Raises ``NotAllowedError`` if its deletion was
        undone meanwhile, or the name is another topic's by now; ``MetadataError``."""
        try:
            await self.delete(name, version)
        except BadVersionError:
            raise _changed(name) from None

    def close(self) -> None:
        self._counts.close()


def _changed(name: TopicName) -> NotAllowedError:
    return NotAllowedError(f"{name} was changed while it was being deleted; delete it again")


@lru_cache(PATHS_KEPT)  # it is asked for with each fetch
def _path(name: TopicName) -> str:
    return f"{PARTITIONED}/{name.namespace}/persistent/{name.encoded_local}"


def _value(partitions: int, topic_id: uuid.UUID | None, goes: bool = False) -> bytes:
    said: dict[str, Any] = {"partitions": partitions}
    if topic_id is not None:
        said["id"] = topic_id.hex
    if goes:
        said[DELETED] = True
    return json.dumps(said).encode()


def _check_count(name: TopicName, partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise NotAllowedError(
            f"{name}: {partitions} partitions; between 1 and {PARTITIONS_MAX} are possible"
        )


def _topic_or_none(path: str, value: bytes | None) -> PartitionedTopic:
    return PartitionedTopic(0, None) if value is None else _topic(path, value)


def _topic(path: str, value: bytes) -> PartitionedTopic:
    try:
        said = json.loads(value)
        count, topic_id = said["partitions"], said.get("id")
        found = None if topic_id is None else uuid.UUID(hex=topic_id)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedTopicError(
            f"{path} holds {value[:80]!r}, which is no partition metadata; it should be like "
            '{"partitions": 4}'
        ) from error
    if not isinstance(count, int) or count < 0:
        raise DamagedTopicError(f"{path} says {count!r} partitions; a whole number is expected")
    return PartitionedTopic(count, found, said.get(DELETED) is True)
