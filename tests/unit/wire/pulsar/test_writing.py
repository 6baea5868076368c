"""``wire.pulsar.writing``: what it builds is read back, by this project and as Pulsar says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.wire.pulsar.batches import iterate_messages
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.compression import find_compressor
from magnetar.wire.pulsar.hot import verify_checksum
from magnetar.wire.pulsar.metadata import dispatch_facts, entry_metadata
from magnetar.wire.pulsar.writing import Columns, EntryBuilder, Head

HEAD = Head("staged:q@r:0:1", 7, 1_700_000_000_123)
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=20)


def built(columns: Columns, compression: Compression = Compression.NONE) -> bytes:
    return EntryBuilder(compression, find_compressor(compression)).entry(HEAD, columns)


def read(entry: bytes) -> list[tuple[str | None, bytes | None, int, dict[str, str]]]:
    return [
        (
            info.key,
            None if info.null_value else bytes(value),
            info.event_time_ms,
            dict(info.properties),
        )
        for info, value in iterate_messages(entry)
    ]


ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=300),
        st.none() | TEXT,
        st.none() | st.integers(1, 2**42),
        st.none() | st.dictionaries(TEXT, TEXT, max_size=3),
    ),
    min_size=1,
    max_size=20,
)


@given(ROWS)
def test_any_rows_are_read_as_they_were_written(rows: list[tuple[object, ...]]) -> None:
    values, keys, times, properties = (list(column) for column in zip(*rows, strict=True))
    entry = built(Columns(values, keys, times, properties))  # type: ignore[arg-type]
    expected = [(key, value, time or 0, maps or {}) for value, key, time, maps in rows]
    assert read(entry) == expected
    assert dispatch_facts(memoryview(entry))[0] == len(rows)


@given(st.lists(st.tuples(st.binary(max_size=400), TEXT), min_size=1, max_size=30))
def test_keys_and_values_alone_take_the_short_way_to_the_same(
    rows: list[tuple[bytes, str]],
) -> None:
    values, keys = [value for value, _ in rows], [key for _, key in rows]
    none = [None] * len(rows)
    assert built(Columns(values)) == built(Columns(values, none, none, none))
    assert read(built(Columns(values, keys))) == read(built(Columns(values, keys, none)))
    assert built(Columns(values, keys)) == built(Columns(values, keys, none, none))


@pytest.mark.parametrize("compression", list(Compression))
def test_compressed(compression: Compression) -> None:
    entry = built(Columns([b"x" * 500, b"", b"y"]), compression)
    assert [value for _, value, _, _ in read(entry)] == [b"x" * 500, b"", b"y"]
    assert entry_metadata(entry).compression == compression
    verify_checksum(memoryview(entry), 0, len(entry))


def test_what_the_entry_says_of_itself() -> None:
    meta = entry_metadata(built(Columns([b"a", b"b"])))
    assert (meta.producer_name, meta.sequence_id) == HEAD[:2]
    assert (meta.publish_time_ms, meta.num_messages, meta.batched) == (HEAD[2], 2, True)
    assert meta.partition_key is None


def test_one_key_for_all_and_keys_that_are_no_text() -> None:
    builder = EntryBuilder(Compression.NONE, bytes)
    entry = builder.entry(HEAD._replace(key="k"), Columns([b"a"], ["k"]))
    assert entry_metadata(entry).partition_key == "k"
    (info, _), (text, _) = iterate_messages(built(Columns([b"a", b"b"], [b"\xff\0", b"text"])))
    assert (info.key, info.key_b64_encoded) == ("/wA=", True)
    assert (text.key, text.key_b64_encoded) == ("text", False)
