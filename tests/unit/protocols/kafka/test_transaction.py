"""A transactional id: who has it, and how its transaction goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from magnetar.protocols.kafka.coordination import transaction
from magnetar.protocols.kafka.coordination.transaction import (
    EPOCH_MAX,
    Beginning,
    TransactionRecord,
    TransactionVerdict,
    add,
    begin,
    end,
    marked,
    needs_producer_id,
    takes_part,
    time_out,
)
from magnetar.protocols.kafka.coordination.transaction_states import (
    NEXT,
    TRANSITIONS,
    TransactionState,
)
from magnetar.wire.kafka.errors import ErrorCode

PLACE = ("t", 0)
ASKED = Beginning(60_000)


def stored(verdict: TransactionVerdict) -> TransactionRecord:
    assert verdict.record is not None, verdict
    return verdict.record


def ongoing(epoch: int = 0) -> TransactionRecord:
    begun = replace(stored(begin(None, ASKED, 7, 0)), epoch=epoch)
    return stored(add(begun, 7, epoch, [PLACE], 1_000))


def test_the_table_has_each_step_once() -> None:
    assert len(NEXT) == len(TRANSITIONS)


def test_a_producer_that_begins_again_has_a_greater_epoch() -> None:
    first = stored(begin(None, ASKED, 7, 0))
    assert (first.producer_id, first.epoch) == (7, 0)
    second = stored(begin(first, ASKED, -1, 1))
    assert (second.producer_id, second.epoch) == (7, 1)
    assert add(second, 7, 0, [PLACE], 2).error is ErrorCode.PRODUCER_FENCED
    assert end(second, 7, 0, True, 2).error is ErrorCode.PRODUCER_FENCED
    assert add(second, 8, 1, [PLACE], 2).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_who_has_not_heard_of_its_new_epoch_asks_again_until_that_is_used() -> None:
    asked = Beginning(60_000, 7, 0)
    first = stored(begin(None, ASKED, 7, 0))
    second = stored(begin(first, asked, -1, 1))
    assert second.epoch == 1
    assert begin(second, asked, -1, 2) == (ErrorCode.NONE, None), "it is told the same one"
    used = stored(add(second, 7, 1, [PLACE], 3))
    ended = marked(stored(end(used, 7, 1, True, 4)), 5)
    for record in (used, ended, stored(begin(second, ASKED, -1, 3))):
        assert begin(record, asked, -1, 6) == (ErrorCode.PRODUCER_FENCED, None)
    assert stored(begin(ended, Beginning(60_000, 7, 1), -1, 6)).epoch == 2


def test_a_former_producer_does_not_get_its_successors_epoch() -> None:
    """A successor began anew and wrote nothing yet. Whoever it replaced asks for another epoch, as
    after an error: told the successor's, both would write."""
    first = stored(begin(None, ASKED, 7, 0))
    second = stored(begin(first, ASKED, -1, 1))
    former = Beginning(60_000, first.producer_id, first.epoch)
    assert begin(second, former, -1, 2) == (ErrorCode.PRODUCER_FENCED, None)


def test_epochs_end_before_they_do_not_fit_and_leave_room_to_fence_the_last() -> None:
    """They are 16 bits with a sign. Of the last one, a transaction may have to be aborted."""
    record = stored(begin(None, ASKED, 7, 0))
    record = replace(record, epoch=EPOCH_MAX - 2)
    assert not needs_producer_id(record)
    last = stored(begin(record, ASKED, -1, 1))
    assert (last.producer_id, last.epoch) == (7, EPOCH_MAX - 1)
    assert needs_producer_id(last)
    opened = stored(add(last, 7, EPOCH_MAX - 1, [PLACE], 2))
    assert not needs_producer_id(opened)
    aborted = begin(opened, ASKED, -1, 3).record
    assert aborted is not None
    assert aborted.epoch == EPOCH_MAX
    other = stored(begin(marked(aborted, 4), ASKED, 8, 5))
    assert (other.producer_id, other.epoch) == (8, 0)
    assert add(other, 7, EPOCH_MAX, [PLACE], 6).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_who_begins_during_a_transaction_has_it_aborted_first() -> None:
    open_one = ongoing()
    error, aborted = begin(open_one, ASKED, -1, 2_000)
    assert error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert aborted is not None
    assert aborted.state is TransactionState.PREPARE_ABORT
    assert aborted.epoch == open_one.epoch + 1, "its markers fence the former producer"
    assert begin(aborted, ASKED, -1, 3_000) == (ErrorCode.CONCURRENT_TRANSACTIONS, None)
    assert end(aborted, 7, open_one.epoch, True, 3_000).error is ErrorCode.PRODUCER_FENCED
    begun = stored(begin(marked(aborted, 4_000), ASKED, -1, 5_000))
    assert begun.epoch == open_one.epoch + 2
    assert begun.partitions == ()


