"""Records: the messages of a batch, taken apart and put together.

Only who converts between protocols, or looks for a time inside a batch, takes one apart. A record::

    length varint | attributes 1 | timestamp delta varint | offset delta varint
    | key length varint, key | value length varint, value
    | header count varint | (key length, key, value length, value)*

Varints are zigzag; length -1 is null. Rules: lengths are held against the bytes that are left, the
number of headers too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from magnetar.model.errors import ProtocolError
from magnetar.wire.kafka.batches import (
    APPEND_TIME,
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    BatchHeader,
    build_batch,
    read_batch_header,
)
from magnetar.wire.kafka.compression import (
    UNCOMPRESSED_BYTES_MAX,
    Codec,
    compress,
    decompress,
)
from magnetar.wire.kafka.primitives import Buffer
from magnetar.wire.varint import varint


class RecordHeader(NamedTuple):
    key: str
    value: bytes | None


class KafkaRecord(NamedTuple):
    """One message; its offset and timestamp as differences to its batch's."""

    offset_delta: int
    timestamp_delta_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[RecordHeader] = ()


def _varint(data: Buffer, at: int) -> tuple[int, int]:
    value = shift = 0
    try:
        while shift < 70:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1), at
            shift += 7
    except IndexError:
        pass
    raise ProtocolError(f"a record with a broken varint before byte {at}")


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _varint(data, at)
    if size == -1:
        return None, at
    stop = at + size
    if size < -1 or stop > len(data):
        raise ProtocolError(f"a record field of {size} bytes, {len(data) - at} are left")
    return data[at:stop], stop


def _headers(data: bytes, at: int) -> tuple[list[RecordHeader], int]:
    count, at = _varint(data, at)
    if not 0 <= count <= (len(data) - at) // 2:
        raise ProtocolError(f"a record with {count} headers in {len(data) - at} bytes")
    found = []
    for _ in range(count):
        key, at = _bytes(data, at)
        value, at = _bytes(data, at)
        if key is None:
            raise ProtocolError("a record header without a key")
        found.append(RecordHeader(key.decode("utf-8", "replace"), value))
    return found, at


def parse_records(data: bytes, count: int) -> list[KafkaRecord]:
    """``count`` records, which are all of ``data``. Raises ``ProtocolError``."""
    found = []
    at = 0
    for _ in range(count):
        size, at = _varint(data, at)
        end = at + size
        if size < 1 or end > len(data):
            raise ProtocolError(f"a record of {size} bytes, {len(data) - at} are left")
        timestamp, at = _varint(data, at + 1)
        offset, at = _varint(data, at)
        key, at = _bytes(data, at)
        value, at = _bytes(data, at)
        headers, at = _headers(data, at)
        if at != end:
            raise ProtocolError(f"a record of {size} bytes ends {at - end} bytes after that")
        found.append(KafkaRecord(offset, timestamp, key, value, headers))
    if at != len(data):
        raise ProtocolError(f"a batch has {len(data) - at} bytes after its {count} records")
    return found


def read_batch(
    batch: memoryview, bytes_max: int = UNCOMPRESSED_BYTES_MAX
) -> tuple[BatchHeader, list[KafkaRecord]]:
    """A batch taken apart. Raises ``ProtocolError``, also for a record that has no place among the
    batch's offsets, and for records that are more than ``bytes_max`` when they are not compressed;
    ``ConfigError`` without its codec."""
    header = read_batch_header(batch)
    codec = Codec(header.attributes & CODEC_MASK)
    data = decompress(codec, batch[BATCH_HEADER_BYTES:], bytes_max)
    records = parse_records(data, header.record_count)
    for record in records:
        if not 0 <= record.offset_delta <= header.last_offset_delta:
            raise ProtocolError(
                f"a record at {record.offset_delta} of a batch that has 0 to "
                f"{header.last_offset_delta}"
            )
    return header, records


def timestamp_of(header: BatchHeader, record: KafkaRecord) -> int:
    """When its producer says it made the record, or, if the batch says so, when it was stored; in
    64 bits, which the sum of what a producer sends may not have."""
    if header.attributes & APPEND_TIME:
        return header.max_timestamp_ms
    sum_ms = header.base_timestamp_ms + record.timestamp_delta_ms
    return max(TIMESTAMP_MIN, min(sum_ms, TIMESTAMP_MAX))


def record_times(data: bytes, header: BatchHeader) -> tuple[int, int]:
    """The least and the greatest of the times that the records of ``data`` say, -1 left out as
    nothing that is said; -1, -1: none says one. Raises ``ProtocolError``."""
    least, greatest, at = -1, -1, 0
    for _ in range(header.record_count):
        size, at = _varint(data, at)
        end = at + size
        if size < 1 or end > len(data):
            raise ProtocolError(f"a record of {size} bytes, {len(data) - at} are left")
        delta, _ = _varint(data, at + 1)
        time_ms, at = header.base_timestamp_ms + delta, end
        if time_ms != -1:
            least = time_ms if least == -1 else min(least, time_ms)
            greatest = max(greatest, time_ms)
    return least, greatest


def keyless_records(data: Buffer, count: int, most: int) -> list[int]:
    """Which of ``count`` records have no key, the first ``most`` of them. Raises
    ``ProtocolError``."""
    found: list[int] = []
    at = 0
    for number in range(count):
        size, at = _varint(data, at)
        end = at + size
        if size < 1 or end > len(data):
            raise ProtocolError(f"a record of {size} bytes, {len(data) - at} are left")
        _, at = _varint(data, at + 1)  # time
        _, at = _varint(data, at)  # offset
        key_bytes, _ = _varint(data, at)
        if key_bytes < 0:
            found.append(number)
            if len(found) == most:
                break
        at = end
    return found


# -- building ---------------------------------------------------------------------------------


def _put_varint(out: bytearray, value: int) -> None:
    out += varint((value << 1) ^ (value >> 63))


def _put_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # -1
        return
    _put_varint(out, len(value))
    out += value


def encode_records(records: Sequence[KafkaRecord]) -> bytes:
    """The bytes of records, not compressed."""
    out = bytearray()
    for record in records:
        body = bytearray(1)  # attributes: none are defined
        _put_varint(body, record.timestamp_delta_ms)
        _put_varint(body, record.offset_delta)
        _put_bytes(body, record.key)
        _put_bytes(body, record.value)
        _put_varint(body, len(record.headers))
        for key, value in record.headers:
            _put_bytes(body, key.encode())
            _put_bytes(body, value)
        _put_varint(out, len(body))
        out += body
    return bytes(out)


def batch_of(
    records: Sequence[KafkaRecord],
    base_timestamp_ms: int,
    *,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    leader_epoch: int = -1,
    last_offset_delta: int | None = None,
) -> bytes:
    """A batch of them; ``last_offset_delta`` if it is to reach further than its last record."""
    most = max((record.timestamp_delta_ms for record in records), default=0)
    last = records[-1].offset_delta if records else 0
    return build_batch(
        compress(codec, encode_records(records)),
        count=len(records),
        last_offset_delta=last if last_offset_delta is None else last_offset_delta,
        attributes=int(codec),
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=base_timestamp_ms + most,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )
