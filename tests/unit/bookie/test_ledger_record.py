"""The record of a ledger in the index: bytes, round trip, damage."""

from __future__ import annotations

from itertools import product

import pytest

from magnetar.bookie.storage.ledger_record import LedgerRecord, decode_record, record_deleted
from magnetar.model.errors import BookieIOError

RECORD = LedgerRecord(True, False, 3, bytes(range(20)), 9, 8, 7, b"body")


def test_layout() -> None:
    assert RECORD.encode() == bytes.fromhex(
        "01" "01" "00000003" "000102030405060708090a0b0c0d0e0f10111213"
        "0000000000000009" "0000000000000008" "0000000000000007"
    ) + b"body"  # fmt: skip


@pytest.mark.parametrize(("fenced", "deleted"), list(product((False, True), repeat=2)))
def test_round_trip(fenced: bool, deleted: bool) -> None:
    record = RECORD._replace(fenced=fenced, deleted=deleted, lac=-1, lac_body=b"")
    assert decode_record(5, record.encode()) == record
    assert record_deleted(record.encode()) is deleted


def test_a_master_key_that_is_not_known_stays_so() -> None:
    assert decode_record(5, RECORD._replace(master_key=b"").encode()).master_key == b""


@pytest.mark.parametrize("data", [b"", RECORD.encode()[:49], b"\2" + RECORD.encode()[1:]])
def test_damage_is_told(data: bytes) -> None:
    with pytest.raises(BookieIOError, match="index record of ledger 5 is damaged"):
        decode_record(5, data)
