"""Names of topics and of their partitions, as users write them and as brokers do. Pure.

What ends a partition's name is what brokers take for it (``cluster.topic_name``):
``t-partition-007`` is a topic of its own.
"""

from __future__ import annotations

import re

PARTITION = "-partition-"
PARTITION_END = f"(?<=[^/]){PARTITION}(0|[1-9][0-9]{{0,5}})$"
"""A regular expression, of Python and of Java."""
_END = re.compile(PARTITION_END)


def full_topic(name: str) -> str:
    """``persistent://public/default/NAME`` for a short name."""
    if "://" in name:
        return name
    return f"persistent://{name}" if name.count("/") == 2 else f"persistent://public/default/{name}"


def partition_of(topic: str, number: int) -> str:
    """The name of a topic's partition."""
    return f"{topic}{PARTITION}{number}"


def partition_number(topic: str) -> int:
    """The number at the end of ``NAME-partition-N``; -1 for a topic without partitions."""
    found = _END.search(topic)
    return int(found[1]) if found else -1


def topic_of(partition: str) -> str:
    """The topic that a partition is of; the topic itself when it has none."""
    return partition if partition_number(partition) < 0 else partition.rpartition(PARTITION)[0]


def namespace_of(topic: str) -> str:
    """``tenant/namespace`` of a full name, or of a pattern of full names."""
    return "/".join(topic.partition("://")[2].split("/")[:2])
