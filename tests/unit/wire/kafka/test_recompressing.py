"""Batches that are compressed otherwise than they came: the same records, and nothing is moved."""

from __future__ import annotations

import itertools

import pytest

from magnetar.model.errors import ChecksumError, ImplausibleMessageError
from magnetar.wire.kafka.batches import (
    BATCH_HEADER_BYTES,
    TRANSACTIONAL,
    build_batch,
    check_produced,
    read_batch_header,
)
from magnetar.wire.kafka.compression import Codec, compress
from magnetar.wire.kafka.recompressing import is_compressed_by, recompressed
from magnetar.wire.kafka.records import KafkaRecord, batch_of, read_batch

SOME = [KafkaRecord(number, number, b"k", b"value " * 50, []) for number in range(20)]
PAIRS = [pair for pair in itertools.product(Codec, Codec) if pair[0] is not pair[1]]


@pytest.mark.parametrize(("came", "wanted"), PAIRS, ids=lambda codec: codec.name)
def test_records_are_the_same(came: Codec, wanted: Codec) -> None:
    batch = memoryview(batch_of(SOME, 1_000, codec=came))
    assert is_compressed_by(came, batch)
    assert not is_compressed_by(wanted, batch)
    made = memoryview(recompressed(wanted, batch))
    assert is_compressed_by(wanted, made)
    assert check_produced(made) == read_batch_header(made), "the checksum is right"
    assert read_batch(made)[1] == SOME


def test_the_producer_and_its_sequence_stay() -> None:
    plain = batch_of(SOME, 1_000)
    sent = build_batch(
        plain[BATCH_HEADER_BYTES:],
        count=20,
        last_offset_delta=19,
        attributes=TRANSACTIONAL,
        base_timestamp_ms=1_000,
        max_timestamp_ms=1_019,
        producer_id=77,
        producer_epoch=3,
        base_sequence=400,
    )
    made = read_batch_header(recompressed(Codec.GZIP, memoryview(sent)))
    before = read_batch_header(sent)
    assert made.attributes == TRANSACTIONAL | Codec.GZIP
    unlike = {"length": 0, "crc": 0, "attributes": 0}
    assert made._replace(**unlike) == before._replace(**unlike)


def test_damage_gets_no_checksum_that_is_right() -> None:
    batch = bytearray(batch_of(SOME, 1_000))
    batch[-1] ^= 1
    with pytest.raises(ChecksumError):
        recompressed(Codec.GZIP, memoryview(batch))


def test_records_that_are_not_of_the_codec_are_refused() -> None:
    sent = build_batch(b"no gzip", count=1, last_offset_delta=0, attributes=Codec.GZIP)
    with pytest.raises(ImplausibleMessageError, match="GZIP"):
        recompressed(Codec.NONE, memoryview(sent))
    sent = build_batch(compress(Codec.GZIP, b"x"), count=1, last_offset_delta=0, attributes=7)
    with pytest.raises(ImplausibleMessageError, match="codec 7"):
        recompressed(Codec.NONE, memoryview(sent))


def test_what_is_no_batch_is_left_to_those_who_refuse_it() -> None:
    assert is_compressed_by(Codec.GZIP, b"")
    assert is_compressed_by(Codec.GZIP, bytes(200))
