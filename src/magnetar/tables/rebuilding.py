"""Rows of tables -> the entries that they were.

An entry's bytes are its rows' frames and payloads, one behind the other: all of a window are put
together by one call of Arrow's, and cut between entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from magnetar.model.entry import Entry

COLUMNS: Final = ("ledger_id", "entry_id", "batch_index", "frame", "payload")
"""That are read for it."""


def rebuilt(ledger_id: int, rows: pa.Table, first: int, stop: int) -> list[Entry]:
    """The entries from ``first`` up to, not including, ``stop``, of the rows of one ledger in any
    order. One that has no rows any more is there without bytes: nobody can make a message of it, so
    subscriptions leave it out."""
    found = _in_order(rows, first, stop)
    data = pc.binary_join_element_wise(
        found["frame"], pc.fill_null(found["payload"], b""), pa.scalar(b"", pa.large_binary())
    )
    ids = found["entry_id"].to_numpy()
    begins = np.flatnonzero(np.diff(ids, prepend=-1)) if len(ids) else np.zeros(0, np.int64)
    bytes_at, whole = _bytes(data)
    ends = [*begins[1:].tolist(), len(ids)]
    by_id = {
        int(ids[begin]): whole[bytes_at[begin] : bytes_at[end]]
        for begin, end in zip(begins.tolist(), ends, strict=True)
    }
    return [Entry(ledger_id, number, by_id.get(number, b""), 0) for number in range(first, stop)]


def _in_order(rows: pa.Table, first: int, stop: int) -> pa.Table:
    ids = pc.field("entry_id")
    rows = rows.filter((ids >= first) & (ids < stop) & pc.field("frame").is_valid())
    order = [("entry_id", "ascending"), ("batch_index", "ascending")]
    rows = rows.sort_by(order)
    large = pa.large_binary()
    for name in ("frame", "payload"):
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, name, rows[name].cast(large))
    return rows.combine_chunks()


def _bytes(column: pa.ChunkedArray) -> tuple[Sequence[int], bytes]:
    """Where each element begins, and the last ends, in all of their bytes."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not len(array):
        return [0], b""
    offsets = np.frombuffer(array.buffers()[1], np.int64)
    offsets = offsets[array.offset : array.offset + len(array) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    data = array.buffers()[2]
    whole = b"" if data is None else memoryview(data)[first:last].tobytes()
    return (offsets - first).tolist(), whole
