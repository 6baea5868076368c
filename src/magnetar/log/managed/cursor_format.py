"""The records of a cursor ledger: pure codec, bytes <-> ``AckImage``.

Layout of a record (one entry's payload), big-endian::

    version 1 | kind 1 | base 8 | index 4 | count 4 | body

``kind`` 1 is a chunk of a SNAPSHOT: chunk ``index`` of ``count``, in consecutive entries; the
chunks' bodies together are one image, the whole state. ``kind`` 2 is a DELTA (0 of 1): its body
is an image of what was added since the record before it. ``base`` is the entry id of the first
chunk of the last whole snapshot before this record, -1 if there is none.

The layout of an image: ``log.ack_images``.

So recovery needs the last record and what it points to: see ``recovery_start``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

from magnetar.log.ack_images import decode_image, encode_image
from magnetar.log.acknowledgements import AckImage
from magnetar.model.errors import ProtocolError

VERSION = 1
SNAPSHOT = 1
DELTA = 2
CHUNK_BYTES_MAX = 1 << 20
"""Bytes of a record's body; below what any bookie takes as an entry."""

_HEADER = Struct(">BBqII")


def chunk_bytes_within(payload_bytes_max: int) -> int:
    """Of records' bodies, where an entry's payload has so many bytes at most."""
    return min(CHUNK_BYTES_MAX, payload_bytes_max - _HEADER.size)


@dataclass(frozen=True, slots=True)
class CursorRecordHeader:
    kind: int
    base: int
    index: int
    count: int


def encode_delta(
    image: AckImage, base: int, chunk_bytes_max: int = CHUNK_BYTES_MAX
) -> bytes | None:
    """One record, or None when it would be too large (store a snapshot instead)."""
    body = encode_image(image)
    if len(body) > chunk_bytes_max:
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


def readable_images(records: Sequence[bytes | None]) -> list[AckImage]:
    """The newest images in ``records``, of a whole ledger in which None stands for what nobody can
    read: the last snapshot that is whole, and the deltas that can be read after it. What they say
    was acknowledged was; what else was is not known. Empty: there is no image.

    Of a cursor with a note only those with a note: what its mark-delete position says goes with
    that, and one without would pair it with an older note."""
    images: list[AckImage] = []
    chunks: list[bytes] = []
    for record in records:
        try:
            if record is None:
                chunks = []
                continue
            header, body = decode_header(record), record[_HEADER.size :]
            if header.kind == DELTA:
                chunks = []
                images.append(decode_image(body))
                continue
            chunks = [*chunks, body] if header.index == len(chunks) else []
            if len(chunks) == header.count:
                images, chunks = [decode_image(b"".join(chunks))], []
        except ProtocolError:
            chunks = []
    epoch = max((image.reset_epoch for image in images), default=0)
    images = [image for image in images if image.reset_epoch == epoch]
    return [image for image in images if image.note] or images
