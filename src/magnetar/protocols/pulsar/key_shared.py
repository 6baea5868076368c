"""What a SUBSCRIBE asks for of a Key_Shared subscription."""

from __future__ import annotations

from magnetar.model.errors import ConsumerAssignError, NotAllowedError
from magnetar.topics.consuming.subscription import Kind
from magnetar.topics.dispatch.key_policy import (
    HASH_MAX,
    HashRange,
    KeyMode,
    KeyPolicy,
    sticky_ranges,
)
from magnetar.wire.pulsar.pulsar_pb2 import CommandSubscribe


def key_policy(request: CommandSubscribe, kind: Kind) -> KeyPolicy | None:
    """None if it is of another kind, and no reader of hash ranges (Java's readers have them).
    Raises ``ConsumerAssignError`` for ranges that nobody can have, and ``NotAllowedError`` for some
    that are asked for of another kind: what is left out there others may want."""
    meta = request.keySharedMeta
    if kind is not Kind.KEY_SHARED:
        if not meta.hashRanges:
            return None
        if kind is not Kind.EXCLUSIVE or request.durable:
            raise NotAllowedError(
                f"subscription {request.subscription} is to have hash ranges of keys and is "
                f"{kind.name.lower()}: ranges are for Key_Shared subscriptions and for readers; "
                "leave them out and filter by key"
            )
    mode = KeyMode(int(meta.keySharedMode)) if request.HasField("keySharedMeta") else KeyMode(0)
    if meta.hashRanges and mode is not KeyMode.STICKY:
        raise ConsumerAssignError(
            f"subscription {request.subscription} is to split keys by itself (AUTO_SPLIT), and the "
            "consumer names hash ranges: those are for sticky consumers"
        )
    if len(meta.hashRanges) > HASH_MAX + 1:  # before they are looked at
        raise ConsumerAssignError(
            f"a sticky consumer names {len(meta.hashRanges)} hash ranges; there are "
            f"{HASH_MAX + 1} hashes"
        )
    ranges = [HashRange(each.start, each.end) for each in meta.hashRanges]
    return KeyPolicy(
        mode,
        meta.allowOutOfOrderDelivery,
        sticky_ranges(ranges) if mode is KeyMode.STICKY else (),
    )
