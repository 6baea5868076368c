"""A topic's configuration by Kafka's names: what can be set, what holds here, and why the rest
cannot be set. Pure.

=====================  ========================================================================
``retention.ms``       the topic's retention by time, in whole minutes (rounded up); -1: no limit
``retention.bytes``    the topic's retention by size, in whole MiB (rounded up); -1: no limit
``compression.type``   how batches of Kafka's producers are kept; ``producer``: as they come
``max.message.bytes``  of such a batch, at most as it is kept; up to ``broker.message_bytes_max``
``segment.bytes``      at which the log begins a segment, or (on ledgers, soon after) a ledger
``segment.ms``         the age at which it does
=====================  ========================================================================

``message.timestamp.type``: ``CreateTime`` or ``LogAppendTime``: whose clock records of Kafka's
producers have; ``.before.max.ms``, ``.after.max.ms``: how far a producer's may be from the
broker's.

``cleanup.policy``: ``delete``, ``compact`` or both; ``delete.retention.ms``,
``min.cleanable.dirty.ratio``, ``min.compaction.lag.ms``, ``max.compaction.lag.ms``: as with Kafka.
Of topics on partitions (``COMPACTING``): a log on ledgers is not compacted in place.

Others have one value each (``FIXED``), which may be said, and no other. Nothing that is said is
taken and left without effect: it is refused, and why (``InvalidPolicyError``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from magnetar.cluster.policies.policies import CLEANUPS, COMPRESSION_TYPES
from magnetar.model.errors import InvalidPolicyError

RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
COMPRESSION: Final = "compression.type"
BATCH_BYTES: Final = "max.message.bytes"
SEGMENT_BYTES: Final = "segment.bytes"
SEGMENT_MS: Final = "segment.ms"
TIMESTAMPS: Final = "message.timestamp.type"
BEFORE_MS: Final = "message.timestamp.before.max.ms"
AFTER_MS: Final = "message.timestamp.after.max.ms"
CREATE_TIME, APPEND_TIME = "CreateTime", "LogAppendTime"
CLEANUP: Final = "cleanup.policy"
TOMBSTONES_MS: Final = "delete.retention.ms"
DIRTY_RATIO: Final = "min.cleanable.dirty.ratio"
LAG_MS: Final = "min.compaction.lag.ms"
LAG_MS_MAX: Final = "max.compaction.lag.ms"
COMPACTING: Final = (CLEANUP, TOMBSTONES_MS, DIRTY_RATIO, LAG_MS, LAG_MS_MAX)
SETTABLE: Final = (
    RETENTION_MS,
    RETENTION_BYTES,
    COMPRESSION,
    BATCH_BYTES,
    SEGMENT_BYTES,
    SEGMENT_MS,
    TIMESTAMPS,
    BEFORE_MS,
    AFTER_MS,
    *COMPACTING,
)
MIN_IN_SYNC: Final = "min.insync.replicas"
UNCLEAN: Final = "unclean.leader.election.enable"
ENGINE: Final = "magnetar.engine"
AS_PRODUCED: Final = "producer"
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7
NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
SHARE: Final = re.compile(r"[01](\.[0-9]{0,17})?|\.[0-9]{1,17}")
LIMIT_MAX: Final = 2**63 - 1
"""Kafka's numbers have 64 bits."""
BOUNDS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        RETENTION_MS: (-1, LIMIT_MAX),
        RETENTION_BYTES: (-1, LIMIT_MAX),
        SEGMENT_BYTES: (1 << 20, 2**31 - 1),
        SEGMENT_MS: (1, LIMIT_MAX),
        BEFORE_MS: (0, LIMIT_MAX),
        AFTER_MS: (0, LIMIT_MAX),
        TOMBSTONES_MS: (0, LIMIT_MAX),
        LAG_MS: (0, LIMIT_MAX),
        LAG_MS_MAX: (1, LIMIT_MAX),
    }
)
"""Least and most, as Kafka 4.1 has them."""

