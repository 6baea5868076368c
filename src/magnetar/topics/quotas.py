"""Backlog quotas of a topic: which is exceeded, and up to where subscriptions go on without what is
too much. Pure.

| kind | exceeded when | eviction leaves |
|---|---|---|
| bytes | the slowest durable subscription is that many bytes behind | nine tenths of them |
| age | the oldest message that one has not acknowledged is so old | nine tenths of the time |

Less than the limit is left, so that the next message is not past it again (as in Pulsar). What
readers have not read is no backlog: they are on no list of those who hold data back.

Bytes are those of stored entries after the mark-delete position: within a ledger by its entries'
mean size, so that nothing is read to count them (``backlog_bytes``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from magnetar.cluster.policies.backlog_quotas import BacklogQuotas, QuotaAction
from magnetar.log.seam import LogStats
from magnetar.model.errors import BacklogHoldsError, BacklogQuotaError
from magnetar.model.ids import Position

LEFT_TENTHS: Final = 9


class Behind(NamedTuple):
    """A durable subscription that has not acknowledged all: up to where it has, and how many
    entries it has not."""

    name: str
    mark_delete: Position
    entries: int


class Exceeded(NamedTuple):
    """A quota that is exceeded. ``found`` and ``limit`` are in ``unit``; ``who``: the slowest
    subscription."""

    action: QuotaAction
    unit: str
    limit: int
    found: int
    who: str

    @property
    def refuses(self) -> bool:
        """Producers are refused."""
        return self.action is not QuotaAction.EVICTION

    def __str__(self) -> str:
        behind = f"subscription {self.who}" if self.who else "nobody"
        return (
            f"{behind} is {self.found} {self.unit} behind, and the backlog quota is {self.limit} "
            f"{self.unit}"
        )


class Oldest(NamedTuple):
    """A message that is not acknowledged: the first of that subscription, and its age."""

    who: str
    age_ms: int


def by_bytes(quotas: BacklogQuotas, stored: LogStats, behind: Iterable[Behind]) -> Exceeded | None:
    """``behind``: all that are."""
    limit, quota = quotas.limit_bytes, quotas.storage
    if quota is None or limit < 0:
        return None
    found, who = backlog_of(stored, behind)
    return Exceeded(quota.action, "bytes", limit, found, who) if found >= limit else None


def by_age(quotas: BacklogQuotas, oldest: Oldest | None) -> Exceeded | None:
    limit_s, quota = quotas.limit_s, quotas.age
    if quota is None or limit_s <= 0 or oldest is None or oldest.age_ms < limit_s * 1000:
        return None
    return Exceeded(quota.action, "s", limit_s, oldest.age_ms // 1000, oldest.who)


def backlog_bytes(stored: LogStats, after: Position, backlog_entries: int) -> int:
    """Bytes of what lies after ``after``, in a log of which that many entries do. The ledger in
    which ``after`` lies counts by its share of entries: an estimate; as a whole where entries are
    not numbered without gaps."""
    if not backlog_entries:
        return 0
    if not stored.on_ledgers:
        return stored.stored_bytes * backlog_entries // max(stored.entries, 1)
    total = 0
    for each in stored.ledgers:
        if each.ledger_id > after.ledger_id:
            total += each.stored_bytes
        elif each.ledger_id == after.ledger_id and each.entries:
            total += each.stored_bytes * max(0, each.entries - after.entry_id - 1) // each.entries
    return total


def backlog_of(stored: LogStats, behind: Iterable[Behind]) -> tuple[int, str]:
    """The bytes that the slowest is behind, and its name; (0, "") if none is."""
    found = ((backlog_bytes(stored, each.mark_delete, each.entries), each.name) for each in behind)
    return max(found, default=(0, ""))


def slowest(behind: Iterable[Behind]) -> Behind | None:
    """The one that holds the oldest entry back."""
    return min(behind, key=lambda each: each.mark_delete, default=None)


def bytes_left(limit: int) -> int:
    """By an eviction."""
    return limit * LEFT_TENTHS // 10


def age_ms_left(limit_s: int) -> int:
    return limit_s * 1000 * LEFT_TENTHS // 10


def mark_within(stored: LogStats, byte_count: int) -> Position:
    """The first place behind which lie ``byte_count`` bytes at most, as ``backlog_bytes`` counts
    them: where a subscription that is further behind is moved to."""
    left = byte_count
    for each in reversed(stored.ledgers):
        if each.stored_bytes > left:
            kept = left * each.entries // each.stored_bytes
            return Position(each.ledger_id, each.entries - kept - 1)
        left -= each.stored_bytes
    first = stored.ledgers[0].ledger_id if stored.ledgers else 0
    return Position(first, -1)


def refusal(topic: object, exceeded: Exceeded) -> BacklogQuotaError:
    """What a producer of the topic is told."""
    holds = exceeded.action is QuotaAction.HOLD
    kind = BacklogHoldsError if holds else BacklogQuotaError
    return kind(f"topic {topic} takes no messages for now: {exceeded}")
