"""The quorum write machine, event by event, and against a slow and simple model of it."""

from __future__ import annotations

import random

import pytest

from magnetar.ledger.writing.quorum_write import (
    FailureKind,
    FailureVerdict,
    QuorumWrite,
    Resend,
    WriteState,
)

GONE = FailureKind.UNAVAILABLE


def test_the_lac_is_the_ack_quorum_of_in_order_answers() -> None:
    machine = QuorumWrite(3, 3, 2)
    assert machine.pushed(10) == 0
    assert machine.pushed(5) == 10
    assert machine.acknowledged(0, range(10), 0) == -1
    assert machine.acknowledged(1, range(4), 0) == 3
    assert machine.acknowledged(2, range(15), 0) == 9
    assert machine.acknowledged(1, [4, 5, 6], 0) == 9
    assert machine.acknowledged(0, range(10, 15), 0) == 14


def test_answers_out_of_order_wait_for_the_hole_before_them() -> None:
    machine = QuorumWrite(3, 3, 2)
    machine.pushed(6)
    assert machine.acknowledged(0, [3, 4, 5], 0) == -1
    assert machine.acknowledged(1, range(6), 0) == -1
    assert machine.acknowledged(0, [1], 0) == -1
    assert machine.acknowledged(0, [0], 0) == 1
    assert machine.acknowledged(2, [0, 2], 0) == 5
    assert machine.mark(0) == 1


def test_lists_that_only_look_consecutive_are_counted_one_by_one() -> None:
    machine = QuorumWrite(1, 1, 1)
    machine.pushed(5)
    assert machine.acknowledged(0, [0, 2, 2, 3], 0) == 0
    assert machine.acknowledged(0, [1], 0) == 3
    assert machine.acknowledged(0, range(0, 5, 2), 0) == 4


def test_striped_write_sets() -> None:
    machine = QuorumWrite(3, 2, 2)
    machine.pushed(6)  # entry e is on slots e % 3 and (e + 1) % 3
    assert list(machine.stripe(0, range(6))) == [0, 2, 3, 5]
    assert list(machine.stripe(1, range(6))) == [0, 1, 3, 4]
    assert machine.acknowledged(0, [0, 2, 3, 5], 0) == -1
    assert machine.acknowledged(1, [0, 1], 0) == 0
    assert machine.acknowledged(2, [1, 2, 4, 5], 0) == 2
    assert machine.awaits(1)
    assert not machine.awaits(2)
    assert machine.acknowledged(1, [3, 4], 0) == 5
    assert not machine.awaits(1)


def test_answers_of_a_replaced_bookie_do_not_count() -> None:
    machine = QuorumWrite(3, 3, 3)
    machine.pushed(4)
    machine.acknowledged(0, range(4), 0)
    machine.acknowledged(1, range(2), 0)
    machine.acknowledged(2, range(1), 0)
    assert machine.failed(2, 0, GONE) is FailureVerdict.CHANGE
    assert machine.failed(2, 0, GONE) is FailureVerdict.IGNORED
    assert machine.begin_change([2]) == 1
    assert machine.acknowledged(1, [2, 3], 0) == 0
    assert machine.acknowledged(2, [1, 2, 3], 0) == 0
    assert machine.change_succeeded([2]) == [Resend(2, 2, range(1, 4))]
    assert machine.acknowledged(2, [1, 2, 3], 0) == 0
    assert machine.acknowledged(2, [1, 2, 3], 1) == 0
    assert machine.acknowledged(2, [1, 2], 2) == 2
    assert machine.state is WriteState.STEADY


def test_late_answers_of_a_bookie_that_stayed_count() -> None:
    """The metadata names it and it holds the entry, whatever else it refused meanwhile."""
    machine = QuorumWrite(1, 1, 1)
    machine.pushed(6)
    assert machine.failed(0, 0, GONE) is FailureVerdict.CHANGE
    assert machine.acknowledged(0, [0, 1], 0) == 1
    assert machine.retry(0) == Resend(0, 2, range(2, 6))
    assert machine.failed(0, 0, GONE) is FailureVerdict.IGNORED  # old news
    assert machine.up(0)
    assert machine.acknowledged(0, [2], 0) == 2
    assert machine.acknowledged(0, range(2, 6), 2) == 5


