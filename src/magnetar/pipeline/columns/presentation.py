"""Decoded columns as the query wants them: names, types, nulls. Per record batch, no value copied
that need not be.

Readers of splits build the columns of ``schema.DECODED``; a query may ask for others that are made
of these (those of ``columnNames=kafka``), and Spark wants batches of exactly the schema that it was
promised, in which a column of the user's may be null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from magnetar.pipeline.columns.key_bytes import key_bytes
from magnetar.pipeline.losses import LOST
from magnetar.pipeline.schema import CORRUPT, DECODED, arrow_schema
from magnetar.pipeline.topic_names import partition_number, topic_of

KAFKA_SOURCES = {"timestamp": "publish_time", "timestampType": None}
CREATE_TIME = 0


def constants_of(topic: str, naming: str) -> dict[str, int | str]:
    """What the columns are that hold the same for all messages of a topic partition."""
    if naming == "kafka":
        return {"topic": topic_of(topic), "partition": max(0, partition_number(topic))}
    return {"topic": topic, "partition": partition_number(topic)}


class Presentation:
    """What becomes of the batches of one split. ``schema``: what Spark was promised."""

    def __init__(
        self, schema: pa.Schema, naming: str, topic: str, also: Sequence[str] = ()
    ) -> None:
        """``also``: columns that are decoded for what is made of values."""
        self._schema = schema
        self._kafka = naming == "kafka"
        self._constants = constants_of(topic, naming) | {"timestampType": CREATE_TIME}
        told = [name for name in schema.names if name not in (CORRUPT, LOST)]
        sources = [KAFKA_SOURCES.get(name, name) for name in told]
        wanted = {name for name in sources if name is not None} | set(also)
        if self._kafka and "key" in wanted:
            wanted.add("key_is_base64")
        plain = not self._kafka and not also and set(schema.names) <= set(DECODED)
        in_order = tuple(name for name in DECODED if name in wanted) or ("partition",)
        self.decoded: tuple[str, ...] = tuple(schema.names) if plain else in_order
        """The columns that have to be decoded, in order; one at least, as it counts the rows."""
        self._as_they_are = plain and schema.equals(arrow_schema(schema.names))

    def present(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches if self._as_they_are else map(self._batch, batches)

    def _batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [self._array(batch, field) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        count = batch.num_rows
        if self._kafka and field.name in self._constants:
            return pa.repeat(pa.scalar(self._constants[field.name], field.type), count)
        if self._kafka and field.name == "key":
            encoded = batch.column("key_is_base64").to_numpy(zero_copy_only=False)
            return key_bytes(batch.column("key"), encoded)
        source = KAFKA_SOURCES.get(field.name) or field.name
        if field.name == CORRUPT and CORRUPT not in batch.schema.names:
            return pa.nulls(count, field.type)  # values are bytes
        if field.name == LOST:
            return pa.nulls(count, field.type)  # it is a message (``lost_rows``)
        found = batch.column(source)
        return found if found.type == field.type else found.cast(field.type)
