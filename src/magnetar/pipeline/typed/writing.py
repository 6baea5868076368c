"""Rows whose values are written by a schema.

Decided on the driver, when the write is planned (``plan_write``):

* Does the topic have a schema that the column fits (``fitting``), it is written by that.
* Else the column's own schema is brought to the registry, as a producer would: it becomes the
  topic's first, or next, version, or is refused, with the registry's reason.
* Rows that name their topics are written by the column's own schema, which tasks bring to each.

Each message carries the version. A value of null is a tombstone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from magnetar.model.errors import ConfigError, IncompatibleSchemaError, InvalidSchemaError
from magnetar.model.schema import SchemaType, TopicSchema
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.typed.avro_encoding import encode_avro
from magnetar.pipeline.typed.blocks import spread
from magnetar.pipeline.typed.fitting import schema_of, unfit
from magnetar.pipeline.typed.inference import VALUE
from magnetar.pipeline.typed.json_encoding import encode_json
from magnetar.pipeline.typed.options import AUTO, BYTES, TYPE_OF, ValueOptions
from magnetar.pipeline.typed.plain_values import encode_plain
from magnetar.pipeline.typed.registry import SchemaClient
from magnetar.pipeline.typed.value_decoding import avro_of
from magnetar.wire.pulsar.schemas import encode_version

TIMEOUT_S: Final = 60.0


def value_column(
    schema: StructType, others: Sequence[str], options: ValueOptions
) -> tuple[DataType, tuple[str, ...]] | None:
    """The type of what is written by a schema, and of which columns it is made, if not of
    ``value``: of all that are not among ``others``. None: values are bytes. Raises
    ``ConfigError``."""
    if options.format == BYTES:
        return None
    if VALUE in schema.names:
        found = schema[VALUE].dataType
        as_it_is = isinstance(found, (BinaryType, StringType))
        return None if options.format == AUTO and as_it_is else (found, ())
    if options.format == AUTO:
        return None
    fields = [each for each in schema.fields if each.name not in others]
    if not fields:
        raise ConfigError(f"rows have no value: there are only columns {', '.join(schema.names)}")
    return StructType(fields), tuple(each.name for each in fields)


@dataclass(frozen=True)
class TypedWrite:
    """How values are written; picklable. ``known``: versions that were asked for on the driver;
    ``columns``: those that make a value, if it is not the column ``value``."""

    schema: TopicSchema
    service_url: str
    known: Mapping[str, int]
    columns: tuple[str, ...] = ()

    def opened(self) -> ValueWriter:
        """In a task."""
        return ValueWriter(self)


@dataclass
class ValueWriter:
    """Of one task."""

    plan: TypedWrite
    _versions: dict[str, int] = field(default_factory=dict)

    def version(self, topic: str) -> bytes:
        """What messages of the topic carry."""
        found = self.plan.known.get(topic, self._versions.get(topic))
        if found is None:
            with closing(BrokerClient(self.plan.service_url, TIMEOUT_S)) as client:
                schemas = SchemaClient(client, TIMEOUT_S)
                found = self._versions[topic] = schemas.bring(topic, self.plan.schema)
        return encode_version(found)

    def encoded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches with their values as bytes."""
        return map(self.batch, batches)

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = self.plan.columns
        if columns:
            parts = [batch.column(name) for name in columns]
            fields = [batch.schema.field(name) for name in columns]
            values = pa.StructArray.from_arrays(parts, fields=fields)
        else:
            values = batch.column(VALUE)
        kept = {
            name: batch.column(name)
            for name in batch.schema.names
            if name != VALUE and name not in columns
        }
        kept[VALUE] = encode(self.plan.schema, values)
        return pa.RecordBatch.from_arrays(list(kept.values()), list(kept))


def encode(schema: TopicSchema, values: pa.Array) -> pa.Array:
    """As an array of binary; null where the values are. Raises ``ConfigError`` for one that the
    schema has not."""
    if schema.kind not in (SchemaType.AVRO, SchemaType.JSON):
        return encode_plain(schema.kind, values)
    kind = avro_of(schema)
    dense = values.drop_null() if values.null_count else values
    found = encode_avro(kind, dense) if schema.kind is SchemaType.AVRO else encode_json(kind, dense)
    if not values.null_count:
        return found
    present = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    return spread(found, present, len(values))


def plan_write(
    service_url: str,
    topic: str | None,
    column: tuple[DataType, tuple[str, ...]],
    options: ValueOptions,
    patience_s: float = 0.0,
) -> TypedWrite:
    """``patience_s``: so long a broker is waited for: a stream's writer is made anew for each
    micro-batch. Raises ``ConfigError``; ``IncompatibleSchemaError`` with the registry's reason."""
    kind, columns = column
    own = TYPE_OF.get(options.format)
    if topic is None:
        schema = schema_of(kind, json_form=own is SchemaType.JSON)
        return TypedWrite(schema, service_url, {}, columns)
    with closing(BrokerClient(service_url, TIMEOUT_S)) as client:
        schemas = SchemaClient(client, patience_s)
        latest = schemas.latest(topic)
        reason = None
        if latest is not None:
            options.check_type(latest.schema.kind, topic)
            reason = _unfit(latest.schema, kind)
            if reason is None:
                return TypedWrite(latest.schema, service_url, {topic: latest.version}, columns)
            own = latest.schema.kind
        schema = schema_of(kind, json_form=own is SchemaType.JSON)
        try:
            version = schemas.bring(topic, schema)
        except IncompatibleSchemaError as error:
            if reason is None:
                raise
            raise IncompatibleSchemaError(
                f"the rows do not fit the schema of {topic} ({reason}), and theirs, as its next "
                f"version, is refused: {error}"
            ) from error
        return TypedWrite(schema, service_url, {topic: version}, columns)


def _unfit(schema: TopicSchema, column: DataType) -> str | None:
    try:
        return unfit(schema, column)
    except InvalidSchemaError as error:
        return str(error)
