"""The broker's header before a stored payload."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.model.errors import ProtocolError
from magnetar.wire.pulsar.broker_metadata import (
    HEADER_BYTES,
    TIME_MS_MAX,
    BrokerMetadata,
    Stamper,
    header_before,
    header_bytes,
    read_header,
)
from magnetar.wire.pulsar.pulsar_pb2 import BrokerEntryMetadata

entries = st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 2**63)), max_size=20)


@given(st.integers(0, 2**42), st.integers(0, 2**61), st.integers(0, 2**41), entries)
def test_headers_number_messages_and_keep_the_greatest_time(
    now_ms: int, offset: int, greatest: int, held: list[tuple[int, int]]
) -> None:
    messages, times = [m for m, _ in held], [t for _, t in held]
    stamper = Stamper(offset, greatest)
    half = len(held) // 2
    headers = stamper.headers(now_ms, messages[:half], times[:half])
    headers += stamper.headers(now_ms, messages[half:], times[half:])
    for header, count, time_ms in zip(headers, messages, times, strict=True):
        offset += count
        greatest = max(greatest, min(time_ms, TIME_MS_MAX))
        now = min(now_ms, TIME_MS_MAX)
        assert len(header) == HEADER_BYTES == header_bytes(header + b"rest")
        assert read_header(header + b"rest") == BrokerMetadata(now, offset - 1, greatest)
        assert header_before(b"12" + header + b"rest", 2 + HEADER_BYTES) == read_header(header)
        theirs = BrokerEntryMetadata.FromString(header[6:])  # as clients read it
        assert (theirs.broker_timestamp, theirs.index) == (now, offset - 1)
    assert (stamper.next_offset, stamper.greatest_ms) == (offset, greatest)


def test_headers_of_others_are_read_and_their_absence_is_seen() -> None:
    body = BrokerEntryMetadata(broker_timestamp=7, index=300).SerializeToString()
    header = b"\x0e\x02" + len(body).to_bytes(4, "big") + body
    assert header_bytes(header + b"x") == len(header)
    assert read_header(header) == BrokerMetadata(7, 300, -1)
    for payload in (b"", b"\x0e", b"\x0e\x01\0\0\0\0", b"anything at all"):
        assert header_bytes(payload) == 0
        assert read_header(payload) is None
    assert header_before(bytes(36) + b"payload", 36) is None
    ledger_3586 = (3586).to_bytes(8, "big") + bytes(28) + b"payload"
    assert header_before(ledger_3586, 36) is None, "0x0e02 stands in its id"


@pytest.mark.parametrize(
    "header",
    [
        b"\x0e\x02\0\0\0\x09x",
        b"\x0e\x02\0\0\0\x01\x08",
        b"\x0e\x02\0\0\0\x02\x08\x80",
        b"\x0e\x02\0\0\0\x02\x0a\x00",
    ],
)
def test_a_broken_header_is_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_header(header)
