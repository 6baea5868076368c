"""Partitions by the ids of their topics, as the members of a group are told them.

Pure.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias


class TopicIdPartition(NamedTuple):
    """A partition. A topic that is made anew under its name has another id."""

    topic_id: uuid.UUID
    partition: int


class TopicShape(NamedTuple):
    topic_id: uuid.UUID
    partitions: int


IdPartitions: TypeAlias = frozenset[TopicIdPartition]
NOWHERE: IdPartitions = frozenset()


def by_topic(places: Iterable[TopicIdPartition]) -> dict[uuid.UUID, list[int]]:
    """In order, both topics and partitions."""
    found: dict[uuid.UUID, list[int]] = {}
    for place in sorted(places):
        found.setdefault(place.topic_id, []).append(place.partition)
    return found


def partitions_to_json(places: IdPartitions) -> dict[str, list[int]]:
    return {topic_id.hex: indexes for topic_id, indexes in by_topic(places).items()}


def partitions_from_json(said: Mapping[str, Iterable[int]]) -> IdPartitions:
    """Raises ``ValueError``."""
    return frozenset(
        TopicIdPartition(uuid.UUID(hex=topic), int(index))
        for topic, found in said.items()
        for index in found
    )
