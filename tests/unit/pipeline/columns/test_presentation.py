"""Decoded columns under other names and types."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from magnetar.pipeline.columns.presentation import Presentation
from magnetar.pipeline.schema import DECODED, arrow_schema, spark_schema

T = "persistent://public/default/t"
VALUES = {
    "key": ["a", None],
    "value": [b"x", None],
    "topic": [f"{T}-partition-3"] * 2,
    "partition": [3, 3],
    "message_id": [{"ledger_id": 1, "entry_id": 2, "batch_index": i} for i in range(2)],
    "publish_time": [5_000, 6_000],
    "event_time": [None, 7_000],
    "properties": [[("p", "1"), ("q", "2")], []],
    "offset": [17, 18],
    "schema_version": [2, None],
    "headers": [[{"key": "p", "value": b"1"}, {"key": "p", "value": b"2"}], []],
    "key_is_base64": [False, False],
}


def shown(
    schema: StructType, naming: str, topic: str = f"{T}-partition-3"
) -> list[dict[str, object]]:
    wanted = to_arrow_schema(schema, timezone="UTC")
    form = Presentation(wanted, naming, topic)
    decoded = arrow_schema(form.decoded)
    arrays = [pa.array(VALUES[field.name], field.type) for field in decoded]
    batch = pa.RecordBatch.from_arrays(arrays, schema=decoded)
    (found,) = form.present(iter([batch]))
    assert found.schema.equals(wanted)
    return found.to_pylist()  # type: ignore[no-any-return]


def test_what_is_asked_for_as_it_is_decoded_is_left_alone() -> None:
    wanted = to_arrow_schema(spark_schema(["value", "key"]), timezone="UTC")
    form = Presentation(wanted, "magnetar", T)
    assert form.decoded == ("value", "key")
    batch = pa.RecordBatch.from_arrays(
        [pa.array(VALUES[name], wanted.field(name).type) for name in form.decoded], schema=wanted
    )
    assert next(form.present(iter([batch]))) is batch


def test_columns_that_may_be_null() -> None:
    names = [name for name in DECODED if name != "offset"]
    fields = [StructField(f.name, f.dataType, True) for f in spark_schema(names).fields]
    rows = shown(StructType(fields), "magnetar")
    assert [row["partition"] for row in rows] == [3, 3]


def test_headers() -> None:
    rows = shown(spark_schema(["headers", "offset"]), "magnetar")
    pairs = [{"key": "p", "value": b"1"}, {"key": "p", "value": b"2"}]
    assert rows == [{"headers": pairs, "offset": 17}, {"headers": [], "offset": 18}]


def test_columns_of_kafka() -> None:
    first, second = shown(spark_schema(None, "kafka", headers=True), "kafka")
    assert first["key"] == b"a"
    assert (first["topic"], first["partition"], first["offset"]) == (T, 3, 17)
    assert first["timestampType"] == 0
    assert second["key"] is None
    assert second["headers"] == []


def test_a_topic_without_partitions_is_kafkas_partition_0() -> None:
    rows = shown(spark_schema(["partition", "topic", "value"], "kafka"), "kafka", T)
    assert [(row["partition"], row["topic"]) for row in rows] == [(0, T), (0, T)]


def test_rows_are_counted_though_no_column_is_decoded() -> None:
    assert shown(spark_schema(["timestampType"], "kafka"), "kafka") == [{"timestampType": 0}] * 2


def test_keys_of_kafka_are_the_bytes_that_the_producer_gave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(VALUES, "key", ["/wA=", "not base64"])
    monkeypatch.setitem(VALUES, "key_is_base64", [True, True])
    rows = shown(spark_schema(["key"], "kafka"), "kafka")
    assert rows == [{"key": b"\xff\0"}, {"key": b"not base64"}]
    assert shown(spark_schema(["key"]), "magnetar")[0] == {"key": "/wA="}
