"""Which quota is exceeded, and up to where an eviction goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.cluster.policies.backlog_quotas import BacklogQuota, BacklogQuotas, QuotaAction
from magnetar.log.seam import LedgerStats, LogStats
from magnetar.model.errors import BacklogHoldsError, BacklogQuotaError
from magnetar.model.ids import EARLIEST, Position
from magnetar.topics.quotas import (
    Behind,
    Exceeded,
    Oldest,
    age_ms_left,
    backlog_bytes,
    by_age,
    by_bytes,
    bytes_left,
    mark_within,
    refusal,
    slowest,
)

HOLD, EXCEPTION, EVICTION = QuotaAction
TEN = [(3, 10, 1000), (5, 20, 1000), (8, 4, 400)]
"""Ledgers: id, entries, bytes."""


def stored(ledgers: list[tuple[int, int, int]]) -> LogStats:
    held = tuple(LedgerStats(*each, "closed") for each in ledgers)
    entries, size = sum(each[1] for each in ledgers), sum(each[2] for each in ledgers)
    return LogStats("log", entries, size, held, Position(9, 0), {})


def storage(limit: int, action: QuotaAction = HOLD) -> BacklogQuotas:
    return BacklogQuotas(storage=BacklogQuota(limit, -1, action))


def test_the_slowest_subscription_counts() -> None:
    behind = [Behind("fast", Position(8, 1), 2), Behind("slow", Position(5, 9), 14)]
    log = stored(TEN)
    assert by_bytes(storage(901), log, behind) is None
    found = by_bytes(storage(900), log, behind)
    assert found == Exceeded(HOLD, "bytes", 900, 900, "slow")
    assert "subscription slow is 900 bytes behind" in str(found)
    assert slowest(behind) == behind[1]
    assert slowest([]) is None


def test_no_limit_and_no_backlog() -> None:
    log = stored(TEN)
    assert by_bytes(storage(-1), log, [Behind("s", EARLIEST, 34)]) is None
    assert by_bytes(BacklogQuotas(), log, [Behind("s", EARLIEST, 34)]) is None
    assert by_bytes(storage(1), log, []) is None
    full = by_bytes(storage(0), log, [])
    assert full is not None, "a limit of nothing lets nobody publish, as in Pulsar"
    assert "nobody is 0 bytes behind" in str(full)


@pytest.mark.parametrize(("age_ms", "exceeds"), [(59_999, False), (60_000, True)])
def test_age(age_ms: int, exceeds: bool) -> None:
    quotas = BacklogQuotas(age=BacklogQuota(-1, 60, EXCEPTION))
    found = by_age(quotas, Oldest("s", age_ms))
    assert found == (Exceeded(EXCEPTION, "s", 60, 60, "s") if exceeds else None)
    assert by_age(quotas, None) is None
    for limit in (0, -1):
        none = BacklogQuotas(age=BacklogQuota(-1, limit, EXCEPTION))
        assert by_age(none, Oldest("s", age_ms)) is None


@pytest.mark.parametrize(
    ("byte_count", "mark"),
    [
        (0, Position(8, 3)),
        (99, Position(8, 3)),
        (100, Position(8, 2)),
        (399, Position(8, 0)),
        (400, Position(5, 19)),
        (450, Position(5, 18)),
        (1400, Position(3, 9)),
        (2400, Position(3, -1)),
        (9999, Position(3, -1)),
    ],
)
def test_where_an_eviction_leaves_so_much(byte_count: int, mark: Position) -> None:
    assert mark_within(stored(TEN), byte_count) == mark


def test_an_empty_log_has_nothing_to_evict() -> None:
    assert mark_within(stored([]), 10) == Position(0, -1)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5000)), min_size=1, max_size=6),
    st.integers(0, 20_000),
)
def test_what_is_left_is_no_more_than_that_and_one_entry_more_would_be(
    sizes: list[tuple[int, int]], byte_count: int
) -> None:
    ledgers = [(number, *each) for number, each in enumerate(sizes, 1)]
    log = stored(ledgers)
    mark = mark_within(log, byte_count)
    assert backlog_bytes(log, mark, 1) <= byte_count
    if mark.entry_id >= 0:
        before = Position(mark.ledger_id, mark.entry_id - 1)
        assert backlog_bytes(log, before, 1) > byte_count - 1


def test_less_than_the_limit_is_left() -> None:
    assert bytes_left(1000) == 900
    assert age_ms_left(60) == 54_000


def test_what_producers_are_told() -> None:
    def told(action: QuotaAction) -> BacklogQuotaError:
        return refusal("t", Exceeded(action, "bytes", 9, 10, "s"))

    assert isinstance(told(HOLD), BacklogHoldsError)
    assert type(told(EXCEPTION)) is BacklogQuotaError
    assert "topic t takes no messages for now: subscription s" in str(told(HOLD))
    assert Exceeded(EXCEPTION, "s", 1, 2, "s").refuses
    assert not Exceeded(EVICTION, "s", 1, 2, "s").refuses
