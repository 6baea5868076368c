"""What compaction keeps of a partition's batches: of each key the last record, and what is needed
to know that.

Pure; ``LocalLog.compact`` reads and replaces the segments.

Rules:

* Of the records of a key the last one stays, where it is: offsets never change, and a batch keeps
  its first and last offset also when records of it go.
* The last record of a key that has no value (a tombstone) goes too, but not before
  ``tombstones_kept_ms`` have passed since it was first seen here: whoever reads the log within that
  time learns that the key is gone. When that time is over stands in the batch (attribute bit 6, in
  the place of the base time), so that it survives restarts, and is the same at every replica that
  fetches the batch afterwards.
* A record without a key can be no key's last: it goes. What a transaction wrote that was aborted
  goes. Markers stay.
* A producer's last batch stays, if need be without a record: it says which sequence comes next.

Source: Kafka's documentation, "Log Compaction", and ``RecordBatch`` (delete horizon).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from magnetar.log.partition.batch_header import HEADER_BYTES, BatchHead, Buffer, read_header
from magnetar.wire.kafka.batches import build_batch
from magnetar.wire.kafka.compression import Codec, compress, decompress
from magnetar.wire.kafka.records import KafkaRecord, encode_records, parse_records

HORIZON: Final = 0x40


def records_of(batch: Buffer, header: BatchHead) -> list[KafkaRecord]:
    """Raises ``ProtocolError``, and ``ConfigError`` without its codec."""
    data = decompress(Codec(header.codec), memoryview(batch)[HEADER_BYTES:])
    return parse_records(data, header.record_count)


def last_offsets(
    batches: Iterable[Buffer], counts: Callable[[BatchHead], bool]
) -> dict[bytes, int]:
    """The offset of each key's last record. ``counts``: whether a batch's records do; markers and
    what was aborted do not."""
    found: dict[bytes, int] = {}
    for batch in batches:
        header = read_header(batch)
        if counts(header):
            for record in records_of(batch, header):
                if record.key is not None:
                    found[record.key] = header.base_offset + record.offset_delta
    return found


def cleaned(
    batch: Buffer,
    last: Mapping[bytes, int],
    *,
    counts: bool,
    needed: bool,
    now_ms: int,
    tombstones_kept_ms: int,
) -> Buffer | None:
    """What is left of ``batch``; itself if that is all of it, None if nothing. ``counts`` as for
    ``last_offsets``; ``needed``: it is its producer's last."""
    header = read_header(batch)
    if header.control:
        return batch
    records = records_of(batch, header)
    horizon_ms = header.base_timestamp_ms if header.attributes & HORIZON else None
    over = horizon_ms is not None and now_ms >= horizon_ms
    kept = [
        record
        for record in records
        if counts and _stays(record, header.base_offset, last, tombstones_go=over)
    ]
    if not kept and not needed:
        return None
    fresh = horizon_ms is None and any(record.value is None for record in kept)
    if len(kept) == len(records) and not fresh:
        return batch
    return _rebuilt(header, kept, now_ms + tombstones_kept_ms if fresh else None)


def _stays(
    record: KafkaRecord, base_offset: int, last: Mapping[bytes, int], *, tombstones_go: bool
) -> bool:
    if record.key is None or (record.value is None and tombstones_go):
        return False
    offset = base_offset + record.offset_delta
    # Past all that was looked at, nothing is known of later ones.
    return last.get(record.key, offset) <= offset


def _rebuilt(header: BatchHead, kept: list[KafkaRecord], horizon_ms: int | None) -> bytes:
    base_ms, attributes = header.base_timestamp_ms, header.attributes
    greatest_ms = max(
        (base_ms + record.timestamp_delta_ms for record in kept), default=header.max_timestamp_ms
    )
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
