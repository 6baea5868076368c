"""Transactions in one partition: what is stable, what was aborted, what is taken."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import NamedTuple, cast

import pytest

from magnetar.log.seam import WritableLog
from magnetar.model.ids import Position
from magnetar.protocols.kafka.partitions import transaction_index
from magnetar.protocols.kafka.partitions.partition_transactions import PartitionTransactions
from magnetar.protocols.kafka.partitions.transaction_index import (
    Aborted,
    AbortedAhead,
    StoredTransactions,
    TransactionWriters,
)
from magnetar.wire.kafka.batches import CONTROL, TRANSACTIONAL, BatchHeader, read_batch_header
from magnetar.wire.kafka.errors import ErrorCode
from tests.unit.protocols.kafka.harness import batch


def header(producer_id: int, offset: int, epoch: int = 0, control: bool = False) -> BatchHeader:
    attributes = TRANSACTIONAL | (CONTROL if control else 0)
    made = read_batch_header(
        batch(producer_id=producer_id, producer_epoch=epoch, base_sequence=0, attributes=attributes)
    )
    return made._replace(base_offset=offset)


class Step(NamedTuple):
    """Of which producer an entry is (-1: of none); whether a marker commits; None: records."""

    producer_id: int
    commits: bool | None = None


def some_log(source: random.Random) -> list[Step]:
    steps: list[Step] = []
    running: set[int] = set()
    for _ in range(60):
        producer_id = source.randrange(-1, 4)
        if producer_id in running and source.random() < 0.4:
            running.remove(producer_id)
            steps.append(Step(producer_id, source.random() < 0.5))
        else:
            running |= {producer_id} - {-1}
            steps.append(Step(producer_id))
    return steps


def outcome(log: list[Step], at: int) -> bool | None:
    """As one says it who sees the whole log: committed, aborted or (None) neither yet."""
    producer_id = log[at].producer_id
    ends = (each.commits for each in log[at:] if each.producer_id == producer_id)
    return next((commits for commits in ends if commits is not None), None)


def hides(aborted: list[Aborted], log: list[Step], first: int, end: int) -> list[int]:
    """What a client leaves out of [first, end), going by the list as clients do."""
    left = sorted(aborted, key=lambda each: each.first_offset)
    inside: set[int] = set()
    found = []
    for at in range(first, end):
        while left and left[0].first_offset <= at:
            inside.add(left.pop(0).producer_id)
        step = log[at]
        if step.commits is not None:
            inside.discard(step.producer_id)
        elif step.producer_id in inside:
            found.append(at)
    return found


@pytest.mark.parametrize("seed", range(30))
def test_who_reads_what_is_committed_leaves_out_what_was_aborted(seed: int) -> None:
    source = random.Random(seed)
    log = some_log(source)
    stored = StoredTransactions()
    for at, step in enumerate(log):
        made = header(step.producer_id, at, control=step.commits is not None)
        if step.commits is not None:
            stored.marker(made, step.commits)
        elif step.producer_id >= 0:
            stored.batch(made, Position(1, at))
    none_yet = [
        at for at in range(len(log)) if log[at].producer_id >= 0 and log[at].commits is None
    ]
    none_yet = [at for at in none_yet if outcome(log, at) is None]
    stable = stored.stable_offset(len(log))
    assert stable == min(none_yet, default=len(log))
    for _ in range(20):
        first = source.randrange(len(log))
        end = source.randrange(first, len(log)) + 1
        if end > stable:
            continue
        wrong = [
            at
            for at in range(first, end)
            if log[at].producer_id >= 0 and log[at].commits is None and not outcome(log, at)
        ]
        assert hides(stored.aborted_between(first, end), log, first, end) == wrong
        ahead = AbortedAhead()
        for at in range(first, len(log)):
            step = log[at]
            if step.producer_id >= 0 and (at < end or ahead.waits):
                made = header(step.producer_id, at, control=step.commits is not None)
                ahead.look(made, step.commits, at < end)
        assert not ahead.waits
        assert hides(ahead.aborted, log, first, end) == wrong


def test_what_was_aborted_long_ago_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_index, "ABORTED_KEPT", 4)
    stored = StoredTransactions()
    for number in range(5):
        stored.batch(header(1, 2 * number), Position(1, 2 * number))
        stored.marker(header(1, 2 * number + 1, control=True), False)
    assert stored.seen_from == 4
    assert [each.first_offset for each in stored.aborted_between(4, 10)] == [4, 6, 8]


def test_a_batch_is_taken_when_the_coordinator_said_so_and_until_the_marker() -> None:
    writers = TransactionWriters()
    made = header(7, 0)
    assert writers.check(made) is ErrorCode.INVALID_TXN_STATE
    writers.allow(7, 0, writers.ends(7))
    assert writers.check(made) is ErrorCode.NONE
    writers.batch(made)
    assert writers.marker(7, 0, 1), "it ends something"
    assert writers.check(made) is ErrorCode.INVALID_TXN_STATE
    assert not writers.marker(7, 0, 1), "the same marker again ends nothing"


def test_a_marker_that_comes_while_the_coordinator_is_asked_makes_its_answer_void() -> None:
    writers = TransactionWriters()
    ends = writers.ends(7)
    writers.marker(7, 0, 1)
    writers.allow(7, 0, ends)
    assert writers.check(header(7, 0)) is ErrorCode.INVALID_TXN_STATE


def test_smaller_epochs_are_refused_of_producers_and_of_coordinators() -> None:
    writers = TransactionWriters()
    writers.marker(7, 5, 3)
    assert writers.check(header(7, 0, epoch=4)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert writers.check_marker(7, 4, 3) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert writers.check_marker(7, 5, 2) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert writers.check_marker(7, 5, 3) is ErrorCode.NONE


def test_producers_with_open_transactions_are_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_index, "PRODUCERS_MAX", 2)
    writers = TransactionWriters()
    writers.batch(header(0, 0))
    for number in range(1, 5):
        writers.marker(number, 0, 1)
    assert writers.takes(header(0, 1))
    assert writers.ends(1) == -1
    assert writers.ends(4) == 1


def test_where_all_have_open_transactions_one_more_can_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was the only one that could give way, and did, before it was there (KeyError)."""
    monkeypatch.setattr(transaction_index, "PRODUCERS_MAX", 2)
    writers = TransactionWriters()
    for number in range(5):
        writers.batch(header(number, 0))
    writers.allow(5, 0, -1)
    assert all(writers.takes(header(number, 1)) for number in range(6))