FIXED: Final[Mapping[str, str]] = MappingProxyType(
    {
        MIN_IN_SYNC: "1",
        "preallocate": "false",
        "remote.storage.enable": "false",
        UNCLEAN: "false",
    }
)
KINDS: Final[Mapping[str, int]] = MappingProxyType(
    {
        RETENTION_MS: LONG,
        RETENTION_BYTES: LONG,
        BATCH_BYTES: INT,
        CLEANUP: LIST,
        TOMBSTONES_MS: LONG,
        DIRTY_RATIO: DOUBLE,
        LAG_MS: LONG,
        LAG_MS_MAX: LONG,
        AFTER_MS: LONG,
        BEFORE_MS: LONG,
        MIN_IN_SYNC: INT,
        "preallocate": BOOLEAN,
        "remote.storage.enable": BOOLEAN,
        SEGMENT_BYTES: INT,
        SEGMENT_MS: LONG,
        UNCLEAN: BOOLEAN,
    }
)
"""Kafka's types; others are strings."""

_ON_LEDGERS: Final = (
    "a topic on ledgers is not compacted in place. Create it on partitions (with the configuration "
    "magnetar.engine=partition, or with this one and no engine, where all brokers keep partitions: "
    "partition.directory); or have a compacted view beside the log: PUT .../compaction"
)
_OF_FILES: Final = (
    "it is about the files of a broker of Kafka's; how logs are kept here is said for all of them, "
    "by ledger.* and partition.*"
)
_OF_SYNCS: Final = (
    "what is acknowledged was synced before, or, on partitions, as partition.sync says for all of "
    "a broker: what a crash may take is a matter of the whole directory"
)
_OF_MAKING: Final = "it counts when a topic is made, on partitions"
WHY_NOT: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "file.delete.delay.ms",
                "index.interval.bytes",
                "preallocate",
                "segment.index.bytes",
                "segment.jitter.ms",
            ),
            _OF_FILES,
        ),
        **dict.fromkeys((MIN_IN_SYNC, UNCLEAN), _OF_MAKING),
        **dict.fromkeys(("flush.messages", "flush.ms"), _OF_SYNCS),
        **dict.fromkeys(
            ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas"),
            "replication is not throttled by replica",
        ),
        **dict.fromkeys(
            ("compression.gzip.level", "compression.lz4.level", "compression.zstd.level"),
            "each codec has its own level",
        ),
        ENGINE: "it counts when a topic is made",
    }
)

TopicChanges: TypeAlias = "dict[str, int | float | str | None]"
"""A name of ``SETTABLE`` -> what is to hold; None: what holds where nothing is said."""


def changes_of(configs: Mapping[str, str | None], message_bytes_max: int) -> TopicChanges:
    """What is to hold of what is said; None: it is said no longer. ``message_bytes_max``: a
    broker's. Raises ``InvalidPolicyError``."""
    found: TopicChanges = {}
    for name, value in configs.items():
        if name in SETTABLE:
            found[name] = None if value is None else _value(name, value, message_bytes_max)
        elif name not in FIXED or value not in (FIXED[name], None):
            raise InvalidPolicyError(
                f"{name} cannot be set here: {_why_not(name)}; what can be: {', '.join(SETTABLE)}"
            )
    return found


def _why_not(name: str) -> str:
    why = WHY_NOT.get(name, "it is no setting of topics that is served")
    return f"{why}, and is {FIXED[name]}" if name in FIXED else why


