"""The records of cursor ledgers: golden bytes, chunks, torn snapshots, garbage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from magnetar.log.ack_images import decode_image, encode_image
from magnetar.log.acknowledgements import AckImage
from magnetar.log.managed.cursor_format import (
    CHUNK_BYTES_MAX,
    decode_header,
    decode_records,
    encode_delta,
    encode_snapshot,
    recovery_start,
)
from magnetar.model.errors import ProtocolError
from magnetar.model.ids import Position

IMAGE = AckImage(
    Position(5, 7), {5: BitMap([9, 10, 12]), 8: BitMap([0])}, {Position(5, 8): 0b10110}
)


def test_the_bytes_are_those_of_the_format_document() -> None:
    bitmaps = "3a30000001000000000002001000000009000a000c00"
    other = "3a3000000100000000000000100000000000"
    expected = (
        "0000000000000005" "0000000000000007"
        "00000002"
        "0000000000000005" "00000016" + bitmaps +
        "0000000000000008" "00000012" + other +
        "00000001" "0000000000000005" "0000000000000008" "00000001" "16"
    )  # fmt: skip
    assert encode_image(IMAGE).hex() == expected
    delta = encode_delta(IMAGE, 300)
    assert delta is not None
    assert delta.hex() == "0102000000000000012c0000000000000001" + expected
    (snapshot,) = encode_snapshot(IMAGE, -1)
    assert snapshot.hex() == "0101ffffffffffffffff0000000000000001" + expected


def test_images_say_after_how_many_resets_they_were_taken() -> None:
    again = replace(IMAGE, reset_epoch=258)
    data = encode_image(again)
    assert data == encode_image(IMAGE) + bytes.fromhex("0000000000000102")
    assert decode_image(data) == again
    assert decode_image(encode_image(IMAGE)).reset_epoch == 0, "as older releases wrote it"
    for cut in range(1, 8):
        with pytest.raises(ProtocolError):
            decode_image(data[:-cut])
    assert decode_records(encode_snapshot(again, -1, 16)) == [again]


def test_snapshots_come_in_chunks_and_a_torn_one_never_was() -> None:
    whole = encode_snapshot(IMAGE, -1, 16)
    assert len(whole) > 3
    delta = encode_delta(AckImage(Position(6, 1)), 0)
    assert delta is not None
    second = encode_snapshot(AckImage(Position(6, 2)), 0, 16)
    records = [*whole, delta, *second[:-1]]
    assert [image.mark_delete for image in decode_records(records)] == [(5, 7), (6, 1)]
    assert decode_records(records)[0] == IMAGE
    assert recovery_start(len(records) - 1, records[-1]) == 0
    records.append(second[-1])
    start = recovery_start(len(records) - 1, records[-1])
    assert start == len(whole) + 1
    assert [image.mark_delete for image in decode_records(records[start:])] == [(6, 2)]


def test_a_delta_too_large_for_a_record_asks_for_a_snapshot() -> None:
    wide = AckImage(Position(1, 1), {}, {Position(1, 2): (1 << (8 * CHUNK_BYTES_MAX)) - 1})
    assert encode_delta(wide, 0) is None
    chunks = encode_snapshot(wide, 0)
    assert max(map(len, chunks)) <= CHUNK_BYTES_MAX + 32
    assert decode_records(chunks) == [wide]


def test_records_out_of_place_are_refused() -> None:
    delta = encode_delta(IMAGE, 0)
    chunks = encode_snapshot(IMAGE, -1, 16)
    assert delta is not None
    for records in ([delta], chunks[1:], [chunks[0], delta], [chunks[0], *chunks[2:]]):
        with pytest.raises(ProtocolError):
            decode_records(records)
    for record in (b"", delta[:10], b"\x02" + delta[1:], b"\x01\x07" + delta[2:]):
        with pytest.raises(ProtocolError):
            decode_header(record)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**16), st.binary(max_size=3))
def test_damaged_images_are_refused_or_read_as_something_else(at: int, patch: bytes) -> None:
    data = bytearray(encode_image(IMAGE))
    at %= len(data)
    data[at : at + len(patch)] = patch
    try:
        image = decode_image(bytes(data))
    except ProtocolError:
        return
    assert isinstance(image.mark_delete, Position)
