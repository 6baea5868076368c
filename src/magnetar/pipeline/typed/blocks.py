"""Values side by side in one buffer, as they come out of a column of bytes.

Pure.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from magnetar.pipeline.columns.protobuf_columns import SLACK, Bytes, Ints
from magnetar.pipeline.typed.faults import Faults

Array: TypeAlias = pa.Array


class Block(NamedTuple):
    """Some values. ``rows``: their numbers in ``faults``, whose order they have; each lies from
    ``at`` to ``stop``. There is a byte behind them that is none of theirs."""

    bytes: Bytes
    rows: Ints
    at: Ints
    stop: Ints
    faults: Faults

    @property
    def length(self) -> Ints:
        return self.stop - self.at


def block_of(values: Array) -> Block:
    """Those of an array of binary that are not null."""
    offsets = offsets_of(values)
    first, data = int(offsets[0]), values.buffers()[2]
    whole = memoryview(data)[first : int(offsets[-1])] if data is not None else b""
    bytes_ = Bytes(b"".join([whole, b"\0", SLACK]))
    offsets = offsets - first
    rows = np.arange(len(values))
    if values.null_count:
        rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    return Block(bytes_, rows, offsets[:-1][rows], offsets[1:][rows], Faults(len(values)))


def offsets_of(values: Array) -> Ints:
    """Where the elements of an array of text, bytes, lists or maps begin, and where the last ends,
    in what the array is a part of."""
    if not len(values):
        return np.zeros(1, np.int64)
    size = len(values) + 1
    kinds = pa.types.is_large_string, pa.types.is_large_binary, pa.types.is_large_list
    wide = any(each(values.type) for each in kinds)
    whole = np.frombuffer(values.buffers()[1], np.int64 if wide else np.int32)
    return whole[values.offset : values.offset + size].astype(np.int64)


def spread(array: Array, rows: Ints, count: int) -> Array:
    """The array's elements in these rows of ``count``, nulls in the others."""
    if len(array) == count:
        return array
    places = np.full(count, -1, np.int64)
    places[rows] = np.arange(len(rows))
    return array.take(pa.array(places, mask=places < 0))
