"""Values of any schema that has columns: which Spark type they have, and blocks of them as arrays.

| schema | column |
|---|---|
| AVRO, JSON | as ``spark_types`` has it |
| STRING, BOOLEAN, INT8 ... DOUBLE, DATE ... LOCAL_DATE_TIME | as ``spark_types.PLAIN`` has it |
| KEY_VALUE | struct(key, value), of these; key and value in the message's payload (INLINE) |

PROTOBUF, PROTOBUF_NATIVE, EXTERNAL, keys that are SEPARATED, and JSON schemas of clients before 2.1
are refused: ``InvalidSchemaError`` says which and what to do.

Pure.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, StructField, StructType

from magnetar.cluster.schemas.avro import AvroType, load_json, parse_avro
from magnetar.cluster.schemas.key_value import INLINE, split
from magnetar.model.errors import InvalidSchemaError
from magnetar.model.schema import SchemaType, TopicSchema
from magnetar.pipeline.columns.protobuf_columns import Ints
from magnetar.pipeline.typed.avro_arrow import ArrowValues
from magnetar.pipeline.typed.avro_walk import Walk
from magnetar.pipeline.typed.blocks import Array, Block, spread
from magnetar.pipeline.typed.json_values import JsonValues
from magnetar.pipeline.typed.plain_values import decode_plain
from magnetar.pipeline.typed.spark_types import PLAIN, spark_type

NO_BYTES = 0xFFFF_FFFF


class ValueDecoder(Protocol):
    def decode(self, block: Block) -> Array:
        """As many elements as the block has values; those of bad ones (``block.faults``) mean
        nothing."""
        ...


def value_type(schema: TopicSchema) -> DataType:
    """Of a column of such values. Raises ``InvalidSchemaError``."""
    kind = schema.kind
    if kind is SchemaType.NONE:
        return BinaryType()
    if kind in PLAIN:
        return PLAIN[kind]
    if kind in (SchemaType.AVRO, SchemaType.JSON):
        return spark_type(avro_of(schema), json=kind is SchemaType.JSON)
    if kind is SchemaType.KEY_VALUE:
        parts = split(schema)
        if parts.encoding != INLINE:
            raise _no_columns("KEY_VALUE with keys that are SEPARATED")
        both = ("key", value_type(parts.key)), ("value", value_type(parts.value))
        return StructType([StructField(name, found) for name, found in both])
    raise _no_columns(kind.name)


def _no_columns(what: str) -> InvalidSchemaError:
    return InvalidSchemaError(
        f"schemas of type {what} are not read as columns; read the topic with valueFormat=bytes"
    )


def avro_of(schema: TopicSchema) -> AvroType:
    """The definition of a schema of type AVRO or JSON."""
    node = load_json(schema.data)
    if schema.kind is SchemaType.JSON and isinstance(node, dict) and node.get("type") == "object":
        raise _no_columns("JSON in the form of JSON Schema (of clients before 2.1)")
    return parse_avro(schema.data)


def decoder_of(reader: TopicSchema, writer: TopicSchema, arrow: pa.DataType) -> ValueDecoder:
    """Decodes what ``writer`` wrote. ``arrow``: what ``value_type`` of the reader's is in Arrow.
    Raises ``InvalidSchemaError`` if nothing of it can be read so."""
    kind = writer.kind
    if kind is not reader.kind:
        raise InvalidSchemaError(f"{kind.name} cannot be read as {reader.kind.name}")
    if kind is SchemaType.AVRO:
        return _Avro(avro_of(reader), avro_of(writer), arrow)
    if kind is SchemaType.JSON:
        return JsonValues(avro_of(reader), avro_of(writer), arrow)
    if kind is SchemaType.KEY_VALUE:
        return _KeyValue(reader, writer, arrow)
    return _Bytes(arrow) if kind is SchemaType.NONE else _Plain(kind, arrow)


class _Avro:
    def __init__(self, reader: AvroType, writer: AvroType, arrow: pa.DataType) -> None:
        spark_type(writer)  # raises for one that contains itself
        self._reader, self._writer, self._arrow = reader, writer, arrow

    def decode(self, block: Block) -> Array:
        walk = Walk(block.bytes, block.faults)
        column = walk.values(self._writer, block.rows, block.at, block.stop)
        arrays = ArrowValues(block.bytes, block.faults)
        return arrays.array(self._reader, self._writer, column, self._arrow)


class _Plain:
    def __init__(self, kind: SchemaType, arrow: pa.DataType) -> None:
        self._kind, self._arrow = kind, arrow

    def decode(self, block: Block) -> Array:
        return decode_plain(self._kind, block, self._arrow)


class _Bytes:
    def __init__(self, arrow: pa.DataType) -> None:
        self._arrow = arrow

    def decode(self, block: Block) -> Array:
        pairs = zip(block.at.tolist(), block.stop.tolist(), strict=True)
        return pa.array([block.bytes.data[at:stop] for at, stop in pairs], self._arrow)


class _KeyValue:
    """Each part after its length (4 bytes, big endian), -1 for none."""

    def __init__(self, reader: TopicSchema, writer: TopicSchema, arrow: pa.DataType) -> None:
        ours, theirs = split(reader), split(writer)
        if theirs.encoding != INLINE:
            raise _no_columns("KEY_VALUE with keys that are SEPARATED")
        self._arrow = arrow
        self._key = decoder_of(ours.key, theirs.key, arrow.field(0).type)
        self._value = decoder_of(ours.value, theirs.value, arrow.field(1).type)

    def decode(self, block: Block) -> Array:
        at = block.at
        keys, at = self._part(block, self._key, at)
        values, at = self._part(block, self._value, at)
        over = at < block.stop
        if over.any():
            block.faults.add(block.rows[over], "", "bytes are left over behind the value")
        return pa.StructArray.from_arrays([keys, values], fields=list(self._arrow))

    def _part(self, block: Block, decoder: ValueDecoder, at: Ints) -> tuple[Array, Ints]:
        """The part that begins at ``at`` of each value, and where the next does."""
        begin = at + 4
        cut = begin > block.stop
        length = block.bytes.big_endian_u32(np.where(cut, block.bytes.size - 1, at))
        none = length == NO_BYTES
        length = np.where(none, 0, length)
        cut |= begin + length > block.stop
        if cut.any():
            block.faults.add(block.rows[cut], "", "a key-value pair that ends within it")
        there = np.flatnonzero(~none & ~cut)
        chosen = block._replace(
            rows=block.rows[there], at=begin[there], stop=begin[there] + length[there]
        )
        array = spread(decoder.decode(chosen), there, len(at))
        return array, np.where(cut, block.stop, begin + length)
