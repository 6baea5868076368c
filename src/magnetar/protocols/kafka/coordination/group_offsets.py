"""Committed offsets of groups, and those that a transaction is to commit.

Pure. What is stored of them: ``coordinator_state``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

UNKNOWN_ID: Final = ""


class OffsetKey(NamedTuple):
    group: str
    topic: str
    partition: int


class Committed(NamedTuple):
    """``topic_id``: in hexadecimal digits; by an older release, or while metadata could not be
    read, unknown."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    topic_id: str = UNKNOWN_ID

    def is_of(self, topic_id: str) -> bool:
        """Whether it was committed of that topic, as far as is known."""
        return UNKNOWN_ID in (self.topic_id, topic_id) or self.topic_id == topic_id


class PendingKey(NamedTuple):
    """An offset that a producer has sent for its open transaction."""

    producer_id: int
    group: str
    topic: str
    partition: int

    @property
    def offset_key(self) -> OffsetKey:
        return OffsetKey(self.group, self.topic, self.partition)


OffsetChange = tuple[OffsetKey, Committed | None]
PendingChange = tuple[PendingKey, Committed | None]


class GroupOffsets:
    """All that is committed in one log."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[tuple[str, int], Committed]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    @property
    def groups(self) -> list[str]:
        return list(self._groups)

    def of(self, group: str) -> Mapping[tuple[str, int], Committed]:
        """By topic and partition."""
        return self._groups.get(group, {})

    def apply(self, changes: Sequence[OffsetChange]) -> None:
        for key, committed in changes:
            found = self._groups.setdefault(key.group, {})
            if committed is not None:
                found[key.topic, key.partition] = committed
            else:
                found.pop((key.topic, key.partition), None)
            if not found:
                del self._groups[key.group]

    def all(self) -> list[OffsetChange]:
        return [
            (OffsetKey(group, *place), committed)
            for group, found in self._groups.items()
            for place, committed in found.items()
        ]

    def forgotten(self, group: str) -> list[OffsetChange]:
        """What takes all of a group away."""
        return [(OffsetKey(group, *place), None) for place in self.of(group)]

    def last_commit_ms(self, group: str) -> int:
        return max((each.committed_ms for each in self.of(group).values()), default=0)


class PendingOffsets:
    """Offsets of transactions that have no outcome yet, in one log."""

    def __init__(self) -> None:
        self._producers: dict[int, dict[PendingKey, Committed]] = {}
        self._count: dict[OffsetKey, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._producers.values()))

    def apply(self, changes: Sequence[PendingChange]) -> None:
        for key, committed in changes:
            found = self._producers.setdefault(key.producer_id, {})
            where = key.offset_key
            if committed is not None:
                if key not in found:
                    self._count[where] = self._count.get(where, 0) + 1
                found[key] = committed
            elif found.pop(key, None) is not None:
                self._count[where] -= 1
                if not self._count[where]:
                    del self._count[where]
            if not found:
                del self._producers[key.producer_id]

    def of(self, producer_id: int) -> Mapping[PendingKey, Committed]:
        return self._producers.get(producer_id, {})

    def waits(self, key: OffsetKey) -> bool:
        """A transaction without an outcome is to commit an offset there."""
        return key in self._count

    def all(self) -> list[PendingChange]:
        return [change for found in self._producers.values() for change in found.items()]

    def ended(
        self, producer_id: int, commits: bool, now_ms: int
    ) -> list[OffsetChange | PendingChange]:
        """What is to be stored when the producer's transaction has its outcome: each offset is set
        before it is no longer pending, since a crash may keep the first and lose the second."""
        changes: list[OffsetChange | PendingChange] = []
        for key, committed in self.of(producer_id).items():
            if commits:
                changes.append((key.offset_key, committed._replace(committed_ms=now_ms)))
            changes.append((key, None))
        return changes
