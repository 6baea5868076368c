"""Names of topics and of their partitions, as users write them and as brokers do. Pure."""

from __future__ import annotations

PARTITION = "-partition-"


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
    _, mark, number = topic.rpartition(PARTITION)
    return int(number) if mark and number.isdigit() else -1


def topic_of(partition: str) -> str:
    """The topic that a partition is of; the topic itself when it has none."""
    return partition if partition_number(partition) < 0 else partition.rpartition(PARTITION)[0]


def namespace_of(topic: str) -> str:
    """``tenant/namespace`` of a full name, or of a pattern of full names."""
    return "/".join(topic.partition("://")[2].split("/")[:2])
