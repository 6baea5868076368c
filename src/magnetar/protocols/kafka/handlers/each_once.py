"""What a request names more than once is answered once, with all that was asked for of it.

Clients keep answers by names, and an answer may be many times as large as what asks for it: a
group's name has some bytes, its members and offsets may have megabytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from magnetar.wire.kafka.admin_messages import DescribeConfigsResource
from magnetar.wire.kafka.offset_messages import OffsetsGroup
from magnetar.wire.kafka.share_group_messages import AskedShareGroup
from magnetar.wire.kafka.topic_shapes import TopicPartitions

G = TypeVar("G", OffsetsGroup, AskedShareGroup)


def topics_once(topics: Iterable[TopicPartitions]) -> list[TopicPartitions]:
    wanted: dict[str, dict[int, None]] = {}
    for topic in topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions))
    return [TopicPartitions(name, [*indexes]) for name, indexes in wanted.items()]


def groups_once(groups: Iterable[G]) -> list[G]:
    """The member that asks is the one that is named last."""
    found: dict[str, G] = {}
    for group in groups:
        known = found.get(group.group_id)
        found[group.group_id] = group
        if known is None:
            continue
        if known.topics is None or group.topics is None:  # all of them
            group.topics = None
        else:
            known.topics += group.topics
            group.topics = known.topics
    return list(found.values())


def resources_once(resources: Iterable[DescribeConfigsResource]) -> list[DescribeConfigsResource]:
    """Without names of settings, or with an empty list of them, all are asked for."""
    found: dict[tuple[int, str], DescribeConfigsResource] = {}
    for resource in resources:
        known = found.setdefault((resource.kind, resource.name), resource)
        if known is not resource and known.keys:
            if resource.keys:
                known.keys += resource.keys
            else:
                known.keys = None
    return [*found.values()]
