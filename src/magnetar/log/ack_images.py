"""Images of acknowledgements as bytes: pure codec, bytes <-> ``AckImage``.

They lie in cursor ledgers (``managed.cursor_format``) and go between brokers. Layout, big-endian::

    mark-delete ledger 8 | entry 8
    bitmaps 4 | per bitmap: ledger 8, bytes 4, a portable 32-bit Roaring bitmap
    ack sets 4 | per ack set: ledger 8, entry 8, bytes 4, the bits, lowest byte first
    reset epoch 8, unless it is 0 and there is no note
    note: bytes 4 and so many, unless there is none

Source: the Roaring format specification for the bitmaps; the rest is Magnetar's own.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from struct import Struct

from pyroaring import BitMap

from magnetar.log.acknowledgements import AckImage
from magnetar.model.errors import ProtocolError
from magnetar.model.ids import Position

_POSITION = Struct(">qq")
_COUNT = Struct(">I")
_BITMAP = Struct(">qI")
_ACK_SET = Struct(">qqI")
_RESET_EPOCH = Struct(">Q")


def encode_image(image: AckImage) -> bytes:
    parts = [_POSITION.pack(*image.mark_delete), _COUNT.pack(len(image.holes))]
    for ledger_id, bitmap in image.holes.items():
        data = bitmap.serialize()
        parts += (_BITMAP.pack(ledger_id, len(data)), data)
    parts.append(_COUNT.pack(len(image.ack_sets)))
    for position, bits in image.ack_sets.items():
        data = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        parts += (_ACK_SET.pack(*position, len(data)), data)
    # A cursor that was never reset, and has no note, stays readable to older releases.
    if image.reset_epoch > 0 or image.note:
        parts.append(_RESET_EPOCH.pack(image.reset_epoch))
    if image.note:
        parts += (_COUNT.pack(len(image.note)), image.note)
    return b"".join(parts)


def encode_in_parts(image: AckImage, bytes_max: int) -> list[bytes]:
    """Images of ``bytes_max`` each (but for a bitmap, which is never cut), that merged in any order
    are ``image``."""
    whole = encode_image(image)
    if len(whole) <= bytes_max:
        return [whole]
    parts = [replace(image, holes={key: each}, ack_sets={}) for key, each in image.holes.items()]
    group: dict[Position, int] = {}
    size = 0
    for position, bits in image.ack_sets.items():
        size += _ACK_SET.size + bits.bit_length() // 8 + 1
        if size > bytes_max and group:
            parts.append(replace(image, holes={}, ack_sets=group))
            group, size = {}, _ACK_SET.size + bits.bit_length() // 8 + 1
        group[position] = bits
    if group:
        parts.append(replace(image, holes={}, ack_sets=group))
    return [encode_image(part) for part in parts]


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
    note = b""
    if at < len(data):
        (size,) = _COUNT.unpack_from(data, at)
        note = _slice(data, at + _COUNT.size, size)
        at += _COUNT.size + size
    return AckImage(mark_delete, holes, ack_sets, reset_epoch, note), at


def _slice(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise ValueError(f"{size} bytes at {at} pass the end")
    return data[at : at + size]