@pytest.mark.parametrize("commits", [True, False])
def test_an_outcome_is_not_changed_and_may_be_asked_for_again(commits: bool) -> None:
    ending = stored(end(ongoing(), 7, 0, commits, 2_000))
    assert ending.commits is commits
    assert ending.partitions == (PLACE,)
    assert end(ending, 7, 0, commits, 3_000).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert end(ending, 7, 0, not commits, 3_000).error is ErrorCode.INVALID_TXN_STATE
    assert add(ending, 7, 0, [("u", 1)], 3_000).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert takes_part(ending, 7, 0, PLACE) is ErrorCode.INVALID_TXN_STATE
    done = marked(ending, 4_000)
    assert end(done, 7, 0, commits, 5_000) == (ErrorCode.NONE, None)
    assert end(done, 7, 0, not commits, 5_000).error is ErrorCode.INVALID_TXN_STATE
    assert stored(add(done, 7, 0, [("u", 1)], 6_000)).partitions == (("u", 1),)


def test_a_partition_is_added_once() -> None:
    record = ongoing()
    assert add(record, 7, 0, [PLACE], 2_000) == (ErrorCode.NONE, None)
    more = stored(add(record, 7, 0, [PLACE, ("u", 1), ("u", 1)], 2_000))
    assert more.partitions == (PLACE, ("u", 1))
    assert more.started_ms == 1_000, "when the transaction began"
    assert takes_part(more, 7, 0, ("u", 1)) is ErrorCode.NONE
    assert takes_part(more, 7, 0, ("u", 2)) is ErrorCode.INVALID_TXN_STATE
    assert takes_part(None, 7, 0, PLACE) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_fenced() -> None:
    record = ongoing()
    assert time_out(record, 59_999, 10**9) is None, "whatever the clock says"
    aborted = time_out(record, 60_000, 2_000)
    assert aborted is not None
    assert (aborted.state, aborted.epoch) == (TransactionState.PREPARE_ABORT, 1)
    assert aborted.changed_ms == 2_000
    assert time_out(aborted, 10**9, 10**9) is None
    assert end(marked(aborted, 0), 7, 0, True, 0).error is ErrorCode.PRODUCER_FENCED


def test_a_producer_whose_transaction_timed_out_may_go_on() -> None:
    """Clients that know KIP-588 (franz-go) ask for another epoch then, and ended for good."""
    aborted = time_out(ongoing(), 60_000, 2_000)
    assert aborted is not None
    mine = Beginning(60_000, 7, 0)
    assert begin(aborted, mine, -1, 3_000) == (ErrorCode.CONCURRENT_TRANSACTIONS, None)
    done = marked(aborted, 4_000)
    assert begin(done, mine, -1, 5_000) == (ErrorCode.NONE, None), "it is told epoch 1"
    assert add(done, 7, 0, [PLACE], 6_000).error is ErrorCode.PRODUCER_FENCED
    used = stored(add(done, 7, 1, [PLACE], 6_000))
    assert begin(used, mine, -1, 7_000) == (ErrorCode.PRODUCER_FENCED, None)
    other = stored(begin(done, ASKED, -1, 5_000))
    assert other.epoch == 2
    assert begin(other, mine, -1, 6_000) == (ErrorCode.PRODUCER_FENCED, None), "another has begun"
    last = time_out(replace(ongoing(), epoch=EPOCH_MAX - 1), 60_000, 2_000)
    assert last is not None
    begun = stored(begin(marked(last, 3_000), Beginning(60_000, 7, EPOCH_MAX - 1), 99, 4_000))
    assert (begun.producer_id, begun.epoch) == (99, 0), "epochs are used up"


