"""The machines of dispatch: who gets what, one rule at a time and over random histories."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.model.entry import Chunk, Description, Entry
from magnetar.topics.dispatch.redelivery import Key
from magnetar.topics.dispatch.seats import Machine, Placed, Seat
from magnetar.topics.dispatch.shared import CHUNKED_MAX, RUN_ENTRIES, SharedRoundRobin
from magnetar.topics.dispatch.single_active import (
    TRANSITIONS,
    Event,
    SingleActive,
    Turn,
)


class Feed:
    """Places entries that are numbered from 0 on; what is left is forgotten."""

    def __init__(self, machine: Machine[str]) -> None:
        self.machine = machine
        self.first = 0

    def place(self, descriptions: Sequence[Description]) -> Placed[str]:
        entries = [Entry(1, self.first + i, b"", 0) for i in range(len(descriptions))]
        self.first += len(descriptions)
        found = self.machine.place(entries, descriptions)
        stop = found.runs[-1].stop if found.runs else 0
        assert list(found.left) == list(range(stop, len(descriptions)))
        return found

    def runs(self, *what: int | Chunk) -> list[tuple[str, int, int]]:
        """Place entries of so many messages, or chunks; gives who got which of them."""
        descriptions = [
            Description(1, item) if isinstance(item, Chunk) else Description(item) for item in what
        ]
        return [(run.seat.owner, run.start, run.stop) for run in self.place(descriptions).runs]


def seated(machine: Machine[str], name: str, permits: int = 0, priority: int = 0) -> Seat[str]:
    seat = Seat(name, name, priority)
    machine.add(seat)
    machine.flow(seat, permits)
    return seat


# -- one active ---------------------------------------------------------------------------------


def single(*permits: tuple[str, int]) -> tuple[SingleActive[str], Feed]:
    """A machine whose first consumer is active."""
    machine: SingleActive[str] = SingleActive()
    for name, count in permits:
        seated(machine, name, count)
        machine.elect()
    return machine, Feed(machine)


def test_nobody_active_gets_nothing() -> None:
    machine: SingleActive[str] = SingleActive()
    seated(machine, "a", 10)
    assert machine.room() == 0
    assert Feed(machine).runs(1, 1) == []


def test_the_active_one_gets_what_its_permits_allow() -> None:
    machine, feed = single(("a", 3))
    assert machine.room() == 3
    assert feed.runs(1, 1, 1, 1, 1) == [("a", 0, 3)]
    assert (machine.seats[0].permits, machine.room()) == (0, 0)
    assert feed.runs(1) == []


def test_a_batch_may_take_permits_below_zero() -> None:
    machine, feed = single(("a", 1))
    assert feed.runs(10, 10) == [("a", 0, 1)]
    [seat] = machine.seats
    assert seat.permits == -9
    machine.flow(seat, 9)
    assert machine.room() == 0


def test_a_blocked_connection_has_no_room() -> None:
    machine, feed = single(("a", 5))
    machine.set_blocked(machine.seats[0], True)
    assert machine.room() == 0
    assert feed.runs(1) == []


def test_election_is_by_priority_then_name_then_arrival() -> None:
    machine: SingleActive[str] = SingleActive()
    seats = [
        seated(machine, name, priority=priority)
        for name, priority in (("b", 0), ("a", 1), ("a", 0), ("a", 0))
    ]
    assert machine.elect().activated is seats[2]


def test_partitions_spread_over_the_best_level() -> None:
    chosen = []
    for partition in range(4):
        machine: SingleActive[str] = SingleActive(partition)
        for name, priority in (("a", 0), ("b", 0), ("c", 1)):
            seated(machine, name, priority=priority)
        elected = machine.elect().activated
        assert elected is not None
        chosen.append(elected.owner)
    assert chosen == ["a", "b", "a", "b"]


def test_removing_the_active_one_leaves_nobody_active() -> None:
    machine, _ = single(("a", 5))
    machine.remove(machine.seats[0])
    assert machine.active is None
    assert machine.elect() == (None, None)


def test_nobody_is_active_during_the_delay_of_a_switch() -> None:
    machine, feed = single(("b", 9))
    better = seated(machine, "a", 9)
    deposed, activated = machine.elect()
    assert deposed is not None
    assert (deposed.owner, activated, machine.room()) == ("b", None, 0)
    assert machine.elect() == (None, None)
    assert feed.runs(1) == []
    assert machine.delay_over() == (None, better)
    assert feed.runs(1) == [("a", 0, 1)]
    assert machine.delay_over() == (None, None), "of an earlier switch"


@pytest.mark.parametrize("partition", [-1, 2])
def test_the_machine_does_what_its_table_says(partition: int) -> None:
    chance = random.Random(partition)
    seen: set[tuple[Turn, Event, Turn]] = set()
    for _ in range(300):
        machine: SingleActive[str] = SingleActive(partition)

        def noted(event: Event, machine: SingleActive[str] = machine) -> None:
            before = machine.turn
            SingleActive._go(machine, event)
            seen.add((before, event, machine.turn))

        machine._go = noted  # type: ignore[method-assign]
        for _ in range(12):
            what = chance.random()
            if what < 0.4:
                seated(machine, chance.choice("abcd"), priority=chance.randrange(2))
                machine.elect()
            elif what < 0.7 and machine.seats:
                machine.remove(chance.choice(machine.seats))
                machine.elect()
            elif what < 0.9:
                machine.delay_over()
            else:
                machine.elect()
            assert (machine.active is not None) == (machine.turn is Turn.ACTIVE)
            assert machine.active is None or machine.active in machine.seats
    assert seen == {(line.state, line.event, line.following) for line in TRANSITIONS}


@given(st.data())
def test_the_active_one_gets_everything_in_order(data: st.DataObject) -> None:
    machine, _ = single(("a", 0))
    [seat] = machine.seats
    waiting = [Entry(1, number, b"", 0) for number in range(60)]
    got: list[int] = []
    granted = placed = largest = 0
    while waiting:
        permits = data.draw(st.integers(1, 9))
        machine.flow(seat, permits)
        granted += permits
        sizes = [Description(data.draw(st.integers(1, 5))) for _ in waiting[:7]]
        runs, left, _ = machine.place(waiting[:7], sizes)
        for run in runs:
            got += [entry.entry_id for entry in waiting[run.start : run.stop]]
            placed += run.messages
            assert run.messages == sum(size.messages for size in sizes[run.start : run.stop])
            largest = max(largest, sizes[run.stop - 1].messages)
        waiting = [waiting[index] for index in left] + waiting[7:]
        assert placed == granted - seat.permits
        assert seat.permits > -max(1, largest)
    assert got == list(range(60))


# -- shared ---------------------------------------------------------------------------------------


def shared(unacked_max: int = 1000) -> tuple[SharedRoundRobin[str], Feed]:
    machine: SharedRoundRobin[str] = SharedRoundRobin(unacked_max)
    return machine, Feed(machine)


def test_in_turn() -> None:
    machine, feed = shared()
    seated(machine, "a", 100)
    seated(machine, "b", 100)
    count = RUN_ENTRIES * 2 + 5
    assert feed.runs(*[1] * count) == [("a", 0, 20), ("b", 20, 40), ("a", 40, 45)]
    assert feed.runs(1) == [("b", 0, 1)]
    assert feed.runs(1) == [("a", 0, 1)]


def test_those_without_permits_are_passed_over() -> None:
    machine, feed = shared()
    for name, permits in (("a", 2), ("b", 0), ("c", 3)):
        seated(machine, name, permits)
    assert machine.room() == 5
    assert feed.runs(*[1] * 10) == [("a", 0, 2), ("c", 2, 5)]
    assert machine.room() == 0


def test_lower_levels_first() -> None:
    machine, feed = shared()
    seated(machine, "a", 5, priority=1)
    seated(machine, "b", 3)
    assert feed.runs(*[1] * 6) == [("b", 0, 3), ("a", 3, 6)]


def test_unacknowledged_messages_are_bounded() -> None:
    machine, feed = shared(unacked_max=4)
    a = seated(machine, "a", 100)
    assert machine.room() == 4
    assert feed.runs(*[1] * 10) == [("a", 0, 4)]
    assert machine.room() == 0
    assert machine.is_full(a)
    assert machine.settle([(1, 2)]), "it has room again"
    assert not machine.settle([(1, 2)]), "it is settled"
    assert feed.runs(*[1] * 10) == [("a", 0, 1)]


def test_whoever_acknowledges_the_holder_has_room_again() -> None:
    machine, feed = shared()
    a, b = seated(machine, "a", 1), seated(machine, "b", 1)
    assert feed.runs(3, 2) == [("a", 0, 1), ("b", 1, 2)]
    assert (a.unacked, b.unacked) == (3, 2)
    machine.settle([(1, 0), (1, 7)])
    assert (a.unacked, b.unacked, a.out, b.out) == (0, 2, {}, {(1, 1): 2})


def test_what_is_given_back_was_out_there() -> None:
    machine, feed = shared()
    a, b = seated(machine, "a", 2), seated(machine, "b", 9)
    feed.runs(1, 1, 1)
    assert machine.take_back(a, [(1, 1), (1, 2), (1, 9), (1, 1)]) == [(1, 1)]
    assert (a.unacked, b.unacked) == (1, 1)
    assert machine.take_back(a, ()) == [(1, 0)]
    assert machine.remove(b) == [(1, 2)]
    assert a.unacked == b.unacked == 0


def test_what_is_out_cannot_be_placed_again() -> None:
    machine, _ = shared()
    seated(machine, "a", 9)
    entries, descriptions = [Entry(1, 5, b"", 0)], [Description(1)]
    machine.place(entries, descriptions)
    with pytest.raises(AssertionError):
        machine.place(entries, descriptions)


def test_turns_go_on_when_somebody_leaves() -> None:
    machine, feed = shared()
    a, b, c = (seated(machine, name, 100) for name in "abc")
    assert feed.runs(1) == [("a", 0, 1)]
    machine.remove(a)
    assert feed.runs(1) == [("b", 0, 1)]
    machine.remove(c)
    assert feed.runs(1) == [("b", 0, 1)]
    machine.remove(b)
    assert feed.runs(1) == []


def test_the_chunks_of_a_message_go_to_one_consumer() -> None:
    machine, feed = shared()
    a, b = seated(machine, "a", 2), seated(machine, "b", 9)
    first = (1, Chunk(7, False), Chunk(8, False), Chunk(7, False), 1, Chunk(7, True))
    assert feed.runs(*first) == [
        ("a", 0, 1), ("b", 1, 2), ("a", 2, 3), ("b", 3, 4), ("b", 4, 5), ("b", 5, 6)
    ]  # fmt: skip
    assert (a.permits, a.unacked, b.permits, b.unacked) == (0, 2, 5, 4)
    # without permits, the one who has the first chunk gets the others; a whole message is done with
    assert feed.runs(Chunk(8, True), Chunk(8, True)) == [("a", 0, 1), ("b", 1, 2)]
    assert (a.permits, b.permits) == (-1, 4)


def test_chunks_wait_for_a_connection_and_go_to_others_when_it_is_gone() -> None:
    machine, feed = shared()
    a, _ = seated(machine, "a", 5), seated(machine, "b", 5)
    assert feed.runs(Chunk(7, False)) == [("a", 0, 1)]
    machine.set_blocked(a, True)
    assert feed.runs(1, Chunk(7, False), 1) == [("b", 0, 1)]
    assert machine.room() > 0
    assert feed.runs(Chunk(7, False), 1) == []
    machine.remove(a)
    assert feed.runs(Chunk(7, False), Chunk(7, True)) == [("b", 0, 1), ("b", 1, 2)]


def test_messages_whose_last_chunk_never_comes_are_bounded() -> None:
    machine, feed = shared(unacked_max=10 * CHUNKED_MAX)
    seated(machine, "a", 10 * CHUNKED_MAX)
    for number in range(CHUNKED_MAX + 5):
        feed.runs(Chunk(number, False))
    assert len(machine._chunked) == CHUNKED_MAX
    endless, feed = shared(unacked_max=10)
    seated(endless, "a", 1000)
    seated(endless, "b", 1000)
    for _ in range(40):
        feed.runs(Chunk(1, False))
    assert max(item.unacked for item in endless.seats) <= 21


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 1)), min_size=1, max_size=5),
    st.lists(st.integers(1, 8), max_size=60),
    st.integers(1, 40),
)
def test_shared_places_a_prefix_once_and_within_limits(
    consumers: list[tuple[int, int]], sizes: list[int], unacked_max: int
) -> None:
    machine, feed = shared(unacked_max)
    seats = [seated(machine, str(i), permits, lvl) for i, (permits, lvl) in enumerate(consumers)]
    runs, left, _ = feed.place([Description(size) for size in sizes])
    assert [run.start for run in runs] == [0, *(run.stop for run in runs[:-1])][: len(runs)]
    assert all(run.messages == sum(sizes[run.start : run.stop]) for run in runs)
    placed_messages = sum(run.messages for run in runs)
    assert placed_messages == sum(s.unacked for s in seats)
    assert placed_messages == sum(p for p, _ in consumers) - sum(s.permits for s in seats)
    largest = max(sizes, default=1)
    for item in seats:
        assert item.permits > -largest
        assert item.unacked < unacked_max + largest
    assert not left or machine.room() == 0, "entries were left although there was room"


class SharedHistory:
    """What may happen to a shared subscription; ``waiting`` is what the feed has."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.machine, _ = shared(data.draw(st.integers(1, 30)))
        self.seats: list[Seat[str]] = []
        self.sizes: list[Description] = []
        self.waiting: list[int] = []
        self.done: set[int] = set()
        self.chunks: dict[int, Seat[str]] = {}
        self.unacked_max = self.machine._unacked_max

    def publish(self) -> None:
        size, chunk = self.data.draw(
            st.tuples(st.integers(1, 5), st.none() | st.tuples(st.integers(0, 2), st.booleans()))
        )
        self.waiting.append(len(self.sizes))
        self.sizes.append(Description(size) if chunk is None else Description(1, Chunk(*chunk)))

    def join(self) -> None:
        if len(self.seats) < 4:
            level = self.data.draw(st.integers(0, 1))
            self.seats.append(seated(self.machine, str(len(self.sizes)), 3, level))

    def _some(self) -> Seat[str] | None:
        return self.data.draw(st.sampled_from(self.seats)) if self.seats else None

    def flow(self) -> None:
        if (seat := self._some()) is not None:
            self.machine.flow(seat, self.data.draw(st.integers(1, 9)))

    def block(self) -> None:
        if (seat := self._some()) is not None:
            self.machine.set_blocked(seat, not seat.blocked)

    def _back(self, keys: Sequence[Key]) -> None:
        self.waiting = sorted([*self.waiting, *(entry_id for _, entry_id in keys)])

    def refuse(self) -> None:
        if (seat := self._some()) is not None:
            self._back(self.machine.take_back(seat, list(seat.out)[:2]))

    def leave(self) -> None:
        if (seat := self._some()) is not None:
            self.seats.remove(seat)
            self._back(self.machine.remove(seat))

    def settle(self) -> None:
        out = [key for seat in self.seats for key in seat.out]
        if out:
            key = self.data.draw(st.sampled_from(out))
            self.machine.settle([key])
            self.done.add(key[1])

    def place(self) -> None:
        entries = [Entry(1, number, b"", 0) for number in self.waiting[:25]]
        sizes = [self.sizes[number] for number in self.waiting[:25]]
        before = {seat: (seat.permits, seat.blocked) for seat in self.seats}
        unacked = {seat: seat.unacked for seat in self.seats}
        runs, left, _ = self.machine.place(entries, sizes)
        for run in runs:
            permits, blocked = before[run.seat]
            assert not blocked
            mine = sizes[run.start : run.stop]
            ahead = [size for size in mine[:-1] if size.chunk is None]
            if mine[0].chunk is None:
                assert permits > sum(size.messages for size in ahead), "permits were over-assigned"
            before[run.seat] = (permits - run.messages, False)
            unacked[run.seat] += run.messages
            if mine[0].chunk is not None:
                self._one_for_all_chunks(mine[0].chunk, run.seat, unacked)
        assert all(seat.permits == permits for seat, (permits, _) in before.items())
        self.waiting = [self.waiting[index] for index in left] + self.waiting[25:]

    def _one_for_all_chunks(
        self, chunk: Chunk, seat: Seat[str], unacked: dict[Seat[str], int]
    ) -> None:
        holder = self.chunks.pop(chunk.message, seat)
        if holder in self.seats and unacked[holder] < 2 * self.unacked_max:
            assert seat is holder, "another has the chunks before"
        if not chunk.last:
            self.chunks[chunk.message] = seat

    def check(self) -> None:
        out = [entry_id for seat in self.seats for _, entry_id in seat.out]
        everything = [*out, *self.waiting, *self.done]
        assert sorted(everything) == list(range(len(self.sizes))), "lost, or at two places"
        assert set(self.machine._holders) == {(1, entry_id) for entry_id in out}
        for seat in self.seats:
            assert seat.unacked == sum(seat.out.values())


@given(st.data())
def test_nothing_is_lost_or_at_two_consumers(data: st.DataObject) -> None:
    history = SharedHistory(data)
    steps = (
        history.publish, history.place, history.flow, history.settle, history.join,
        history.refuse, history.block, history.leave,
    )  # fmt: skip
    for number in data.draw(st.lists(st.integers(0, len(steps) - 1), max_size=60)):
        steps[number]()
        history.check()
