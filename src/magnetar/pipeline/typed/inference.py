"""Which schema a read has: asked of the registry when the read is planned, and carried in the
columns.

Spark infers a schema in one process, plans in another and reads in others. What ``schema`` found
goes with the column ``value`` as its metadata, so that all of them read with the same schema, also
when a newer one is registered meanwhile, and a table reads as it was made.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark.sql.types import DataType, StructField, StructType

from magnetar.model.errors import ConfigError, InvalidSchemaError
from magnetar.model.schema import SchemaType, TopicSchema
from magnetar.pipeline.schema import CORRUPT, spark_schema
from magnetar.pipeline.typed.options import AUTO, BYTES, ValueOptions
from magnetar.pipeline.typed.registry import SchemaClient
from magnetar.pipeline.typed.value_decoding import value_type

METADATA: Final = "magnetar.schema"
VALUE: Final = "value"


@dataclass(frozen=True)
class ReaderSchema:
    """What values are read with: a version of the schema of ``topic``. ``others``: of other topics
    that are read with it the versions of their own schemas, where these are written otherwise."""

    topic: str
    version: int
    schema: TopicSchema
    others: Mapping[str, int] = field(default_factory=dict)

    @property
    def type(self) -> DataType:
        return value_type(self.schema)

    def to_text(self) -> str:
        parts: dict[str, Any] = {
            "topic": self.topic,
            "version": self.version,
            "type": self.schema.kind.name,
            "definition": b64encode(self.schema.data).decode(),
            "properties": dict(self.schema.properties),
        }
        if self.others:
            parts["others"] = dict(self.others)
        return json.dumps(parts, sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> ReaderSchema:
        parts: dict[str, Any] = json.loads(text)
        data = b64decode(parts["definition"])
        schema = TopicSchema(SchemaType[parts["type"]], data, parts["properties"])
        return cls(parts["topic"], parts["version"], schema, parts.get("others", {}))


def infer(
    client: SchemaClient, topics: Sequence[str], options: ValueOptions
) -> ReaderSchema | None:
    """With which schema these topics are read; None for bytes. Raises ``ConfigError``."""
    if options.format == BYTES:
        return None
    found = {topic: client.latest(topic) for topic in topics}
    without = [topic for topic, schema in found.items() if schema is None]
    schemas = [
        ReaderSchema(topic, registered.version, registered.schema)
        for topic, registered in found.items()
        if registered is not None
    ]
    if options.format == AUTO and not schemas:
        return None
    if without or not schemas:
        raise ConfigError(
            f"topic {next(iter(without), 'none')} has no schema, which valueFormat="
            f"{options.format} reads by; upload one (magnetar schemas upload), or read it with "
            "valueFormat=bytes"
        )
    return _of_all(schemas, options)


def _of_all(schemas: Sequence[ReaderSchema], options: ValueOptions) -> ReaderSchema:
    first = schemas[0]
    for each in schemas:
        options.check_type(each.schema.kind, each.topic)
        if _type(each) != _type(first):
            raise ConfigError(
                f"the schemas of {first.topic} and {each.topic} make different columns: "
                f"{_type(first).simpleString()} and {_type(each).simpleString()}; read them in "
                "queries of their own, or with valueFormat=bytes"
            )
    # The same columns may be written otherwise: a time in another unit, a field that may be null.
    others = {each.topic: each.version for each in schemas if each.schema != first.schema}
    return replace(first, others=others)


def _type(schema: ReaderSchema) -> DataType:
    try:
        return schema.type
    except InvalidSchemaError as error:
        raise ConfigError(f"topic {schema.topic}: {error}") from error


def with_values(
    schema: StructType, reader: ReaderSchema | None, options: ValueOptions, *, chosen: bool
) -> StructType:
    """The columns of a read, ``value`` in its type. ``chosen``: the user has named the columns;
    else ``_corrupt_record`` comes behind them where values may be left out."""
    fields = [
        StructField(VALUE, reader.type, True, {METADATA: reader.to_text()})
        if reader is not None and field.name == VALUE
        else field
        for field in schema.fields
    ]
    if options.permissive and not chosen:
        fields += spark_schema([CORRUPT]).fields
    return StructType(fields)


def carried(schema: StructType) -> ReaderSchema | None:
    """The reader's schema that comes with columns; None if there is none."""
    kept = [f.metadata[METADATA] for f in schema.fields if METADATA in (f.metadata or {})]
    return ReaderSchema.from_text(kept[0]) if kept else None
