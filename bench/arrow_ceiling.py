"""What Spark takes of Arrow batches out of Python, with nothing behind them: the ceiling of any
data source in Python. ``format("arrow_ceiling")`` gives ``rows`` rows of ``bytes`` each over two
tasks, with the columns ``columns`` of the platform's source, in batches of about a megabyte that
are built once per task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from magnetar.pipeline.schema import spark_schema

BATCH_BYTES = 1 << 20
ROW_BYTES = 100
"""Of the columns beside the value, about."""
TIME_US = 1_790_000_000_000_000


class ArrowCeiling(DataSource):
    @classmethod
    def name(cls) -> str:
        return "arrow_ceiling"

    def schema(self) -> StructType:
        columns = self.options.get("columns")
        return spark_schema(columns.split(",") if columns else None)

    def reader(self, schema: StructType) -> DataSourceReader:
        return CeilingReader(schema, {name: int(self.options[name]) for name in ("rows", "bytes")})


class CeilingReader(DataSourceReader):
    def __init__(self, schema: StructType, sizes: dict[str, int], tasks: int = 2) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._rows, self._bytes, self._tasks = sizes["rows"], sizes["bytes"], tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(self._rows // self._tasks) for _ in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left: int = partition.value
        wide = ROW_BYTES if len(self._schema) > 1 else 0
        batch = self._batch(max(1, min(left, BATCH_BYTES // (self._bytes + wide))))
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows

    def _batch(self, rows: int) -> pa.RecordBatch:
        values: dict[str, Any] = {
            "key": [f"k{number % 1000}" for number in range(rows)],
            "value": [bytes(self._bytes)] * rows,
            "topic": ["persistent://public/default/rows-partition-0"] * rows,
            "partition": [0] * rows,
            "message_id": [
                {"ledger_id": 7, "entry_id": number // 1000, "batch_index": number % 1000}
                for number in range(rows)
            ],
            "publish_time": [TIME_US] * rows,
            "event_time": [None] * rows,
            "properties": [{}] * rows,
            "offset": list(range(rows)),
        }
        arrays = [pa.array(values[field.name], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
