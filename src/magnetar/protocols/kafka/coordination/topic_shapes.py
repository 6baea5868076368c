"""The topics that members of groups subscribe to: which are there, with which ids, and with how
many partitions. One whose node cannot be read is as it was told last, or not there: members go on
with the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Final

import structlog

from magnetar.model.errors import (
    DamagedTopicError,
    InvalidTopicNameError,
    MetadataFormatError,
    NotAllowedError,
    TopicNotFoundError,
)
from magnetar.protocols.kafka.consumers.id_partitions import TopicShape
from magnetar.protocols.kafka.known_places import FoundTopic
from magnetar.protocols.kafka.names import topic_of
from magnetar.protocols.kafka.services import KafkaServices

log = structlog.get_logger(__name__)

LOOKUPS_AT_ONCE: Final = 64


async def topic_shapes(services: KafkaServices, names: Iterable[str]) -> dict[str, TopicShape]:
    """Of those that are there. Raises ``MetadataError`` while the store does not answer."""
    found: dict[str, TopicShape] = {}
    in_order = sorted(names)
    for start in range(0, len(in_order), LOOKUPS_AT_ONCE):
        some = in_order[start : start + LOOKUPS_AT_ONCE]
        shapes = await asyncio.gather(*map(partial(_shape, services), some))
        found.update((n, s) for n, s in zip(some, shapes, strict=True) if s is not None)
    return found


async def _shape(services: KafkaServices, name: str) -> TopicShape | None:
    try:
        topic = topic_of(name)
        count = await services.count_of(topic)
        if not count and not await services.topics.exists(topic):
            return None
        found = FoundTopic(count, await services.topic_ids.of(topic))
    except (TopicNotFoundError, InvalidTopicNameError, NotAllowedError):
        return None
    except (DamagedTopicError, MetadataFormatError) as error:
        log.warning("a topic of a group cannot be read", topic=name, error=str(error))
        last = services.known.shape(topic)
        if last is None:
            return None
        found = last
    services.known.found(topic, found)
    return TopicShape(found.topic_id, max(1, found.partitions))
