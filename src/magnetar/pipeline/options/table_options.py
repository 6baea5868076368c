"""The options of a table in Spark's catalog (``CREATE TABLE ... USING magnetar OPTIONS (...)``).

Spark hands them over when the table is made, to infer its schema, and never again: a read or write
of the table comes with those of the query only. But the schema comes, as it was inferred and kept,
so the options stand in it, as metadata of its first column. Columns of a table may be null, as
``INSERT INTO t (key, value)`` leaves the others so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from magnetar.model.errors import ConfigError
from magnetar.pipeline.option_values import TABLE_PREFIX, is_of_a_table

METADATA = "magnetar.options"


def of_table(schema: StructType, raw: Mapping[str, str]) -> StructType:
    """The schema as a table keeps it, if a table is made."""
    if not is_of_a_table(raw):
        return schema
    options = {key: raw[key] for key in sorted(raw) if key.lower().startswith(TABLE_PREFIX)}
    fields = [StructField(f.name, f.dataType, True, f.metadata) for f in schema.fields]
    fields[0].metadata = {**(fields[0].metadata or {}), METADATA: json.dumps(options)}
    return StructType(fields)


def of_query(schema: StructType, raw: Mapping[str, str]) -> Mapping[str, str]:
    """The options of a read or write with that schema: the table's, and over them the query's."""
    kept = [field.metadata[METADATA] for field in schema.fields if METADATA in field.metadata]
    if kept:
        given = {TABLE_PREFIX + key.lower(): value for key, value in raw.items()}
        options: dict[str, str] = json.loads(kept[0])
        return options | given
    if not raw:
        raise ConfigError(
            "no options came. Spark hands those of a table over when it is made, and they are kept "
            "in the columns that it finds then: make the table without a list of columns (CREATE "
            "TABLE t USING magnetar OPTIONS (...)), or name the options in the query (SELECT ... "
            "FROM t WITH ('service.url' = '...', 'topic' = '...'))"
        )
    return raw
