"""How consumers of a Key_Shared subscription divide the hashes of keys among them: what they ask
for, and what of it cannot be. Pure.

Hashes are 0 to ``HASH_MAX``. Errors say what Pulsar's broker says first: applications look for its
words.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from enum import IntEnum
from itertools import pairwise
from typing import Final, NamedTuple

from magnetar.model.errors import ConsumerAssignError, ConsumerBusyError

HASH_MAX: Final = 65_535


class KeyMode(IntEnum):
    """Values are those of Pulsar's ``KeySharedMode``."""

    AUTO_SPLIT = 0
    STICKY = 1


class HashRange(NamedTuple):
    """Both ends are in it."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"[{self.start}, {self.end}]"


class KeyPolicy(NamedTuple):
    """``ranges``: those of a sticky consumer, in order; else empty. ``out_of_order``: what a
    consumer has not acknowledged of a key does not keep the key with it."""

    mode: KeyMode = KeyMode.AUTO_SPLIT
    out_of_order: bool = False
    ranges: Sequence[HashRange] = ()

    def takes(self, hashed: int) -> bool:
        """Whether a key of that whole hash (``model.key_hash``) is in the ranges."""
        own = sticky_hash(hashed)
        index = bisect_right(self.ranges, own, key=_start) - 1
        return index >= 0 and own <= self.ranges[index].end


def _start(each: HashRange) -> int:
    return each.start


def sticky_hash(hashed: int) -> int:
    """A key's whole hash as one of those that ranges are of: never 0, which Pulsar's brokers use
    for "no hash"."""
    return hashed % (HASH_MAX + 1) or 1


def sticky_ranges(asked: Sequence[HashRange]) -> Sequence[HashRange]:
    """``asked`` in order. Raises ``ConsumerAssignError`` if a consumer cannot have them, whoever
    else is there."""
    if not asked:
        raise ConsumerAssignError(
            "Ranges for KeyShared policy must not be empty: a sticky consumer of a Key_Shared "
            f"subscription names the hashes that it takes, between 0 and {HASH_MAX}"
        )
    ranges = sorted(asked)
    for each in ranges:
        if each.start > each.end:
            raise ConsumerAssignError(f"Fixed hash range start > end for range: {each}")
        if each.start < 0 or each.end > HASH_MAX:
            raise ConsumerAssignError(
                f"hash range {each} is not within [0, {HASH_MAX}], where the hashes of keys are"
            )
    for one, following in pairwise(ranges):
        if following.start <= one.end:
            raise ConsumerAssignError(
                f"Consumer's own ranges conflict: {one} overlaps with {following}"
            )
    return ranges


def check_same(subscription: str, there: KeyPolicy, asked: KeyPolicy) -> None:
    """Raise ``ConsumerBusyError`` if consumers of both policies cannot be on one subscription."""
    if there.mode is not asked.mode:
        raise ConsumerBusyError(
            f"{subscription}: Subscription is of different type. Active subscription key_shared "
            f"mode of '{there.mode.name}' is different than the connecting consumer's key_shared "
            f"mode '{asked.mode.name}'"
        )
    if there.out_of_order != asked.out_of_order:
        allows = "allows" if there.out_of_order else "does not allow"
        other = "does not allow" if there.out_of_order else "allows"
        raise ConsumerBusyError(
            f"{subscription}: Subscription is of different type. Active subscription {allows} out "
            f"of order delivery while the connecting consumer {other} it"
        )
