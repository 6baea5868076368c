"""What values with a schema cost as columns: rows a second and core, read and written.

    python -m bench.typed_values [--quick]

Records of five fields, about 100 bytes as Avro. By columns as the Spark source does it
(``pipeline/typed``), and one by one: with fastavro, or ``json``, and Arrow's arrays of objects.
"From entries" is a whole task's decoding: stored entries of a thousand messages, with a schema's
version, to batches with the value in its columns.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type

from bench import results
from bench.measure import machine
from magnetar.model.schema import SchemaType, TopicSchema
from magnetar.pipeline.brokers.topic_reader import StoredEntry
from magnetar.pipeline.columns.entry_decoder import UNNUMBERED, EntryDecoder, decode_entries
from magnetar.pipeline.places import START, Place
from magnetar.pipeline.typed.blocks import block_of
from magnetar.pipeline.typed.inference import ReaderSchema
from magnetar.pipeline.typed.reading import NEEDED, TypedRead, TypedValues
from magnetar.pipeline.typed.value_decoding import decoder_of, value_type
from magnetar.pipeline.typed.writing import encode
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.schemas import encode_version
from magnetar.wire.pulsar.writing import Columns, EntryBuilder, Head

TOPIC = "persistent://public/default/bench"
END = Place(2**60, 0, 0)
ROWS = 10_000
DEFINITION: dict[str, Any] = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "delay", "type": ["null", "int"], "default": None},
        {"name": "score", "type": "double"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}


def rows_of(count: int) -> list[dict[str, Any]]:
    chance = random.Random(1)
    return [
        {
            "id": chance.randrange(2**40),
            "name": "n" * chance.randrange(15, 45),
            "delay": chance.choice([None, chance.randrange(1000)]),
            "score": chance.random(),
            "note": chance.choice([None, "x" * chance.randrange(90, 110)]),
        }
        for _ in range(count)
    ]


class Case:
    """Rows as values of one type of schema."""

    def __init__(self, kind: SchemaType, rows: list[dict[str, Any]]) -> None:
        self.kind = kind
        self.schema = TopicSchema(kind, json.dumps(DEFINITION).encode())
        self.arrow = to_arrow_type(value_type(self.schema), timezone="UTC")
        self._parsed = fastavro.parse_schema(DEFINITION)
        self.values = pa.array([self._one_written(row) for row in rows], pa.binary())
        self.columns = pa.array(rows, self.arrow)
        decoder = decoder_of(self.schema, self.schema, self.arrow)
        self.read: Callable[[], Any] = lambda: decoder.decode(block_of(self.values))
        self.write: Callable[[], Any] = lambda: encode(self.schema, self.columns)

    def read_one_by_one(self) -> Any:
        rows = [self._one_read(value) for value in self.values.to_pylist()]
        return pa.array(rows, self.arrow)

    def write_one_by_one(self) -> Any:
        values = [self._one_written(row) for row in self.columns.to_pylist()]
        return pa.array(values, pa.binary())

    def _one_written(self, row: dict[str, Any]) -> bytes:
        if self.kind is SchemaType.JSON:
            return json.dumps(row, separators=(",", ":")).encode()
        into = io.BytesIO()
        fastavro.schemaless_writer(into, self._parsed, row)
        return into.getvalue()

    def _one_read(self, value: bytes) -> Any:
        if self.kind is SchemaType.JSON:
            return json.loads(value)
        return fastavro.schemaless_reader(io.BytesIO(value), self._parsed, None)


def from_entries(case: Case) -> Callable[[], Any]:
    builder = EntryBuilder(Compression.NONE, bytes)
    values = case.values.to_pylist()
    entries = [
        StoredEntry(5, at, memoryview(_entry(builder, values[at : at + 1000])), 1000)
        for at in range(0, len(values), 1000)
    ]
    read = TypedRead(ReaderSchema(TOPIC, 0, case.schema), False, "", 1.0)
    typed = TypedValues(read, TOPIC, lambda version: case.schema)

    def run() -> Any:
        decoder = EntryDecoder(NEEDED, TOPIC, START, END, lambda entry, meta: ())
        return list(typed.decode(_batches(decoder, entries)))

    return run


def _batches(decoder: EntryDecoder, entries: list[StoredEntry]) -> Iterator[pa.RecordBatch]:
    return decode_entries(decoder, [(entry, UNNUMBERED) for entry in entries])


def _entry(builder: EntryBuilder, values: list[bytes | None]) -> bytes:
    head = Head("p", 0, 1_790_000_000_000, schema_version=encode_version(0))
    return builder.entry(head, Columns(values))


def rate(run: Callable[[], Any], seconds: float) -> float:
    """Rows a second of processor time."""
    run()
    began, count = time.process_time(), 0
    while time.process_time() - began < seconds:
        run()
        count += ROWS
    return count / (time.process_time() - began)


def measure(quick: bool) -> list[dict[str, object]]:
    seconds, rows = 0.3 if quick else 2.0, rows_of(ROWS)
    cases: list[dict[str, object]] = []
    for kind in (SchemaType.AVRO, SchemaType.JSON):
        case = Case(kind, rows)
        assert case.read().to_pylist() == case.read_one_by_one().to_pylist() == rows
        runs: dict[str, tuple[Callable[[], Any], Callable[[], Any] | None]] = {
            "read": (case.read, case.read_one_by_one),
            "written": (case.write, case.write_one_by_one),
            "from entries": (from_entries(case), None),
        }
        for name, (by_columns, one_by_one) in runs.items():
            fast = rate(by_columns, seconds)
            slow = None if one_by_one is None else rate(one_by_one, seconds)
            cases.append(
                {
                    "values": f"{kind.name}, {case.values.nbytes // ROWS} B",
                    "what": name,
                    "one_by_one_per_s": "" if slow is None else round(slow),
                    "by_columns_per_s": round(fast),
                    "ratio": "" if slow is None else round(fast / slow, 1),
                }
            )
    return cases


def main() -> int:
    parser = argparse.ArgumentParser(description="Rows a second as typed columns.")
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    where = machine()
    cases = measure(quick)
    text = results.table(
        ("values", "what", "one by one, rows/s", "by columns, rows/s", "ratio"),
        [list(case.values()) for case in cases],
    )
    results.store("typed_values", {"cases": cases}, text, where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
