from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.topics.dispatch import (
    CHUNKED_MAX,
    RUN_ENTRIES,
    Chunk,
    Run,
    Seat,
    SharedRoundRobin,
    SingleActive,
)


def seat(name: str, permits: int = 0, priority: int = 0, order: int = 0) -> Seat[str]:
    made = Seat(name, name, priority, order)
    made.permits = permits
    return made


def placed(runs: list[Run[str]]) -> list[tuple[str, int, int]]:
    return [(run.seat.owner, run.start, run.stop) for run in runs]


# -- one active ---------------------------------------------------------------------------------


def test_nobody_active_gets_nothing() -> None:
    machine: SingleActive[str] = SingleActive()
    machine.add(seat("a", 10))
    assert machine.room() == 0
    assert machine.assign([1, 1]) == []


def test_the_active_one_gets_what_its_permits_allow() -> None:
    machine: SingleActive[str] = SingleActive()
    machine.add(a := seat("a", 3))
    machine.active = machine.elect()
    assert machine.room() == 3
    assert placed(machine.assign([1] * 5)) == [("a", 0, 3)]
    assert (a.permits, machine.room()) == (0, 0)
    assert machine.assign([1]) == []


def test_a_batch_may_take_permits_below_zero() -> None:
    machine: SingleActive[str] = SingleActive()
    machine.add(a := seat("a", 1))
    machine.active = a
    assert placed(machine.assign([10, 10])) == [("a", 0, 1)]
    assert a.permits == -9
    a.permits += 9
    assert machine.room() == 0


def test_a_blocked_connection_has_no_room() -> None:
    machine: SingleActive[str] = SingleActive()
    machine.add(a := seat("a", 5))
    machine.active = a
    a.blocked = True
    assert machine.room() == 0


def test_election_is_by_priority_then_name_then_arrival() -> None:
    machine: SingleActive[str] = SingleActive()
    for item in (
        seat("b", order=0),
        seat("a", priority=1, order=1),
        seat("a", order=3),
        seat("a", order=2),
    ):
        machine.add(item)
    chosen = machine.elect()
    assert chosen is not None
    assert (chosen.priority, chosen.name, chosen.order) == (0, "a", 2)


def test_partitions_spread_over_the_best_level() -> None:
    chosen = []
    for partition in range(4):
        machine: SingleActive[str] = SingleActive(partition)
        for name, priority in (("a", 0), ("b", 0), ("c", 1)):
            machine.add(seat(name, priority=priority))
        elected = machine.elect()
        assert elected is not None
        chosen.append(elected.owner)
    assert chosen == ["a", "b", "a", "b"]


def test_removing_the_active_one_leaves_nobody_active() -> None:
    machine: SingleActive[str] = SingleActive()
    machine.add(a := seat("a", 5))
    machine.active = a
    machine.remove(a)
    assert machine.active is None
    assert machine.elect() is None


# -- shared ---------------------------------------------------------------------------------------


def shared(*seats: Seat[str], unacked_max: int = 1000) -> SharedRoundRobin[str]:
    machine: SharedRoundRobin[str] = SharedRoundRobin(unacked_max)
    for item in seats:
        machine.add(item)
    return machine


def test_in_turn() -> None:
    machine = shared(seat("a", 100, order=0), seat("b", 100, order=1))
    runs = machine.assign([1] * (RUN_ENTRIES * 2 + 5))
    assert placed(runs) == [("a", 0, 20), ("b", 20, 40), ("a", 40, 45)]
    assert placed(machine.assign([1])) == [("b", 0, 1)]
    assert placed(machine.assign([1])) == [("a", 0, 1)]


def test_those_without_permits_are_passed_over() -> None:
    machine = shared(seat("a", 2, order=0), seat("b", 0, order=1), seat("c", 3, order=2))
    assert machine.room() == 5
    assert placed(machine.assign([1] * 10)) == [("a", 0, 2), ("c", 2, 5)]
    assert machine.room() == 0


def test_lower_levels_first() -> None:
    machine = shared(seat("a", 5, priority=1, order=0), seat("b", 3, order=1))
    assert placed(machine.assign([1] * 6)) == [("b", 0, 3), ("a", 3, 6)]


