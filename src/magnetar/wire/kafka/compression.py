"""Kafka's codecs. The broker stores what producers compressed as it came; only conversion between
protocols, and a search for a time inside a batch, take it apart.

Formats: gzip; Snappy in the framing of Java's stream (a magic header, then blocks with their
length), or one raw block; an LZ4 frame; a zstd frame. gzip is in the standard library, the others
come from ``cramjam`` (the extra ``magnetar[codecs]``) or ``pyarrow``.

What comes out is bounded (``UNCOMPRESSED_BYTES_MAX``): a few kilobytes may say that they are
gigabytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from importlib import import_module
from typing import Any, Final, TypeAlias

from magnetar.model.errors import ConfigError, ProtocolError

Data: TypeAlias = bytes | memoryview

UNCOMPRESSED_BYTES_MAX: Final = 64 << 20
GROWTH: Final = 4
"""Of the buffer for what comes out, while it proves too small."""

_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEAD: Final = _XERIAL + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 << 10


class Codec(IntEnum):
    """Bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def _missing_(cls, value: object) -> Codec:
        raise ProtocolError(f"records compressed with codec {value}, which is none of Kafka's")


RATIO_MAX: Final = {Codec.LZ4: 255, Codec.ZSTD: 1 << 15}
"""How many bytes one compressed byte can stand for at most: no larger buffer is tried for what may
be corrupt. A match of LZ4 has 255 per byte of its length, a zstd block of four bytes 128 KiB."""
RATIO_SLACK_BYTES: Final = 1 << 16


def decompress(codec: Codec, data: Data, bytes_max: int = UNCOMPRESSED_BYTES_MAX) -> bytes:
    """Raises ``ProtocolError`` for data that is not of the codec or grows past ``bytes_max``,
    ``ConfigError`` if no installed library knows the codec."""
    if codec is Codec.NONE:
        return bytes(data)
    try:
        if codec is Codec.GZIP:
            return _gunzip(data, bytes_max)
        if codec is Codec.SNAPPY:
            return _unsnap(bytes(data), bytes_max)
        return _framed(codec, bytes(data), bytes_max)
    except (ValueError, OSError, RuntimeError, zlib.error, struct.error) as error:
        raise ProtocolError(f"corrupt {codec.name} data of {len(data)} bytes: {error}") from error


def _too_large(codec: Codec, bytes_max: int) -> ProtocolError:
    return ProtocolError(f"{codec.name} data of more than {bytes_max} bytes uncompressed")


def _gunzip(data: Data, bytes_max: int) -> bytes:
    found = zlib.decompressobj(31).decompress(data, bytes_max + 1)
    if len(found) > bytes_max:
        raise _too_large(Codec.GZIP, bytes_max)
    return found


def _snappy_size(block: bytes) -> int:
    """What a raw block says of itself, a varint."""
    value = shift = 0
    for byte in block[:5]:
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
    raise ProtocolError("a Snappy block without a size")


def _unsnap(data: bytes, bytes_max: int) -> bytes:
    if not data.startswith(_XERIAL):
        return _unsnap_block(data, bytes_max, bytes_max)
    found = bytearray()
    at = len(_XERIAL_HEAD)
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        block = data[at + 4 : at + 4 + size]
        if size < 1 or len(block) != size:
            raise ProtocolError(f"a Snappy block of {size} bytes, {len(block)} are left")
        found += _unsnap_block(block, bytes_max - len(found), bytes_max)
        at += 4 + size
    return bytes(found)


def _unsnap_block(block: bytes, most: int, bytes_max: int) -> bytes:
    """``most``: what is left of ``bytes_max``."""
    size = _snappy_size(block)
    if size > most:
        raise _too_large(Codec.SNAPPY, bytes_max)
    try:
        cramjam = import_module("cramjam")
    except ModuleNotFoundError:
        pyarrow = _pyarrow(Codec.SNAPPY)
        return bytes(pyarrow.Codec("snappy").decompress(block, size, asbytes=True))
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise ValueError(str(error)) from error


def _framed(codec: Codec, data: bytes, bytes_max: int) -> bytes:
    """LZ4 and zstd frames, which need not say how much they hold."""
    name = codec.name.lower()
    try:
        cramjam = import_module("cramjam")
    except ModuleNotFoundError:
        return _streamed(codec, name, data, bytes_max)
    most = min(bytes_max, RATIO_MAX[codec] * len(data) + RATIO_SLACK_BYTES)
    size = min(max(GROWTH * len(data), RATIO_SLACK_BYTES), most)
    while True:
        out = bytearray(size)
        try:
            written: int = getattr(cramjam, name).decompress_into(data, out)
        except cramjam.DecompressionError as error:
            # It says the same of what is too large and of what is corrupt.
            if size == most:
                raise ValueError(f"{error}, or more than {size} bytes") from error
            size = min(size * GROWTH, most)
            continue
        return bytes(memoryview(out)[:written])


def _streamed(codec: Codec, name: str, data: bytes, bytes_max: int) -> bytes:
    pyarrow = _pyarrow(codec)
    with pyarrow.CompressedInputStream(pyarrow.BufferReader(data), name) as stream:
        found = bytes(stream.read(bytes_max + 1))
    if len(found) > bytes_max:
        raise _too_large(codec, bytes_max)
    return found


def _pyarrow(codec: Codec) -> Any:
    try:
        return import_module("pyarrow")
    except ModuleNotFoundError:
        raise ConfigError(
            f"no library for {codec.name} records is installed: pip install 'magnetar[codecs]'"
        ) from None


def compress(codec: Codec, data: bytes) -> bytes:
    """As Kafka's clients do. Raises ``ConfigError`` if no installed library knows the codec."""
    if codec is Codec.NONE:
        return data
    if codec is Codec.GZIP:
        maker = zlib.compressobj(wbits=31)
        return maker.compress(data) + maker.flush()
    try:
        cramjam = import_module("cramjam")
    except ModuleNotFoundError:
        return _compress_with_pyarrow(codec, data)
    if codec is Codec.SNAPPY:
        return _snap(data, lambda block: bytes(cramjam.snappy.compress_raw(block)))
    made = cramjam.lz4.compress if codec is Codec.LZ4 else cramjam.zstd.compress
    return bytes(made(data))


def _compress_with_pyarrow(codec: Codec, data: bytes) -> bytes:
    made = _pyarrow(codec).Codec(codec.name.lower())
    if codec is Codec.SNAPPY:
        return _snap(data, lambda block: bytes(made.compress(block, asbytes=True)))
    return bytes(made.compress(data, asbytes=True))


def _snap(data: bytes, block: Callable[[bytes], bytes]) -> bytes:
    out = bytearray(_XERIAL_HEAD)
    for at in range(0, len(data), _XERIAL_BLOCK):
        made = block(data[at : at + _XERIAL_BLOCK])
        out += struct.pack(">i", len(made)) + made
    return bytes(out)