def _value(name: str, value: str, message_bytes_max: int) -> int | float | str | None:
    value = value.strip()  # as Kafka does: it may come out of a file
    if name == COMPRESSION:
        return _compression(value)
    if name == TIMESTAMPS:
        return _append_time(value)
    if name == CLEANUP:
        return _cleanup(value)
    if name == DIRTY_RATIO:
        return _share(value)
    least, most = BOUNDS.get(name, (1, message_bytes_max))
    number = int(value) if NUMBER.fullmatch(value) else None
    if number is None or not least <= number <= most:
        meaning = " (broker.message_bytes_max)" if name == BATCH_BYTES else ""
        first = "-1 (no limit)" if least < 0 else str(least)
        raise InvalidPolicyError(
            f"{name} = {value[:80]!r}: a whole number from {first} to {most}{meaning} is expected"
        )
    # What is no bound of times is as nothing that is said: batches need not be looked at.
    return None if number == LIMIT_MAX and name in (BEFORE_MS, AFTER_MS) else number


def _append_time(value: str) -> bool | None:
    if value not in (CREATE_TIME, APPEND_TIME):
        raise InvalidPolicyError(
            f"{TIMESTAMPS} = {value[:80]!r}: {CREATE_TIME} or {APPEND_TIME} is expected"
        )
    return True if value == APPEND_TIME else None


def _cleanup(value: str) -> str:
    words = list(dict.fromkeys(each.strip() for each in value.split(",")))
    if not set(words) <= set(CLEANUPS):
        raise InvalidPolicyError(
            f"{CLEANUP} = {value[:80]!r}: {', '.join(CLEANUPS)} or both, with a comma between, is "
            "expected"
        )
    return ",".join(words)


def _share(value: str) -> float:
    number = float(value) if SHARE.fullmatch(value) else 2.0
    if number > 1:
        raise InvalidPolicyError(
            f"{DIRTY_RATIO} = {value[:80]!r}: a number from 0 to 1 is expected"
        )
    return number


def compacts(cleanup: str | None) -> bool:
    """Whether that value of ``cleanup.policy`` asks for compaction."""
    return "compact" in [each.strip() for each in (cleanup or "").split(",")]


def check_compacting(changes: TopicChanges, on_ledgers: bool) -> None:
    """What is said of compaction has an effect. Raises ``InvalidPolicyError``."""
    said = {name: changes[name] for name in COMPACTING if changes.get(name) is not None}
    if on_ledgers and said.pop(CLEANUP, "delete") != "delete":
        raise InvalidPolicyError(f"{CLEANUP} = {changes[CLEANUP]}: {_ON_LEDGERS}")
    if on_ledgers and said:
        raise InvalidPolicyError(f"{', '.join(said)}: {_ON_LEDGERS}")


def check_lags(changes: TopicChanges, lag_ms: int, lag_ms_max: int) -> None:
    """A record is compacted no sooner than one lag, and no later than the other. ``lag_ms``,
    ``lag_ms_max``: what the topic says now; negative: nothing. Raises ``InvalidPolicyError``."""
    least, most = changes.get(LAG_MS, lag_ms), changes.get(LAG_MS_MAX, lag_ms_max)
    if isinstance(least, int) and isinstance(most, int) and 0 <= most < least:
        raise InvalidPolicyError(
            f"{LAG_MS} is {least} then, and {LAG_MS_MAX} {most}, which is less"
        )


def _compression(value: str) -> str | None:
    if value == AS_PRODUCED:
        return None
    if value not in COMPRESSION_TYPES:
        raise InvalidPolicyError(
            f"{COMPRESSION} = {value[:80]!r}: one of {AS_PRODUCED}, {', '.join(COMPRESSION_TYPES)} "
            "is expected"
        )
    return value


def listed(name: str, operation: int, value: str | None, have: str) -> str:
    """What APPEND and SUBTRACT make of a list that is ``have``. Raises ``InvalidPolicyError``."""
    if operation not in (APPEND, SUBTRACT) or KINDS.get(name) != LIST:
        raise InvalidPolicyError(f"{name}: no list; it can be set or deleted")
    now = have.split(",")
    said = [each.strip() for each in (value or "").split(",")]
    if operation == APPEND:
        return ",".join(dict.fromkeys([*now, *said]))
    return ",".join(each for each in now if each not in said)
