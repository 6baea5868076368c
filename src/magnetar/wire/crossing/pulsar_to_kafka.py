"""Pulsar's entries as record batches, for Kafka's consumers.

An entry of n messages becomes a batch of n offsets; messages that compaction took out have none,
and their offsets stay empty, as in Kafka. What corresponds is said in ``kafka_to_pulsar``; besides:

* a message without an event time has its publish time as timestamp, ``TIMESTAMP_MAX`` at most;
* ordering keys, schema versions and the producer's name have no counterpart and are left out.

Refused with ``NotAllowedError``: chunks of a message that is larger than an entry, of which no
single batch can be made, encrypted entries, which only Pulsar's clients can read, and what unpacks
to more than a record batch may (several copies of it would be in memory).

Pure, but for the codecs' libraries.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from magnetar.model.errors import NotAllowedError, ProtocolError
from magnetar.wire.crossing.kafka_to_pulsar import CODECS as PULSAR_CODECS
from magnetar.wire.kafka.batches import TIMESTAMP_MAX
from magnetar.wire.kafka.compression import UNCOMPRESSED_BYTES_MAX, Codec
from magnetar.wire.kafka.records import KafkaRecord, RecordHeader, batch_of
from magnetar.wire.pulsar.batches import MessageInfo, iterate_messages
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.metadata import EntryMetadata, entry_metadata

CODECS: Final[Mapping[Compression, Codec]] = MappingProxyType(
    {compression: codec for codec, compression in PULSAR_CODECS.items()}
)


def kafka_batch(
    payload: memoryview,
    base_offset: int,
    leader_epoch: int,
    metadata: EntryMetadata | None = None,
) -> bytes:
    """The batch, stamped. Raises ``NotAllowedError`` for what has no counterpart,
    ``ProtocolError``, ``ConfigError`` if its codec's library is not installed. ``metadata`` saves
    parsing it again."""
    meta = metadata or entry_metadata(payload)
    if meta.num_chunks > 1:
        raise NotAllowedError(
            f"offset {base_offset} is chunk {meta.chunk_id} of {meta.num_chunks} of one large "
            "message of a Pulsar producer; read it with a Pulsar client, or seek behind it"
        )
    if meta.encrypted:
        raise NotAllowedError(
            f"offset {base_offset} was encrypted by the Pulsar producer {meta.producer_name}; read "
            "it with a Pulsar client that has the key, or seek behind it"
        )
    if meta.compression != Compression.NONE and meta.uncompressed_size > UNCOMPRESSED_BYTES_MAX:
        raise NotAllowedError(
            f"offset {base_offset} unpacks to {meta.uncompressed_size} bytes, and Kafka's clients "
            f"get {UNCOMPRESSED_BYTES_MAX} at most; read it with a Pulsar client, or seek behind it"
        )
    times: list[int] = []
    made: list[KafkaRecord] = []
    for info, value in iterate_messages(payload, meta):
        if info.compacted_out:
            continue
        times.append(min(info.event_time_ms or meta.publish_time_ms, TIMESTAMP_MAX))
        made.append(_record(info, value, times[-1] - times[0]))
    return batch_of(
        made,
        times[0] if times else min(meta.publish_time_ms, TIMESTAMP_MAX),
        codec=CODECS[meta.compression],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        last_offset_delta=meta.num_messages - 1,
    )


def _record(info: MessageInfo, value: memoryview, timestamp_delta_ms: int) -> KafkaRecord:
    headers = [RecordHeader(name, text.encode()) for name, text in info.properties.items()]
    payload = None if info.null_value else bytes(value)
    return KafkaRecord(max(0, info.batch_index), timestamp_delta_ms, _key(info), payload, headers)


def _key(info: MessageInfo) -> bytes | None:
    if info.key is None:
        return None
    if not info.key_b64_encoded:
        return info.key.encode()
    try:
        return b64decode(info.key, validate=True)
    except ValueError as error:
        raise ProtocolError(f"a key that says it is base64 and is not: {error}") from error
