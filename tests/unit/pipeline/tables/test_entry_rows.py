"""Entries become rows, and rows the same entries again, whatever entries they are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from magnetar.model.entry import Entry
from magnetar.pipeline.brokers.topic_reader import StoredEntry
from magnetar.pipeline.tables.entry_rows import EntryRows, Rows
from magnetar.tables.columns import main_schema
from magnetar.tables.layout import WHY
from magnetar.tables.rebuilding import COLUMNS, rebuilt
from magnetar.wire.kafka.batches import CONTROL, TRANSACTIONAL
from magnetar.wire.kafka.compression import Codec
from magnetar.wire.kafka.records import KafkaRecord, RecordHeader, batch_of
from magnetar.wire.pulsar.batches import iterate_messages
from magnetar.wire.pulsar.broker_metadata import Stamper
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.hot import verify_checksum
from magnetar.wire.pulsar.metadata import Buffer, EntryMetadata, entry_metadata
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata
from tests.unit.pipeline.entry_building import (
    TOPIC,
    Layout,
    Message,
    batch,
    batch_data,
    chunks,
    framed,
    single,
)

LEDGER = 9


def no_earlier(entry: StoredEntry, meta: EntryMetadata) -> Sequence[Buffer]:
    return ()


def entries_of(payloads: Sequence[bytes]) -> list[Entry]:
    """As they lie in a ledger: behind a header of the bookies'."""
    return [Entry(LEDGER, n, b"#" * 36 + each, 36) for n, each in enumerate(payloads)]


def rows_of(payloads: Sequence[bytes], block: int = 1000) -> Rows:
    maker, found = EntryRows(TOPIC, no_earlier), Rows([], [], 0)
    entries = entries_of(payloads)
    for first in range(0, len(entries), block):
        part = maker.rows(entries[first : first + block])
        found = Rows(
            found.main + part.main,
            found.side + part.side,
            found.messages + part.messages,
            found.beside + part.beside,
        )
    return found


def main_of(found: Rows) -> list[dict[str, Any]]:
    return pa.Table.from_batches(found.main, schema=main_schema(None)).to_pylist()


def back(found: Rows, stop: int, first: int = 0) -> list[bytes]:
    tables = [pa.Table.from_batches([each]).select(COLUMNS) for each in found.main + found.side]
    random.Random(3).shuffle(tables)
    whole = pa.concat_tables(tables)
    again = rebuilt(LEDGER, whole, first, stop)
    assert [entry.entry_id for entry in again] == list(range(first, stop))
    return [bytes(entry.payload) for entry in again]


def test_entries_come_back_byte_for_byte() -> None:
    draw = random.Random(5)
    payloads = []
    for number in range(60):
        them = [
            Message(
                draw.randbytes(draw.choice([0, 1, 50, 3000])),
                key=f"k{n}" if n % 3 else None,
                properties=(("a", "b"),) if n % 4 == 1 else (),
                event_time_ms=1_790_000_000_000 + n if n % 2 else 0,
                sequence_id=n,
                null=n % 11 == 5,
            )
            for n in range(draw.choice([1, 2, 40]))
        ]
        layout = Layout(header=bool(number % 2), checksum=bool(number % 5))
        payloads.append(single(them[0], layout) if number % 3 == 0 else batch(them, layout))
    found = rows_of(payloads, block=17)
    assert found.side == []
    assert back(found, len(payloads)) == payloads
    assert back(found, 40, 20) == payloads[20:40]


@pytest.mark.parametrize("how", [each for each in Compression if each])
def test_compressed_entries_come_back_uncompressed(how: Compression) -> None:
    them = [Message(b"value %d" % n * 9, key=str(n)) for n in range(50)]
    payloads = [
        batch(them, Layout(how, header=True)),
        single(them[3]),
        single(them[7], Layout(how)),
    ]
    found = rows_of(payloads)
    assert found.side == []
    assert [row["payload"] for row in main_of(found)] == [
        m.value for m in [*them, them[3], them[7]]
    ]
    again = back(found, 3)
    for entry, stored in zip(again, payloads, strict=True):
        assert list(iterate_messages(entry)) == list(iterate_messages(stored))
        assert entry_metadata(entry).compression == Compression.NONE
    verify_checksum(memoryview(again[2]), 0, len(again[2]))


