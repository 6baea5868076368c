"""Who is late: has answers to give and has not moved for the timeout."""

from __future__ import annotations

from magnetar.ledger.writing.add_deadlines import AddDeadlines
from magnetar.ledger.writing.quorum_write import FailureKind, QuorumWrite


def test_a_slot_is_late_when_it_owes_and_stands_still() -> None:
    machine = QuorumWrite(3, 3, 2)
    deadlines = AddDeadlines(machine, 3, 10.0)
    machine.pushed(4)
    deadlines.begin(100.0)
    assert deadlines.late_slots(101.0) == []
    machine.acknowledged(0, range(4), 0)
    machine.acknowledged(1, range(2), 0)
    assert deadlines.late_slots(109.0) == []
    assert deadlines.late_slots(111.0) == [2]  # 0 has answered all, 1 has moved since 101
    assert deadlines.late_slots(119.0) == [1, 2]
    machine.failed(2, 0, FailureKind.UNAVAILABLE)
    assert deadlines.late_slots(119.0) == [1]


def test_time_begins_again_when_a_slot_is_tried_again() -> None:
    machine = QuorumWrite(1, 1, 1)
    deadlines = AddDeadlines(machine, 1, 10.0)
    machine.pushed(1)
    deadlines.begin(0.0)
    deadlines.late_slots(1.0)
    machine.failed(0, 0, FailureKind.UNAVAILABLE)
    machine.retry(0)
    deadlines.sent_again(0, 50.0)
    assert deadlines.late_slots(59.0) == []
    assert deadlines.late_slots(60.0) == [0]


def test_idle_time_does_not_count() -> None:
    machine = QuorumWrite(1, 1, 1)
    deadlines = AddDeadlines(machine, 1, 10.0)
    deadlines.begin(0.0)
    assert deadlines.late_slots(500.0) == []
    machine.pushed(1)
    assert deadlines.late_slots(505.0) == []
    assert deadlines.late_slots(510.0) == [0]
