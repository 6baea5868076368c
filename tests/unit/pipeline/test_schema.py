"""Columns that a user chooses by a schema."""

from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from magnetar.model.errors import ConfigError
from magnetar.pipeline.schema import check_read_schema


def test_a_column_is_chosen_once() -> None:
    """Twice it was an error of Arrow's in Java, without words."""
    fields = [StructField("value", BinaryType()), StructField("key", StringType())]
    check_read_schema(StructType(fields))
    with pytest.raises(ConfigError, match="a column is there twice: value, key, value"):
        check_read_schema(StructType([*fields, fields[0]]))
