"""The records of a cursor ledger: pure codec, bytes <-> ``AckImage``.

Layout of a record (one entry's payload), big-endian::

    version 1 | kind 1 | base 8 | index 4 | count 4 | body

``kind`` 1 is a chunk of a SNAPSHOT: chunk ``index`` of ``count``, in consecutive entries; the
chunks' bodies together are one image, the whole state. ``kind`` 2 is a DELTA (0 of 1): its body
is an image of what was added since the record before it. ``base`` is the entry id of the first
chunk of the last whole snapshot before this record, -1 if there is none.

Layout of an image::

    mark-delete ledger 8 | entry 8
    bitmaps 4 | per bitmap: ledger 8, bytes 4, a portable 32-bit Roaring bitmap
    ack sets 4 | per ack set: ledger 8, entry 8, bytes 4, the bits, lowest byte first
    reset epoch 8, unless it is 0

So recovery needs the last record and what it points to: see ``recovery_start``.
Source: the Roaring format specification for the bitmaps; the rest is Magnetar's own.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

from pyroaring import BitMap

from magnetar.log.acknowledgements import AckImage
from magnetar.model.errors import ProtocolError
from magnetar.model.ids import Position

VERSION = 1
SNAPSHOT = 1
DELTA = 2
CHUNK_BYTES_MAX = 1 << 20
"""Bytes of a record's body; below what any bookie takes as an entry."""

_HEADER = Struct(">BBqII")
_POSITION = Struct(">qq")
_COUNT = Struct(">I")
_BITMAP = Struct(">qI")
_ACK_SET = Struct(">qqI")
_RESET_EPOCH = Struct(">Q")


@dataclass(frozen=True, slots=True)
class CursorRecordHeader:
    kind: int
    base: int
    index: int
    count: int


def encode_image(image: AckImage) -> bytes:
    parts = [_POSITION.pack(*image.mark_delete), _COUNT.pack(len(image.holes))]
    for ledger_id, bitmap in image.holes.items():
        data = bitmap.serialize()
        parts += (_BITMAP.pack(ledger_id, len(data)), data)
    parts.append(_COUNT.pack(len(image.ack_sets)))
    for position, bits in image.ack_sets.items():
        data = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        parts += (_ACK_SET.pack(*position, len(data)), data)
    if image.reset_epoch > 0:  # a cursor that was never reset stays readable to older releases
        parts.append(_RESET_EPOCH.pack(image.reset_epoch))
    return b"".join(parts)


def decode_image(data: bytes) -> AckImage:
    """Raises ``ProtocolError`` for anything that ``encode_image`` did not make."""
    try:
        image, end = _decode_image(data)
    except (struct.error, ValueError, IndexError) as error:
        raise ProtocolError(f"cursor image of {len(data)} bytes is broken: {error}") from error
    if end != len(data):
        raise ProtocolError(f"cursor image has {len(data) - end} bytes after its end")
    return image


def _decode_image(data: bytes) -> tuple[AckImage, int]:
    mark_delete = Position(*_POSITION.unpack_from(data, 0))
    (bitmaps,) = _COUNT.unpack_from(data, _POSITION.size)
    at = _POSITION.size + _COUNT.size
    holes: dict[int, BitMap] = {}
    for _ in range(bitmaps):
        ledger_id, size = _BITMAP.unpack_from(data, at)
        at += _BITMAP.size
        holes[ledger_id] = BitMap.deserialize(_slice(data, at, size))
        at += size
    (sets,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    ack_sets: dict[Position, int] = {}
    for _ in range(sets):
        ledger_id, entry_id, size = _ACK_SET.unpack_from(data, at)
        at += _ACK_SET.size
        ack_sets[Position(ledger_id, entry_id)] = int.from_bytes(_slice(data, at, size), "little")
        at += size
    reset_epoch = 0
    if at < len(data):
        (reset_epoch,) = _RESET_EPOCH.unpack_from(data, at)
        at += _RESET_EPOCH.size
    return AckImage(mark_delete, holes, ack_sets, reset_epoch), at


def _slice(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise ValueError(f"{size} bytes at {at} pass the end")
    return data[at : at + size]


def encode_delta(image: AckImage, base: int) -> bytes | None:
    """One record, or None when it would be too large (store a snapshot instead)."""
    body = encode_image(image)
    if len(body) > CHUNK_BYTES_MAX:
        return None
    return _HEADER.pack(VERSION, DELTA, base, 0, 1) + body


def encode_snapshot(
    image: AckImage, base: int, chunk_bytes_max: int = CHUNK_BYTES_MAX
) -> list[bytes]:
    """The records of a snapshot, to be appended as consecutive entries."""
    body = encode_image(image)
    chunks = [body[at : at + chunk_bytes_max] for at in range(0, len(body), chunk_bytes_max)]
    return [
        _HEADER.pack(VERSION, SNAPSHOT, base, index, len(chunks)) + chunk
        for index, chunk in enumerate(chunks)
    ]


def decode_header(record: bytes) -> CursorRecordHeader:
    """Raises ``ProtocolError`` for a record of another version or kind."""
    if len(record) < _HEADER.size:
        raise ProtocolError(f"cursor record of {len(record)} bytes is too short")
    version, kind, base, index, count = _HEADER.unpack_from(record)
    if version != VERSION or kind not in (SNAPSHOT, DELTA) or index >= count:
        raise ProtocolError(
            f"cursor record has version {version}, kind {kind}, chunk {index} of {count}"
        )
    return CursorRecordHeader(kind, base, index, count)


def recovery_start(last_entry_id: int, last_record: bytes) -> int:
    """The entry id of the last whole snapshot's first chunk, given the ledger's last record;
    -1 if the ledger holds no whole snapshot."""
    header = decode_header(last_record)
    if header.kind == SNAPSHOT and header.index == header.count - 1:
        return last_entry_id - header.index
    return header.base


def decode_records(records: Sequence[bytes]) -> list[AckImage]:
    """The images in ``records``, which start with a whole snapshot: that snapshot, then the
    deltas after it. A snapshot that is cut off by the end was never stored: it is left out.
    Raises ``ProtocolError`` when the records are in any other shape."""
    images: list[AckImage] = []
    chunks: list[bytes] = []
    for record in records:
        header = decode_header(record)
        if header.kind == DELTA and images and not chunks:
            images.append(decode_image(record[_HEADER.size :]))
        elif header.kind == SNAPSHOT and header.index == len(chunks):
            chunks.append(record[_HEADER.size :])
            if len(chunks) == header.count:
                images = [decode_image(b"".join(chunks))]
                chunks = []
        else:
            raise ProtocolError(f"cursor ledger has a record out of place: {header}")
    return images
