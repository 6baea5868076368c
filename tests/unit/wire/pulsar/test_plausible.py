"""Numbers in metadata are held against the bytes that are there."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.model.errors import ChecksumError, ImplausibleMessageError, ProtocolError
from magnetar.wire.checksum import crc32c
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.commands import encode_payload_command
from magnetar.wire.pulsar.hot import decode_send
from magnetar.wire.pulsar.metadata import check_plausible, dispatch_facts
from magnetar.wire.pulsar.plausible import CHUNKS_MAX, RATIO_SLACK_BYTES, implausible
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, MessageMetadata, SingleMessageMetadata
from magnetar.wire.pulsar.sent import Sent, check_sent, read_send
from tests.golden.pulsar import frame, names
from tests.unit.wire.pulsar.strategies import commands, filled
from tests.unit.wire.pulsar.test_metadata import plain, stored

LARGE = 2**31 - 1
SENDS = [name for name in names() if "/send_" in name]


SEND = bytes.fromhex("00000009 0806 32 05 0801 10b96d")
"""A usual SEND of producer 1 with sequence id 14009, up to its payload."""


def check(payload: bytes) -> Sent:
    """What is said of ``payload`` in the middle of a buffer, with a checksum that fits; by both
    who say it."""
    if payload.startswith(b"\x0e\x01"):
        payload = payload[:2] + crc32c(payload[6:]).to_bytes(4, "big") + payload[6:]
    buffer = memoryview(b"before" + SEND + payload + b"\x58behind")
    start, end = 6 + len(SEND), 6 + len(SEND) + len(payload)
    quick = read_send(buffer, 6, end)
    try:
        found = check_sent(buffer, start, end)
    except ProtocolError:
        assert quick is None
        raise
    assert quick == (1, 14009, 0, start, *found) or (quick is None and payload[:2] != b"\x0e\x01")
    return found


def test_no_message_of_a_batch_is_smaller_than_the_least() -> None:
    single = SingleMessageMetadata(payload_size=0).SerializeToString()
    count = 100
    data = (len(single).to_bytes(4, "big") + single) * count
    assert implausible(plain(num_messages_in_batch=count), len(data)) is None
    assert implausible(plain(num_messages_in_batch=count + 1), len(data)) is not None


IMPLAUSIBLE = {
    "a batch of many in two bytes": ({"num_messages_in_batch": 100_000}, 2),
    "a batch of one in nothing": ({"num_messages_in_batch": 1}, 0),
    "a batch of none": ({"num_messages_in_batch": 0}, 100),
    "a batch of less than none": ({"num_messages_in_batch": -1}, 100),
    "a compressed batch of too many": (
        {"num_messages_in_batch": 1000, "compression": Compression.ZSTD, "uncompressed_size": 5999},
        50,
    ),
    "two bytes of LZ4 that are 4 GB": (
        {"compression": Compression.LZ4, "uncompressed_size": 2**32 - 1},
        2,
    ),
    "a megabyte of Snappy that is 4 GB": (
        {"compression": Compression.SNAPPY, "uncompressed_size": 2**32 - 1},
        1 << 20,
    ),
    "a first chunk of two bytes, of 2 GB": (
        {"num_chunks_from_msg": 400, "chunk_id": 0, "total_chunk_msg_size": LARGE},
        2,
    ),
    "more chunks than bytes": (
        {"num_chunks_from_msg": CHUNKS_MAX, "chunk_id": 1, "total_chunk_msg_size": 100},
        50,
    ),
    "more chunks than clients have room for": (
        {"num_chunks_from_msg": LARGE, "chunk_id": 1, "total_chunk_msg_size": LARGE},
        50,
    ),
    "a chunk behind the last": (
        {"num_chunks_from_msg": 2, "chunk_id": 2, "total_chunk_msg_size": 100},
        50,
    ),
    "a chunk before the first": (
        {"num_chunks_from_msg": 2, "chunk_id": -1, "total_chunk_msg_size": 100},
        50,
    ),
    "a chunked message of negative size": (
        {"num_chunks_from_msg": 2, "chunk_id": 0, "total_chunk_msg_size": -5},
        50,
    ),
}


@pytest.mark.parametrize("name", IMPLAUSIBLE)
def test_what_cannot_be_true_is_neither_stored_nor_dispatched(name: str) -> None:
    fields, data_bytes = IMPLAUSIBLE[name]
    payload = stored(plain(**fields), bytes(data_bytes))
    with pytest.raises(ImplausibleMessageError, match="it says"):
        check(payload)
    with pytest.raises(ImplausibleMessageError):
        dispatch_facts(payload)


PLAUSIBLE = {
    "plain": ({}, 0),
    "not compressed, whatever the size": ({"uncompressed_size": 2**32 - 1}, 3),
    "an empty batch's message": ({"num_messages_in_batch": 1}, 6),
    "zeros in ZLIB": ({"compression": Compression.ZLIB, "uncompressed_size": 1 << 20}, 1040),
    "zeros in ZSTD": (
        {"compression": Compression.ZSTD, "uncompressed_size": 100 << 20},
        3300,
    ),
    "short data that grew": ({"compression": Compression.LZ4, "uncompressed_size": 1}, 12),
    "less than a block": (
        {"compression": Compression.SNAPPY, "uncompressed_size": RATIO_SLACK_BYTES},
        20,
    ),
    "a chunk of two, encrypted": (
        {"num_chunks_from_msg": 2, "chunk_id": 0, "total_chunk_msg_size": 100},
        66,
    ),
    "a short last chunk": (
        {"num_chunks_from_msg": 200, "chunk_id": 199, "total_chunk_msg_size": 200_000},
        1,
    ),
    "a chunk of a compressed message": (
        {
            "num_chunks_from_msg": 2,
            "chunk_id": 1,
            "total_chunk_msg_size": 2000,
            "compression": Compression.LZ4,
            "uncompressed_size": 400_000,
        },
        1,
    ),
}


@pytest.mark.parametrize("name", PLAUSIBLE)
def test_what_can_be_true_passes(name: str) -> None:
    fields, data_bytes = PLAUSIBLE[name]
    payload = stored(plain(**fields), bytes(data_bytes))
    assert check(payload)[2] == 0
    assert dispatch_facts(payload)[0] >= 0


@pytest.mark.parametrize("name", SENDS)
def test_what_clients_send_passes(name: str) -> None:
    data = frame(name)
    found = decode_send(memoryview(data), 4, len(data))
    payload = memoryview(data)[found.payload_start : found.payload_end]
    sent = check(bytes(payload))
    assert sent[2] == 0
    assert dispatch_facts(payload)[0] >= 0
    ids = (found.producer_id, found.sequence_id, found.highest_sequence_id)
    assert read_send(memoryview(data), 4, len(data)) == (*ids, found.payload_start, *sent)


def test_the_time_to_deliver_is_found() -> None:
    payload = stored(plain(deliver_at_time=1_700_000_000_000), b"later")
    assert check(payload)[2] == 1_700_000_000_000


def encoded(meta: bytes) -> bytes:
    """A payload with that metadata and two bytes of data."""
    return b"\x0e\x01...." + len(meta).to_bytes(4, "big") + meta + b"ab"


LONG_TAGS = {
    "a batch, tag of 2 bytes": b"\xd8\x00\xa0\x8d\x06",
    "a batch, tag of 3 bytes": b"\xd8\x80\x00\xa0\x8d\x06",
    "compression, then a batch": b"\xc0\x00\x01\x58\xa0\x8d\x06",
    "a chunk of many, tags of 3 bytes": b"\xd8\x81\x00\xa0\x8d\x06\xe0\x81\x00\x05",
}


@pytest.mark.parametrize("name", LONG_TAGS)
def test_tags_longer_than_need_be_hide_nothing(name: str) -> None:
    payload = encoded(plain().SerializeToString() + LONG_TAGS[name])
    with pytest.raises(ImplausibleMessageError):
        dispatch_facts(payload)
    with pytest.raises(ImplausibleMessageError):
        check(payload)


def test_a_time_to_deliver_is_found_behind_a_long_tag() -> None:
    payload = encoded(plain().SerializeToString() + b"\x98\x81\x00\x07")
    assert check(payload)[2] == 7


def test_what_is_no_message_is_no_implausible_one() -> None:
    for payload in (stored(plain())[:-1], b"\x0e\x02" + stored(plain(), b"data")):
        with pytest.raises(ProtocolError) as told:
            check(payload)
        assert not isinstance(told.value, ImplausibleMessageError)


def test_metadata_that_cannot_be_decoded_is_left_to_dispatch() -> None:
    meta = b"\x58\xff\xff\xff"  # a count that has no end
    payload = b"\x0e\x01...." + len(meta).to_bytes(4, "big") + meta
    assert check(payload)[2] == 0
    with pytest.raises(ProtocolError):
        dispatch_facts(payload)


@given(st.integers(-5, LARGE), st.integers(0, 2**32 - 1), st.integers(0, 4), st.integers(0, 10_000))
def test_whatever_is_stored_is_dispatched(
    count: int, size: int, compression: int, data_bytes: int
) -> None:
    """The quick look at a SEND misses nothing that dispatch finds."""
    meta = MessageMetadata(
        producer_name="X", sequence_id=1, publish_time=5, compression=compression
    )  # type: ignore[arg-type]
    meta.num_messages_in_batch = count
    meta.uncompressed_size = size
    payload = stored(meta, bytes(data_bytes))
    try:
        check(payload)
    except ImplausibleMessageError:
        with pytest.raises(ImplausibleMessageError):
            dispatch_facts(payload)
    else:
        assert dispatch_facts(payload)[0] == max(1, count)


@given(filled(MessageMetadata()), st.integers(0, 10_000), st.booleans())
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_the_quick_look_says_what_decoding_says(
    meta: MessageMetadata, data_bytes: int, magic: bool
) -> None:
    payload = stored(meta, bytes(data_bytes), magic)
    try:
        check_plausible(meta, data_bytes)
    except ImplausibleMessageError:
        with pytest.raises(ImplausibleMessageError):
            check(payload)
    else:
        messages = max(1, meta.num_messages_in_batch)
        assert check(payload) == (messages, meta.publish_time, meta.deliver_at_time)


@pytest.mark.parametrize("meta", [b"", b"\x0a", b"\x0a\x7fp", b"\x0a\x01p\x10", b"\x0a\x80\x01p"])
def test_metadata_that_ends_early_is_left_to_dispatch(meta: bytes) -> None:
    """Also at the end of the buffer, where nothing follows."""
    payload = len(meta).to_bytes(4, "big") + meta
    payload = b"\x0e\x01" + crc32c(payload).to_bytes(4, "big") + payload
    assert check_sent(memoryview(payload), 0, len(payload)) == (1, 0, 0)
    with pytest.raises(ProtocolError):
        dispatch_facts(payload)


def test_a_damaged_message_is_refused() -> None:
    payload = stored(plain(), b"data")
    with pytest.raises(ChecksumError):
        check_sent(memoryview(payload), 0, len(payload))
    assert read_send(memoryview(SEND + payload), 0, len(SEND) + len(payload)) is None


@pytest.mark.parametrize("data", [b"Hello", b"X1", b"\xc0\x01\x01", b"H1X1\xc0\x01\x01", b"H\x80"])
def test_data_is_not_taken_for_metadata(data: bytes) -> None:
    """Behind metadata that ends with its publish time, also where data looks like more of it."""
    assert check(stored(plain(), data))[0] == 1


@given(commands(BaseCommand.SEND), st.binary(max_size=40))
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_a_command_is_read_as_it_is_decoded(command: BaseCommand, data: bytes) -> None:
    payload = stored(plain(), data)
    payload = payload[:2] + crc32c(payload[6:]).to_bytes(4, "big") + payload[6:]
    frame_ = memoryview(encode_payload_command(command, payload) + b"next frame")
    end = len(frame_) - len(b"next frame")
    found, quick = decode_send(frame_, 4, end), read_send(frame_, 4, end)
    if quick is not None:
        ids = (found.producer_id, found.sequence_id, found.highest_sequence_id)
        assert quick[:4] == (*ids, found.payload_start)
        assert found.txn is None