def test_nothing_is_confirmed_during_a_change_and_all_of_it_after() -> None:
    machine = QuorumWrite(3, 3, 2)
    machine.pushed(3)
    machine.failed(0, 0, GONE)
    assert machine.begin_change([0]) == 0
    machine.pushed(2)
    assert machine.acknowledged(1, range(5), 0) == -1
    assert machine.acknowledged(2, range(5), 0) == -1
    (resend,) = machine.change_succeeded([0])
    assert machine.last_add_confirmed == 4
    assert resend.entry_ids == range(5)


def test_acknowledgements_of_a_replaced_bookie_are_unset() -> None:
    """Two of three had acknowledged; one of the two is replaced before it could be confirmed:
    confirming now would leave the metadata naming a bookie without the entry."""
    machine = QuorumWrite(3, 3, 2)
    machine.pushed(1)
    machine.failed(1, 0, GONE)
    machine.begin_change([1])
    machine.acknowledged(2, [0], 0)
    machine.failed(2, 0, GONE)
    machine.change_succeeded([1])
    assert machine.last_add_confirmed == -1
    assert machine.down_slots() == [2]
    machine.begin_change([2])
    machine.acknowledged(0, [0], 0)
    machine.change_succeeded([2])
    assert machine.last_add_confirmed == -1  # slot 2's acknowledgement was its old bookie's
    assert machine.acknowledged(1, [0], machine.epoch(1)) == 0


def test_a_slot_tried_again_gets_what_it_has_not_acknowledged() -> None:
    machine = QuorumWrite(2, 2, 2)
    machine.pushed(6)
    machine.acknowledged(0, [0, 1, 3], 0)
    machine.acknowledged(1, [0], 0)
    machine.failed(0, 0, GONE)
    assert machine.retry(0) == Resend(0, 2, [2, 4, 5])
    assert machine.acknowledged(0, [2, 4, 5], 2) == 0
    assert machine.acknowledged(1, range(1, 6), 0) == 5


def test_a_slot_that_lagged_behind_the_lac_starts_there() -> None:
    machine = QuorumWrite(3, 3, 2)
    machine.pushed(4)
    machine.failed(2, 0, GONE)
    machine.acknowledged(0, range(3), 0)
    assert machine.acknowledged(1, range(3), 0) == 2
    assert machine.retry(2) == Resend(2, 2, range(3, 4))
    assert machine.mark(2) == 2
    machine.acknowledged(0, [3], 0)
    assert machine.acknowledged(2, [3], 2) == 3


def test_an_abandoned_change_confirms_what_came_meanwhile() -> None:
    machine = QuorumWrite(2, 2, 1)
    machine.pushed(2)
    machine.failed(0, 0, GONE)
    machine.begin_change([0])
    machine.acknowledged(1, [0, 1], 0)
    assert machine.last_add_confirmed == -1
    assert machine.change_abandoned() == 1


@pytest.mark.parametrize("kind", [FailureKind.FENCED, FailureKind.REFUSED])
@pytest.mark.parametrize("changing", [False, True])
def test_fenced_and_refused_stop_everything(kind: FailureKind, changing: bool) -> None:
    machine = QuorumWrite(3, 3, 2)
    machine.pushed(2)
    machine.failed(0, 0, GONE)
    if changing:
        machine.begin_change([0])
    assert machine.failed(0, 0, kind) is FailureVerdict.STOP  # even of an older epoch
    assert machine.state is WriteState.STOPPED
    machine.acknowledged(1, [0, 1], 0)
    assert machine.acknowledged(2, [0, 1], 0) == -1
    assert machine.change_succeeded([0]) == []
    assert machine.failed(1, 0, GONE) is FailureVerdict.IGNORED