def test_an_aborted_transaction_that_compaction_took_is_not_told() -> None:
    """A client that is told of it, and gets no marker, would drop what its producer commits
    next."""
    cursors = SimpleNamespace(durable=dict)
    log = cast(WritableLog, SimpleNamespace(positions=None, cursors=cursors))
    transactions = PartitionTransactions(log)
    steps = (Step(1), Step(1, False), Step(2), Step(1), Step(2, False), Step(1, True))
    heads = [
        (header(each.producer_id, offset, control=each.commits is not None), each.commits)
        for offset, each in enumerate(steps)
    ]
    for head, commits in heads:
        if commits is None:
            transactions.stored.batch(head, Position(0, head.base_offset))
        else:
            transactions.stored.marker(head, commits)

    async def told(answered: list[tuple[BatchHeader, bool | None]]) -> list[tuple[int, int]]:
        found = await transactions.aborted_in(0, answered, Position(0, len(steps)))
        return [(each.producer_id, each.first_offset) for each in found]

    assert asyncio.run(told(heads)) == [(1, 0), (2, 2)]
    assert asyncio.run(told(heads[2:])) == [(2, 2)], "of the first one there is nothing left"
    assert asyncio.run(told(heads[1:])) == [(1, 0), (2, 2)], "its marker is there"
