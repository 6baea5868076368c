"""``pipeline.row_encoding``: rows of record batches into entries for topics."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from magnetar.model.errors import BrokerError, ConfigError
from magnetar.pipeline.writing.row_encoding import Encoded, Encoding, RowEncoder, java_hash
from magnetar.wire.pulsar.batches import ChunkAssembler, iterate_messages, split_entry
from magnetar.wire.pulsar.hot import verify_checksum
from magnetar.wire.pulsar.metadata import entry_metadata, parse_metadata
from magnetar.wire.pulsar.writing import EncodedKey


def encoder(
    topic: str | None = "t",
    partitions: int = 1,
    by_key: bool = False,
    bytes_max: int = 10_000,
    *,
    compression: str = "none",
    chunked: bool = False,
) -> RowEncoder:
    def names(name: str) -> Sequence[str]:
        return [name] if partitions == 1 else [f"{name}-{i}" for i in range(partitions)]

    encoding = Encoding(compression, 10, bytes_max, by_key, chunked)
    return RowEncoder(encoding, topic, lambda name: f"full/{name}", names, lambda: 5)


def encode(made: RowEncoder, **columns: object) -> list[Encoded]:
    counts: dict[str, int] = {}
    found = []
    batch = pa.RecordBatch.from_pydict(columns)
    for encoded in made.encode(batch, "staged:q@r:0:1", lambda name: counts.get(name, 0)):
        counts[encoded.topic] = counts.get(encoded.topic, 0) + len(encoded.entries)
        found.append(encoded)
    return found


def values(encoded: Encoded) -> list[bytes]:
    return [bytes(value) for entry in encoded.entries for _, value in iterate_messages(entry)]


def test_rows_keep_their_order_in_entries_of_so_many() -> None:
    (found,) = encode(encoder(), value=[f"{i}" for i in range(25)])
    assert values(found) == [b"%d" % i for i in range(25)]
    metas = [entry_metadata(entry) for entry in found.entries]
    assert [meta.num_messages for meta in metas] == [10, 10, 5]
    assert [meta.sequence_id for meta in metas] == [0, 1, 2]
    assert (found.topic, found.messages) == ("t", 25)


def test_each_entry_has_the_version_of_its_topics_schema() -> None:
    versions = {"full/a": b"\0" * 7 + b"\5", "t": b""}
    made = encoder(partitions=2)
    made._schema_version = versions.__getitem__
    found = encode(made, value=[b"x"] * 3, topic=["a", "a", None])
    heads = {
        (one.topic, parse_metadata(entry)[0].schema_version)
        for one in found
        for entry in one.entries
    }
    assert heads == {("full/a-0", versions["full/a"]), ("t-1", b"")}


def test_rows_with_a_version_carry_it_and_keep_their_order() -> None:
    given = [1, 1, None, 0, 0, 1]
    for partitions, more in ((1, {}), (2, {"key_is_base64": [False] * 6})):
        made = encoder(partitions=partitions)
        rows = {"value": list("abcdef"), "key": list("kkkkkk"), "schema_version": given} | more
        found = [
            (bytes(value).decode(), parse_metadata(entry)[0].schema_version)
            for one in encode(made, **rows)
            for entry in one.entries
            for _, value in iterate_messages(entry)
        ]
        assert found == [
            (value, b"" if version is None else version.to_bytes(8, "big"))
            for value, version in zip("abcdef", given, strict=True)
        ]
    plain = encode(encoder(), value=["a"], schema_version=pa.nulls(1, pa.int64()))
    assert [parse_metadata(one.entries[0])[0].schema_version for one in plain] == [b""]


def test_large_rows_make_small_batches() -> None:
    (found,) = encode(encoder(bytes_max=250), value=[b"x" * 100] * 5 + [b"y" * 900])
    assert [entry_metadata(e).num_messages for e in found.entries] == [2, 2, 1, 1]


@pytest.mark.parametrize("simple", [True, False])
def test_large_keys_and_properties_make_small_batches(simple: bool) -> None:
    """Values alone were counted: a write of small ones with large keys, or properties, failed."""
    more: dict[str, object] = {} if simple else {"key_is_base64": [False] * 5}
    keys = ["k" * 100, "\xfc" * 50, "k" * 100, "", "k" * 900]
    (found,) = encode(encoder(bytes_max=250), value=[b"v"] * 5, key=keys, **more)
    assert [entry_metadata(e).num_messages for e in found.entries] == [2, 2, 1]
    if not simple:
        pairs = pa.array([[("p", "v" * 90)], [("p" * 90, None)]] * 2, pa.map_("string", "string"))
        (found,) = encode(encoder(bytes_max=260), value=[b"v"] * 4, properties=pairs)
        assert [entry_metadata(e).num_messages for e in found.entries] == [2, 2]


def test_entries_are_never_larger_than_a_topic_takes() -> None:
    """However large they may be by the options."""
    (found,) = encode(encoder(bytes_max=64 << 20), value=[b"x" * (1 << 20)] * 9)
    assert [entry_metadata(e).num_messages for e in found.entries] == [3, 3, 3]


def test_a_row_that_no_topic_takes_is_refused() -> None:
    with pytest.raises(BrokerError, match=r"the most that a topic takes is.*chunkingEnabled=true"):
        encode(encoder(), value=[b"x" * (6 << 20)])


@pytest.mark.parametrize("compression", ["none", "zlib"])
@pytest.mark.parametrize("simple", [True, False])
def test_a_large_row_becomes_chunks_if_that_is_asked_for(compression: str, simple: bool) -> None:
    large = random.Random(1).randbytes(12 << 20)
    values = [b"before", large, b"behind"]
    more: dict[str, object] = {}
    at = dt.datetime(2026, 11, 22, tzinfo=dt.UTC)
    if not simple:
        pairs = [[("p", str(number))] for number in range(3)]
        more = {
            "properties": pa.array(pairs, pa.map_("string", "string")),
            "event_time": pa.array([at] * 3, pa.timestamp("us", "UTC")),
        }
    made = encoder(compression=compression, chunked=True)
    (found,) = encode(made, value=values, key=["a", "b", "c"], **more)
    assert found.messages == len(found.entries) == 5
    assert max(map(len, found.entries)) <= 5 << 20
    assert all(verify_checksum(entry, 0, len(entry)) is None for entry in found.entries)
    heads = [entry_metadata(entry) for entry in found.entries]
    assert [head.sequence_id for head in heads] == [0, 1, 2, 3, 4]
    chunks = ChunkAssembler()
    (whole,) = [
        message
        for entry, head in zip(found.entries, heads, strict=True)
        if head.num_chunks > 1 and (message := chunks.add(entry, head)) is not None
    ]
    info, value = whole
    assert (bytes(value), info.key) == (large, "b")
    if not simple:
        assert info.properties == {"p": "1"}
        assert info.event_time_ms == at.timestamp() * 1000


def test_a_row_whose_key_fills_a_chunk_is_refused() -> None:
    with pytest.raises(BrokerError, match="each chunk has the key and the properties"):
        encode(encoder(chunked=True), value=[b"x" * (1 << 20)], key=["k" * (5 << 20)])


def test_every_column() -> None:
    at = dt.datetime(2026, 11, 22, tzinfo=dt.UTC)
    (found,) = encode(
        encoder(),
        value=pa.array([b"a", None]),
        key=pa.array(["k", None]),
        event_time=pa.array([at, None], pa.timestamp("us", "UTC")),
        properties=pa.array([[("p", "1")], None], pa.map_(pa.string(), pa.string())),
    )
    (first, _), (second, _) = iterate_messages(found.entries[0])
    assert (first.key, dict(first.properties)) == ("k", {"p": "1"})
    assert first.event_time_ms == int(at.timestamp() * 1000)
    assert second.null_value
    assert (second.key, second.event_time_ms) == (None, 0)


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_headers_of_one_name_are_all_written() -> None:
    pairs = [{"key": "a", "value": b"1"}, {"key": "b", "value": None}, {"key": "a", "value": b"2"}]
    (found,) = encode(
        encoder(),
        value=[b"x", b"y"],
        headers=pa.array([pairs, None], HEADERS),
        properties=pa.array([[("a", "0"), ("c", "3")], [("d", "4")]], pa.map_("string", "string")),
    )
    _, singles, _ = split_entry(found.entries[0], entry_metadata(found.entries[0]))
    assert singles is not None
    told = [[(item.key, item.value) for item in single.properties] for single in singles]
    assert told == [[("c", "3"), ("a", "1"), ("b", ""), ("a", "2")], [("d", "4")]]


def test_keys_that_are_bytes_stay_so() -> None:
    """Pulsar's clients give such a key as base64 and say so; with separate keys and values it is
    what the key's schema reads."""
    (found,) = encode(
        encoder(), value=[b"x"] * 3, key=["/wA=", "/wA=", None], key_is_base64=[True, False, True]
    )
    told = [(info.key, info.key_b64_encoded) for info, _ in iterate_messages(found.entries[0])]
    assert told == [("/wA=", True), ("/wA=", False), (None, False)]
    (by_key,) = encode(encoder(by_key=True), value=[b"x"], key=["/wA="], key_is_base64=[True])
    head = entry_metadata(by_key.entries[0])
    assert (head.partition_key, head.partition_key_b64_encoded) == ("/wA=", True)
    assert java_hash(EncodedKey("hello")) == java_hash("hello"), "as Java's client has it"
    with pytest.raises(ConfigError, match="key_is_base64, and its key 'no base64' is not"):
        encode(encoder(), value=[b"x"], key=["no base64"], key_is_base64=[True])


