"""What members of a classic group read, as they say it to each other: in bytes that the coordinator
carries and does not go by, but where an admin asks to delete offsets.

Such bytes are, of consumers: version 2, count 4, names of topics (length 2, UTF-8), and more that
is not looked at.

Source: Kafka's ConsumerProtocolSubscription; what it says of all versions so far. Pure.
"""

from __future__ import annotations

from typing import Final

from magnetar.model.errors import ProtocolError
from magnetar.protocols.kafka.coordination.group import ClassicGroup
from magnetar.wire.kafka.primitives import FieldReader

NAME_BYTES_LEAST: Final = 2


def subscribed_topics(group: ClassicGroup) -> frozenset[str] | None:
    """Of all that its members offer; None: one of them does not say it in Kafka's way."""
    found: set[str] = set()
    try:
        for member in group.members.values():
            for _, metadata in member.said.protocols:
                found.update(_topics(metadata))
    except ProtocolError:
        return None
    return frozenset(found)


def _topics(metadata: bytes) -> list[str]:
    """Raises ``ProtocolError``."""
    reader = FieldReader(memoryview(metadata))
    reader.int16()
    count = reader.count(flexible=False, least_bytes=NAME_BYTES_LEAST)
    return [reader.text(flexible=False) or "" for _ in range(count)]
