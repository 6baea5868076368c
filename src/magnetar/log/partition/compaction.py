"""What compaction keeps of a partition's batches: of each key the last record, and what is needed
to know that.

Pure; ``compacting`` reads and replaces the segments.

Rules:

* Of the records of a key the last one stays, where it is: offsets never change, and a batch keeps
  its first and last offset also when records of it go.
* Only what came since the log was compacted last is looked through for keys (``KeyOffsets``): of
  what is before each key is there once, so that an earlier record goes when a later one is found.
  How many keys are in memory is bounded; what is past the last batch that was looked through stays.
* The last record of a key that has no value (a tombstone) goes too, but not before
  ``tombstones_kept_ms`` have passed since it was first seen here: whoever reads the log within that
  time learns that the key is gone. When that time is over stands in the batch (attribute bit 6, in
  the place of the base time), so that it survives restarts, and is the same at every replica that
  fetches the batch afterwards.
* A record without a key can be no key's last: it goes. What a transaction wrote that was aborted
  goes. An entry of another protocol (an envelope) stays as it is: its keys are not known here.
* A marker stays while there is a batch of its transaction, and ``tombstones_kept_ms`` longer.
* A producer's last batch stays, if need be without a record: it says which sequence comes next.
* The last batch of what is compacted stays, if need be without a record: it says where the log goes
  on. So whatever is cut later, is cut where a batch ends, a follower that has it all has the
  leader's end, and no offset is given twice. So does the last batch of segments that become one:
  after a crash it says which they are.
* A batch whose checksum is wrong is never written anew: it would be right then.

Why: docs/adr/0173-partitions-are-compacted.md. Source: Kafka's documentation, "Log Compaction", and
``RecordBatch`` (delete horizon).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

from magnetar.log.partition.batch_header import (
    CHECKED_FROM,
    HEADER_BYTES,
    BatchHead,
    Buffer,
    read_header,
)
from magnetar.log.partition.index_files import RELATIVE_MAX
from magnetar.log.partition.limits import Kept
from magnetar.log.partition.producer_states import AbortedTransaction, ProducerState
from magnetar.log.partition.serving.envelopes import ENVELOPE
from magnetar.model.errors import CorruptBatchError
from magnetar.wire.checksum import crc32c
from magnetar.wire.kafka.batches import APPEND_TIME, build_batch
from magnetar.wire.kafka.compression import Codec, compress, decompress
from magnetar.wire.kafka.records import KafkaRecord, encode_records, parse_records

HORIZON: Final = 0x40
KEY_COST_BYTES: Final = 200
"""What a key takes in memory: two objects, their slots in the table, and its room to grow."""
DIGEST_BYTES: Final = 24
"""Longer keys are held by their digests; shorter ones as they are, so that none is taken for
another's digest."""
KEYS_LEAST: Final = 1000


# -- which logs, which segments -------------------------------------------------------------------


class SegmentFacts(NamedTuple):
    """Of a sealed segment. ``first_ms``: of its first batch, -1 if it has no time; ``latest_ms``:
    its latest record's."""

    base_offset: int
    next_offset: int
    byte_count: int
    first_ms: int
    latest_ms: int
    index_bytes: int = 0


class Dirt(NamedTuple):
    """How much of a log was not compacted yet. ``end_offset``: up to where it can be now; ``due``:
    it is to be compacted."""

    end_offset: int
    dirty_bytes: int
    clean_bytes: int
    due: bool

    @property
    def ratio(self) -> float:
        return self.dirty_bytes / ((self.dirty_bytes + self.clean_bytes) or 1)


