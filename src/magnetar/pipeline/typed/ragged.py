"""Byte strings of different lengths side by side, and how several become one, row by row.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from magnetar.pipeline.columns.protobuf_columns import Flags, Ints

Octets: TypeAlias = npt.NDArray[np.uint8]


class Ragged(NamedTuple):
    """Row ``i`` is ``data[offsets[i]:offsets[i + 1]]``; there is an offset more than rows."""

    data: Octets
    offsets: Ints

    @property
    def rows(self) -> int:
        return len(self.offsets) - 1


def of_lengths(data: Octets, lengths: Ints) -> Ragged:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return Ragged(data, offsets)


def of_size(data: Octets, size: int) -> Ragged:
    """Rows of the same size."""
    return Ragged(data, np.arange(0, len(data) + 1, size, dtype=np.int64))


def of_masked(matrix: Octets, kept: Flags) -> Ragged:
    """Of each row of a matrix the bytes that are kept."""
    return of_lengths(matrix[kept], kept.sum(axis=1))


def constant(data: bytes, count: int) -> Ragged:
    """The same in every row."""
    if not data:
        return Ragged(np.zeros(0, np.uint8), np.zeros(count + 1, np.int64))
    return of_size(np.tile(np.frombuffer(data, np.uint8), count), len(data))


def zigzags(values: npt.NDArray[Any]) -> Ragged:
    """Integers as Avro writes them."""
    wide = values.astype(np.int64)
    left = ((wide << 1) ^ (wide >> 63)).view(np.uint64)
    if int(left.max(initial=0)) < 0x80:
        return of_size(left.astype(np.uint8), 1)
    steps = -(-int(left.max()).bit_length() // 7)
    matrix = np.empty((len(left), steps), np.uint8)
    lengths = np.ones(len(left), np.int64)
    for step in range(steps):
        matrix[:, step] = left & np.uint64(0x7F)
        left = left >> np.uint64(7)
        more = left != 0
        matrix[:, step] |= more.astype(np.uint8) << 7
        lengths += more
    return of_lengths(matrix[np.arange(steps) < lengths[:, None]], lengths)


def with_gaps(part: Ragged, present: Flags) -> Ragged:
    """The rows of ``part`` where ``present``, empty ones elsewhere."""
    lengths = np.zeros(len(present), np.int64)
    lengths[present] = np.diff(part.offsets)
    return of_lengths(part.data, lengths)


def joined(parts: Sequence[Ragged]) -> Ragged:
    """Row by row the parts' rows one behind the other. Arrow's ``take`` moves the bytes: of all
    parts' rows as one array, in the order of the rows."""
    if len(parts) == 1:
        return parts[0]
    count, width = parts[0].rows, len(parts)
    begins = np.cumsum([0, *(len(part.data) for part in parts)])
    data = np.concatenate([part.data for part in parts])
    ends = [part.offsets[1:] + begin for part, begin in zip(parts, begins[:-1], strict=True)]
    offsets = np.concatenate([np.zeros(1, np.int64), *ends])
    whole = pa.Array.from_buffers(
        pa.large_binary(), width * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    order = np.arange(width * count).reshape(width, count).T.ravel()
    taken = whole.take(pa.array(order)).buffers()
    found = np.frombuffer(taken[1], np.int64)[: width * count + 1]
    moved = np.frombuffer(taken[2], np.uint8) if taken[2] is not None else data
    return Ragged(moved[: int(found[-1])], found[::width])


def as_binary(rows: Ragged) -> pa.Array:
    """As an array of Arrow's."""
    offsets = rows.offsets
    if int(offsets[-1]) < 2**31:
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(rows.data)]
        return pa.Array.from_buffers(pa.binary(), rows.rows, buffers)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(rows.data)]
    return pa.Array.from_buffers(pa.large_binary(), rows.rows, buffers)
