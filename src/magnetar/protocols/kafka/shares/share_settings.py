"""What can be set for single share groups, by Kafka's names, beside what ``group_settings`` has of
all groups.

======================================  ===========================  ============================
name                                    values                       where nothing is set
======================================  ===========================  ============================
``share.auto.offset.reset``             ``latest``, ``earliest``     ``latest``
``share.isolation.level``               ``read_uncommitted``,        ``read_uncommitted``
                                        ``read_committed``
``share.record.lock.duration.ms``       1000 to 3600000              ``kafka.share_record_lock_ms``
``share.partition.max.record.locks``    100 to 10000                 ``.share_partition_locks_max``
``share.delivery.count.limit``          2 to 100                     ``.share_delivery_count_max``
======================================  ===========================  ============================
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from magnetar.config import KafkaConfig
from magnetar.protocols.kafka.shares.share_partition import ShareLimits

RESET: Final = "share.auto.offset.reset"
ISOLATION: Final = "share.isolation.level"
LOCK_MS: Final = "share.record.lock.duration.ms"
LOCKS_MAX: Final = "share.partition.max.record.locks"
COUNT_MAX: Final = "share.delivery.count.limit"
LATEST, EARLIEST = "latest", "earliest"
UNCOMMITTED, COMMITTED = "read_uncommitted", "read_committed"
WORDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {RESET: (LATEST, EARLIEST), ISOLATION: (UNCOMMITTED, COMMITTED)}
)
NUMBERS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {LOCK_MS: (1_000, 3_600_000), LOCKS_MAX: (100, 10_000), COUNT_MAX: (2, 100)}
)


class ShareSettings(NamedTuple):
    """``earliest``: a partition begins with the log's first record, else with the next one.
    ``committed``: what is aborted, or not decided, is not delivered."""

    limits: ShareLimits
    earliest: bool
    committed: bool


def texts(config: KafkaConfig, said: Mapping[str, str]) -> dict[str, str]:
    """What holds for a group for which ``said`` is set."""
    return {
        RESET: LATEST,
        ISOLATION: UNCOMMITTED,
        LOCK_MS: str(config.share_record_lock_ms),
        LOCKS_MAX: str(config.share_partition_locks_max),
        COUNT_MAX: str(config.share_delivery_count_max),
        **said,
    }


def settings_of(config: KafkaConfig, said: Mapping[str, str]) -> ShareSettings:
    found = texts(config, said)
    limits = ShareLimits(int(found[LOCK_MS]), int(found[LOCKS_MAX]), int(found[COUNT_MAX]))
    return ShareSettings(limits, found[RESET] == EARLIEST, found[ISOLATION] == COMMITTED)
