"""Policies of namespaces and topics, as the metadata store holds them, and as they are in force.

| path | value |
|---|---|
| ``/admin/policies/<tenant>/<namespace>`` | the namespace's (``namespaces``), with other things |
| ``/admin/topic-policies/<tenant>/<namespace>/<00 to 0f>`` | ``{local: policies}`` of its topics |

Topics that have policies of their own share ``BUCKETS`` nodes per namespace, by a hash of their
names: so what is in force for any topic is answered from memory (``watched_nodes``) once those are
read, however many topics are opened, and a change is told of. A partition has its topic's policies.

What a topic is made with is written with the topic (``make_with``): of many who make it at once, at
several brokers, one has its way, and it alone
(docs/adr/0226-a-topic-and-its-settings-are-one-write.md).

Nothing is written that could not be read again. What cannot be read of one topic (another release
wrote it) is an error of that topic, not of those that share its node; it can be set anew, and the
topic be deleted.

Why: docs/adr/0079-policies.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import structlog

from magnetar.cluster.namespaces import Namespaces
from magnetar.cluster.policies.policies import NAMES, Policies, decode_policies, encode_value
from magnetar.cluster.stored.shared_nodes import (
    Objects,
    change_node,
    decode_objects,
    encode_objects,
    make_beside,
)
from magnetar.cluster.stored.watched_nodes import WatchedNodes
from magnetar.cluster.topic_name import TopicName
from magnetar.env.emptied_nodes import delete_below
from magnetar.env.metadata import MetadataStore
from magnetar.model.errors import BrokerMetadataError, InvalidPolicyError

log = structlog.get_logger(__name__)

ROOT: Final = "/admin/topic-policies"
BUCKETS: Final = 16
WHAT: Final = "policies of topics"

PolicyChanges: TypeAlias = Mapping[str, Callable[[Any], Any]]
"""By the field of ``Policies``: what is said next, of what is said; None: nothing."""


class TopicPolicies:
    """See the module's text."""

    def __init__(self, metadata: MetadataStore, namespaces: Namespaces) -> None:
        self._metadata = metadata
        self._namespaces = namespaces
        self._buckets = WatchedNodes(metadata, _decode_bucket)
        self._parsed: dict[str, tuple[bytes, Policies]] = {}
        """What namespaces' nodes say, while it is the bytes that were looked at."""
        self._watchers: list[Callable[[str], None]] = []
        namespaces.watch_changes(self._told)
        self._buckets.watch_changes(lambda path: self._told(path.removeprefix(f"{ROOT}/")))

    def watch(self, changed: Callable[[str], None]) -> None:
        """Call ``changed(tenant/namespace)`` whenever policies of the namespace or of a topic in it
        have changed, or may have."""
        self._watchers.append(changed)

    def _told(self, name: str) -> None:
        """``name`` begins with ``tenant/namespace``, or is a tenant."""
        namespace = "/".join(name.split("/")[:2])
        for changed in self._watchers:
            changed(namespace)

    @staticmethod
    def path_of(name: TopicName) -> str:
        """The node that has what is said of the topic."""
        number = zlib.crc32(name.partitioned.local.encode()) % BUCKETS
        return f"{ROOT}/{name.namespace}/{number:02x}"

    # -- what is said -------------------------------------------------------------------------

    async def effective(self, name: TopicName) -> Policies:
        """What the topic or else its namespace says. Raises ``TopicNotFoundError`` for an unknown
        namespace, ``BrokerMetadataError`` for what cannot be read."""
        topic, namespace = await self.of_topic(name), await self.of_namespace(name.namespace)
        return namespace if topic == NOTHING else topic.over(namespace)

    async def of_namespace(self, namespace: str) -> Policies:
        value = await self._namespaces.value(namespace)
        known = self._parsed.get(namespace)
        if known is not None and known[0] is value:
            return known[1]
        try:
            found = decode_policies(await self._namespaces.policies(namespace))
        except InvalidPolicyError as error:
            raise BrokerMetadataError(f"the node of namespace {namespace}: {error}") from None
        self._parsed[namespace] = (value, found)
        return found

    async def of_topic(self, name: TopicName) -> Policies:
        """What is said of the topic itself (of all partitions of a partitioned one)."""
        path, local = self.path_of(name), name.partitioned.local
        found = (await self._buckets.get(path)).get(local, NOTHING)
        if isinstance(found, InvalidPolicyError):
            raise BrokerMetadataError(
                f"{path} has what cannot be read of topic {local}: {found}; set it anew, or remove "
                "it"
            )
        return found

    # -- changes ------------------------------------------------------------------------------

    async def set_namespace(self, namespace: str, field: str, value: Any) -> None:
        """``field`` is one of ``Policies``; None leaves it unsaid. Raises
        ``TopicNotFoundError``, ``InvalidPolicyError`` for a value that could not be read again."""
        name = NAMES[field][0]
        await self._namespaces.change_policies(namespace, {name: _encoded(field, value)})

    async def change_namespace(
        self, namespace: str, field: str, change: Callable[[Any], Any]
    ) -> None:
        """``change`` makes what the namespace says next of what it says (None: nothing), as in
        ``change_topic``. Raises as ``set_namespace``."""
        name, decode = NAMES[field]

        def changed(policies: Mapping[str, Any]) -> Mapping[str, object]:
            said = policies.get(name)
            made = change(None if said is None else decode(said))
            return {**policies, name: _encoded(field, made)}

        await self._namespaces.change(namespace, changed)

    async def set_topic(self, name: TopicName, field: str, value: Any) -> None:
        """As ``set_namespace``. Raises ``NotAllowedError`` when there is no place for more."""
        said = _encoded(field, value)  # before the store is asked
        await self._put(name, field, lambda _: said)

    async def change_topic(self, name: TopicName, field: str, change: Callable[[Any], Any]) -> None:
        """``change`` makes what the topic says next of what it says (None: nothing), by the store
        and not by memory: what others have just set stays. It may be called again. Raises as
        ``set_topic``, and ``InvalidPolicyError`` for what cannot be read."""
        await self._put(name, field, _of_node(field, change))

    async def make_with(
        self, name: TopicName, changes: PolicyChanges, path: str, value: bytes
    ) -> None:
        """The node at ``path``, which says that there is such a topic, is made, and with it the
        topic says what ``changes`` make of what it says, as ``change_topic``: both or neither. So
        of many who make it at once one has its way, and the others leave nothing. Raises likewise,
        and ``NodeExistsError``."""

        def changed(found: Objects) -> None:
            for field, change in changes.items():
                _change_field(found, name, field, _of_node(field, change))

        node = self.path_of(name)
        in_bytes, too_many = _in_bytes(node, changed), _too_many(name)
        made = path, value
        await make_beside(self._metadata, self._buckets, node, in_bytes, too_many, made)

    async def _put(self, name: TopicName, field: str, change: Callable[[Any], Any]) -> None:
        """``change`` is of what stands in the node."""
        await self._change(name, lambda found: _change_field(found, name, field, change))

    async def forget_topic(
        self, name: TopicName, confirm: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """The topic was deleted: one made anew under its name has no policies. Out of a node that
        cannot be read nothing is taken: who puts it right brings the topic's back, if it had any.
        ``confirm`` raises if the name is another topic's by now: one that is made after it has
        looked writes what it is made with to the node that is compared (``make_with``), and keeps
        it."""
        try:
            has_some = name.partitioned.local in await self._buckets.get(self.path_of(name))
        except BrokerMetadataError as error:
            log.warning("policies of a deleted topic may stay", topic=str(name), error=str(error))
            return
        if has_some:
            await self._change(name, lambda found: found.pop(name.partitioned.local, None), confirm)

    async def forget_namespace(self, namespace: str) -> None:
        """It was deleted, with all its topics."""
        await delete_below(self._metadata, f"{ROOT}/{namespace}", ROOT, self._buckets.forget)

    async def _change(
        self,
        name: TopicName,
        change: Callable[[Objects], object],
        confirm: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        path = self.path_of(name)
        in_bytes = _in_bytes(path, change)
        await change_node(self._metadata, self._buckets, path, in_bytes, _too_many(name), confirm)

    def close(self) -> None:
        self._buckets.close()


NOTHING: Final = Policies()


def _change_field(
    found: Objects, name: TopicName, field: str, change: Callable[[Any], Any]
) -> None:
    """``change`` is of what stands in the node."""
    local, node_name = name.partitioned.local, NAMES[field][0]
    mine = found.get(local, {})
    kept = {key: each for key, each in mine.items() if key != node_name and each is not None}
    if (said := change(mine.get(node_name))) is not None:
        kept[node_name] = said
    found[local] = kept
    if not kept:
        del found[local]


def _of_node(field: str, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``change``, which is of values, of what stands in the node."""
    decode = NAMES[field][1]
    return lambda said: _encoded(field, change(None if said is None else decode(said)))


def _in_bytes(path: str, change: Callable[[Objects], object]) -> Callable[[bytes | None], bytes]:
    def changed(value: bytes | None) -> bytes:
        found = decode_objects(path, value, WHAT)
        change(found)
        return encode_objects(found)

    return changed


def _too_many(name: TopicName) -> str:
    return (
        f"topics of {name.namespace} have so many policies of their own that there is no place "
        f"for those of {name}; say it for the namespace, or remove some"
    )


def _encoded(field: str, value: Any) -> object:
    """As it stands in a node. Raises ``InvalidPolicyError`` for what could not be read there."""
    if value is None:
        return None
    name, decode = NAMES[field]
    said = encode_value(value)
    try:
        decode(said)
    except InvalidPolicyError as error:
        raise InvalidPolicyError(f"{name}: {error}") from None
    return said


def _decode_bucket(path: str, value: bytes | None) -> Mapping[str, Policies | InvalidPolicyError]:
    return {name: _decoded(said) for name, said in decode_objects(path, value, WHAT).items()}


def _decoded(said: Mapping[str, object]) -> Policies | InvalidPolicyError:
    try:
        return decode_policies(said)
    except InvalidPolicyError as error:
        return error
