"""Taking apart what producers compressed, and compressing as they do.

Brokers do neither: they store and serve compressed data as it came. Pipelines and tools do.
zlib is in the standard library; LZ4, zstd and Snappy come from ``cramjam`` (the extra
``magnetar[codecs]``) or from ``pyarrow`` (which ``magnetar[spark]`` brings anyway).

Formats, as Pulsar's clients write them: a zlib stream; one raw LZ4 block without its size; a zstd
frame; one raw Snappy block. The size before compression is in the message's metadata.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Final, TypeAlias, TypeVar

from magnetar.model.errors import ConfigError, ProtocolError
from magnetar.wire.pulsar.codes import Compression

T = TypeVar("T")
Buffer: TypeAlias = bytes | bytearray | memoryview
Decompressor: TypeAlias = Callable[[Buffer, int], bytes]
"""``decompress(data, uncompressed_size)``; gives exactly that size or raises ``ValueError``."""
Compressor: TypeAlias = Callable[[Buffer], bytes]

_PYARROW_NAMES: Final = {
    Compression.LZ4: "lz4_raw",
    Compression.ZSTD: "zstd",
    Compression.SNAPPY: "snappy",
}

UNCOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
"""More than any client sends; a size past it is a lie that would cost memory."""


def decompress(
    data: Buffer,
    compression: Compression,
    uncompressed_size: int,
    bytes_max: int = UNCOMPRESSED_BYTES_MAX,
) -> Buffer:
    """``data`` uncompressed; itself if it is not compressed.

    Raises ``ProtocolError`` if it is not what the metadata says it is, ``ConfigError`` if no
    installed library can do it.
    """
    if compression == Compression.NONE:
        return data
    name = compression.name
    if uncompressed_size > bytes_max:
        raise ProtocolError(
            f"{name} data claims {uncompressed_size} bytes uncompressed; the limit is {bytes_max}"
        )
    decompressor = find_decompressor(compression)
    try:
        found = decompressor(data, uncompressed_size)
    except (ValueError, OSError, RuntimeError, zlib.error) as error:
        raise ProtocolError(f"corrupt {name} data of {len(data)} bytes: {error}") from error
    if len(found) != uncompressed_size:
        raise ProtocolError(
            f"{name} data gives {len(found)} bytes where its metadata says {uncompressed_size}"
        )
    return found


def find_decompressor(compression: Compression) -> Decompressor:
    """The best installed decompressor; raises ``ConfigError`` that names the extra to install."""
    if compression == Compression.ZLIB:
        return _zlib
    return _of_a_library(compression, _from_cramjam, _from_pyarrow)


def _of_a_library(compression: Compression, *makers: Callable[[Compression], T]) -> T:
    """What the first maker makes whose library is installed."""
    for make in makers:
        try:
            return make(compression)
        except ModuleNotFoundError:
            continue
    raise ConfigError(
        f"no library for {compression.name} messages is installed: "
        "pip install 'magnetar[codecs]' (or 'magnetar[spark]')"
    )


def _zlib(data: Buffer, size: int) -> bytes:
    # one byte more than promised tells a longer stream from a whole one, without inflating it all
    return zlib.decompressobj().decompress(data, size + 1)


def _from_cramjam(compression: Compression) -> Decompressor:
    cramjam = import_module("cramjam")
    into = {
        Compression.LZ4: cramjam.lz4.decompress_block_into,
        Compression.ZSTD: cramjam.zstd.decompress_into,
        Compression.SNAPPY: cramjam.snappy.decompress_raw_into,
    }[compression]

    def run(data: Buffer, size: int) -> bytes:
        out = bytearray(size)
        try:
            return bytes(memoryview(out)[: into(bytes(data), out)])
        except cramjam.DecompressionError as error:
            raise ValueError(str(error)) from error

    return run


def _from_pyarrow(compression: Compression) -> Decompressor:
    pyarrow = import_module("pyarrow")
    codec = pyarrow.Codec(_PYARROW_NAMES[compression])

    def fits(data: Buffer, size: int) -> bool:
        try:
            codec.decompress(pyarrow.py_buffer(data), size)
        except (ValueError, OSError):
            return False
        return True

    def run(data: Buffer, size: int) -> bytes:
        found = bytes(codec.decompress(pyarrow.py_buffer(data), size, asbytes=True))
        # pyarrow pads what turns out shorter than ``size``; such data fits into less as well
        if size > 0 and compression != Compression.ZSTD and fits(data, size - 1):
            raise ValueError(f"the data is shorter than {size} bytes")
        return found

    return run


def find_compressor(compression: Compression) -> Compressor:
    """Compresses as Pulsar's clients do; raises ``ConfigError`` that names the extra to install."""
    if compression == Compression.NONE:
        return bytes
    if compression == Compression.ZLIB:
        return zlib.compress
    return _of_a_library(compression, _to_cramjam, _to_pyarrow)


def _to_cramjam(compression: Compression) -> Compressor:
    cramjam = import_module("cramjam")

    def lz4(data: Buffer) -> bytes:
        return bytes(cramjam.lz4.compress_block(bytes(data), store_size=False))

    runs: dict[Compression, Compressor] = {
        Compression.LZ4: lz4,
        Compression.ZSTD: lambda data: bytes(cramjam.zstd.compress(bytes(data))),
        Compression.SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(bytes(data))),
    }
    return runs[compression]


def _to_pyarrow(compression: Compression) -> Compressor:
    pyarrow = import_module("pyarrow")
    codec = pyarrow.Codec(_PYARROW_NAMES[compression])

    def run(data: Buffer) -> bytes:
        return bytes(codec.compress(pyarrow.py_buffer(data), asbytes=True))

    return run
