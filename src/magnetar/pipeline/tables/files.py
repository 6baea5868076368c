"""Data files of a topic's table: Parquet with Iceberg's column ids, one ledger to a row group.

A ledger's rows go into a file for each day (or hour, or month) on which they were published. Groups
hold about ``GROUP_BYTES`` of messages, since a consumer that is served from the table reads a group
at a time; no entry lies in two.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ParquetFormatWriter, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.typedef import Record

from magnetar.pipeline.columns.protobuf_columns import Ints

GROUP_BYTES: Final = 4 << 20
FILE_BYTES: Final = 256 << 20
"""Of rows, as they are in memory: a file is read whole when messages are erased from it."""
FULL: Final = "-full.parquet"
"""Ends the name of a file that is as large as files become, however well its rows were compressed:
nothing is won by writing it again with others."""
OPEN_BYTES_MAX: Final = 64 << 20
"""Of rows that wait for their group to be full, over all files that are being written."""

PARTITIONED: Final = ("day", "hour", "month", "none")
_US: Final = {"hour": 3_600_000_000, "day": 86_400_000_000}


class Span(NamedTuple):
    """A partition of the table: its number as Iceberg has it, None in a table without."""

    number: int | None


def spans_of(times: pa.Array, by: str) -> Ints:
    """The number of each time's day (since 1970), hour or month; null counts as 1970."""
    us: Ints = pc.fill_null(times.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    if by in _US:
        return us // _US[by]
    assert by == "month"
    months: Ints = us.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64)
    return months


class WrittenFile(NamedTuple):
    """A file that is in no snapshot yet, in plain values, so that it goes from one process to
    another. ``statistics``: as pyiceberg names them."""

    path: str
    span: Span
    byte_count: int
    spec_id: int
    statistics: Mapping[str, Any]

    def data_file(self) -> DataFile:
        number = self.span.number
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.path,
            file_format=FileFormat.PARQUET,
            partition=Record() if number is None else Record(number),
            file_size_in_bytes=self.byte_count,
            sort_order_id=None,
            spec_id=self.spec_id,
            equality_ids=None,
            key_metadata=None,
            **self.statistics,
        )


class _OpenFile:
    """A file that is being written, and the rows that wait to be a group of it."""

    def __init__(self, path: str, writer: ParquetFormatWriter) -> None:
        self.path, self.writer = path, writer
        self.rows: list[pa.Table] = []
        self.row_bytes = 0
        self.file_bytes = 0

    def write_group(self) -> None:
        if self.rows:
            self.writer.write(pa.concat_tables(self.rows).combine_chunks())
            self.file_bytes += self.row_bytes
            self.rows, self.row_bytes = [], 0


class FileWriter:
    """Writes files of one table. ``close`` gives what was written; what is not closed is left in
    the storage, and no snapshot names it. ``coming``: so many bytes of rows are known to come, of
    one span."""

    def __init__(self, table: Table, coming: int = 0) -> None:
        self._coming = coming
        self._table = table
        self._io: FileIO = table.io
        self._schema = table.schema()
        self._arrow = schema_to_pyarrow(self._schema)
        spec = table.spec()
        self._spec_id = spec.spec_id
        self._by = spec.fields[0].transform.root if spec.fields else "none"
        self._name = f"{spec.fields[0].name}" if spec.fields else ""
        properties = dict(table.properties) | {"write.parquet.row-group-limit": "1073741824"}
        self._properties: Mapping[str, str] = properties
        self._locations = load_location_provider(table.location(), table.properties)
        self._open: dict[Span, _OpenFile] = {}
        self._done: list[WrittenFile] = []
        self.rows = 0

    def type_of(self, column: str) -> pa.DataType | None:
        """Of a column of the table, in Arrow; None: it was dropped."""
        at = self._arrow.get_field_index(column)
        return self._arrow.field(at).type if at >= 0 else None

    def write(self, rows: pa.Table) -> None:
        """Whole entries of one ledger."""
        if not rows.num_rows:
            return
        self.rows += rows.num_rows
        rows = self._typed(rows)
        for span, part in self._by_span(rows):
            file = self._open.get(span)
            if file is None:
                file = self._open[span] = self._new(span)
            file.rows.append(part)
            file.row_bytes += part.nbytes
            self._coming -= part.nbytes
            if file.row_bytes >= GROUP_BYTES:
                file.write_group()
            if file.file_bytes >= FILE_BYTES:
                self._finish(span)
        while sum(file.row_bytes for file in self._open.values()) > OPEN_BYTES_MAX:
            max(self._open.values(), key=lambda file: file.row_bytes).write_group()

    def end_ledger(self) -> None:
        """The next rows are of another ledger, and so of other groups."""
        for file in self._open.values():
            file.write_group()

    def close(self) -> list[WrittenFile]:
        for span in list(self._open):
            self._finish(span)
        return self._done

    def _typed(self, rows: pa.Table) -> pa.Table:
        """In the columns of the table, in their order; those that the rows lack are null."""
        arrays = []
        for field in self._arrow:
            if field.name in rows.schema.names:
                arrays.append(rows[field.name].cast(field.type))
            else:
                arrays.append(pa.nulls(rows.num_rows, field.type))
        return pa.Table.from_arrays(arrays, schema=self._arrow)

    def _by_span(self, rows: pa.Table) -> list[tuple[Span, pa.Table]]:
        if self._by == "none":
            return [(Span(None), rows)]
        numbers = spans_of(rows["publish_time"].combine_chunks(), self._by)
        if (numbers == numbers[0]).all():
            return [(Span(int(numbers[0])), rows)]
        return [
            (Span(number), rows.filter(pa.array(numbers == number)))
            for number in np.unique(numbers).tolist()
        ]

    def _new(self, span: Span) -> _OpenFile:
        name = f"{uuid.uuid4()}{FULL if self._coming >= FILE_BYTES else '.parquet'}"
        if span.number is not None:
            name = f"{self._name}={span.number}/{name}"
        path = self._locations.new_data_location(name)
        writer = ParquetFormatWriter(
            self._io.new_output(path), self._schema, dict(self._properties)
        )
        return _OpenFile(path, writer)

    def _finish(self, span: Span) -> None:
        file = self._open.pop(span)
        file.write_group()
        statistics = file.writer.close()
        size = len(self._io.new_input(file.path))
        told = statistics.to_serialized_dict()
        self._done.append(WrittenFile(file.path, span, size, self._spec_id, told))