def test_unacknowledged_messages_are_bounded() -> None:
    machine = shared(a := seat("a", 100), unacked_max=4)
    assert machine.room() == 4
    assert placed(machine.assign([1] * 10)) == [("a", 0, 4)]
    assert machine.room() == 0
    a.unacked -= 1
    assert placed(machine.assign([1] * 10)) == [("a", 0, 1)]


def test_turns_go_on_when_somebody_leaves() -> None:
    a, b, c = (seat(name, 100, order=i) for i, name in enumerate("abc"))
    machine = shared(a, b, c)
    assert placed(machine.assign([1])) == [("a", 0, 1)]
    machine.remove(a)
    assert placed(machine.assign([1])) == [("b", 0, 1)]
    machine.remove(c)
    assert placed(machine.assign([1])) == [("b", 0, 1)]
    machine.remove(b)
    assert machine.assign([1]) == []


def test_the_chunks_of_a_message_go_to_one_consumer() -> None:
    a, b = seat("a", 2, order=0), seat("b", 9, order=1)
    machine = shared(a, b)
    chunks = {1: Chunk(7, False), 2: Chunk(8, False), 3: Chunk(7, False), 5: Chunk(7, True)}
    runs = placed(machine.assign([1] * 6, chunks))
    assert runs == [("a", 0, 1), ("b", 1, 2), ("a", 2, 3), ("b", 3, 4), ("b", 4, 5), ("b", 5, 6)]
    assert (a.permits, a.unacked, b.permits, b.unacked) == (0, 2, 5, 4)
    # without permits, the one who has the first chunk gets the others; a whole message is done with
    assert placed(machine.assign([1, 1], {0: Chunk(8, True), 1: Chunk(8, True)})) == [
        ("a", 0, 1),
        ("b", 1, 2),
    ]
    assert (a.permits, b.permits) == (-1, 4)


def test_chunks_wait_for_a_connection_and_go_to_others_when_it_is_gone() -> None:
    a, b = seat("a", 5, order=0), seat("b", 5, order=1)
    machine = shared(a, b)
    assert placed(machine.assign([1], {0: Chunk(7, False)})) == [("a", 0, 1)]
    a.blocked = True
    assert placed(machine.assign([1, 1, 1], {1: Chunk(7, False)})) == [("b", 0, 1)]
    assert machine.room() > 0
    assert machine.assign([1, 1], {0: Chunk(7, False)}) == []
    machine.remove(a)
    assert placed(machine.assign([1, 1], {0: Chunk(7, False), 1: Chunk(7, True)})) == [
        ("b", 0, 1),
        ("b", 1, 2),
    ]


def test_messages_whose_last_chunk_never_comes_are_bounded() -> None:
    machine = shared(seat("a", 10 * CHUNKED_MAX), unacked_max=10 * CHUNKED_MAX)
    for number in range(CHUNKED_MAX + 5):
        machine.assign([1], {0: Chunk(number, False)})
    assert len(machine._chunked) == CHUNKED_MAX
    endless = shared(seat("a", 1000, order=0), seat("b", 1000, order=1), unacked_max=10)
    for _ in range(40):
        endless.assign([1], {0: Chunk(1, False)})
    assert max(item.unacked for item in endless.seats) <= 21


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 1)), min_size=1, max_size=5),
    st.lists(st.integers(1, 8), max_size=60),
    st.integers(1, 40),
)
def test_shared_places_a_prefix_once_and_within_limits(
    consumers: list[tuple[int, int]], sizes: list[int], unacked_max: int
) -> None:
    seats = [seat(str(i), permits, level, i) for i, (permits, level) in enumerate(consumers)]
    machine = shared(*seats, unacked_max=unacked_max)
    runs = machine.assign(sizes)
    assert [run.start for run in runs] == [0, *(run.stop for run in runs[:-1])][: len(runs)]
    placed_messages = sum(sum(sizes[run.start : run.stop]) for run in runs)
    assert placed_messages == sum(s.unacked for s in seats)
    assert placed_messages == sum(p for p, _ in consumers) - sum(s.permits for s in seats)
    largest = max(sizes, default=1)
    for item in seats:
        assert item.permits > -largest
        assert item.unacked < unacked_max + largest
    reached = runs[-1].stop if runs else 0
    if reached < len(sizes):
        assert machine.room() == 0, "entries were left although there was room"