class Model:
    """The rules, entry by entry: sets of the slots that hold it, recounted every time."""

    def __init__(self, size: int, write_quorum: int, ack_quorum: int) -> None:
        self.size, self.write_quorum, self.ack_quorum = size, write_quorum, ack_quorum
        self.acks: list[set[int]] = []
        self.lac = -1
        self.changing = False

    def write_set(self, entry_id: int) -> set[int]:
        return {(entry_id + i) % self.size for i in range(self.write_quorum)}

    def advance(self) -> int:
        while (
            not self.changing
            and self.lac + 1 < len(self.acks)
            and len(self.acks[self.lac + 1]) >= self.ack_quorum
        ):
            self.lac += 1
        return self.lac


@pytest.mark.parametrize(
    "quorums", [(1, 1, 1), (3, 3, 2), (3, 3, 1), (3, 2, 2), (5, 3, 2)], ids=str
)
@pytest.mark.parametrize("seed", range(30))
def test_random_histories_agree_with_the_model(quorums: tuple[int, int, int], seed: int) -> None:
    rng = random.Random(f"{quorums}{seed}")
    machine, model = QuorumWrite(*quorums), Model(*quorums)
    size = quorums[0]
    unanswered: dict[int, list[int]] = {slot: [] for slot in range(size)}
    replacing: list[int] = []
    for _ in range(400):
        _step(rng, machine, model, unanswered, replacing)
        assert machine.last_add_confirmed == model.advance()
        assert machine.last_add_pushed == len(model.acks) - 1
    for slot in machine.down_slots():  # heal, and everything is confirmed
        if machine.state is WriteState.CHANGING:
            machine.change_abandoned()
            model.changing = False
        unanswered[slot] = list(machine.retry(slot).entry_ids)
    if machine.state is WriteState.CHANGING:
        machine.change_abandoned()
    for slot in range(size):
        machine.acknowledged(slot, unanswered[slot], machine.epoch(slot))
    assert machine.last_add_confirmed == machine.last_add_pushed


def _step(
    rng: random.Random,
    machine: QuorumWrite,
    model: Model,
    unanswered: dict[int, list[int]],
    replacing: list[int],
) -> None:
    slot = rng.randrange(len(unanswered))
    action = rng.random()
    if action < 0.35:
        first = machine.pushed(count := rng.randint(1, 8))
        for entry_id in range(first, first + count):
            model.acks.append(set())
            for member in sorted(model.write_set(entry_id)):
                if machine.up(member):
                    unanswered[member].append(entry_id)
    elif action < 0.85:
        _acknowledge(rng, machine, model, unanswered, slot)
    elif action < 0.9 and machine.up(slot):
        assert machine.failed(slot, machine.epoch(slot), GONE) is FailureVerdict.CHANGE
        unanswered[slot] = []
    elif machine.state is WriteState.CHANGING:
        model.changing = False
        for resend in machine.change_succeeded(replacing):
            for acks in model.acks[model.lac + 1 :]:
                acks.discard(resend.slot)
            unanswered[resend.slot] = list(resend.entry_ids)
    elif down := machine.down_slots():
        if rng.random() < 0.5:
            unanswered[down[0]] = list(machine.retry(down[0]).entry_ids)
        else:
            replacing[:] = down[: rng.randint(1, len(down))]
            assert machine.begin_change(replacing) == model.lac + 1
            model.changing = True


def _acknowledge(
    rng: random.Random,
    machine: QuorumWrite,
    model: Model,
    unanswered: dict[int, list[int]],
    slot: int,
) -> None:
    if not unanswered[slot]:
        return
    count = rng.randint(1, len(unanswered[slot]))
    if rng.random() < 0.2:
        rng.shuffle(unanswered[slot])
    answered, unanswered[slot] = unanswered[slot][:count], unanswered[slot][count:]
    if rng.random() < 0.1:  # an answer of an older epoch changes nothing
        machine.acknowledged(slot, answered, machine.epoch(slot) - 1)
    machine.acknowledged(slot, answered, machine.epoch(slot))
    for entry_id in answered:
        model.acks[entry_id].add(slot)
