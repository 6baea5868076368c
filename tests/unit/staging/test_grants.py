"""What clients without a metadata store may do to ledgers and records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from magnetar.model.errors import NoSuchLedgerError, NotAllowedError
from magnetar.model.ids import BookieId, LedgerId
from magnetar.model.ledger import (
    COMPACTING_KEY,
    DigestType,
    Fragment,
    LedgerMetadata,
    LedgerState,
)
from magnetar.staging.grants import (
    check_change,
    check_deletion,
    check_new,
    check_record,
    check_told,
)
from magnetar.staging.records import LEDGER_KEY, Origin, QueryRecord, encode_origin, encode_query

ORIGIN = Origin("q", "r1", 0, 1, "7")
STAGED = LedgerMetadata(
    ledger_id=LedgerId(3),
    ensemble_size=1,
    write_quorum=1,
    ack_quorum=1,
    digest_type=DigestType.CRC32C,
    password=b"",
    fragments=(Fragment(0, (BookieId("b-1"),)),),
    custom=((LEDGER_KEY, encode_origin(ORIGIN)),),
)
OF_A_TOPIC = replace(STAGED, custom=(("application", b"pulsar"),))
NONSENSE = replace(STAGED, custom=((LEDGER_KEY, b"?"),))
OTHERS = encode_origin(ORIGIN._replace(query="other"))


def test_a_staged_ledger_is_made_changed_closed_and_told() -> None:
    assert check_new(STAGED) == STAGED
    assert check_told(STAGED) == STAGED
    moved = replace(STAGED, fragments=(*STAGED.fragments, Fragment(5, (BookieId("b-2"),))))
    assert check_change(STAGED, moved) == moved
    closed = replace(moved, creator_token=5).with_close(7, 100)
    assert check_change(moved, closed) == closed


def test_a_ledger_to_compact_into_is_written_and_neither_made_nor_deleted() -> None:
    given = replace(STAGED, custom=((COMPACTING_KEY, b"t/n/persistent/log"),))
    assert check_told(given) == given
    closed = given.with_close(7, 100)
    assert check_change(given, closed) == closed
    with pytest.raises(NotAllowedError, match="only its state"):
        check_change(given, replace(given, custom=STAGED.custom))
    with pytest.raises(NotAllowedError, match="does not say which query"):
        check_new(given)
    with pytest.raises(NoSuchLedgerError, match="no staged ledger 3"):
        check_deletion(given)
    check_deletion(STAGED)


@pytest.mark.parametrize("other", [OF_A_TOPIC, NONSENSE])
def test_other_ledgers_are_out_of_reach(other: LedgerMetadata) -> None:
    with pytest.raises(NotAllowedError, match="does not say which query"):
        check_new(other)
    with pytest.raises(NoSuchLedgerError, match="no staged ledger 3"):
        check_told(other)
    with pytest.raises(NoSuchLedgerError, match="no staged ledger 3"):
        check_change(other, STAGED)


@pytest.mark.parametrize(
    "after",
    [
        OF_A_TOPIC,
        replace(STAGED, custom=((LEDGER_KEY, OTHERS),)),
        replace(STAGED, ack_quorum=1, password=b"mine"),
        replace(STAGED, ensemble_size=2),
    ],
)
def test_a_staged_ledger_stays_what_it_is(after: LedgerMetadata) -> None:
    with pytest.raises(NotAllowedError, match="only its state, its end and its fragments"):
        check_change(STAGED, after)


def test_a_new_ledger_is_open() -> None:
    with pytest.raises(NotAllowedError, match="must be open"):
        check_new(STAGED.with_close(0, 1))
    with pytest.raises(NotAllowedError, match="must be open"):
        check_new(replace(STAGED, state=LedgerState.IN_RECOVERY))


def test_records_are_records() -> None:
    value = encode_query(QueryRecord("r1", "r1"))
    assert check_record("a/b", value) == "/staged-writes/queries/a%2Fb"
    with pytest.raises(NotAllowedError, match="no record of a query"):
        check_record("q", b"{}")
    with pytest.raises(NotAllowedError, match="cannot name a query"):
        check_record("a:b", value)
    with pytest.raises(NotAllowedError, match="version 2"):
        check_record("q", value.replace(b'"version":1', b'"version":2'))
