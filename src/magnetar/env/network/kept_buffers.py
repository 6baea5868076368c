"""Buffers of frames whose bytes are not copied out: whoever handles them keeps views of them.

A buffer is used again when nobody has a view of it any more, which it says itself: a ``bytearray``
cannot change its size while somebody looks into it. Memory that is used again need not be cleared,
nor brought by the kernel page by page, which costs as much as the copy that was saved.
"""

from __future__ import annotations

from typing import Final

BYTES_MAX: Final = 32 << 20
"""Of the buffers that are remembered."""


class KeptBuffers:
    """Lends buffers; none is ever given back."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._buffers: list[bytearray] = []
        self._bytes = 0

    def lend(self, byte_count: int) -> memoryview:
        """A buffer of that size into which nobody looks. What was in it before is still there."""
        for buffer in self._buffers:
            # Not one that is much too large: a small frame would hold all of it.
            if byte_count <= len(buffer) < 2 * byte_count and _is_free(buffer):
                return memoryview(buffer)[:byte_count]
        buffer = bytearray(byte_count)
        self._bytes += byte_count
        self._buffers.append(buffer)
        while self._bytes > self._bytes_max:  # the oldest are forgotten, and go with their views
            self._bytes -= len(self._buffers.pop(0))
        return memoryview(buffer)


def _is_free(buffer: bytearray) -> bool:
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
