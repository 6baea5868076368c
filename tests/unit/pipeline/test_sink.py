"""Which rows can become messages, and which messages they become."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

from magnetar.model.errors import ConfigError
from magnetar.model.schema import SchemaType, TopicSchema
from magnetar.pipeline.options import parse_write_options
from magnetar.pipeline.schema import spark_schema
from magnetar.pipeline.sink import _message_fields, check_write_schema, refuse_given
from magnetar.pipeline.typed.client_schema import encoded_schema

OPTIONS = parse_write_options({"service.url": "pulsar://127.0.0.1:1", "topic": "t"})


def test_rows_as_they_are_read_may_be_written_if_the_rest_is_null() -> None:
    for naming in ("magnetar", "kafka"):
        check_write_schema(spark_schema(None, naming, headers=True), OPTIONS, overwrite=False)
    batch = pa.RecordBatch.from_pydict({"value": [b"a", b"b"], "partition": [None, None]})
    refuse_given(batch)
    given = pa.RecordBatch.from_pydict({"value": [b"a", b"b"], "partition": [None, 1]})
    with pytest.raises(ConfigError, match="'partition' cannot be written, the broker gives it"):
        refuse_given(given)


def test_what_cannot_be_written_is_refused() -> None:
    other = StructType().add("value", BinaryType()).add("other", IntegerType())
    with pytest.raises(ConfigError, match="'other' has no place in a message"):
        check_write_schema(other, OPTIONS, overwrite=False)
    with pytest.raises(ConfigError, match="cannot be int"):
        check_write_schema(StructType().add("value", IntegerType()), OPTIONS, overwrite=False)
    with pytest.raises(ConfigError, match="cannot be overwritten"):
        check_write_schema(StructType().add("value", StringType()), OPTIONS, overwrite=True)
    with pytest.raises(ConfigError, match="rows need a column 'value'"):
        check_write_schema(StructType().add("key", StringType()), OPTIONS, overwrite=False)


def test_keys_properties_and_headers() -> None:
    at = dt.datetime.fromtimestamp(1_700_000_000, dt.UTC)
    row = {
        "key": b"k",
        "event_time": at,
        "properties": [("a", "1")],
        "headers": [{"key": "b", "value": b"2"}, {"key": "c", "value": None}],
    }
    assert _message_fields(row) == {
        "partition_key": "k",
        "event_timestamp": 1_700_000_000_000,
        "properties": {"a": "1", "b": "2", "c": ""},
    }
    assert _message_fields({"value": b"x", "key": None}) == {}
    with pytest.raises(ConfigError, match="a key is not UTF-8 text"):
        _message_fields({"key": b"\xff"})


def test_a_schema_that_the_official_client_does_not_know() -> None:
    found = encoded_schema(TopicSchema(SchemaType.STRING, b""))
    assert found.encode(b"\xff") == b"\xff", "values are encoded already"
    assert encoded_schema(None).schema_info().name() == "BYTES"
    with pytest.raises(ConfigError, match="BOOLEAN, which the official client does not know"):
        encoded_schema(TopicSchema(SchemaType.BOOLEAN, b""))