def test_keys_of_bytes_that_are_no_text_are_what_producers_make_of_them() -> None:
    """They were refused: rows of a topic of Kafka's with numbers as keys could not be written."""
    keys = [b"text", b"\xff\x00", None]
    (found,) = encode(encoder(), value=[b"x"] * 3, key=pa.array(keys, pa.binary()))
    told = [(info.key, info.key_b64_encoded) for info, _ in iterate_messages(found.entries[0])]
    assert told == [("text", False), ("/wA=", True), (None, False)]
    (by_key,) = encode(encoder(by_key=True), value=[b"x"], key=pa.array([b"\xff"], pa.binary()))
    head = entry_metadata(by_key.entries[0])
    assert (head.partition_key, head.partition_key_b64_encoded) == ("/w==", True)
    with pytest.raises(ConfigError, match="it is bytes that are no text"):
        encode(encoder(), value=[b"x"], key=[b"\xff"], key_is_base64=[True])


def test_rows_name_their_topics() -> None:
    found = encode(encoder(), value=["a", "b", "c"], topic=["x", None, "x"])
    assert [(each.topic, values(each)) for each in found] == [
        ("full/x", [b"a", b"c"]),
        ("t", [b"b"]),
    ]
    with pytest.raises(BrokerError, match="a row has no topic"):
        encode(encoder(topic=None), value=["a"], topic=pa.array([None], pa.string()))


