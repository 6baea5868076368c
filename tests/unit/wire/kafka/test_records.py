"""Record batches: built and taken apart, codecs, and what is refused."""

from __future__ import annotations

import random
import struct

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.model.errors import ChecksumError, ImplausibleMessageError, ProtocolError
from magnetar.wire.kafka import compression
from magnetar.wire.kafka.batches import (
    STAMP_BYTES,
    build_batch,
    check_produced,
    is_batch,
    read_batch_header,
    split,
    stamp,
)
from magnetar.wire.kafka.compression import Codec, compress, decompress
from magnetar.wire.kafka.records import (
    KafkaRecord,
    RecordHeader,
    batch_of,
    read_batch,
    timestamp_of,
)

SOME = [
    KafkaRecord(0, 0, b"k", b"v" * 100, []),
    KafkaRecord(1, 5, None, b"", [RecordHeader("h", b"1"), RecordHeader("h", None)]),
    KafkaRecord(2, -3, b"", None, []),
]


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name)
def test_a_batch_is_read_as_it_was_built(codec: Codec) -> None:
    batch = memoryview(batch_of(SOME, 1_000, codec=codec))
    header, found = read_batch(batch)
    assert found == SOME
    assert check_produced(batch) == header
    assert (header.record_count, header.max_timestamp_ms) == (3, 1_005)
    assert [timestamp_of(header, record) for record in found] == [1_000, 1_005, 997]
    assert is_batch(batch)


@pytest.mark.parametrize("library", ["cramjam", "pyarrow"])
@pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.LZ4, Codec.ZSTD], ids=lambda c: c.name)
def test_either_library_reads_what_the_other_wrote(
    codec: Codec, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(random.Random(1).choices(b"abcd", k=200_000))
    written = compress(codec, data)
    if library == "pyarrow":
        real = compression.import_module

        def without(name: str) -> object:
            if name == "cramjam":
                raise ModuleNotFoundError(name)
            return real(name)

        monkeypatch.setattr(compression, "import_module", without)
    assert decompress(codec, written) == data
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize("codec", [c for c in Codec if c], ids=lambda codec: codec.name)
def test_what_grows_without_bound_is_refused(codec: Codec) -> None:
    data = compress(codec, bytes(10 << 20))
    with pytest.raises(ProtocolError):
        decompress(codec, data, 1 << 20)
    assert len(decompress(codec, data, 10 << 20)) == 10 << 20
    with pytest.raises(ProtocolError):
        decompress(codec, compress(codec, bytes(compression.UNCOMPRESSED_BYTES_MAX + 1)))


@pytest.mark.parametrize("codec", [c for c in Codec if c], ids=lambda codec: codec.name)
def test_corrupt_data_is_a_protocol_error(codec: Codec) -> None:
    good = compress(codec, b"some text that is long enough to be compressed " * 5)
    source = random.Random(codec)
    for _ in range(25):
        bad = bytearray(good[: source.randint(1, len(good))])
        bad[source.randrange(len(bad))] ^= 1 << source.randrange(8)
        try:
            decompress(codec, bytes(bad))
        except ProtocolError:
            continue


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**40), 2**40),
            st.none() | st.binary(max_size=300),
            st.none() | st.binary(max_size=300),
            st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_any_records_come_back(
    given_records: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
) -> None:
    made = [
        KafkaRecord(index, time, key, value, [RecordHeader(*each) for each in headers])
        for index, (time, key, value, headers) in enumerate(given_records)
    ]
    assert read_batch(memoryview(batch_of(made, 0)))[1] == made


@given(st.binary(max_size=200), st.integers(1, 5))
def test_random_bytes_are_no_records(data: bytes, count: int) -> None:
    batch = build_batch(data, count=count, last_offset_delta=count - 1)
    try:
        read_batch(memoryview(batch))
    except ProtocolError:
        return


def test_a_stamp_changes_nothing_that_the_checksum_covers() -> None:
    batch = bytearray(batch_of(SOME, 0))
    batch[:STAMP_BYTES] = stamp(12_345, len(batch) - 12, 7)
    header = check_produced(memoryview(batch))
    assert (header.base_offset, header.leader_epoch, header.next_offset) == (12_345, 7, 12_348)


def broken(**changes: int) -> bytes:
    """A batch with some fields changed and the checksum made right again."""
    fields = read_batch_header(batch_of(SOME, 0))._replace(**changes)
    batch = bytearray(struct.pack(">qiibIhiqqqhii", *fields) + batch_of(SOME, 0)[61:])
    struct.pack_into(">I", batch, 17, crc32c.crc32c(batch[21:]))
    return bytes(batch)


@pytest.mark.parametrize(
    "changes",
    [
        {"magic": 1},
        {"record_count": 0},
        {"record_count": -1},
        {"record_count": 2},
        {"last_offset_delta": 7},
        {"record_count": 1 << 30, "last_offset_delta": (1 << 30) - 1},
        {"record_count": 1 << 30, "last_offset_delta": (1 << 30) - 1, "attributes": 1},
        {"attributes": 0x20},
        {"length": 70},
        {"length": 1 << 30},
        {"producer_id": 5},
    ],
    ids=str,
)
def test_what_cannot_be_true_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ImplausibleMessageError):
        check_produced(memoryview(broken(**changes)))


def test_a_wrong_checksum_is_told_as_such() -> None:
    batch = bytearray(batch_of(SOME, 0))
    batch[-1] ^= 1
    with pytest.raises(ChecksumError):
        check_produced(memoryview(batch))


def test_two_batches_in_one_field_are_refused() -> None:
    with pytest.raises(ImplausibleMessageError, match="one batch per partition"):
        check_produced(memoryview(batch_of(SOME, 0) * 2))


def test_batches_are_split_and_a_cut_one_is_left_out() -> None:
    batch = batch_of(SOME, 0)
    assert [bytes(each) for each in split(memoryview(batch * 2 + batch[:-1]))] == [batch, batch]
    with pytest.raises(ProtocolError):
        list(split(memoryview(bytes(100))))


def test_a_pulsar_entry_is_no_batch() -> None:
    assert not is_batch(b"\x0e\x01" + bytes(100))
    assert not is_batch(b"")


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD], ids=lambda codec: codec.name)
def test_of_corrupt_data_no_more_is_tried_than_it_can_stand_for(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sends a hundred bytes must not cost megabytes."""
    for size in (1, 100, 1 << 20, 20 << 20):
        zeros = bytes(size)
        assert decompress(codec, compress(codec, zeros)) == zeros
    tried: list[int] = []

    def counted(size: int) -> bytearray:
        tried.append(size)
        return bytearray(size)

    monkeypatch.setattr(compression, "bytearray", counted, raising=False)
    cut = compress(codec, b"value" * 20)[:-6]
    with pytest.raises(ProtocolError, match="corrupt"):
        decompress(codec, cut)
    assert tried
    assert max(tried) <= (1 << 15) * len(cut) + (1 << 16)
    if codec is Codec.LZ4:
        assert max(tried) < 1 << 17
