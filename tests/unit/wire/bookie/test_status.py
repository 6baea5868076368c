from __future__ import annotations

import pytest

from magnetar.model.errors import (
    BadRequestError,
    BookieError,
    BookieIOError,
    BookieUnavailableError,
    BookieVersionError,
    FencedError,
    LogError,
    NoEntryError,
    NoLedgerError,
    ReadOnlyBookieError,
    TooManyRequestsError,
    UnauthorizedError,
    UnknownLedgerStateError,
)
from magnetar.wire.bookie import bookie_pb2 as pb
from magnetar.wire.bookie.status import v2_code, v2_error, v3_code, v3_error

TABLE: list[tuple[type[BookieError], int, int]] = [
    (NoLedgerError, 1, pb.ENOLEDGER),
    (NoEntryError, 2, pb.ENOENTRY),
    (BadRequestError, 100, pb.EBADREQ),
    (BookieIOError, 101, pb.EIO),
    (UnauthorizedError, 102, pb.EUA),
    (BookieVersionError, 103, pb.EBADVERSION),
    (FencedError, 104, pb.EFENCED),
    (ReadOnlyBookieError, 105, pb.EREADONLY),
    (TooManyRequestsError, 106, pb.ETOOMANYREQUESTS),
]


@pytest.mark.parametrize(("cls", "v2", "v3"), TABLE)
def test_codes_both_ways(cls: type[BookieError], v2: int, v3: int) -> None:
    assert (v2_code(cls("x")), v3_code(cls("x"))) == (v2, v3)
    assert type(v2_error(v2, "x")) is cls
    assert type(v3_error(v3, "x")) is cls


def test_ok_is_no_error() -> None:
    assert (v2_code(None), v3_code(None)) == (0, 0)
    assert v2_error(0, "x") is None
    assert v3_error(0, "x") is None


def test_limbo() -> None:
    assert (v2_code(UnknownLedgerStateError("x")), v3_code(UnknownLedgerStateError("x"))) == (
        101, pb.EUNKNOWNLEDGERSTATE
    )  # fmt: skip
    assert type(v2_error(107, "x")) is UnknownLedgerStateError
    assert type(v3_error(507, "x")) is UnknownLedgerStateError


def test_what_no_peer_knows_is_an_io_error() -> None:
    for error in (BookieUnavailableError("x"), LogError("x")):
        assert (v2_code(error), v3_code(error)) == (101, 501)
    for unknown in (v2_error(77, "x"), v3_error(77, "x"), v2_error(-1, "x")):
        assert type(unknown) is BookieIOError


def test_messages_say_of_what_and_why() -> None:
    text = str(v2_error(104, "bookie b:1, adds to ledger 5"))
    assert "bookie b:1, adds to ledger 5" in text
    assert "fenced" in text
    assert "104" in text
