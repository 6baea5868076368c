"""Single messages: batches, compression, chunks."""

from __future__ import annotations

import random
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.model.errors import ConfigError, ProtocolError
from magnetar.wire.pulsar.batches import ChunkAssembler, iterate_messages
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.compression import decompress, find_decompressor
from magnetar.wire.pulsar.metadata import entry_metadata
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata, SingleMessageMetadata

ARROW_NAMES = {
    Compression.LZ4: "lz4_raw",
    Compression.ZSTD: "zstd",
    Compression.SNAPPY: "snappy",
}


def entry(data: bytes, **fields: object) -> bytes:
    meta = MessageMetadata(producer_name="p", sequence_id=100, publish_time=5, **fields)  # type: ignore[arg-type]
    encoded = meta.SerializeToString()
    return len(encoded).to_bytes(4, "big") + encoded + data


def single(value: bytes, **fields: object) -> bytes:
    encoded = SingleMessageMetadata(payload_size=len(value), **fields).SerializeToString()  # type: ignore[arg-type]
    return len(encoded).to_bytes(4, "big") + encoded + value


def compress(kind: Compression, data: bytes) -> bytes:
    if kind == Compression.ZLIB:
        return zlib.compress(data)
    pyarrow = pytest.importorskip("pyarrow")
    return bytes(pyarrow.compress(data, codec=ARROW_NAMES[kind], asbytes=True))


VALUES = st.lists(st.binary(max_size=50), min_size=1, max_size=20)
COMPRESSED = [Compression.ZLIB, Compression.LZ4, Compression.ZSTD, Compression.SNAPPY]


@given(VALUES, st.booleans())
def test_a_batch_gives_its_values(values: list[bytes], squeeze: bool) -> None:
    data = b"".join(single(value, partition_key=f"k{i}") for i, value in enumerate(values))
    kind = Compression.ZLIB if squeeze else Compression.NONE
    payload = entry(
        zlib.compress(data) if squeeze else data,
        num_messages_in_batch=len(values),
        compression=int(kind),
        uncompressed_size=len(data),
    )
    messages = list(iterate_messages(payload))
    assert [bytes(value) for _, value in messages] == values
    assert [info.key for info, _ in messages] == [f"k{i}" for i in range(len(values))]
    assert [info.sequence_id for info, _ in messages] == [100 + i for i in range(len(values))]


def test_values_of_an_uncompressed_entry_are_views() -> None:
    payload = bytearray(entry(b"value"))
    [(_, value)] = iterate_messages(payload)
    payload[-5:] = b"other"
    assert bytes(value) == b"other"


def test_null_values_and_compacted_messages_are_told() -> None:
    data = single(b"", null_value=True) + single(b"x", compacted_out=True)
    first, second = iterate_messages(entry(data, num_messages_in_batch=2))
    assert (first[0].null_value, first[0].compacted_out) == (True, False)
    assert (second[0].null_value, second[0].compacted_out) == (False, True)


