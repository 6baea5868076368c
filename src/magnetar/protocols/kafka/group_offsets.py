"""Committed offsets of groups, and the records that keep them in a log.

A record's key says of which group, topic and partition, its value what was committed; without a
value the offset is forgotten. Records are set, not added to: of two with one key the later counts.
So a replay may begin anywhere before the newest record of every key, and writing all that is known
once more (a snapshot) makes everything before it superfluous.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from magnetar.model.errors import ProtocolError
from magnetar.wire.kafka.records import KafkaRecord, batch_of, read_batch

RECORDS_PER_BATCH: Final = 500


class OffsetKey(NamedTuple):
    group: str
    topic: str
    partition: int


class Committed(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int


Change = tuple[OffsetKey, Committed | None]


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

    def apply(self, changes: Sequence[Change]) -> None:
        for key, committed in changes:
            found = self._groups.setdefault(key.group, {})
            if committed is not None:
                found[key.topic, key.partition] = committed
            else:
                found.pop((key.topic, key.partition), None)
            if not found:
                del self._groups[key.group]

    def all(self) -> list[Change]:
        return [
            (OffsetKey(group, *place), committed)
            for group, found in self._groups.items()
            for place, committed in found.items()
        ]

    def forgotten(self, group: str) -> list[Change]:
        """What takes all of a group away."""
        return [(OffsetKey(group, *place), None) for place in self.of(group)]

    def last_commit_ms(self, group: str) -> int:
        return max((each.committed_ms for each in self.of(group).values()), default=0)


def encode_changes(changes: Sequence[Change], now_ms: int) -> Iterator[bytes]:
    """Record batches, in order."""
    for start in range(0, len(changes), RECORDS_PER_BATCH):
        some = changes[start : start + RECORDS_PER_BATCH]
        records = [
            KafkaRecord(index, 0, _json(list(key)), None if value is None else _json(list(value)))
            for index, (key, value) in enumerate(some)
        ]
        yield batch_of(records, now_ms)


def _json(value: list[Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def decode_changes(batch: memoryview) -> list[Change]:
    """Raises ``ProtocolError``."""
    found: list[Change] = []
    for record in read_batch(batch)[1]:
        try:
            group, topic, partition = json.loads(record.key or b"")
            key = OffsetKey(str(group), str(topic), int(partition))
            committed = None if record.value is None else Committed(*json.loads(record.value))
        except (ValueError, TypeError) as error:
            raise ProtocolError(f"a record of offsets that is none: {error}") from error
        found.append((key, committed))
    return found
