"""Options of a table in Spark's catalog: they come once, and travel in its schema."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from magnetar.model.errors import ConfigError
from magnetar.pipeline.options.source_options import parse_read_options, parse_write_options
from magnetar.pipeline.options.table_options import of_query, of_table
from magnetar.pipeline.schema import check_read_schema, spark_schema

URL = "pulsar://127.0.0.1:6650"
AS_IT_COMES = {
    "provider": "magnetar",
    "owner": "me",
    "option.service.url": URL,
    "service.url": URL,
    "option.topic": "t",
    "topic": "t",
    "option.failondataloss": "false",
    "failondataloss": "false",
}


def stored() -> StructType:
    """The schema of the table, as it comes back from the catalog."""
    return StructType.fromJson(of_table(spark_schema(None), AS_IT_COMES).jsonValue())


def test_a_table_is_read_and_written_with_its_options() -> None:
    schema = stored()
    check_read_schema(schema)
    assert all(field.nullable for field in schema.fields)
    options = parse_read_options(of_query(schema, {}))
    assert options.service_url == URL
    assert not options.fail_on_data_loss
    assert parse_write_options(of_query(schema, {})).topic == "persistent://public/default/t"


def test_a_query_has_the_last_word() -> None:
    raw = of_query(stored(), {"topic": "u", "startingOffsets": "latest"})
    options = parse_read_options(raw)
    assert options.selection.topics == ("persistent://public/default/u",)
    with pytest.raises(ConfigError, match="unknown option 'startingoffset'"):
        parse_read_options(of_query(stored(), {"startingOffset": "latest"}))


def test_without_a_table_nothing_changes() -> None:
    schema = spark_schema(None)
    assert of_table(schema, {"service.url": URL, "topic": "t"}) == schema
    assert of_query(schema, {"topic": "t"}) == {"topic": "t"}
    with pytest.raises(ConfigError, match=r"no options came.*without a list of columns"):
        of_query(schema, {})
