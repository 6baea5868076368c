"""Deleting a partitioned topic: its partitions, by whoever owns them, and what is known of all.

A partition exists before it is first used: its log is made by whoever comes. So clients that go on
made those again that were deleted already, with what they sent, and it was there in the next topic
of that name. Rules:

* The topic says that it goes before its first partition is deleted. No log of it is made from then
  on (``Topics``), and it does not grow.
* A partition is deleted by its owner, which writes to the store for it: by then the owner knows
  what the topic says, since the store tells a session of a change before it answers what comes
  after it. A log that was on its way is waited for, and deleted.
* The topic's own node goes last: until then a deletion that fails half way can be asked for again.
  It goes by compare-and-set: what was made under the name meanwhile stays. So does what that one
  has: the slower of two deletions asks before each partition, and before what is said of the topic
  goes, whether it is the same topic still. Who deletes a partition is told of which topic it is, by
  its id, and may ask again when nothing can be made under the name any more: much may happen while
  another broker is asked (Kafka's do; REST's have the name alone).
* A partition that fails keeps none of the others: what can be deleted is, and the error names what
  is left. The topic says that it goes until all are gone.
* A refusal (somebody is connected, and nobody has forced it) ends it, and takes back what was said.
  A metadata store that does not answer ends it, too: each of the others would wait for it.

Why: docs/adr/0218-partitioned-topics-say-that-they-go.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import structlog

from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.partitioned_topics import ANY_VERSION
from magnetar.cluster.topic_name import TopicName
from magnetar.model.errors import (
    DamagedTopicError,
    MetadataUnavailableError,
    NotAllowedError,
    ServiceNotReadyError,
    SessionExpiredError,
    TopicNotFoundError,
)
from magnetar.topics.parts import each_of
from magnetar.topics.registry import Topics

log = structlog.get_logger(__name__)

STORE_AWAY: Final = (MetadataUnavailableError, SessionExpiredError)


class _Going(NamedTuple):
    """``topic_id`` None: it has none. ``version``: for ``PartitionedTopics.end_deletion``."""

    parts: Sequence[TopicName]
    topic_id: uuid.UUID | None
    version: int


async def parts_of(control: ControlPlane, topics: Topics, name: TopicName) -> Sequence[TopicName]:
    """The partitions that are to be deleted with it; if it cannot be read how many it has, those
    that were ever used. Raises ``TopicNotFoundError`` for a topic that has none."""
    try:
        count = await control.partitioned.partitions(name)
    except DamagedTopicError as error:
        return await _used(topics, name, error)
    if not count:
        raise TopicNotFoundError(f"{name} is not a partitioned topic")
    return [name.of_partition(index) for index in range(count)]


async def delete_partitioned(
    control: ControlPlane,
    topics: Topics,
    name: TopicName,
    delete_one: Callable[[TopicName, uuid.UUID | None], Awaitable[None]],
    topic_id: uuid.UUID | None = None,
) -> None:
    """``delete_one``: a partition, wherever it is, of the topic with that id (None: it has none);
    ``TopicNotFoundError`` of it is fine: it was never used. ``topic_id``: of the topic that is
    meant, if the name may be another's by now. Raises ``UnknownTopicIdError`` if it is,
    ``TopicNotFoundError`` for a topic that has no partitions, ``NotAllowedError`` of
    ``delete_one``, ``ServiceNotReadyError`` that names the partitions that are left and why, and
    ``MetadataError``."""
    parts, found_id, version = await _begun(control, topics, name, topic_id)

    async def confirm() -> None:
        await control.partitioned.check_deletion(name, version)

    async def delete(part: TopicName) -> None:
        with suppress(TopicNotFoundError):
            await confirm()
            await delete_one(part, found_id)

    ends = (NotAllowedError, *STORE_AWAY)
    try:
        await each_of(f"partitions of {name}", parts, "deleted", delete, _local, ends)
    except ServiceNotReadyError as error:
        raise ServiceNotReadyError(
            f"{error}. No partition of it is made again; delete it again"
        ) from error
    except NotAllowedError:
        if version != ANY_VERSION:
            # Another deletion has ended, or the name is another topic's, which may be deleted, too.
            with suppress(TopicNotFoundError, NotAllowedError):
                await confirm()
                await control.partitioned.undo_deletion(name)
        raise
    try:
        await confirm()
        await control.schemas.forget_topic(name)
        await control.policies.forget_topic(name, confirm)
    except TopicNotFoundError:
        return  # another deletion has ended, with all that was said of it
    await control.partitioned.end_deletion(name, version)


def _local(part: TopicName) -> str:
    return part.local


async def _begun(
    control: ControlPlane, topics: Topics, name: TopicName, topic_id: uuid.UUID | None
) -> _Going:
    try:
        topic, version = await control.partitioned.begin_deletion(name, topic_id)
    except DamagedTopicError as error:  # of such a topic nothing is made
        if topic_id is not None:
            raise  # whether it is the one that is meant cannot be said
        return _Going(await _used(topics, name, error), None, ANY_VERSION)
    parts = [name.of_partition(index) for index in range(topic.partitions)]
    return _Going(parts, topic.topic_id, version)


async def _used(topics: Topics, name: TopicName, error: DamagedTopicError) -> list[TopicName]:
    log.warning("a topic is deleted whose node cannot be read", error=str(error))
    used = await topics.names(name.namespace)
    return [each for each in used if each.partition >= 0 and each.partitioned == name]