def judge_dirt(
    sealed: Iterable[SegmentFacts], kept: Kept, *, done_end: int, stable_end: int, now_ms: int
) -> Dirt:
    """``done_end``: how far the log was compacted; ``stable_end``: nothing that is before it will
    be cut or aborted."""
    end, dirty, clean, first_ms = done_end, 0, 0, -1
    for segment in sealed:
        if segment.next_offset <= done_end:
            clean += segment.byte_count
            continue
        young = segment.latest_ms > now_ms - kept.compaction_lag_ms and kept.compaction_lag_ms > 0
        if segment.next_offset > stable_end or young:
            break
        if first_ms < 0:
            first_ms = segment.first_ms
        dirty += segment.byte_count
        end = segment.next_offset
    found = Dirt(end, dirty, clean, due=False)
    late = dirty > 0 and first_ms >= 0 and now_ms - first_ms > kept.compaction_lag_ms_max
    return found._replace(due=dirty > 0 and (late or found.ratio >= kept.dirty_ratio_least))


def sealed_for_age(first_ms: int, byte_count: int, kept: Kept, now_ms: int) -> bool:
    """Whether the active segment is to be sealed, so that what it has is compacted in time."""
    return byte_count > 0 and first_ms >= 0 and now_ms - first_ms > kept.compaction_lag_ms_max


def grouped(
    sealed: Iterable[SegmentFacts], bytes_max: int, index_bytes_max: int
) -> list[list[SegmentFacts]]:
    """Segments that become one, in order: else small ones would be left without end."""
    groups: list[list[SegmentFacts]] = []
    size = index = 0
    for segment in sealed:
        fits = (
            bool(groups)
            and size + segment.byte_count <= bytes_max
            and index + segment.index_bytes <= index_bytes_max
            and segment.next_offset - groups[-1][0].base_offset <= RELATIVE_MAX
        )
        if fits:
            groups[-1].append(segment)
            size, index = size + segment.byte_count, index + segment.index_bytes
        else:
            groups.append([segment])
            size, index = segment.byte_count, segment.index_bytes
    return groups


# -- keys -----------------------------------------------------------------------------------------


def checked(batch: Buffer, header: BatchHead, where: str) -> None:
    """Raises ``CorruptBatchError``."""
    if crc32c(memoryview(batch)[CHECKED_FROM:]) != header.crc:
        raise CorruptBatchError(
            f"{where}: the batch at offset {header.base_offset} fails its checksum"
        )


def records_of(batch: Buffer, header: BatchHead) -> list[KafkaRecord]:
    """Raises ``ProtocolError``, and ``ConfigError`` without its codec."""
    data = decompress(Codec(header.codec), memoryview(batch)[HEADER_BYTES:])
    return parse_records(data, header.record_count)


class KeyOffsets:
    """The last offset of each key in batches that follow one another."""

    def __init__(self, bytes_max: int) -> None:
        self.end_offset = 0
        """All before it was looked through."""
        self._keys_max = max(KEYS_LEAST, bytes_max // KEY_COST_BYTES)
        self._last: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._last)

    def takes(self, header: BatchHead) -> bool:
        """Whether there is room for all keys that the batch may have. The first one has it."""
        return not self._last or len(self._last) + header.record_count <= self._keys_max

    def look(self, batch: Buffer, header: BatchHead, counts: bool) -> None:
        """``counts``: its records were meant. Raises as ``records_of``."""
        if counts and not (header.control or header.attributes & ENVELOPE):
            for record in records_of(batch, header):
                if record.key is not None:
                    self._last[_held(record.key)] = header.base_offset + record.offset_delta
        self.end_offset = header.next_offset

    def superseded(self, key: bytes, offset: int) -> bool:
        """Whether a later record of the key is known."""
        return self._last.get(_held(key), offset) > offset


def _held(key: bytes) -> bytes:
    return key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()


