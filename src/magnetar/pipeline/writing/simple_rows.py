"""Rows that have a value and perhaps a key, nearly all: their messages are joined by columns.

Arrow puts what stands around a key and a value between them, for all rows of a partition in one
call, so that an entry's data is a piece of one buffer: no object is made for a row, and a value is
copied twice on its way into its entry instead of four times.

``SimpleRows.of`` gives None for rows that have more than that, or a null where it counts: those are
encoded row by row (``row_encoding``), and the entries are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from magnetar.wire.pulsar.writing import Columns, EntryBuilder

JOINED_BYTES_MAX: Final = 1 << 30
"""Of the rows of one record batch: Arrow's offsets have 31 bits."""

_Numbers: TypeAlias = np.ndarray[Any, Any]


class JoinedRows(NamedTuple):
    """Messages one after the other: that of row ``i`` is ``data[bounds[i]:bounds[i + 1]]``.
    ``row_bytes``: of each row's value and key."""

    row_bytes: list[int]
    data: memoryview
    bounds: list[int]


class SimpleRows(NamedTuple):
    """Side by side, without a null: ``keys`` are text, ``values`` binary."""

    keys: pa.Array | None
    values: pa.Array

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> SimpleRows | None:
        """None: its rows are not simple."""
        keys, values = None, None
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name == "value":
                values = column
            elif name == "key" and column.null_count == 0:
                keys = column
            elif column.null_count < len(column):
                return None  # something else that rows may have, each in a way of its own
        if values is None or not len(values) or values.null_count:
            return None
        if keys is not None and not pa.types.is_string(keys.type):
            return None
        if not (pa.types.is_string(values.type) or pa.types.is_binary(values.type)):
            return None
        if batch.nbytes > JOINED_BYTES_MAX:
            return None
        return cls(keys, values.cast(pa.binary()))

    def columns(self, start: int, stop: int) -> Columns:
        """Of these rows, as others are."""
        keys = None if self.keys is None else self.keys[start:stop].to_pylist()
        return Columns(self.values[start:stop].to_pylist(), keys)

    def by_place(self, place: Callable[[str], int], count: int) -> Iterator[tuple[int, SimpleRows]]:
        """The rows of each of ``count`` places, by their keys' ``place``; each key is asked for
        once. Requires keys."""
        assert self.keys is not None
        distinct = self.keys.dictionary_encode()
        of_key = np.array([place(key) % count for key in distinct.dictionary.to_pylist()])
        places = of_key[distinct.indices.to_numpy()]
        for found in np.unique(places).tolist():
            rows = pa.array(np.flatnonzero(places == found))
            yield found, SimpleRows(self.keys.take(rows), self.values.take(rows))

    def joined(self, builder: EntryBuilder) -> JoinedRows:
        lengths: _Numbers = pc.binary_length(self.values).to_numpy()
        if self.keys is None:
            parts = [*_around(lengths, lambda size: (builder.value_head(size),)), self.values]
            row_bytes = lengths
        else:
            keys = self.keys.cast(pa.binary())
            of_keys: _Numbers = pc.binary_length(keys).to_numpy()
            both = of_keys.astype(np.int64) << 32 | lengths
            before, after = _around(both, lambda two: builder.around(two >> 32, two & 0xFFFFFFFF))
            parts = [before, keys, after, self.values]
            row_bytes = lengths + of_keys
        whole = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
        _, offsets, data = whole.buffers()
        bounds = np.frombuffer(offsets, np.int32)[whole.offset : whole.offset + len(whole) + 1]
        return JoinedRows(row_bytes.tolist(), memoryview(data), bounds.tolist())


def _around(lengths: _Numbers, around: Callable[[int], tuple[bytes, ...]]) -> list[pa.Array]:
    """Columns of what ``around`` gives for each row's length."""
    distinct, of_rows = np.unique(lengths, return_inverse=True)
    found = [around(each) for each in distinct.tolist()]
    rows = pa.array(of_rows)
    return [pa.array(column, pa.binary()).take(rows) for column in zip(*found, strict=True)]