def test_a_compacted_batch_keeps_its_indexes() -> None:
    data = single(b"a") + single(b"c")
    payload = entry(data, num_messages_in_batch=3, compacted_batch_indexes=[0, 2])
    assert [(i.batch_index, bytes(v)) for i, v in iterate_messages(payload)] == [
        (0, b"a"),
        (2, b"c"),
    ]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "ends within the metadata of message 0"),
        (b"\x00\x00\x00\x05\x18", "ends within the metadata"),
        (b"\x00\x00\x00\x02\xff\xff", "undecodable metadata of message 0"),
        (b"\x00\x00\x00\x00", "without payload size"),
        (single(b"abc")[:-1], "says 3 bytes, 2 are left"),
        (b"\x00\x00\x00\x0b\x18" + b"\xff" * 9 + b"\x01", "says -1 bytes"),
        (single(b"abc"), "metadata of message 1"),
    ],
)
def test_broken_batches(data: bytes, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        list(iterate_messages(entry(data, num_messages_in_batch=2)))


def test_a_batch_that_claims_billions_ends_at_once() -> None:
    with pytest.raises(ProtocolError, match="metadata of message 1"):
        list(iterate_messages(entry(single(b"abc"), num_messages_in_batch=2**31 - 1)))


def test_encrypted_entries_are_refused() -> None:
    with pytest.raises(ProtocolError, match="encrypted"):
        list(iterate_messages(entry(b"?", encryption_algo="AES")))


# -- compression ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", COMPRESSED)
def test_decompression_gives_exactly_what_was_promised(kind: Compression) -> None:
    data = b"over and over " * 100
    squeezed = compress(kind, data)
    assert decompress(memoryview(squeezed), kind, len(data)) == data
    for wrong in (0, 1, len(data) - 1, len(data) + 1, 2 * len(data)):
        with pytest.raises(ProtocolError, match=kind.name):
            decompress(squeezed, kind, wrong)


@pytest.mark.parametrize("kind", COMPRESSED)
def test_corrupt_data_is_an_error_of_the_data(kind: Compression) -> None:
    data = random.Random(1).randbytes(100) * 3
    squeezed = compress(kind, data)
    for broken in (b"", squeezed[:-5], b"\xff" * 20, b"\x00" * 20):
        with pytest.raises(ProtocolError, match=kind.name):
            decompress(broken, kind, len(data))


def test_a_size_past_the_limit_costs_no_memory() -> None:
    with pytest.raises(ProtocolError, match="the limit is"):
        decompress(b"", Compression.ZLIB, 2**32 - 1)


@pytest.mark.parametrize("kind", COMPRESSED[1:])
def test_a_missing_library_is_named(kind: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"magnetar\[codecs\]"):
        find_decompressor(kind)


def test_zlib_needs_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert decompress(zlib.compress(b"abc"), Compression.ZLIB, 3) == b"abc"


@pytest.mark.parametrize("kind", COMPRESSED[1:])
def test_cramjam_reads_the_same(kind: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cramjam")
    squeezed = compress(kind, b"over and over " * 100)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert decompress(squeezed, kind, 1400) == b"over and over " * 100
    for broken, size in ((squeezed, 1401), (squeezed, 1399), (squeezed[:-5], 1400)):
        with pytest.raises(ProtocolError, match=kind.name):
            decompress(broken, kind, size)


# -- chunks -----------------------------------------------------------------------------------


def chunks(value: bytes, count: int, uuid: str = "p-1", **fields: object) -> list[bytes]:
    step = -(-len(value) // count)
    return [
        entry(
            value[i * step : (i + 1) * step],
            uuid=uuid,
            chunk_id=i,
            num_chunks_from_msg=count,
            total_chunk_msg_size=len(value),
            **fields,
        )
        for i in range(count)
    ]


def add_all(assembler: ChunkAssembler, payloads: list[bytes]) -> list[bytes]:
    found = [assembler.add(payload, entry_metadata(payload)) for payload in payloads]
    return [bytes(item[1]) for item in found if item is not None]


def test_chunks_make_a_message() -> None:
    assert add_all(ChunkAssembler(), chunks(b"a" * 100, 3)) == [b"a" * 100]


def test_a_compressed_message_is_whole_before_it_is_decompressed() -> None:
    value = random.Random(1).randbytes(50) * 4
    squeezed = zlib.compress(value)
    parts = chunks(squeezed, 4, compression=int(Compression.ZLIB), uncompressed_size=len(value))
    assert add_all(ChunkAssembler(), parts) == [value]


def test_chunks_of_two_messages_mixed() -> None:
    first, second = chunks(b"a" * 9, 3, "p-1"), chunks(b"b" * 9, 3, "p-2")
    mixed = [part for pair in zip(first, second, strict=True) for part in pair]
    assert add_all(ChunkAssembler(), mixed) == [b"a" * 9, b"b" * 9]


def test_a_chunk_that_comes_again_is_ignored() -> None:
    parts = chunks(b"abcdef", 3)
    again = [*parts[:2], parts[1], parts[2], parts[1], parts[2]]
    assert add_all(ChunkAssembler(), again) == [b"abcdef"]


def test_with_its_first_chunk_a_message_begins_anew() -> None:
    """A producer with a name of its own that is restarted may begin with the same sequence ids, by
    which the chunks of a message are told from others."""
    left, other = chunks(b"abcdef", 3)[:2], chunks(b"uvwxyz", 3)
    assert add_all(ChunkAssembler(), [*left, *other]) == [b"uvwxyz"]


def test_a_message_that_lost_a_chunk_is_given_up() -> None:
    parts = chunks(b"abcdef", 3)
    assembler = ChunkAssembler()
    assert add_all(assembler, [parts[0], parts[2], parts[1]]) == []
    assert add_all(assembler, parts) == [b"abcdef"]


def test_what_is_held_is_bounded() -> None:
    assembler = ChunkAssembler(open_max=2)
    first = chunks(b"abcdef", 2, "old")
    add_all(assembler, first[:1])
    for i in range(2):
        add_all(assembler, chunks(b"x" * 4, 2, f"new-{i}")[:1])
    assert add_all(assembler, first[1:]) == []
    assert add_all(ChunkAssembler(message_bytes_max=5), chunks(b"abcdef", 2)) == []


def test_a_chunk_alone_is_no_message() -> None:
    with pytest.raises(ProtocolError, match="chunk 1 of 2"):
        list(iterate_messages(chunks(b"abcd", 2)[1]))
