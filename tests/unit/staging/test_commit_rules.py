"""``staging.commit_rules``: the table at its head, row by row, and then any order of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.model.errors import StagedWriteError, StaleRunError
from magnetar.staging.commit_rules import (
    COMMITS_MAX,
    INLINE_BYTES_MAX,
    CommitVerdict,
    Offer,
    begin_run,
    collected,
    decide,
    dropped,
    may_delete,
    retire,
    taken_in,
)
from magnetar.staging.records import INLINE, Origin, QueryRecord, Source, decode_query, encode_query


def offer(part: int, ledger_id: int, *topics: str) -> Offer:
    return Offer(part, {topic: Source(part, ledger_id, 2, 5) for topic in topics or ("t",)})


def begun(*runs: str) -> QueryRecord:
    record = None
    for run in runs:
        record = begin_run(record, "q", run)
    assert record is not None
    return record


def committed(record: QueryRecord, batch: int, *offers: Offer) -> QueryRecord:
    verdict, after = decide(record, "q", record.run, batch, offers)
    assert verdict is CommitVerdict.COMMITTED
    return after


def test_a_run_that_begins_retires_the_one_before() -> None:
    record = begun("a", "b")
    assert (record.run, record.retired, record.epoch, record.first_run) == ("b", ("a",), 2, "a")
    assert begin_run(record, "q", "b") == record
    with pytest.raises(StaleRunError, match="run a of query q may write no more: run b has begun"):
        begin_run(record, "q", "a")
    with pytest.raises(StaleRunError):
        begin_run(retire(record), "q", "b")


def test_a_batch_is_committed_once_whatever_is_offered() -> None:
    record = committed(begun("a"), 3, offer(0, 7), offer(1, 8))
    verdict, after = decide(record, "q", "a", 3, [offer(0, 9)])
    assert verdict is CommitVerdict.ALREADY
    assert after == record
    assert decide(record, "q", "a", 2, [offer(0, 9)])[0] is CommitVerdict.ALREADY
    assert dropped(record, [offer(0, 7), offer(1, 9)]) == [9], "what it chose stays"


def test_a_run_that_was_retired_commits_nothing_more() -> None:
    with pytest.raises(StaleRunError, match="may not commit batch 0"):
        decide(begun("a", "b"), "q", "a", 0, [offer(0, 7)])


def test_two_attempts_of_a_task_are_never_committed() -> None:
    with pytest.raises(StagedWriteError, match="two attempts of one task"):
        decide(begun("a"), "q", "a", 0, [offer(1, 7), offer(1, 8)])


def test_parts_stand_in_the_order_of_their_numbers() -> None:
    record = committed(begun("a"), 0, offer(2, 9), offer(0, 7), offer(1, 8))
    assert [source.part for source in record.commits[0].shares["t"]] == [0, 1, 2]


def test_ledgers_become_garbage_when_the_last_topic_has_its_share() -> None:
    record = committed(begun("a"), 0, offer(0, 7, "t", "u"))
    half = taken_in(record, 0, "t")
    assert (half.garbage, list(half.commits[0].shares)) == ((), ["u"])
    assert taken_in(half, 0, "t") == half, "said twice"
    whole = taken_in(half, 0, "u")
    assert (whole.garbage, whole.commits) == ((7,), ())
    assert collected(whole, [7]).garbage == ()


def test_too_many_batches_or_bytes_wait() -> None:
    record = begun("a")
    for batch in range(COMMITS_MAX):
        record = committed(record, batch, offer(0, batch))
    assert decide(record, "q", "a", COMMITS_MAX, [offer(0, 99)]) == (CommitVerdict.FULL, record)
    big = Offer(0, {"t": Source(0, INLINE, 1, 1, (b"x" * (INLINE_BYTES_MAX + 1),))})
    assert decide(begun("a"), "q", "a", 0, [big])[0] is CommitVerdict.FULL


@pytest.mark.parametrize(
    ("batch", "run", "ledger_id", "allowed"),
    [
        (1, "b", 7, False),  # committed, and not taken in
        (1, "b", 8, True),  # another attempt of that batch
        (0, "a", 8, True),
        (2, "b", 8, False),  # may be committed yet
        (2, "a", 8, True),  # its run may not
        (2, "c", 8, False),  # its run has begun since the record was read
    ],
)
def test_what_may_be_deleted(batch: int, run: str, ledger_id: int, allowed: bool) -> None:
    record = committed(begun("a", "b"), 1, offer(0, 7))
    assert may_delete(record, ledger_id, Origin("q", run, batch, 0, "x")) is allowed


def test_ledgers_of_a_query_that_is_gone_may_go() -> None:
    assert may_delete(None, 7, Origin("q", "a", 0, 0, "x"))


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "commit", "take", "collect"]),
        st.integers(0, 3),
        st.integers(0, 4),
        st.sampled_from(["t", "u"]),
    ),
    max_size=60,
)


@given(EVENTS)
def test_in_any_order_a_batch_is_committed_once_and_nothing_needed_is_deleted(
    events: list[tuple[str, int, int, str]],
) -> None:
    record = begun("r0")
    chosen: dict[int, int] = {}
    ledger_id = 0
    for kind, run, batch, topic in events:
        name, before = f"r{run}", record
        try:
            if kind == "begin":
                record = begin_run(record, "q", name)
            elif kind == "commit":
                ledger_id += 1
                verdict, record = decide(record, "q", name, batch, [offer(0, ledger_id, "t", "u")])
                if verdict is CommitVerdict.COMMITTED:
                    assert name == before.run
                    assert batch not in chosen
                    assert all(batch > other for other in chosen)
                    chosen[batch] = ledger_id
            elif kind == "take":
                record = taken_in(record, batch, topic)
        except StaleRunError:
            assert record == before
        for number in range(ledger_id + 1):
            if may_delete(record, number, Origin("q", name, batch, 0, "")):
                assert not record.needs(number)
        assert decode_query("/q", encode_query(record)) == record
        assert not set(record.garbage) & {i for c in record.commits for i in c.ledgers}