def test_a_producer_that_asks_for_an_epoch_twice_gets_one() -> None:
    first = stored(begin(None, ASKED, 7, 0))
    asked = Beginning(60_000, 7, first.epoch)
    second = stored(begin(first, asked, -1, 1))
    assert second.epoch == 1
    assert begin(second, asked, -1, 2) == (ErrorCode.NONE, None), "the answer was not heard"
    assert begin(second, Beginning(60_000, 8, 1), -1, 2).error is ErrorCode.PRODUCER_FENCED
    third = stored(begin(second, ASKED, -1, 3))
    assert begin(third, asked, -1, 4).error is ErrorCode.PRODUCER_FENCED, "another has the id"


def test_epochs_that_are_used_up_are_followed_by_another_producer_id() -> None:
    last = replace(ongoing(EPOCH_MAX - 1), epoch=EPOCH_MAX - 1)
    _, aborted = begin(last, ASKED, -1, 2_000)
    assert aborted is not None
    assert aborted.epoch == EPOCH_MAX
    assert not needs_producer_id(last), "first it is aborted"
    done = marked(aborted, 3_000)
    assert needs_producer_id(done)
    begun = stored(begin(done, ASKED, 99, 4_000))
    assert (begun.producer_id, begun.epoch) == (99, 0)


def test_who_has_not_heard_of_its_new_producer_id_asks_again_until_that_is_used() -> None:
    """It was fenced, though it was the id's producer, and nobody else had begun."""
    asked = Beginning(60_000, 7, EPOCH_MAX - 1)
    last = replace(stored(begin(None, ASKED, 7, 0)), epoch=EPOCH_MAX - 1)
    begun = stored(begin(last, asked, 99, 1))
    assert (begun.producer_id, begun.epoch) == (99, 0)
    assert not needs_producer_id(begun), "it is told the same"
    assert begin(begun, asked, -1, 2) == (ErrorCode.NONE, None), "the answer was not heard"
    for other in (Beginning(60_000, 7, EPOCH_MAX - 2), Beginning(60_000, 7, 0)):
        assert begin(begun, other, -1, 2) == (ErrorCode.PRODUCER_FENCED, None)
    assert add(begun, 7, EPOCH_MAX - 1, [PLACE], 2).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    used = stored(add(begun, 99, 0, [PLACE], 3))
    assert begin(used, asked, -1, 4) == (ErrorCode.PRODUCER_FENCED, None)
    again = stored(begin(begun, ASKED, -1, 4))
    assert begin(again, asked, -1, 5) == (ErrorCode.PRODUCER_FENCED, None), "another has begun"
    timed_out = time_out(replace(ongoing(), epoch=EPOCH_MAX - 1), 60_000, 2_000)
    assert timed_out is not None
    begun = stored(begin(marked(timed_out, 3_000), asked, 98, 4_000))
    assert begin(begun, asked, -1, 5_000) == (ErrorCode.NONE, None)
    assert begun.producer_id == 98


def test_what_is_stored_is_read_again() -> None:
    record = ongoing(3)
    assert transaction.from_json(transaction.to_json(record)) == record
    timed_out = time_out(record, 60_000, 2_000)
    assert timed_out is not None
    fields = transaction.to_json(timed_out)
    assert transaction.from_json(fields) == timed_out
    assert transaction.from_json(fields[:-1]) == timed_out, "as an older release has stored it"
    assert transaction.from_json(transaction.to_json(record)[:-1]) == record
