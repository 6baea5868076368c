"""Names of logs, as partitions have them: ``(topic, number)``. Pure.

``public/default/persistent/t-partition-3`` is partition 3 of ``t``, as Kafka's clients know it; a
topic without partitions is partition 0. Topics of other namespaces have their namespace in the
name. What Kafka allows in names of topics stays as it is, the rest is escaped, so that names are
names of directories.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from magnetar.model.errors import LogError

DEFAULT: Final = ("public", "default", "persistent")
_PARTITION: Final = re.compile(r"(.+)-partition-(0|[1-9][0-9]*)", re.DOTALL)
NAME_BYTES_MAX: Final = 240
"""A directory's name has 255 bytes, the number among them."""


def partition_of(log_name: str) -> tuple[str, int]:
    """Raises ``LogError`` for a name that no directory can have."""
    *namespace, topic = log_name.split("/", 3)
    number = 0
    if (match := _PARTITION.fullmatch(topic)) is not None:
        topic, number = match[1], int(match[2])
    if tuple(namespace) != DEFAULT:
        topic = "/".join((*namespace, topic))
    escaped = quote(topic, safe="")
    if len(escaped) > NAME_BYTES_MAX or number >= 1 << 31:
        raise LogError(f"the name of log {log_name} is too long for a partition's directory")
    return escaped, number


def other_name(log_name: str) -> str | None:
    """The other log that would be the same partition, if there is one such name: a topic without
    partitions, and a partition 0."""
    match = _PARTITION.fullmatch(log_name)
    if match is None:
        return f"{log_name}-partition-0"
    return match[1] if match[2] == "0" else None
