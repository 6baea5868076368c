"""Every request, in every version, about what its client may not touch: nothing is told, and
nothing changes.

The requests are made by the shapes of their messages, with names of somebody else's wherever there
is a name. So a request that is added is asked here, too, and fails unless a rule refuses it, or it
is listed below as one that tells nothing of anybody.
"""

from __future__ import annotations

import asyncio
import dataclasses
import typing
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest

from magnetar.cluster.topic_name import parse_topic
from magnetar.protocols.kafka.handlers.configs import TOPIC
from magnetar.wire.kafka.apis import APIS, ApiKey
from magnetar.wire.kafka.consumer_group_messages import ConsumerGroupHeartbeatRequest
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.offset_messages import CommitPartition, CommitTopic, OffsetCommitRequest
from magnetar.wire.kafka.produce_messages import (
    InitProducerIdRequest,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from magnetar.wire.kafka.schema import NO_UUID
from tests.unit.protocols.kafka.harness import batch
from tests.unit.protocols.kafka.secured import ROOT, SecuredPeer, SecuredWorld, run_secured

DEFAULT: Final = object()
"""A field is left as it is."""
SECRET: Final = "secret"
"""Part of all names that are somebody else's."""
REFUSALS: Final = frozenset(
    (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
)
BY_ID: Final = ErrorCode.UNKNOWN_TOPIC_ID
"""As of a topic that is not there: whoever asks by an id hears nothing else."""
OF_NOBODY: Final[Mapping[int, frozenset[int]]] = MappingProxyType(
    {
        ApiKey.API_VERSIONS: frozenset((0,)),
        ApiKey.DESCRIBE_CLUSTER: frozenset((0,)),
        ApiKey.SASL_HANDSHAKE: frozenset((ErrorCode.UNSUPPORTED_SASL_MECHANISM,)),
        ApiKey.SASL_AUTHENTICATE: frozenset((ErrorCode.ILLEGAL_SASL_STATE,)),
        # There are no ACLs: each is answered with that.
        ApiKey.DESCRIBE_ACLS: frozenset((ErrorCode.SECURITY_DISABLED,)),
        ApiKey.CREATE_ACLS: frozenset((ErrorCode.SECURITY_DISABLED,)),
        ApiKey.DELETE_ACLS: frozenset((ErrorCode.SECURITY_DISABLED,)),
        # Lists, of which what is somebody else's is left out.
        ApiKey.LIST_GROUPS: frozenset((0,)),
        ApiKey.LIST_TRANSACTIONS: frozenset((0,)),
        ApiKey.LIST_CONFIG_RESOURCES: frozenset((0,)),
    }
)
"""What requests are answered with that concern nothing of anybody's."""
SILENT_BEFORE: Final = MappingProxyType({ApiKey.DESCRIBE_LOG_DIRS: 3, ApiKey.ELECT_LEADERS: 1})
"""Answers of earlier versions have no place for what is refused: they are empty."""
IDS_SINCE: Final = MappingProxyType(
    {ApiKey.FETCH: 13, ApiKey.METADATA: 12, ApiKey.DELETE_TOPICS: 6}
)
"""Versions that ask by ids of topics, of requests that had names before."""


class Foreign:
    """Names of somebody else's, in ``space``: empty for the default namespace."""

    def __init__(self, space: str, *, own_group: bool = False) -> None:
        """``own_group``: the group and the transactional id are the client's."""
        self.topic = f"{space}{SECRET}-topic"
        self.group = "group" if own_group else f"{space}{SECRET}-group"
        self.transaction = "transaction" if own_group else f"{space}{SECRET}-transaction"
        self.topic_id = NO_UUID

    def request(self, kind: type, by_id: bool) -> Any:
        """A message of that kind about nothing else."""
        hints = typing.get_type_hints(kind)
        made = {name: self._value(kind, name, hint, by_id) for name, hint in hints.items()}
        return kind(**{name: value for name, value in made.items() if value is not DEFAULT})

    def _value(self, kind: type, name: str, hint: Any, by_id: bool) -> Any:
        said = self._named(kind, name, hint, by_id)
        if said is not DEFAULT:
            return said
        for each in (hint, *typing.get_args(hint)):  # the list may be one that can be null
            if typing.get_origin(each) is list:
                (element,) = typing.get_args(each)
                if dataclasses.is_dataclass(element):
                    return [self.request(typing.cast(type, element), by_id)]
                if name == "partitions":
                    return [0]
        return DEFAULT

    def _named(self, kind: type, name: str, hint: Any, by_id: bool) -> Any:
        if name == "name":
            return self.topic if not by_id else None if type(None) in typing.get_args(hint) else ""
        if name == "groups" and hint != list[str]:
            return DEFAULT
        return {
            "names": [self.topic],
            "topic_id": self.topic_id if by_id else NO_UUID,
            "group_id": self.group,
            "groups": [self.group],
            "key": self.group,
            "keys": [self.group],
            "transactional_id": self.transaction,
            "transactional_ids": [self.transaction],
            "member_id": "member",
            "acknowledged": [],
            "forgotten": [],
            "acks": -1,
            "records": memoryview(batch(1)),
            "records_max": 10,
            "epoch": 0,
            "protocol_type": "consumer",
            "pattern": "",
            "kind": TOPIC,
        }.get(name, DEFAULT)


def fields_of(kind: type) -> dict[str, Any]:
    """Of a message and its parts, by name: what they are."""
    hints = typing.get_type_hints(kind)
    found = dict(hints)
    for hint in hints.values():
        for each in typing.get_args(hint):
            for part in (each, *typing.get_args(each)):
                if isinstance(part, type) and dataclasses.is_dataclass(part):
                    found |= fields_of(part)
    return found


def has_ids(kind: type) -> bool:
    return uuid.UUID in fields_of(kind).values()


OF_TOPICS_TOO: Final = tuple(
    ApiKey(key)
    for key, api in sorted(APIS.items())
    if fields_of(api.request).keys() & {"group_id", "transactional_id"}
    and fields_of(api.request).keys() & {"name", "names", "topic_id"}
    and key != ApiKey.JOIN_GROUP  # which names protocols
)
"""Requests about topics, beside a group or transactions."""
OF_OWN_GROUP: Final[Mapping[int, frozenset[int]]] = MappingProxyType(
    {
        ApiKey.OFFSET_FETCH: frozenset((ErrorCode.UNKNOWN_MEMBER_ID,)),
        ApiKey.SHARE_ACKNOWLEDGE: frozenset((ErrorCode.INVALID_SHARE_SESSION_EPOCH,)),
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: frozenset((ErrorCode.GROUP_ID_NOT_FOUND,)),
        ApiKey.ALTER_SHARE_GROUP_OFFSETS: frozenset((ErrorCode.GROUP_ID_NOT_FOUND,)),
        ApiKey.DELETE_SHARE_GROUP_OFFSETS: frozenset((ErrorCode.GROUP_ID_NOT_FOUND,)),
    }
)
"""What is wrong with the client's own group: it has no members, and is no share group."""


def codes(answer: Any) -> set[int]:
    """Of the parts of an answer; its own if it has none that say one."""
    if isinstance(answer, list):
        return {code for each in answer for code in codes(each)}
    if not dataclasses.is_dataclass(answer):
        return set()
    values = {field.name: getattr(answer, field.name) for field in dataclasses.fields(answer)}
    own = values.pop("error_code", None)
    of_parts = {code for value in values.values() for code in codes(value)}
    return of_parts if own is None or (own == 0 and of_parts) else {*of_parts, int(own)}


async def made_other_space(world: SecuredWorld) -> None:
    namespaces = world.services.control.namespaces
    await namespaces.create_tenant("other")
    await namespaces.create_namespace("other/space")


async def owned(world: SecuredWorld, foreign: Foreign) -> None:
    """By a super-user: a topic with a record, a group with a member and offsets, a transaction."""
    root = await world.known(ROOT)
    await world.services.control.partitioned.create(parse_topic(foreign.topic), 1)
    produced = ProduceRequest(
        None, -1, 1_000, [ProduceTopic(foreign.topic, [ProducePartition(0, batch(1))])]
    )
    commits = [CommitTopic(foreign.topic, [CommitPartition(0, 1)])]
    joins = ConsumerGroupHeartbeatRequest(
        foreign.group, "m", 0, None, None, 600_000, [foreign.topic], ""
    )
    for key, request in (
        (ApiKey.PRODUCE, produced),
        (ApiKey.OFFSET_COMMIT, OffsetCommitRequest(foreign.group, -1, topics=commits)),
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, joins),
        (ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(foreign.transaction, 60_000)),
    ):
        assert codes(await root.ask(key, request)) == {0}, key
    foreign.topic_id = await world.services.topic_ids.of(parse_topic(foreign.topic))


def state(world: SecuredWorld) -> Any:
    """All that is stored."""
    nodes = world.metadata.nodes
    kept = {path: node for path, node in nodes.items() if "/loadbalance" not in path}
    return kept, {name: len(log._entries) for name, log in world.store.logs.items()}


async def answers(
    peer: SecuredPeer, key: int, foreign: Foreign, version: int
) -> list[tuple[bool, Any]]:
    kind = APIS[key].request
    found = []
    ids = has_ids(kind) and version >= IDS_SINCE.get(ApiKey(key), 0)
    named = key != ApiKey.FETCH or not ids  # which has the id alone then
    for by_id in (False,) * named + (True,) * ids:
        found.append((by_id, await peer.ask(key, foreign.request(kind, by_id), version)))
    return found


def test_a_topic_that_is_not_the_clients_in_its_own_group(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        foreign = Foreign("other/space/", own_group=True)
        await made_other_space(world)
        await owned(world, foreign)
        await world.grant("carol", "produce", "consume")
        for key in OF_TOPICS_TOO:
            for version in range(APIS[key].least, APIS[key].most + 1):
                before, peer = state(world), await world.known("carol")
                for by_id, answer in await answers(peer, key, foreign, version):
                    where = (key, version, by_id, answer)
                    found = codes(answer) - {BY_ID if not by_id else None}
                    assert found <= REFUSALS | OF_OWN_GROUP.get(key, frozenset()), where
                    assert found or not by_id, where
                assert state(world) == before, key

    run_secured(tmp_path, scenario)


@pytest.mark.parametrize("space", ["", "other/space/"], ids=["no-grant", "another-namespace"])
@pytest.mark.parametrize("key", [ApiKey(each) for each in sorted(APIS)], ids=lambda key: key.name)
def test_a_request_about_what_is_not_the_clients(tmp_path: Path, key: ApiKey, space: str) -> None:
    async def scenario(world: SecuredWorld) -> None:
        await made_other_space(world)
        foreign = Foreign(space)
        await owned(world, foreign)
        if space:
            await world.grant("carol", "produce", "consume")
        before = state(world)
        for version in range(APIS[key].least, APIS[key].most + 1):
            peer = await world.known("carol")
            for by_id, answer in await answers(peer, key, foreign, version):
                found, where = codes(answer), (version, by_id, answer)
                if key in OF_NOBODY:
                    assert found == OF_NOBODY[key], where
                    assert SECRET not in repr(answer), where
                elif version < SILENT_BEFORE.get(key, 0):
                    assert (found, SECRET in repr(answer)) == ({0}, False), where
                elif by_id and key in (ApiKey.METADATA, ApiKey.DELETE_TOPICS):
                    assert found, where
                    assert found <= {*REFUSALS, BY_ID}, where
                    assert SECRET not in repr(answer), where
                else:
                    assert found, where
                    assert found <= REFUSALS, where
        await asyncio.sleep(1)
        assert state(world) == before

    run_secured(tmp_path, scenario)
