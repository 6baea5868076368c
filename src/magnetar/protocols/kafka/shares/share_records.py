"""What is kept of a share group: in memory and, in this form, in the coordinator's log.

A partition's state is written whole each time: what stands in flight is bounded, and usually a few
runs of offsets, so a later record makes every earlier one superfluous.

Pure.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

from magnetar.protocols.kafka.consumers.id_partitions import TopicIdPartition


class RecordState(IntEnum):
    """Of a record in flight; numbers as Kafka stores and sends them."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


class StoredRun(NamedTuple):
    """Offsets ``first`` to ``last`` that have fared alike. ``deliveries``:
    how often each was delivered."""

    first: int
    last: int
    state: RecordState
    deliveries: int


class ShareImage(NamedTuple):
    """What has become of a partition's records, for one group: all before ``start`` are done with,
    ``runs`` say it of those behind, without gaps, and whatever follows was never delivered."""

    start: int
    runs: tuple[StoredRun, ...] = ()


NOT_STARTED = ShareImage(-1)
"""Nobody has asked for a record yet."""


class ShareGroupKey(NamedTuple):
    group: str


class ShareStateKey(NamedTuple):
    group: str
    place: TopicIdPartition


class ShareGroupRecord(NamedTuple):
    """There is such a group. ``epoch``: at least that which it had."""

    epoch: int


class ShareStateRecord(NamedTuple):
    """``state_epoch``: of the state, which an admin that sets it anew raises; ``leader_epoch``: of
    the last leader that has read it. Who writes must name both."""

    state_epoch: int
    leader_epoch: int
    image: ShareImage


ShareGroupChange: TypeAlias = tuple[ShareGroupKey, ShareGroupRecord | None]
ShareStateChange: TypeAlias = tuple[ShareStateKey, ShareStateRecord | None]
ShareChange: TypeAlias = ShareGroupChange | ShareStateChange


class ShareRecords:
    """All share groups of one log, as they are stored."""

    def __init__(self) -> None:
        self.groups: dict[str, ShareGroupRecord] = {}
        self._states: dict[str, dict[TopicIdPartition, ShareStateRecord]] = {}

    def __len__(self) -> int:
        return len(self.groups) + sum(map(len, self._states.values()))

    def states(self, group: str) -> dict[TopicIdPartition, ShareStateRecord]:
        return self._states.get(group, {})

    def set_group(self, key: ShareGroupKey, record: ShareGroupRecord | None) -> None:
        if record is not None:
            self.groups[key.group] = record
        else:
            self.groups.pop(key.group, None)

    def set_state(self, key: ShareStateKey, record: ShareStateRecord | None) -> None:
        found = self._states.setdefault(key.group, {})
        if record is not None:
            found[key.place] = record
        else:
            found.pop(key.place, None)
        if not found:
            del self._states[key.group]

    def all(self) -> list[ShareChange]:
        found: list[ShareChange] = [
            (ShareGroupKey(name), record) for name, record in self.groups.items()
        ]
        for name, states in self._states.items():
            found += [(ShareStateKey(name, place), record) for place, record in states.items()]
        return found

    def forgotten(self, group: str) -> list[ShareChange]:
        """What makes nothing be known of the group."""
        return [*self.states_forgotten(group), (ShareGroupKey(group), None)]

    def states_forgotten(self, group: str) -> list[ShareChange]:
        """What takes its states away."""
        return [(ShareStateKey(group, each), None) for each in self.states(group)]


def state_to_json(record: ShareStateRecord) -> list[Any]:
    image = record.image
    return [*record[:2], image.start, [list(run) for run in image.runs]]


def state_from_json(said: Sequence[Any]) -> ShareStateRecord:
    """Raises ``ValueError``, ``TypeError``."""
    state_epoch, leader_epoch, start, runs, *_ = said
    found = tuple(
        StoredRun(int(first), int(last), RecordState(state), int(count))
        for first, last, state, count, *_ in runs
    )
    return ShareStateRecord(int(state_epoch), int(leader_epoch), ShareImage(int(start), found))


def place_to_json(place: TopicIdPartition) -> list[Any]:
    return [place.topic_id.hex, place.partition]


def place_from_json(said: Sequence[Any]) -> TopicIdPartition:
    """Raises ``ValueError``, ``TypeError``."""
    topic_id, index = said
    return TopicIdPartition(uuid.UUID(hex=topic_id), int(index))