def test_a_key_goes_to_one_partition_and_rows_without_go_in_turn() -> None:
    keys = [f"k{i % 7}" for i in range(40)]
    found = encode(encoder(partitions=3), value=[f"{i}" for i in range(40)], key=keys)
    where: dict[str | None, str] = {}
    for each in found:
        for entry in each.entries:
            for info, _ in iterate_messages(entry):
                assert where.setdefault(info.key, each.topic) == each.topic
        assert values(each) == sorted(values(each), key=int), "in order"
    assert len(set(where.values())) > 1
    without = encode(encoder(partitions=3), value=[f"{i}" for i in range(40)])
    assert sorted(each.messages for each in without) == [10, 10, 20]


def test_by_key_an_entry_holds_one_key() -> None:
    keys = [f"k{i % 3}" for i in range(12)]
    (found,) = encode(encoder(by_key=True), value=[f"{i}" for i in range(12)], key=keys)
    assert [entry_metadata(entry).partition_key for entry in found.entries] == ["k0", "k1", "k2"]


@pytest.mark.parametrize(
    ("key", "expected"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", 0)],
)
def test_the_hash_is_javas(key: str, expected: int) -> None:
    assert java_hash(key) == expected


def test_times_and_names_that_no_message_has_are_refused_by_name() -> None:
    early = pa.array([0, None, -1], pa.timestamp("us", "UTC"))
    with pytest.raises(ConfigError, match="an event_time is 1 microseconds before 1970"):
        encode(encoder(), value=[b"a", b"b", b"c"], event_time=early)
    with pytest.raises(ConfigError, match="a header's key is null"):
        encode(encoder(), value=[b"a"], headers=pa.array([[{"key": None, "value": b""}]], HEADERS))