class AbortedBatches:
    """Which batches of transactions were aborted."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._of: dict[int, list[AbortedTransaction]] = {}
        for each in aborted:
            self._of.setdefault(each.producer_id, []).append(each)

    def has(self, header: BatchHead) -> bool:
        return header.transactional and any(
            each.first_offset <= header.base_offset <= each.last_offset
            for each in self._of.get(header.producer_id, ())
        )


# -- batches --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Cleaning:
    """One pass over a log's batches, from its first on, in order. ``ends``: where what is compacted
    ends, and each of its new segments that replaces several; ``where``: the log's name, for
    errors."""

    keys: KeyOffsets
    aborted: AbortedBatches
    producers: Mapping[int, ProducerState]
    ends: frozenset[int]
    now_ms: int
    tombstones_kept_ms: int
    where: str = "log"
    _parts: set[int] = field(default_factory=set)
    """Producers with a batch of a transaction since their last marker."""

    def left(self, batch: Buffer) -> Buffer | None:
        """What is left of ``batch``; itself if that is all of it, None if nothing. Raises
        ``CorruptBatchError``, ``ProtocolError``, and ``ConfigError`` without its codec."""
        header = read_header(batch)
        checked(batch, header, self.where)
        if header.control:
            return self._marker(batch, header)
        if header.transactional:
            self._parts.add(header.producer_id)
        if header.attributes & ENVELOPE:
            return batch
        counts = not self.aborted.has(header)
        records = records_of(batch, header)
        horizon_ms = header.base_timestamp_ms if header.attributes & HORIZON else None
        over = horizon_ms is not None and self.now_ms >= horizon_ms
        kept = [each for each in records if counts and self._stays(each, header, over)]
        if not kept and not self._needed(header):
            return None
        fresh = horizon_ms is None and any(record.value is None for record in kept)
        if len(kept) == len(records) and not fresh:
            return batch
        return _rebuilt(header, kept, self._horizon_ms() if fresh else None)

    def _stays(self, record: KafkaRecord, header: BatchHead, tombstones_go: bool) -> bool:
        offset = header.base_offset + record.offset_delta
        if offset >= self.keys.end_offset:
            return True  # earlier records of its key may still be there, and later ones come
        if record.key is None or (record.value is None and tombstones_go):
            return False
        return not self.keys.superseded(record.key, offset)

    def _marker(self, batch: Buffer, header: BatchHead) -> Buffer | None:
        ends_something = header.producer_id in self._parts
        self._parts.discard(header.producer_id)
        if ends_something or self._needed(header):
            return batch
        if not header.attributes & HORIZON:
            return _rebuilt(header, records_of(batch, header), self._horizon_ms())
        return None if self.now_ms >= header.base_timestamp_ms else batch

    def _needed(self, header: BatchHead) -> bool:
        """It is the last of a segment whose end has to be known, or of its producer."""
        if header.next_offset in self.ends:
            return True
        state = self.producers.get(header.producer_id)
        if state is None:
            return False
        if state.batches:
            return state.batches[-1].last_offset == header.last_offset
        return header.control and header.producer_epoch == state.epoch

    def _horizon_ms(self) -> int:
        return self.now_ms + self.tombstones_kept_ms


def _rebuilt(header: BatchHead, kept: list[KafkaRecord], horizon_ms: int | None) -> bytes:
    base_ms, attributes = header.base_timestamp_ms, header.attributes
    greatest_ms = max(
        (base_ms + record.timestamp_delta_ms for record in kept), default=header.max_timestamp_ms
    )
    if header.attributes & APPEND_TIME:
        greatest_ms = header.max_timestamp_ms  # it is all records' time
    if horizon_ms is not None:
        attributes |= HORIZON
        kept = [
            record._replace(timestamp_delta_ms=base_ms + record.timestamp_delta_ms - horizon_ms)
            for record in kept
        ]
        base_ms = horizon_ms
    if not kept:
        attributes &= ~0x07  # nothing is not compressed
    return build_batch(
        compress(Codec(attributes & 0x07), encode_records(kept)),
        count=len(kept),
        last_offset_delta=header.last_offset_delta,
        attributes=attributes,
        base_timestamp_ms=base_ms,
        max_timestamp_ms=greatest_ms,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
    )
