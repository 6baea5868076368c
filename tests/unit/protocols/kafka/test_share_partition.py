"""The machine of a share partition: single stories, and any story against a model that knows each
record by itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from magnetar.protocols.kafka.shares.share_partition import (
    DONE,
    NEXT,
    TRANSITIONS,
    Acknowledgement,
    Acquired,
    ReadBatch,
    RecordEvent,
    ShareLimits,
    SharePartition,
)
from magnetar.protocols.kafka.shares.share_records import RecordState, ShareImage, StoredRun
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.share_fetch_messages import AcknowledgeType

LIMITS = ShareLimits(lock_ms=1_000, locks_max=20, count_max=3)
GAP, ACCEPT, RELEASE, REJECT = AcknowledgeType
A, B = "a", "b"
PLENTY = 1_000


def batches(*ranges: tuple[int, int]) -> list[ReadBatch]:
    return [ReadBatch(*each) for each in ranges]


def made(start: int = 0, limits: ShareLimits = LIMITS) -> SharePartition:
    return SharePartition(start, limits)


def fetch(
    machine: SharePartition,
    member: str,
    log: Sequence[ReadBatch],
    records_max: int = PLENTY,
    now_ms: int = 0,
    batch_size: int = 0,
) -> list[Acquired]:
    at = machine.next_offset()
    if at is None:
        return []
    found = [each for each in log if each.last >= at]
    return machine.acquire(member, at, found, records_max, now_ms, batch_size)


def said(first: int, last: int, *types: int) -> list[Acknowledgement]:
    return [Acknowledgement(first, last, types)]


def test_the_table_says_one_thing_of_each_state_and_event() -> None:
    assert len(NEXT) == len(TRANSITIONS)
    assert not any(each.state in DONE for each in TRANSITIONS)
    assert {each.event for each in TRANSITIONS} == set(RecordEvent)


def test_two_members_get_different_records() -> None:
    machine, log = made(), batches((0, 4), (5, 9))
    assert fetch(machine, A, log, records_max=5) == [Acquired(0, 4, 1)]
    assert fetch(machine, B, log, records_max=5) == [Acquired(5, 9, 1)]
    assert fetch(machine, B, log) == []


def test_whole_batches_are_taken_also_past_what_was_asked_for() -> None:
    machine = made()
    assert fetch(machine, A, batches((0, 4), (5, 9), (10, 14)), 7) == [Acquired(0, 9, 1)]
    assert machine.next_offset() == 10


def test_the_bound_on_records_in_flight_cuts_batches() -> None:
    machine, log = made(), batches((0, 14), (15, 29))
    assert fetch(machine, A, log) == [Acquired(0, 19, 1)]
    assert machine.next_offset() is None
    assert machine.acknowledge(A, said(0, 9, ACCEPT)) is ErrorCode.NONE
    assert fetch(machine, B, log) == [Acquired(20, 29, 1)]


def test_small_batches_are_told_together_up_to_the_batch_size() -> None:
    machine = made()
    found = fetch(machine, A, batches((0, 1), (2, 3), (4, 5), (6, 9)), batch_size=4)
    assert found == [Acquired(0, 3, 1), Acquired(4, 5, 1), Acquired(6, 9, 1)]


def test_what_is_accepted_is_done_with() -> None:
    machine, log = made(), batches((0, 9))
    fetch(machine, A, log)
    assert machine.acknowledge(A, said(0, 4, ACCEPT)) is ErrorCode.NONE
    assert machine.start == 5
    assert machine.acknowledge(A, said(7, 9, ACCEPT)) is ErrorCode.NONE
    assert machine.start == 5
    assert machine.image() == ShareImage(
        5,
        (
            StoredRun(5, 6, RecordState.AVAILABLE, 0),
            StoredRun(7, 9, RecordState.ACKNOWLEDGED, 1),
        ),
    )
    assert machine.acknowledge(A, said(5, 6, REJECT)) is ErrorCode.NONE
    assert (machine.start, machine.end, machine.runs) == (10, 10, ())


def test_single_records_of_a_batch_come_again() -> None:
    machine, log = made(), batches((0, 4))
    fetch(machine, A, log)
    types = ACCEPT, RELEASE, REJECT, RELEASE, ACCEPT
    assert machine.acknowledge(A, said(0, 4, *types)) is ErrorCode.NONE
    assert fetch(machine, B, log) == [Acquired(1, 1, 2), Acquired(3, 3, 2)]


def test_what_comes_back_too_often_is_given_up() -> None:
    machine, log = made(), batches((0, 0))
    for count in range(1, 4):
        assert fetch(machine, A, log) == [Acquired(0, 0, count)]
        assert machine.acknowledge(A, said(0, 0, RELEASE)) is ErrorCode.NONE
    assert (machine.start, fetch(machine, A, log)) == (1, [])


def test_locks_end() -> None:
    machine, log = made(), batches((0, 4))
    fetch(machine, A, log, now_ms=500)
    assert machine.next_ms() == 1_500
    assert not machine.expire(1_499)
    assert machine.expire(1_500)
    assert machine.acknowledge(A, said(0, 4, ACCEPT)) is ErrorCode.INVALID_RECORD_STATE
    assert fetch(machine, B, log, now_ms=1_500) == [Acquired(0, 4, 2)]
    assert machine.acknowledge(A, said(0, 4, ACCEPT)) is ErrorCode.INVALID_RECORD_STATE


@pytest.mark.parametrize(("looked_at", "count"), [(True, 2), (False, 1)])
def test_a_session_that_ends_gives_everything_back(looked_at: bool, count: int) -> None:
    machine, log = made(), batches((0, 4), (5, 9))
    fetch(machine, A, log, records_max=5)
    fetch(machine, B, log)
    assert machine.release(A, looked_at=looked_at)
    assert not machine.release(A, looked_at=looked_at)
    assert fetch(machine, B, log) == [Acquired(0, 4, count)]


def test_markers_and_holes_are_passed_over() -> None:
    machine = made()
    log = [ReadBatch(2, 3), ReadBatch(4, 4, delivered=False), ReadBatch(7, 8)]
    assert fetch(machine, A, log) == [Acquired(2, 3, 1), Acquired(7, 8, 1)]
    assert machine.start == 2
    assert machine.acknowledge(A, [*said(2, 3, ACCEPT), *said(7, 8, ACCEPT)]) is ErrorCode.NONE
    assert machine.start == 9


def test_an_empty_stretch_moves_the_start() -> None:
    machine = made()
    assert fetch(machine, A, [ReadBatch(0, 4, delivered=False)]) == []
    assert (machine.start, machine.next_offset()) == (5, 5)


def test_a_record_that_compaction_took_does_not_hold_the_others_up() -> None:
    machine = made()
    fetch(machine, A, batches((0, 0), (1, 1), (2, 2)))
    machine.acknowledge(A, said(0, 2, RELEASE))
    assert fetch(machine, A, batches((2, 2))) == [Acquired(2, 2, 2)]
    assert machine.start == 2


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ([Acknowledgement(3, 2, (ACCEPT,))], ErrorCode.INVALID_REQUEST),
        ([Acknowledgement(-1, 2, (ACCEPT,))], ErrorCode.INVALID_REQUEST),
        ([Acknowledgement(0, 2, (ACCEPT, ACCEPT))], ErrorCode.INVALID_REQUEST),
        ([Acknowledgement(0, 2, ())], ErrorCode.INVALID_REQUEST),
        ([Acknowledgement(0, 2, (4,))], ErrorCode.INVALID_REQUEST),
        ([*said(0, 2, ACCEPT), *said(2, 3, ACCEPT)], ErrorCode.INVALID_REQUEST),
        (said(0, 5, ACCEPT), ErrorCode.INVALID_RECORD_STATE),
        (said(0, 1 << 62, ACCEPT), ErrorCode.INVALID_RECORD_STATE),
    ],
)
def test_what_cannot_be_acknowledged_changes_nothing(
    wrong: list[Acknowledgement], error: ErrorCode
) -> None:
    machine = made()
    fetch(machine, A, batches((0, 4)))
    before = machine.image(), machine.version
    assert machine.acknowledge(A, wrong) is error
    assert machine.acknowledge(B, said(0, 4, ACCEPT)) is ErrorCode.INVALID_RECORD_STATE
    assert (machine.image(), machine.version) == before


def test_what_is_done_with_may_be_acknowledged_with_the_rest() -> None:
    machine = made()
    fetch(machine, A, batches((0, 4)))
    machine.acknowledge(A, said(0, 2, ACCEPT))
    assert machine.acknowledge(A, said(0, 4, *[RELEASE] * 3, ACCEPT, ACCEPT)) is ErrorCode.NONE
    assert machine.start == 5


def test_what_another_has_settled_is_refused() -> None:
    """Its lock was over, or another broker leads by now: the first one is not told that its word
    counts, also when all before is done with."""
    machine = made()
    log = batches((0, 4))
    fetch(machine, A, log)
    machine.expire(LIMITS.lock_ms)
    fetch(machine, B, log)
    assert machine.acknowledge(B, said(0, 4, ACCEPT)) is ErrorCode.NONE
    assert machine.start == 5
    assert machine.acknowledge(A, said(0, 4, REJECT)) is ErrorCode.INVALID_RECORD_STATE


def test_what_the_log_has_lost_is_passed_over() -> None:
    machine = made()
    fetch(machine, A, batches((0, 4), (5, 9)))
    machine.move_start(5)
    both = [*said(0, 4, ACCEPT), *said(5, 9, ACCEPT)]
    assert machine.acknowledge(A, both) is ErrorCode.NONE
    assert machine.start == 10


def test_the_log_begins_later() -> None:
    machine, log = made(), batches((0, 9))
    fetch(machine, A, log)
    machine.acknowledge(A, said(5, 6, ACCEPT))
    machine.move_start(5)
    assert (machine.start, machine.end) == (7, 10)
    machine.move_start(30)
    assert (machine.start, machine.end, machine.runs) == (30, 30, ())


def test_another_machine_goes_on() -> None:
    machine, log = made(), batches((0, 4), (5, 9))
    fetch(machine, A, log)
    machine.acknowledge(A, [*said(0, 1, ACCEPT), *said(4, 4, ACCEPT)])
    other = SharePartition.restored(machine.image(), LIMITS, 0, 100)
    assert fetch(other, B, log) == [Acquired(2, 3, 1), Acquired(5, 9, 1)]


def test_what_the_log_has_lost_is_not_known_of_what_comes_in_its_place() -> None:
    image = ShareImage(0, (StoredRun(0, 0, RecordState.AVAILABLE, 1), StoredRun(1, 9, DONE[0], 1)))
    machine = SharePartition.restored(image, LIMITS, 0, 5)
    assert (machine.start, machine.end) == (0, 5)
    assert SharePartition.restored(ShareImage(50), LIMITS, 0, 5).start == 5
    assert SharePartition.restored(ShareImage(2), LIMITS, 4, 5).start == 4


class SharedRecordsMachine(RuleBasedStateMachine):
    """Any story: each record by itself is what the model says of it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.log: list[ReadBatch] = []
        self.log_end = 0
        self.log_start = 0
        self.machine = made()
        self.counts: dict[int, int] = {}
        self.holder: dict[int, tuple[str, int]] = {}
        self.done: set[int] = set()

    @rule(size=st.integers(1, 6), hole=st.integers(0, 2), delivered=st.booleans())
    def append(self, size: int, hole: int, delivered: bool) -> None:
        first = self.log_end + hole
        self.log.append(ReadBatch(first, first + size - 1, delivered))
        self.log_end = first + size

    @rule(member=st.sampled_from([A, B]), records_max=st.integers(1, 9))
    def fetches(self, member: str, records_max: int) -> None:
        self.expires()
        before = set(self.holder)
        there = {
            offset
            for each in self.log
            if each.delivered
            for offset in range(each.first, each.last + 1)
        }
        for first, last, count in fetch(self.machine, member, self.log, records_max, self.now_ms):
            for offset in range(first, last + 1):
                assert offset in there
                assert offset not in before
                assert offset not in self.done
                assert offset >= self.log_start
                self.counts[offset] = self.counts.get(offset, 0) + 1
                assert count == self.counts[offset] <= LIMITS.count_max
                self.holder[offset] = member, self.now_ms + LIMITS.lock_ms

    @precondition(lambda self: self.holder)
    @rule(data=st.data())
    def acknowledges(self, data: st.DataObject) -> None:
        self.expires()
        if not self.holder:
            return
        member = data.draw(st.sampled_from(sorted({each for each, _ in self.holder.values()})))
        mine = sorted(offset for offset, (who, _) in self.holder.items() if who == member)
        chosen = data.draw(st.lists(st.sampled_from(mine), unique=True, min_size=1))
        types = [data.draw(st.sampled_from([GAP, ACCEPT, RELEASE, REJECT])) for _ in chosen]
        told = [
            Acknowledgement(offset, offset, (kind,))
            for offset, kind in zip(chosen, types, strict=True)
        ]
        assert self.machine.acknowledge(member, told) is ErrorCode.NONE
        for offset, kind in zip(chosen, types, strict=True):
            del self.holder[offset]
            self.comes_back(offset) if kind == RELEASE else self.done.add(offset)

    def comes_back(self, offset: int) -> None:
        if self.counts[offset] >= LIMITS.count_max:
            self.done.add(offset)

    @rule(passed_ms=st.integers(1, 700))
    def time(self, passed_ms: int) -> None:
        self.now_ms += passed_ms

    @rule()
    def expires(self) -> None:
        self.machine.expire(self.now_ms)
        for offset, (_, until_ms) in list(self.holder.items()):
            if until_ms <= self.now_ms:
                del self.holder[offset]
                self.comes_back(offset)

    @rule(member=st.sampled_from([A, B]), looked_at=st.booleans())
    def leaves(self, member: str, looked_at: bool) -> None:
        self.machine.release(member, looked_at=looked_at)
        for offset, (who, _) in list(self.holder.items()):
            if who == member:
                del self.holder[offset]
                if looked_at:
                    self.comes_back(offset)
                else:
                    self.counts[offset] -= 1

    @rule()
    def crashes(self) -> None:
        """All that is known is what was stored: what is acquired was not delivered."""
        image = self.machine.image()
        self.machine = SharePartition.restored(image, LIMITS, self.log_start, self.log_end)
        for offset in self.holder:
            self.counts[offset] -= 1
        self.holder.clear()

    @rule(more=st.integers(1, 5))
    def trims(self, more: int) -> None:
        self.log_start = min(self.log_end, self.log_start + more)
        self.log = [each for each in self.log if each.last >= self.log_start]
        self.machine.move_start(self.log_start)
        for offset in [each for each in self.holder if each < self.log_start]:
            del self.holder[offset]

    @invariant()
    def runs_cover_what_is_in_flight(self) -> None:
        at = self.machine.start
        for run in self.machine.runs:
            assert run.first == at <= run.last
            at = run.last + 1
        assert at == self.machine.end
        assert self.machine.end - self.machine.start <= LIMITS.locks_max

    @invariant()
    def each_record_is_where_it_belongs(self) -> None:
        held = {
            offset: (run.member, run.until_ms)
            for run in self.machine.runs
            if run.state is RecordState.ACQUIRED
            for offset in range(run.first, run.last + 1)
        }
        assert held == self.holder
        for run in self.machine.runs:
            for offset in range(run.first, run.last + 1):
                if offset in self.done:
                    assert run.state in DONE
                elif run.state is RecordState.AVAILABLE:
                    assert run.deliveries == self.counts.get(offset, 0)


SharedRecordsMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestSharedRecords = SharedRecordsMachine.TestCase
