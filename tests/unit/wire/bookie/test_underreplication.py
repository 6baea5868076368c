"""BookKeeper's texts for ledgers that lack copies. Goldens are what its classes print."""

from __future__ import annotations

import pytest

from magnetar.model.errors import MetadataFormatError
from magnetar.wire.bookie.underreplication import (
    Shortage,
    check_layout,
    decode_checked,
    decode_delay,
    decode_lock,
    decode_shortage,
    decode_vote,
    encode_checked,
    encode_delay,
    encode_layout,
    encode_lock,
    encode_shortage,
    encode_vote,
    ledger_of_node,
    node_name,
    node_path,
    ordered_votes,
)


def test_where_a_ledger_is_marked() -> None:
    assert node_path(0xCAFEBEEF0000FEED) == f"/cafe/beef/0000/feed/urL{0xCAFEBEEF0000FEED}"
    assert node_path(7) == "/0000/0000/0000/0007/urL0000000007"
    assert node_name(7) == "urL0000000007"
    assert ledger_of_node("urL0000000007") == 7
    assert ledger_of_node("L0000000007") is None


def test_texts() -> None:
    assert encode_layout() == b'type: "BASIC"\nversion: 1\n'
    check_layout(b'type: "BASIC"\nversion: 1\n', "LAYOUT")
    two = Shortage(("127.0.0.1:3181", "b2"), 1_700_000_000_000)
    golden = b'replica: "127.0.0.1:3181"\nreplica: "b2"\nctime: 1700000000000\n'
    assert encode_shortage(two) == golden
    assert decode_shortage(golden, "x") == two
    assert decode_shortage(b'replica: "b2"\n', "x") == Shortage(("b2",), 0)
    assert decode_lock(encode_lock("host"), "x") == "host"
    assert encode_lock("host") == b'bookieId: "host"\n'
    assert decode_lock(b"", "x") == ""
    assert decode_vote(encode_vote("b1:3181"), "x") == "b1:3181"
    assert decode_delay(encode_delay(60), "x") == 60
    assert decode_checked(encode_checked(1234567890123), "x") == 1234567890123


@pytest.mark.parametrize("data", [b'replica: "', b"what", b"\xff\xfe", b"ctime: x"])
def test_what_cannot_be_read_says_where(data: bytes) -> None:
    with pytest.raises(MetadataFormatError, match="the node"):
        decode_shortage(data, "the node")


def test_a_foreign_layout_is_refused() -> None:
    with pytest.raises(MetadataFormatError, match="version 2"):
        check_layout(b'type: "BASIC"\nversion: 2\n', "LAYOUT")
    with pytest.raises(MetadataFormatError):
        decode_delay(b"soon", "delay")


def test_votes_go_by_number() -> None:
    names = ["V_0000000010", "V_0000000009", "other", "V_2147483648"]
    assert ordered_votes(names) == ["V_0000000009", "V_0000000010", "V_2147483648"]