def test_entries_that_are_no_rows_are_kept_whole_and_stop_nothing() -> None:
    parts = chunks(Message(b"0123456789" * 9, key="big"), 3, "one")
    encrypted = MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=2, num_messages_in_batch=3
    )
    encrypted.encryption_keys.add(key="k", value=b"v")
    payloads = [
        single(Message(b"before")),
        parts[0],
        framed(encrypted, b"secret"),
        parts[1],
        b"\x00\x01 what nobody can read",
        parts[2],
        batch([Message(b"a"), Message(b"b", compacted_out=True), Message(b"c")]),
        framed(_of_two(), batch_data([Message(b"x"), Message(b"y")]) + b"tail"),
        single(Message(b"after")),
    ]
    found = rows_of(payloads)
    assert back(found, len(payloads)) == payloads
    assert [row["payload"] for row in main_of(found)] == [
        b"before", b"0123456789" * 9, b"a", b"c", b"x", b"y", b"after",
    ]  # fmt: skip
    why = {row["entry_id"]: row[WHY] for each in found.side for row in each.to_pylist()}
    assert sorted(why) == [1, 2, 3, 4, 5, 6, 7]
    assert "chunk 0 of 3" in why[1]
    assert why[2] == "encrypted"


def _of_two() -> MessageMetadata:
    return MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=2, num_messages_in_batch=2
    )


def test_what_is_gone_is_an_entry_without_bytes() -> None:
    found = rows_of([single(Message(b"%d" % n)) for n in range(4)])
    whole = pa.Table.from_batches(found.main).select(COLUMNS)
    kept = whole.filter(pa.array([True, False, True, False]))
    assert [len(entry.data) > 0 for entry in rebuilt(LEDGER, kept, 0, 4)] == [
        True, False, True, False,
    ]  # fmt: skip


def kafka_entry(codec: Codec, first_offset: int, attributes: int = 0) -> bytes:
    """Three records: with a header, a tombstone, and one whose key is no text."""
    records = [
        KafkaRecord(0, 0, b"k", b"v" * 40, [RecordHeader("h", b"text")]),
        KafkaRecord(1, 5, b"gone", None, []),
        KafkaRecord(2, 7, b"\xff", b"", []),
    ]
    made = batch_of(records, 5_000, codec=codec, base_offset=first_offset)
    made = made[:21] + (attributes | codec).to_bytes(2, "big") + made[23:]
    return Stamper(first_offset, 0).header(11, 3, 5_007) + made


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name)
def test_record_batches_of_kafka_are_rows_and_come_back_as_they_are(codec: Codec) -> None:
    own = batch([Message(b"a", key="p"), Message(b"b")])
    payloads = [own, kafka_entry(codec, 10), kafka_entry(codec, 13), own, kafka_entry(codec, 30)]
    found = rows_of(payloads)
    assert back(found, len(payloads)) == payloads
    assert found.beside == 3
    rows = main_of(found)
    assert [row["payload"] for row in rows[2:5]] == [b"v" * 40, None, b""]
    assert [row["key"] for row in rows[:5]] == ["p", None, "k", "gone", "/w=="]
    assert [row["offset"] for row in rows[2:8]] == [10, 11, 12, 13, 14, 15]
    assert [(row["entry_id"], row["batch_index"]) for row in rows[2:5]] == [(1, 0), (1, 1), (1, 2)]
    assert [dict(row["properties"]) for row in rows[2:4]] == [{"h": "text"}, {}]
    assert [row["event_time"].timestamp() for row in rows[2:5]] == [5.0, 5.005, 5.007]
    assert {row["publish_time"].timestamp() for row in rows[2:5]} == {5.007}
    assert [row["frame"] for row in rows[2:5]] == [None] * 3


@pytest.mark.parametrize("attributes", [TRANSACTIONAL, TRANSACTIONAL | CONTROL])
def test_what_is_part_of_a_transaction_of_kafkas_is_no_row(attributes: int) -> None:
    payloads = [kafka_entry(Codec.NONE, 4), kafka_entry(Codec.NONE, 7, attributes)]
    found = rows_of(payloads)
    assert back(found, 2) == payloads
    assert {row["entry_id"] for row in main_of(found)} == {0}
    assert found.beside == 1
    side = [row for each in found.side for row in each.to_pylist()]
    assert [row["entry_id"] for row in side] == [0, 1]
    assert "part of a transaction" in side[1][WHY]


def test_a_record_batch_that_cannot_be_taken_apart_stops_nothing() -> None:
    whole = kafka_entry(Codec.NONE, 4)
    broken = whole[:-9] + b"\x7f" + whole[-8:]
    found = rows_of([broken, whole])
    assert back(found, 2) == [broken, whole]
    assert {row["entry_id"] for row in main_of(found)} == {1}
