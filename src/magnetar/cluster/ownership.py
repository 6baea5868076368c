"""Which broker serves a topic: one question, asked wherever the answer matters.

Asked by lookups (binary and HTTP), before a topic's log is opened (opening takes it from whoever
has it), and by admin requests for one topic. Today a cluster name has one broker at a time
(docs/adr/0073-one-broker-per-cluster-name.md), so the answer is always "here".
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

from magnetar.cluster.topic_name import TopicName
from magnetar.model.errors import ServiceNotReadyError


class Here(NamedTuple):
    """This broker serves the topic."""


class At(NamedTuple):
    """Another broker does: where clients (``pulsar://``) and admins (``http://``) find it."""

    service_url: str
    http_url: str


Owner: TypeAlias = Here | At


class Ownership(Protocol):
    """Who owns which topic."""

    async def owner_of(self, name: TopicName) -> Owner:
        """Raises ``MetadataError`` when that cannot be found out now."""
        ...


class SoleBroker:
    """The ownership of a cluster with one broker."""

    async def owner_of(self, name: TopicName) -> Owner:
        return Here()


async def check_owned(ownership: Ownership, name: TopicName) -> None:
    """Raise ``ServiceNotReadyError``, on which clients look the topic up again, if another broker
    serves it."""
    owner = await ownership.owner_of(name)
    if isinstance(owner, At):
        raise ServiceNotReadyError(f"topic {name} is served by {owner.service_url}; look it up")
