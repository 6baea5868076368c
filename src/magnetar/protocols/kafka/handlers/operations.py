"""What a client may do with a topic, a group or the cluster, as Kafka's admins ask for it
("authorized operations"): a number with one bit for each of Kafka's operations.

Where nobody must show who he is, that is all there is for the kind. Else it is what the rules of
``authorizing`` and ``authorizing_groups`` would let pass.

Source: Kafka's KIP-430; the numbers of its operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from magnetar.cluster.security.permissions import Action
from magnetar.protocols.kafka.session import KafkaSession

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = (1 << bit for bit in range(3, 9))
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = (
    1 << bit for bit in range(9, 13)
)
_OF_TOPIC: Final[Mapping[Action, int]] = MappingProxyType(
    {
        Action.LOOKUP: _DESCRIBE | _DESCRIBE_CONFIGS,
        Action.PRODUCE: _WRITE,
        Action.CONSUME: _READ,
        Action.ADMIN: _CREATE | _DELETE | _ALTER | _ALTER_CONFIGS,
    }
)
_OF_ANYBODY: Final = _DESCRIBE | _IDEMPOTENT_WRITE
_OF_SUPER_USERS: Final = _CREATE | _ALTER | _CLUSTER_ACTION | _DESCRIBE_CONFIGS | _ALTER_CONFIGS
ON_GROUP: Final = _READ | _DESCRIBE | _DELETE | _DESCRIBE_CONFIGS | _ALTER_CONFIGS
"""All of them are one permission, without which a group is not described."""


async def on_topic(session: KafkaSession, name: str) -> int:
    """``name``: as Kafka's clients say it. Raises ``MetadataError``."""
    anybody = session.services.access is None
    found = 0
    for action, operations in _OF_TOPIC.items():
        if anybody or await session.grants.topic(action, name):
            found |= operations
    return found


def on_cluster(session: KafkaSession) -> int:
    if session.services.access is None or session.grants.cluster:
        return _OF_ANYBODY | _OF_SUPER_USERS
    return _OF_ANYBODY
