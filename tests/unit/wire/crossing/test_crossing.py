"""Entries of one protocol for clients of the other: nothing that has a counterpart is lost."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.model.entry import Entry, SurvivingEntry
from magnetar.model.errors import NotAllowedError, ProtocolError
from magnetar.protocols.entry_formats import EitherEntryFormat
from magnetar.protocols.pulsar.entry_format import PulsarEntryFormat
from magnetar.topics.entry_format import last_index
from magnetar.wire.crossing.kafka_to_pulsar import NOT_CONVERTED, pulsar_entry, sealed_entry
from magnetar.wire.crossing.pulsar_to_kafka import kafka_batch
from magnetar.wire.kafka.batches import (
    STAMP_BYTES,
    TIMESTAMP_MAX,
    build_batch,
    check_produced,
    stamp,
)
from magnetar.wire.kafka.compression import UNCOMPRESSED_BYTES_MAX, Codec
from magnetar.wire.kafka.records import (
    KafkaRecord,
    RecordHeader,
    batch_of,
    read_batch,
    timestamp_of,
)
from magnetar.wire.pulsar.batches import iterate_messages
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.compression import find_compressor
from magnetar.wire.pulsar.metadata import entry_metadata
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata
from magnetar.wire.pulsar.writing import Columns, EntryBuilder, Head
from magnetar.wire.varint import varint

RECORDS = [
    KafkaRecord(0, 0, b"key", b"value" * 20, [RecordHeader("h", b"text"), RecordHeader("n", None)]),
    KafkaRecord(1, 7, None, b"", [RecordHeader("bytes", b"\xff\x00")]),
    KafkaRecord(2, 3, b"\xff\xfe", None, []),
]


def stamped(batch: bytes, offset: int) -> memoryview:
    return memoryview(stamp(offset, len(batch) - 12, 4) + batch[STAMP_BYTES:])


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name)
def test_a_batch_of_kafka_as_pulsar_reads_it(codec: Codec) -> None:
    entry = pulsar_entry(stamped(batch_of(RECORDS, 5_000, codec=codec), 100))
    meta = entry_metadata(entry)
    assert (meta.num_messages, meta.publish_time_ms, meta.sequence_id) == (3, 5_007, 100)
    assert meta.compression.name == {"GZIP": "ZLIB"}.get(codec.name, codec.name)
    assert PulsarEntryFormat().describe(memoryview(entry)).messages == 3
    (one, first), (two, second), (three, third) = iterate_messages(entry, meta)
    assert (one.key, bytes(first), one.event_time_ms) == ("key", b"value" * 20, 5_000)
    assert dict(one.properties) == {"h": "text", "n": ""}
    assert (two.key, bytes(second), two.null_value, two.event_time_ms) == (None, b"", False, 5_007)
    assert dict(two.properties) == {"bytes": "/wA="}
    assert (three.key, three.key_b64_encoded, three.null_value) == ("//4=", True, True)
    assert bytes(third) == b""


def test_a_batch_that_nobody_can_take_apart_is_one_message_that_says_so() -> None:
    batch = stamped(batch_of(RECORDS, 5_000), 100)
    entry = sealed_entry(batch, "codec 7")
    meta = entry_metadata(entry)
    assert (meta.num_messages, meta.publish_time_ms, meta.sequence_id) == (3, 5_007, 100)
    assert PulsarEntryFormat().describe(memoryview(entry)).messages == 3
    (one, payload), *others = iterate_messages(entry, meta)
    assert (dict(one.properties), bytes(payload)) == ({NOT_CONVERTED: "codec 7"}, bytes(batch))
    assert [(told.compacted_out, bytes(none)) for told, none in others] == [(True, b"")] * 2


@pytest.mark.parametrize("compression", Compression, ids=lambda each: each.name)
def test_an_entry_of_pulsar_as_kafka_reads_it(compression: Compression) -> None:
    columns = Columns(
        [b"one" * 50, None, b""],
        ["key", b"\xff", None],
        [1_000, None, 999],
        [{"a": "b"}, None, None],
    )
    entry = EntryBuilder(compression, find_compressor(compression)).entry(
        Head("me", 7, 2_000), columns
    )
    batch = memoryview(kafka_batch(memoryview(entry), 500, 9))
    assert check_produced(batch).record_count == 3
    header, records = read_batch(batch)
    assert (header.base_offset, header.leader_epoch, header.next_offset) == (500, 9, 503)
    assert [record.key for record in records] == [b"key", b"\xff", None]
    assert [record.value for record in records] == [b"one" * 50, None, b""]
    assert [timestamp_of(header, record) for record in records] == [1_000, 2_000, 999]
    assert records[0].headers == [RecordHeader("a", b"b")]


def test_there_and_back_again() -> None:
    batch = stamped(batch_of(RECORDS, 5_000), 100)
    _, records = read_batch(memoryview(kafka_batch(memoryview(pulsar_entry(batch)), 100, 4)))
    assert [(each.key, each.value) for each in records] == [(r.key, r.value) for r in RECORDS]


def plain(data: bytes = b"x", **fields: Any) -> memoryview:
    described = MessageMetadata(
        producer_name="me", sequence_id=1, publish_time=5, **fields
    ).SerializeToString()
    return memoryview(len(described).to_bytes(4, "big") + described + data)


def test_a_plain_message_is_a_batch_of_one() -> None:
    header, (record,) = read_batch(memoryview(kafka_batch(plain(partition_key="k"), 3, 1)))
    assert (header.base_offset, header.last_offset_delta, header.base_timestamp_ms) == (3, 0, 5)
    assert (record.key, record.value) == (b"k", b"x")


def test_what_has_no_counterpart_is_refused() -> None:
    chunk = plain(uuid="u", num_chunks_from_msg=3, chunk_id=1, total_chunk_msg_size=9)
    with pytest.raises(NotAllowedError, match="chunk 1 of 3"):
        kafka_batch(chunk, 3, 1)
    encrypted = plain(encryption_algo="x")
    with pytest.raises(NotAllowedError, match="encrypted"):
        kafka_batch(encrypted, 3, 1)


def test_what_unpacks_to_more_than_a_batch_may_is_refused() -> None:
    """A frame of a quarter of a megabyte took 1.5 GB, and five seconds."""
    size = UNCOMPRESSED_BYTES_MAX + 1
    packed = find_compressor(Compression.ZLIB)(bytes(size))
    payload = plain(packed, compression=int(Compression.ZLIB), uncompressed_size=size)
    with pytest.raises(NotAllowedError, match="Pulsar client"):
        kafka_batch(payload, 0, 0)


def test_each_entry_is_described_by_its_own_format() -> None:
    either = EitherEntryFormat()
    batch = stamped(batch_of(RECORDS, 5_000), 1 << 40)
    assert either.describe(batch).messages == 3
    assert either.sent(batch) == ("kafka--1", -1)
    assert either.sender(batch) is None
    assert either.published(batch).time_ms == 5_007
    for entry in (plain(), memoryview(pulsar_entry(batch))):
        assert either.describe(entry) == PulsarEntryFormat().describe(entry)
        assert either.published(entry) == PulsarEntryFormat().published(entry)


def test_the_last_index_of_an_entry_is_the_same_to_consumers_of_either_protocol() -> None:
    batch, form = stamped(batch_of(RECORDS, 5_000), 1 << 40), EitherEntryFormat()
    for payload, index in [(batch, 2), (pulsar_entry(batch), 2), (plain(), -1), (b"\xff" * 9, -1)]:
        assert last_index(Entry(1, 1, payload, 0), form) == index
    assert last_index(SurvivingEntry(1, 1, pulsar_entry(batch), 0, [0b010]), form) == 1
    assert last_index(SurvivingEntry(1, 1, b"", 0, [1, 1 << 5, 0]), form) == 69


@pytest.mark.parametrize("field", ["publish_time", "event_time"])
def test_a_time_that_no_clock_has_is_the_last_one(field: str) -> None:
    said = {"publish_time": 5, field: 2**64 - 1}
    meta = MessageMetadata(producer_name="p", sequence_id=1, **said)
    head = meta.SerializeToString()
    entry = memoryview(len(head).to_bytes(4, "big") + head + b"value")
    header, records = read_batch(memoryview(kafka_batch(entry, 7, 1)))
    assert timestamp_of(header, records[0]) == header.max_timestamp_ms == 2**63 - 1


@pytest.mark.parametrize("delta_ms", [2**62, 2**68])
def test_a_time_of_kafka_past_64_bits_is_the_last_one(delta_ms: int) -> None:
    """Pulsar's messages have 64 bits for it."""
    # Attributes, time, place, no key, the value, no headers.
    body = b"\x00" + varint(delta_ms << 1) + b"\x00\x01\x0avalue\x00"
    data = varint(len(body) << 1) + body
    batch = build_batch(data, count=1, last_offset_delta=0, base_timestamp_ms=TIMESTAMP_MAX)
    entry = pulsar_entry(memoryview(batch))
    ((told, payload),) = iterate_messages(entry, entry_metadata(entry))
    assert (told.event_time_ms, bytes(payload)) == (TIMESTAMP_MAX, b"value")


@pytest.mark.parametrize("place", [-1, 2, 9])
def test_a_record_that_has_no_place_in_its_batch_makes_it_none(place: int) -> None:
    records = [KafkaRecord(each, 0, None, b"value") for each in (0, place)]
    batch = batch_of(records, 5_000, last_offset_delta=1)
    with pytest.raises(ProtocolError, match="a record at"):
        pulsar_entry(memoryview(batch))
