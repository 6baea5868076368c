"""Entries decoded by columns give the rows that protobuf gives, message by message."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.model.errors import ConfigError, ProtocolError
from magnetar.pipeline.brokers.topic_reader import StoredEntry
from magnetar.pipeline.columns import batch_records, chunked_messages
from magnetar.pipeline.columns.arrow_columns import EntryIds, offsets_of
from magnetar.pipeline.columns.entry_columns import EntryTables
from magnetar.pipeline.columns.entry_decoder import EntryDecoder, _Block, decode_entries
from magnetar.pipeline.places import Place
from magnetar.wire.kafka.batches import CONTROL, TRANSACTIONAL
from magnetar.wire.kafka.compression import Codec
from magnetar.wire.kafka.records import KafkaRecord, RecordHeader, batch_of
from magnetar.wire.pulsar.batches import ChunkAssembler
from magnetar.wire.pulsar.broker_metadata import Stamper
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.metadata import Buffer, EntryMetadata, entry_metadata
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata
from tests.golden.pulsar import frame, names
from tests.unit.pipeline.entry_building import (
    ALL_COLUMNS,
    TOPIC,
    Layout,
    Message,
    batch,
    batch_data,
    chunks,
    framed,
    rows_one_by_one,
    single,
    stored,
)
from tests.unit.protocols.pulsar.test_golden_java import SENDS

START, END = Place(-1, -1, 0), Place(10**6, 0, 0)


def no_earlier(entry: StoredEntry, meta: EntryMetadata) -> Sequence[Buffer]:
    return ()


def decoded(
    entries: Sequence[StoredEntry],
    start: Place = START,
    end: Place = END,
    columns: Sequence[str] = ALL_COLUMNS,
    block: int = 1000,
) -> list[dict[str, Any]]:
    """In one pass as far as that goes, and by columns: both the same, or the same error."""
    by_columns, in_one_pass = (
        _outcome(entries, start, end, columns, block, gathers=gathers) for gathers in (False, True)
    )
    if isinstance(by_columns, Exception):
        assert str(in_one_pass) == str(by_columns)
        raise by_columns
    if isinstance(in_one_pass, Exception):
        raise in_one_pass
    assert in_one_pass == by_columns
    return in_one_pass


def _outcome(
    entries: Sequence[StoredEntry],
    start: Place,
    end: Place,
    columns: Sequence[str],
    block: int,
    *,
    gathers: bool,
) -> list[dict[str, Any]] | ProtocolError:
    decoder = EntryDecoder(columns, TOPIC, start, end, no_earlier, gathers=gathers)
    rows: list[dict[str, Any]] = []
    try:
        for first in range(0, len(entries), block):
            part = entries[first : first + block]
            for found in decoder.decode(part, [-1] * len(part)):
                found.validate(full=True)
                rows += plain(found)
    except ProtocolError as error:
        return error
    return rows


def plain(found: pa.RecordBatch) -> list[dict[str, Any]]:
    columns = [
        field.with_type(pa.int64()) if pa.types.is_timestamp(field.type) else field
        for field in found.schema
    ]
    casted: list[dict[str, Any]] = found.cast(pa.schema(columns)).to_pylist()
    return casted


def check(entries: Sequence[StoredEntry], start: Place = START, end: Place = END) -> None:
    assert decoded(entries, start, end) == list(rows_one_by_one(entries, start, end))


# -- all that clients write -------------------------------------------------------------------

texts = st.text(max_size=6) | st.sampled_from(["a", "key-1", "a" * 140])
looks_like_a_message = st.sampled_from(
    [batch_data([Message(b"inner")]), b"\0\0\0\x02\x18\x00", bytes(40), b"\0\0\0\x05\x12\x01k"]
)
values = st.binary(max_size=20) | looks_like_a_message | st.binary(min_size=130, max_size=300)
messages = st.builds(
    Message,
    value=values,
    key=st.none() | texts,
    properties=st.lists(st.tuples(texts, texts), max_size=3, unique_by=lambda p: p[0]).map(tuple),
    event_time_ms=st.sampled_from([0, 0, 1, 300, 1_790_000_000_000]),
    sequence_id=st.none() | st.integers(0, 2**64 - 1),
    ordering_key=st.none() | st.binary(max_size=4),
    null=st.booleans(),
    compacted_out=st.integers(0, 9).map(lambda n: n == 0),
)
layouts = st.builds(
    Layout,
    compression=st.sampled_from([Compression.NONE, *Compression]),
    checksum=st.booleans(),
    header=st.booleans(),
    publish_time_ms=st.integers(0, 2**42),
)
plain_layouts = st.just(Layout())
batches = st.builds(
    lambda them, layout: [batch(them, layout)],
    st.lists(messages, min_size=1, max_size=6),
    layouts | plain_layouts,
)
singles = st.builds(lambda one, layout: [single(one, layout)], messages, layouts | plain_layouts)
in_chunks = st.builds(
    chunks, messages, st.integers(2, 4), st.uuids().map(str), layouts | plain_layouts
)
payloads = st.lists(batches | singles | in_chunks, max_size=8).map(
    lambda groups: [payload for group in groups for payload in group]
)


@settings(max_examples=300, deadline=None)
@given(payloads, st.integers(1, 9), st.booleans())
def test_the_same_rows_as_one_by_one(given_: list[bytes], block: int, walk: bool) -> None:
    entries = stored(given_)
    with pytest.MonkeyPatch.context() as patch:
        if walk:
            patch.setattr(batch_records, "WALK_BYTES", 0)
        found = decoded(entries, block=block)
    assert found == list(rows_one_by_one(entries, START, END))


@settings(max_examples=150, deadline=None)
@given(payloads, st.data())
def test_a_range_may_begin_and_end_within_entries(given_: list[bytes], data: st.DataObject) -> None:
    entries = stored(given_)
    place = st.builds(Place, st.just(5), st.integers(0, len(entries)), st.integers(0, 7))
    start, end = sorted((data.draw(place), data.draw(place)))
    begun = [e for e in entries if start[:2] <= e[:2] and Place(*e[:2], 0) < end]
    check(begun, start, end)


@given(st.sets(st.sampled_from(ALL_COLUMNS), min_size=1), payloads)
@settings(max_examples=60, deadline=None)
def test_only_the_columns_asked_for(columns: set[str], given_: list[bytes]) -> None:
    entries, order = stored(given_), sorted(columns)
    expected = [{name: row[name] for name in order} for row in rows_one_by_one(entries, START, END)]
    assert decoded(entries, columns=order) == expected


# -- names that come twice, keys that are bytes ------------------------------------------------

names_ = st.sampled_from(["a", "b", "c"])
repeating = st.builds(
    Message,
    key=st.none() | st.sampled_from(["k", "/wA="]),
    key_is_base64=st.booleans(),
    properties=st.lists(st.tuples(names_, texts), max_size=5).map(tuple),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(repeating, min_size=1, max_size=6), st.booleans(), st.booleans())
def test_headers_are_all_and_properties_the_last_of_each_name(
    them: list[Message], alone: bool, one_by_one: bool
) -> None:
    """A map has each key once; Spark's own functions refuse others."""
    extra = {"compacted_batch_indexes": range(len(them))} if one_by_one and not alone else {}
    layout = Layout(fields=extra)
    payloads_ = [single(one) for one in them] if alone else [batch(them, layout)]
    rows = decoded(stored(payloads_), columns=["headers", "properties", "key_is_base64"])
    assert rows == [
        {
            "headers": [{"key": k, "value": v.encode()} for k, v in one.properties],
            "properties": _last_of_each(one.properties),
            "key_is_base64": one.key_is_base64,
        }
        for one in them
    ]


