"""Which rows can become messages, and which messages they become."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from magnetar.model.errors import ConfigError
from magnetar.pipeline.options.source_options import parse_write_options
from magnetar.pipeline.schema import spark_schema
from magnetar.pipeline.writing.sink import Sink, check_write_schema, refuse_given
from magnetar.wire.pulsar.batches import iterate_messages
from tests.unit.pipeline.scripted_broker import scripted_broker

OPTIONS = parse_write_options({"service.url": "pulsar://127.0.0.1:1", "topic": "t"})


def test_rows_as_they_are_read_may_be_written_if_the_rest_is_null() -> None:
    for naming in ("magnetar", "kafka"):
        check_write_schema(spark_schema(None, naming, headers=True), OPTIONS, overwrite=False)
    batch = pa.RecordBatch.from_pydict({"value": [b"a", b"b"], "partition": [None, None]})
    refuse_given(batch, OPTIONS)
    given = pa.RecordBatch.from_pydict({"value": [b"a", b"b"], "partition": [None, 1]})
    with pytest.raises(ConfigError, match="'partition' cannot be written, the broker gives it"):
        refuse_given(given, OPTIONS)


def test_versions_are_kept_of_bytes_if_that_is_asked_for() -> None:
    options = parse_write_options(
        {"service.url": "pulsar://127.0.0.1:1", "topic": "t", "keepSchemaVersion": "true"}
    )
    schema = StructType().add("value", BinaryType())
    for kind in (None, IntegerType()):
        odd = schema if kind is None else StructType([*schema.fields]).add("schema_version", kind)
        with pytest.raises(ConfigError, match="needs a column 'schema_version' of type bigint"):
            check_write_schema(odd, options, overwrite=False)
    schema = StructType([*schema.fields]).add("schema_version", LongType())
    check_write_schema(schema, options, overwrite=False)
    with pytest.raises(ConfigError, match="values that are bytes already"):
        check_write_schema(schema, options, overwrite=False, typed=("value",))
    batch = pa.RecordBatch.from_pydict({"value": [b"a", b"b"], "schema_version": [None, 1]})
    refuse_given(batch, options)
    with pytest.raises(ConfigError, match="'schema_version' cannot be written"):
        refuse_given(batch, OPTIONS)


def test_what_cannot_be_written_is_refused() -> None:
    other = StructType().add("value", BinaryType()).add("other", IntegerType())
    with pytest.raises(ConfigError, match="'other' has no place in a message"):
        check_write_schema(other, OPTIONS, overwrite=False)
    with pytest.raises(ConfigError, match="cannot be int"):
        check_write_schema(StructType().add("value", IntegerType()), OPTIONS, overwrite=False)
    for name, kind in (
        ("properties", MapType(StringType(), IntegerType())),
        ("headers", ArrayType(MapType(StringType(), StringType()))),
    ):
        odd = StructType().add("value", BinaryType()).add(name, kind)
        with pytest.raises(ConfigError, match=f"column '{name}' is .*, and not .*map"):
            check_write_schema(odd, OPTIONS, overwrite=False)
    with pytest.raises(ConfigError, match="cannot be overwritten"):
        check_write_schema(StructType().add("value", StringType()), OPTIONS, overwrite=True)
    with pytest.raises(ConfigError, match="rows need a column 'value'"):
        check_write_schema(StructType().add("key", StringType()), OPTIONS, overwrite=False)


def test_rows_are_sent_as_messages() -> None:
    at = dt.datetime.fromtimestamp(1_700_000_000, dt.UTC)
    rows = {
        "value": [b"a", None],
        "key": ["k", None],
        "event_time": [at, None],
        "properties": pa.array([[("a", "1")], None], pa.map_(pa.string(), pa.string())),
    }
    with scripted_broker() as broker:
        options = parse_write_options({"service.url": broker.url, "topic": "t"})
        assert Sink(options).write(iter([pa.RecordBatch.from_pydict(rows)])).rows == 2
    (taken,) = broker.taken
    assert taken.topic == "persistent://public/default/t"
    first, second = iterate_messages(taken.payload)
    assert (first[0].key, bytes(first[1])) == ("k", b"a")
    assert (first[0].event_time_ms, dict(first[0].properties)) == (1_700_000_000_000, {"a": "1"})
    assert second[0].null_value
    bad = pa.RecordBatch.from_pydict(
        {"value": [b""], "headers": [[{"key": "h", "value": b"\xff"}]]}
    )
    with pytest.raises(ConfigError, match="a header is not UTF-8 text"):
        Sink(OPTIONS).write(iter([bad]))
