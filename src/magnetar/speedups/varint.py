"""Protobuf's variable-length integers, for what is written without protobuf objects.

Source: protobuf's encoding guide: seven bits a byte, the lowest first, the high bit set on all but
the last byte.
"""

from __future__ import annotations

from typing import Final

BYTES: Final = tuple(bytes((value,)) for value in range(256))
"""Each byte by its value: a look-up costs less than making one."""
U64: Final = 0xFFFF_FFFF_FFFF_FFFF


def varint(value: int) -> bytes:
    """``value`` as a protobuf varint; negative numbers as their 64-bit two's complement."""
    if 0 <= value < 128:
        return BYTES[value]
    value &= U64
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
