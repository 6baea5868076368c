"""Record batches of a split, with values as columns.

A message says with which version of its topic's schema it was written; a batch is decoded version
by version, mostly one. A version is asked for once a process. Messages without one were written by
producers without a schema: they are read with the reader's own, or, where several topics are read,
with that which their topic had when the query was planned.

What cannot be read ends the task with an error that names the message, or is null
(``ValueOptions.permissive``), with its bytes in ``_corrupt_record``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type

from magnetar.model.errors import InvalidSchemaError, ProtocolError, SchemaNotFoundError
from magnetar.model.schema import TopicSchema
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.columns.protobuf_columns import Flags, Ints
from magnetar.pipeline.schema import CORRUPT
from magnetar.pipeline.topic_names import topic_of
from magnetar.pipeline.typed.avro_arrow import nulled
from magnetar.pipeline.typed.blocks import Array, block_of, spread
from magnetar.pipeline.typed.faults import Faults
from magnetar.pipeline.typed.inference import VALUE, ReaderSchema
from magnetar.pipeline.typed.registry import SchemaClient
from magnetar.pipeline.typed.value_decoding import ValueDecoder, decoder_of

NO_VERSION: Final = -1
NEEDED: Final = (VALUE, "message_id", "schema_version")
"""The columns that are decoded for it."""

VersionAsked = Callable[[int], TopicSchema]


@dataclass(frozen=True)
class TypedRead:
    """What a task is told. Picklable."""

    reader: ReaderSchema
    permissive: bool
    service_url: str
    timeout_s: float

    def values(self, partition: str, created_ms: int) -> TypedValues:
        """Of a split of this topic partition, of the log that was made then."""
        topic = topic_of(partition)

        def ask(version: int) -> TopicSchema:
            return VERSIONS.get(self.service_url, topic, created_ms, version, self.timeout_s)

        return TypedValues(self, topic, ask)


class TypedValues:
    """Makes columns of the values of one topic. ``versions`` gives the schema of a version, or
    raises ``SchemaNotFoundError``."""

    def __init__(self, read: TypedRead, topic: str, versions: VersionAsked) -> None:
        self._read = read
        self._topic = topic
        self._versions = versions
        self.kind: pa.DataType = to_arrow_type(read.reader.type, timezone="UTC")
        self._decoders: dict[int, ValueDecoder | str] = {}

    def decode(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches with ``NEEDED``; the same with values in their type and ``_corrupt_record``."""
        return map(self.batch, batches)

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        stored = batch.column(VALUE)
        versions = batch.column("schema_version").fill_null(NO_VERSION)
        faults = Faults(batch.num_rows)
        values = self._values(stored, versions.to_numpy(), faults)
        if faults.bad.any() and not self._read.permissive:
            raise self._refusal(batch, faults)
        arrays = {name: batch.column(name) for name in batch.schema.names}
        arrays[VALUE] = nulled(values, faults.bad)
        arrays[CORRUPT] = _where(stored, faults.bad)
        return pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays))

    def _values(self, stored: Array, versions: Ints, faults: Faults) -> Array:
        """By version; nearly always there is one."""
        count = len(stored)
        if not count or (versions == versions[0]).all():
            rows = np.arange(count)
            return self._of_version(stored, int(versions[0]) if count else NO_VERSION, rows, faults)
        parts, order = [], np.empty(count, np.int64)
        begin = 0
        for version in np.unique(versions).tolist():
            rows = np.flatnonzero(versions == version)
            parts.append(self._of_version(stored.take(pa.array(rows)), version, rows, faults))
            order[rows] = np.arange(begin, begin + len(rows))
            begin += len(rows)
        return pa.concat_arrays(parts).take(pa.array(order))

    def _of_version(self, stored: Array, version: int, rows: Ints, faults: Faults) -> Array:
        """``rows``: the numbers of these values in the batch."""
        decoder = self._decoder(version)
        if isinstance(decoder, str):
            present = stored.is_valid().to_numpy(zero_copy_only=False)
            faults.add(rows[present], "", decoder)
            return pa.nulls(len(stored), self.kind)
        block = block_of(stored)
        values = decoder.decode(block)
        faults.take(block.faults, rows)
        return spread(values, block.rows, len(stored))

    def _decoder(self, version: int) -> ValueDecoder | str:
        """Or why what was written with the version cannot be read."""
        found = self._decoders.get(version)
        if found is None:
            found = self._decoders[version] = self._new_decoder(version)
        return found

    def _new_decoder(self, version: int) -> ValueDecoder | str:
        reader = self._read.reader
        try:
            writer = self._own() if version == NO_VERSION else self._writer(version)
            return decoder_of(reader.schema, writer, self.kind)
        except (SchemaNotFoundError, InvalidSchemaError) as error:
            return str(error)

    def _own(self) -> TopicSchema:
        """Of the topic. Raises ``SchemaNotFoundError``."""
        version = self._read.reader.others.get(self._topic)
        return self._read.reader.schema if version is None else self._versions(version)

    def _writer(self, version: int) -> TopicSchema:
        """Asked also of the version that the reader's is of: a topic that was made anew since the
        columns were chosen begins its numbers anew. What was deleted in the registry is known
        still. Raises ``SchemaNotFoundError``."""
        reader = self._read.reader
        try:
            return self._versions(version)
        except SchemaNotFoundError:
            if (version, self._topic) != (reader.version, reader.topic):
                raise
            return reader.schema

    def _refusal(self, batch: pa.RecordBatch, faults: Faults) -> ProtocolError:
        row, why = faults.first() or (0, "")
        place, version = batch.column("message_id")[row].as_py(), batch.column("schema_version")
        where = ":".join(str(place[part]) for part in ("ledger_id", "entry_id", "batch_index"))
        written = version[row].as_py()
        if not len(batch.column(VALUE)[row].as_py() or b""):
            why = f"it has no bytes, and does not say that it is null, as a tombstone does; {why}"
        by = "no schema" if written is None else f"version {written} of the schema"
        reader = self._read.reader
        return ProtocolError(
            f"{self._topic}: message {where}: its value, written with {by}, cannot be read by "
            f"version {reader.version} ({reader.schema.kind.name}): {why}. "
            f"mode=PERMISSIVE reads on and gives such values in the column {CORRUPT}; "
            "valueFormat=bytes reads all as they are"
        )


def _where(stored: Array, bad: Flags) -> Array:
    """The values that are bad, null for the others."""
    if not bad.any():
        return pa.nulls(len(stored), pa.binary())
    return stored.take(pa.array(np.arange(len(stored)), mask=~bad))


class SchemaVersions:
    """The versions that this process has asked for. One never changes while its topic is there, and
    a topic that was made anew was made at another time."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int, int], TopicSchema] = {}

    def get(
        self, service_url: str, topic: str, created_ms: int, version: int, timeout_s: float
    ) -> TopicSchema:
        """Raises ``SchemaNotFoundError``, ``BrokerError``."""
        key = service_url, topic, created_ms, version
        found = self._known.get(key)
        if found is None:
            with closing(BrokerClient(service_url, timeout_s)) as client:
                found = self._known[key] = SchemaClient(client).at(topic, version)
        return found


VERSIONS: Final = SchemaVersions()
