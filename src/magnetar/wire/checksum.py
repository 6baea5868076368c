"""CRC-32C over views, without copies."""

from __future__ import annotations

from crc32c import crc32c as _crc32c

Buffer = bytes | bytearray | memoryview


def crc32c(data: Buffer, value: int = 0) -> int:
    """The CRC-32C (Castagnoli) of ``data``, continuing from ``value``; an unsigned 32-bit int."""
    return int(_crc32c(data, value))