def _last_of_each(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [pair for n, pair in enumerate(pairs) if pair[0] not in dict(pairs[n + 1 :])]


def test_many_names_of_which_some_come_twice() -> None:
    names = [str(n) for n in range(60)]
    them = [Message(properties=tuple((name, "x") for name in names[n : n + 20])) for n in range(40)]
    them[7] = Message(properties=(("5", "first"), ("6", "x"), ("5", "last")))
    rows = decoded(stored([batch(them)]), columns=["properties"])
    assert rows[7]["properties"] == [("6", "x"), ("5", "last")]
    assert [row["properties"] for row in rows[8:]] == [list(one.properties) for one in them[8:]]


# -- cases ------------------------------------------------------------------------------------


def test_large_batches_of_every_kind_at_once() -> None:
    draw = random.Random(7)
    entries = []
    for number in range(12):
        size = draw.choice([0, 10, 100, 127, 128, 1000, 5000])
        them = [
            Message(
                draw.randbytes(draw.randint(0, size)),
                key=f"key-{draw.randrange(1000)}" if number % 3 else None,
                properties=(("origin", f"host-{n}"), ("n", str(n))) if number % 4 == 1 else (),
                event_time_ms=1_790_000_000_000 + n if number % 2 else 0,
                sequence_id=n,
            )
            for n in range(400)
        ]
        entries.append(batch(them, Layout(header=True)))
    check(stored(entries))


@pytest.mark.parametrize("how", list(Compression))
def test_compressed_and_not_in_one_block(how: Compression) -> None:
    them = [Message(b"value %d" % n, key=str(n)) for n in range(50)]
    payloads_ = [batch(them), batch(them, Layout(how)), single(them[0], Layout(how)), batch(them)]
    check(stored(payloads_))


def test_long_metadata_and_integers_of_ten_bytes() -> None:
    them = [
        Message(b"a", key="k" * 300),
        Message(b"b", sequence_id=2**64 - 1),
        Message(b"c", properties=tuple((f"name {n}", "x" * n) for n in range(100))),
    ]
    check(stored([batch(them), batch(them[:1]), *(single(one) for one in them)]))


def test_compacted_batches_keep_their_places() -> None:
    them = [Message(b"%d" % n) for n in range(3)]
    check(stored([batch(them, Layout(fields={"compacted_batch_indexes": [1, 4, 9]}))]))


def test_fields_of_newer_clients_are_skipped() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    metadata.num_messages_in_batch = 1
    newer = bytes.fromhex("980601") + b"\xa2\x06\x02ab" + bytes.fromhex("a90601020304050607 08")
    head = metadata.SerializeToString() + newer
    data = batch_data([Message(b"value", key="k")])
    check(stored([len(head).to_bytes(4, "big") + head + data]))


def test_messages_put_together_from_chunks_that_interleave() -> None:
    first = chunks(Message(b"first" * 100, key="a"), 3, "one")
    second = chunks(Message(b"second" * 100), 2, "two", Layout(Compression.ZSTD))
    entries = stored([first[0], second[0], batch([Message()]), first[1], second[1], first[2]])
    assert [row["value"] for row in decoded(entries, block=2)] == [
        b"v", b"second" * 100, b"first" * 100,
    ]  # fmt: skip
    check(entries)


def test_chunks_before_the_range_are_asked_for() -> None:
    entries = stored(chunks(Message(b"0123456789"), 4, "one"))
    asked = []

    def earlier(entry: StoredEntry, meta: EntryMetadata) -> Sequence[Buffer]:
        asked.append((entry.entry_id, meta.chunk_uuid, meta.chunk_id))
        return [entry.payload for entry in entries[:2]]

    decoder = EntryDecoder(["value"], TOPIC, Place(5, 2, 0), END, earlier)
    rows = [row for found in decoder.decode(entries[2:], [-1, -1]) for row in found.to_pylist()]
    assert rows == [{"value": b"0123456789"}]
    assert asked == [(2, "one", 2)]


def test_no_message_is_lost_when_many_come_in_chunks_at_once() -> None:
    """Few of them are held at a time: the first chunks of others are looked for again."""
    parts = [chunks(Message(b"%02d" % n * 10), 3, f"m{n}") for n in range(12)]
    entries = stored([parts[n][i] for i in range(3) for n in range(12)])
    asked = []

    def earlier(entry: StoredEntry, meta: EntryMetadata) -> Sequence[Buffer]:
        asked.append(meta.chunk_uuid)
        return [parts[int(meta.chunk_uuid[1:])][i] for i in range(meta.chunk_id)]

    decoder = EntryDecoder(["value"], TOPIC, START, END, earlier)
    rows = [row for found in decoder.decode(entries, [-1] * 36) for row in found.to_pylist()]
    assert rows == [{"value": b"%02d" % n * 10} for n in range(12)]
    assert len(asked) == len(set(asked)) > 0


def test_a_message_whose_first_chunks_are_gone_is_reported_once() -> None:
    parts = chunks(Message(b"0123456789"), 4, "one")
    asked = []

    def earlier(entry: StoredEntry, meta: EntryMetadata) -> Sequence[Buffer]:
        asked.append(meta.chunk_id)
        return ()

    for there in (parts[1:], [parts[0], *parts[2:]]):
        decoder = EntryDecoder(["value"], TOPIC, START, END, earlier)
        assert [row for found in decoder.decode(stored(there), [-1] * 3) for row in found] == []
    assert asked == [1, 3]


def test_a_message_in_chunks_that_is_too_large_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = chunks(Message(bytes(100)), 2, "one")
    monkeypatch.setattr(chunked_messages, "ChunkAssembler", lambda: ChunkAssembler(10, 60))

    def earlier(entry: StoredEntry, meta: EntryMetadata) -> Sequence[Buffer]:
        return parts[:1]

    decoder = EntryDecoder(["value"], TOPIC, START, END, earlier)
    with pytest.raises(ProtocolError, match="cannot be put together: it is too large"):
        list(decoder.decode(stored(parts), [-1] * 2))


def test_frames_of_the_official_clients() -> None:
    payloads_ = []
    for name in names():
        whole = frame(name)
        magic = whole.find(b"\x0e\x01")
        if name.split("/")[1].startswith("send") and magic > 0:
            payloads_.append(whole[magic:])
    assert len(payloads_) > 10
    entries = stored(payloads_)
    check(entries)
    assert len(decoded(entries)) >= 10


def test_frames_of_the_java_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """All messages of one run of a real one, alone and in batches. How its protobuf writes fields
    (their order, what it leaves out) is read by columns too."""
    monkeypatch.setattr(EntryDecoder, "_plain", _fail)
    entries = stored([data[data.index(b"\x0e\x01") :] for data in SENDS])
    check(entries)
    assert {entry_metadata(entry.payload).batched for entry in entries} == {False, True}
    assert len(decoded(entries)) > len(entries) > 60


def _fail(*_: object) -> None:
    raise AssertionError("read one by one")


def test_what_clients_write_needs_no_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows come out one by one: only slower, by a factor of ten."""
    monkeypatch.setattr(EntryDecoder, "_plain", _fail)
    tricky = batch_data([Message(b"inner", key="k")])
    for size in (1, 100, 3000):
        them = [
            Message(tricky + bytes(size), key=f"k{n}", sequence_id=n, properties=(("a", "b"),))
            for n in range(300)
        ]
        for how in Compression:
            header = Layout(how, header=True)
            assert len(decoded(stored([batch(them, header), single(them[0], header)]))) == 301


def test_record_batches_have_about_the_size_that_spark_takes_best() -> None:
    small = [batch([Message(b"x") for _ in range(5000)]) for _ in range(7)]
    decoder = EntryDecoder(["value"], TOPIC, START, END, no_earlier)
    sizes = [
        found.num_rows
        for found in decode_entries(decoder, zip(stored(small), [-1] * 7, strict=True))
    ]
    assert sum(sizes) == 35_000
    assert max(sizes) <= 10_000
    big = [batch([Message(bytes(100_000)) for _ in range(10)]) for _ in range(5)]
    parts = list(decode_entries(decoder, zip(stored(big), [-1] * 5, strict=True)))
    assert sum(part.num_rows for part in parts) == 50
    assert max(part.nbytes for part in parts) < 3 << 20


def test_offsets_are_given_or_in_the_headers() -> None:
    ids = EntryIds(*(np.array(them) for them in ([5, 5], [0, 1], [1, 1], [7, -1], [0, -1])))
    indexes = np.array([0, 1, -1])
    with pytest.raises(ConfigError, match="does not number"):
        offsets_of(np.array([0, 0, 1]), indexes, ids)
    ids = ids._replace(offsets=np.array([7, 9]))
    assert offsets_of(np.array([0, 0, 1]), indexes, ids).tolist() == [7, 8, 9]
    headers = [Layout(header=True), Layout(header=True, fields={"encryption_algo": "x"})]
    tables = EntryTables(["offset"])
    block = _Block(stored([batch([Message()] * 3, layout) for layout in headers]), [-1, 4], tables)
    # the header in these tests is of an entry with one message, whose offset is 5
    assert block.ids.offsets.tolist() == [3, 4]


def test_what_clients_write_plainly_is_read_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the first entry that is of another shape; and of ranges that cut entries, none."""
    monkeypatch.setattr(EntryDecoder, "_decode", _fail)
    plain_ = [batch([Message(b"%d" % n, key="k")] * 3, Layout(header=True)) for n in range(5)]
    mixed = stored([*plain_, single(Message(null=True, event_time_ms=7)), *plain_])
    columns = (*ALL_COLUMNS, "headers", "key_is_base64", "schema_version")

    def rows(entries: Sequence[StoredEntry], start: Place = START) -> int:
        decoder = EntryDecoder(columns, TOPIC, start, END, no_earlier, gathers=True)
        found = sum(each.num_rows for each in decoder.decode(entries, [-1] * len(entries)))
        assert decoder.messages_read == found
        assert not decoder.by_columns
        return found

    assert rows(mixed) == 31
    assert rows(mixed, Place(5, 0, 0)) == 31
    packed = stored([batch([Message()], Layout(Compression.LZ4))], first_id=11)
    described = stored([batch([Message(properties=(("a", "b"),))])], first_id=11)
    for left in (packed, described):
        with pytest.raises(AssertionError, match="read one by one"):
            rows([*mixed, *left])
    with pytest.raises(AssertionError, match="read one by one"):
        rows(mixed, Place(5, 0, 1))


# -- what is wrong ----------------------------------------------------------------------------


def test_the_version_of_the_schema_is_that_of_the_entry() -> None:
    """By columns and one by one; other than eight bytes is none."""

    def versioned(version: bytes, **fields: Any) -> Layout:
        return Layout(fields={"schema_version": version} | fields)

    two = [Message(b"a"), Message(b"b")]
    entries = stored(
        [
            batch(two, versioned((300).to_bytes(8, "big"))),
            single(Message(b"c"), versioned(bytes(8))),
            batch(two),
            single(Message(b"d"), versioned(b"x")),
            *chunks(Message(b"ef"), 2, "u", versioned((7).to_bytes(8, "big"))),
        ]
    )
    columns = ("value", "schema_version")
    wanted = [
        (b"a", 300),
        (b"b", 300),
        (b"c", 0),
        (b"a", None),
        (b"b", None),
        (b"d", None),
        (b"ef", 7),
    ]
    for block in (100, 1):
        rows = decoded(entries, columns=columns, block=block)
        assert [(row["value"], row["schema_version"]) for row in rows] == wanted


def damaged(payload: bytes, text: str) -> None:
    good = batch([Message(b"good")])
    with pytest.raises(ProtocolError, match=text) as raised:
        decoded(stored([good, payload, good]))
    assert f"{TOPIC}: entry 5:1: " in str(raised.value)


def test_damaged_entries_are_named() -> None:
    good = batch([Message(b"value", key="k"), Message(b"value")])
    damaged(good[:-1], "passes the entry's end")
    damaged(good[:3], "no metadata")
    damaged(good[:14], "truncated entry")
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    damaged(framed(MessageMetadata(producer_name="p"), b""), "without producer name")
    metadata.num_messages_in_batch = 3
    damaged(framed(metadata, batch_data([Message()])), "message 1 of the batch")
    metadata.num_messages_in_batch = 2**31 - 1
    damaged(framed(metadata, batch_data([Message()])), "message 1 of the batch")


def test_encrypted_entries_are_refused() -> None:
    layout = Layout(fields={"encryption_algo": "x"})
    damaged(batch([Message()], layout), "encrypted")


def test_compressed_data_that_is_none_is_refused() -> None:
    whole = bytearray(batch([Message(b"abc" * 50)], Layout(Compression.ZSTD)))
    whole[-10:] = bytes(10)
    damaged(bytes(whole), "ZSTD")


def test_keys_and_properties_must_be_text() -> None:
    value = Message(b"v", key="kkkk", properties=(("nnnn", "pppp"),))
    for payload in (batch([value]), single(value)):
        for word in (b"kkkk", b"nnnn", b"pppp"):
            damaged(payload.replace(word, b"\xff\xfe\xfd\xfc"), "UTF|utf|column")


def test_times_that_are_none_are_refused() -> None:
    damaged(batch([Message(event_time_ms=2**62)]), "event_time")
    damaged(single(Message(event_time_ms=2**62)), "event_time")


@settings(max_examples=400, deadline=None)
@given(payloads.filter(bool), st.data())
def test_damage_gives_an_error_or_the_same_as_protobuf(
    given_: list[bytes], data: st.DataObject
) -> None:
    number = data.draw(st.integers(0, len(given_) - 1))
    broken = bytearray(given_[number])
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    entries = stored([*given_[:number], bytes(broken), *given_[number + 1 :]])
    try:
        found = decoded(entries)
    except ProtocolError:
        return  # what is wrong may be a time or a text that Arrow has no place for
    try:
        expected = list(rows_one_by_one(entries, START, END))
    except ProtocolError:
        return  # a field that is not read here
    for row, other in zip(found, expected, strict=True):
        row["properties"] = dict(row["properties"])
        other["properties"] = dict(other["properties"])
        assert row == other


# -- record batches of Kafka's producers ------------------------------------------------------


def kafka_payload(codec: Codec, last_offset: int, attributes: int = 0) -> bytes:
    records = [
        KafkaRecord(0, 0, b"k", b"v" * 40, [RecordHeader("h", b"text")]),
        KafkaRecord(1, 5, None, None, []),
        KafkaRecord(2, 7, b"\xff", b"", []),
    ]
    made = batch_of(records, 5_000, codec=codec, base_offset=last_offset - 2)
    made = made[:21] + (attributes | codec).to_bytes(2, "big") + made[23:]
    return Stamper(last_offset - 2, 0).header(11, 3, 5_007) + made


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name)
def test_record_batches_are_read_as_pulsars_consumers_read_them(codec: Codec) -> None:
    own = batch([Message(b"before"), Message(b"and")], Layout(header=True))
    entries = stored([own, kafka_payload(codec, 9), own, kafka_payload(codec, 14)])
    columns = ("key", "value", "message_id", "event_time", "properties", "offset")
    rows = decoded(entries[1:], start=Place(5, 1, 1), columns=columns)
    assert [row["value"] for row in rows] == [None, b"", b"before", b"and", b"v" * 40, None, b""]
    first, *_, last = [row for row in rows if row["value"] not in (b"before", b"and")]
    assert first["message_id"] == {"ledger_id": 5, "entry_id": 1, "batch_index": 1}
    assert last["message_id"] == {"ledger_id": 5, "entry_id": 3, "batch_index": 2}
    assert (first["offset"], last["offset"]) == (8, 14)
    assert first["event_time"] == 5_005_000
    keyed = rows[4]
    assert (keyed["key"], keyed["properties"]) == ("k", [("h", "text")])


def test_all_headers_of_records_are_there() -> None:
    headers = [RecordHeader("h", b"1"), RecordHeader("g", None), RecordHeader("h", b"\xff")]
    made = batch_of([KafkaRecord(0, 0, b"\xff", b"v", headers)], 5_000, base_offset=7)
    payload = Stamper(7, 0).header(11, 1, 5_000) + made
    columns = ("headers", "properties", "key", "key_is_base64")
    (row,) = decoded(stored([payload]), columns=columns)
    told = [(each["key"], each["value"]) for each in row["headers"]]
    assert told == [("h", b"1"), ("g", b""), ("h", b"/w==")], "of bytes their base64"
    assert row["properties"] == [("g", ""), ("h", "/w==")]
    assert (row["key"], row["key_is_base64"]) == ("/w==", True)


@pytest.mark.parametrize("attributes", [TRANSACTIONAL, TRANSACTIONAL | CONTROL])
def test_what_is_part_of_a_transaction_is_refused(attributes: int) -> None:
    with pytest.raises(ProtocolError, match=r"entry 5:0: it is part of a transaction"):
        decoded(stored([kafka_payload(Codec.NONE, 2, attributes)]))
