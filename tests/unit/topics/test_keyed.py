"""Key_Shared dispatch: who has which hash, what waits, and random histories of the machine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from magnetar.model.entry import Chunk, Description, Entry
from magnetar.model.errors import ConsumerAssignError, ConsumerBusyError
from magnetar.model.key_hash import key_hash
from magnetar.topics.dispatch.key_policy import (
    HASH_MAX,
    HashRange,
    KeyMode,
    KeyPolicy,
    check_same,
    sticky_ranges,
)
from magnetar.topics.dispatch.key_ranges import POINTS, HashRing, StickyRanges
from magnetar.topics.dispatch.key_waiting import LookAhead
from magnetar.topics.dispatch.keyed import CHUNKS_MAX, Draining, KeyShared
from magnetar.topics.dispatch.seats import Seat

STICKY = KeyMode.STICKY


def sticky(*ranges: tuple[int, int], out_of_order: bool = False) -> KeyPolicy:
    return KeyPolicy(STICKY, out_of_order, sticky_ranges([HashRange(*each) for each in ranges]))


# -- who has which hash ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "expected"),
    [(b"", 0), (b"hello", 0x248BFA47), (b"test", 0x3A6BD213), (b"Hello, world!", 0x40363E43)],
)
def test_the_hash_is_murmur_3_without_its_sign(key: bytes, expected: int) -> None:
    assert key_hash(key) == expected


@given(st.lists(st.sampled_from("abcdef"), max_size=8), st.data())
def test_a_ring_gives_each_hash_to_one_seat(names: list[str], data: st.DataObject) -> None:
    ring: HashRing[str] = HashRing()
    seats = [Seat(name, name, 0) for name in names]
    for seat in seats:
        ring.add(seat, KeyPolicy())
    for _ in range(data.draw(st.integers(0, len(seats)))):
        before = {h: ring.owner(h) for h in range(1, HASH_MAX, 97)}
        gone = seats.pop(data.draw(st.integers(0, len(seats) - 1)))
        ring.remove(gone)
        moved = [h for h, owner in before.items() if owner is not gone and ring.owner(h) != owner]
        assert not moved, "only its own hashes move when a seat leaves"
    ranges = sorted(
        (each.start, each.end, seat) for seat, mine in ring.ranges().items() for each in mine
    )
    if not seats:
        assert not ranges
        assert ring.owner(7) is None
        return
    assert [start for start, _, _ in ranges] == [1, *(end + 1 for _, end, _ in ranges[:-1])]
    assert ranges[-1][1] == HASH_MAX
    for start, end, seat in ranges:
        assert ring.owner(start) is seat is ring.owner(end)


def test_one_who_comes_back_has_its_hashes_again() -> None:
    ring: HashRing[str] = HashRing()
    seats = [Seat(name, "same", 0) for name in "abc"]
    for seat in seats:
        ring.add(seat, KeyPolicy())
    before = ring.ranges()
    ring.remove(seats[1])
    again = Seat("d", "same", 0)
    ring.add(again, KeyPolicy())
    assert sum(each.end - each.start for each in ring.ranges()[again]) == pytest.approx(
        sum(each.end - each.start for each in before[seats[1]]), abs=POINTS
    )


def test_a_ring_is_even_enough() -> None:
    ring: HashRing[str] = HashRing()
    for number in range(5):
        ring.add(Seat("", f"consumer-{number}", 0), KeyPolicy())
    sizes = [sum(each.end - each.start + 1 for each in mine) for mine in ring.ranges().values()]
    assert len(sizes) == 5
    assert min(sizes) > HASH_MAX / 5 / 2


def test_hashes_are_folded_as_pulsar_does() -> None:
    ring, ranges = HashRing[str](), StickyRanges[str]()
    assert [ring.within(n) for n in (0, 1, 65_534, 65_535)] == [1, 2, 65_535, 1]
    assert [ranges.within(n) for n in (0, 1, 65_535, 65_536, 65_537)] == [1, 1, 65_535, 1, 1]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ((), "must not be empty"),
        (((5, 4),), "start > end"),
        (((-1, 4),), "not within"),
        (((0, 65_536),), "not within"),
        (((0, 9), (9, 20)), "own ranges conflict"),
    ],
)
def test_ranges_that_nobody_can_have(asked: Sequence[tuple[int, int]], words: str) -> None:
    with pytest.raises(ConsumerAssignError, match=words):
        sticky(*asked)


@pytest.mark.parametrize("asked", [(0, 10), (10, 12), (15, 15), (20, 30), (0, 65_535), (12, 18)])
def test_ranges_that_another_one_has(asked: tuple[int, int]) -> None:
    ranges: StickyRanges[str] = StickyRanges()
    ranges.add(Seat("a", "a", 0), sticky((10, 20), (100, 200)))
    with pytest.raises(ConsumerAssignError, match="Range conflict with consumer a"):
        ranges.check(sticky(asked))
    ranges.check(sticky((0, 9), (21, 99), (201, 65_535)))


def test_sticky_ranges_are_those_that_were_named() -> None:
    ranges: StickyRanges[str] = StickyRanges()
    a, b = Seat("a", "a", 0), Seat("b", "b", 0)
    ranges.add(a, sticky((10, 20), (100, 200)))
    ranges.add(b, sticky((21, 99)))
    found = {h: ranges.owner(h) for h in (9, 10, 20, 21, 99, 100, 200, 201)}
    assert list(found.values()) == [None, a, a, b, b, a, a, None]
    ranges.remove(a)
    assert ranges.owner(10) is None
    assert ranges.ranges() == {b: [HashRange(21, 99)]}


def test_modes_do_not_mix() -> None:
    with pytest.raises(ConsumerBusyError, match="key_shared mode of 'AUTO_SPLIT'"):
        check_same("s", KeyPolicy(), sticky((0, 1)))
    with pytest.raises(ConsumerBusyError, match="does not allow out of order"):
        check_same("s", KeyPolicy(), KeyPolicy(out_of_order=True))
    with pytest.raises(ConsumerBusyError, match="allows out of order"):
        check_same("s", KeyPolicy(out_of_order=True), KeyPolicy())
    check_same("s", sticky((0, 1)), sticky((2, 3)))


# -- the machine ----------------------------------------------------------------------------------


class Feed:
    """Entries of which each has a hash, 0 to 65 535; places them, and what waits when it may."""

    def __init__(
        self, policy: KeyPolicy, unacked_max: int = 1000, look_ahead: LookAhead | None = None
    ) -> None:
        self.hashes: dict[int, int] = {}
        self.descriptions: dict[int, Description] = {}
        self.look_ahead = look_ahead or LookAhead(1000, 1000, 1000)
        less = 0 if policy.mode is STICKY else 1  # a ring's hashes are one more than a key's
        self.machine: KeyShared[str] = KeyShared(
            unacked_max, self.look_ahead, policy, lambda entry: self.hashes[entry.entry_id] - less
        )

    def seat(self, name: str, permits: int, policy: KeyPolicy | None = None) -> Seat[str]:
        seat = Seat(name, name, 0, policy)
        self.machine.add(seat)
        self.machine.flow(seat, permits)
        return seat

    def new(self, *what: int | tuple[int, Description]) -> list[tuple[str, list[int]]]:
        """Place new entries of those hashes; gives who got which numbers."""
        numbers = []
        for each in what:
            hashed, description = each if isinstance(each, tuple) else (each, Description(1))
            numbers.append(len(self.hashes))
            self.descriptions[numbers[-1]] = description
            self.hashes[numbers[-1]] = hashed
        return self.place(numbers)

    def place(self, numbers: Sequence[int]) -> list[tuple[str, list[int]]]:
        entries = [Entry(1, number, b"", 0) for number in numbers]
        placed = self.machine.place(entries, [self.descriptions[number] for number in numbers])
        assert placed.grouped is not None
        left = [(1, numbers[index]) for index in placed.left]
        assert all(key in self.machine.waiting for key in left)
        self.machine.waiting.add(left, counted=False)  # as the feed does
        got = [
            (run.seat.owner, [each.entry_id for each in placed.grouped[run.start : run.stop]])
            for run in placed.runs
        ]
        assert sum(len(mine) for _, mine in got) + len(left) == len(numbers)
        return got

    def again(self, most: int = 100) -> list[tuple[str, list[int]]]:
        """Place what waits and can go."""
        found: list[tuple[str, list[int]]] = []
        while self.machine.waiting.ready:
            runs = self.machine.waiting.take(most)
            assert runs, "what is ready is given out"
            got = self.place([run.entry_id + i for run in runs for i in range(run.length)])
            assert got, "what is given out can be placed"
            found += got
        return found

    def settle(self, *numbers: int) -> bool:
        keys = [(1, number) for number in numbers]
        freed = self.machine.settle(keys)
        self.machine.waiting.forget(keys)
        return freed

    def take_back(self, seat: Seat[str], *numbers: int) -> None:
        mine = self.machine.take_back(seat, [(1, number) for number in numbers])
        self.machine.waiting.add(mine, counted=True)

    def leave(self, seat: Seat[str]) -> None:
        self.machine.waiting.add(self.machine.remove(seat), counted=False)


LOW, HIGH = sticky((0, 9)), sticky((10, 19))


def halves(permits: int = 100, **what: int) -> tuple[Feed, Seat[str], Seat[str]]:
    """``a`` has the hashes below 10, ``b`` those below 20."""
    feed = Feed(LOW, **what)
    return feed, feed.seat("a", permits, LOW), feed.seat("b", permits, HIGH)


def test_entries_go_where_their_hash_belongs() -> None:
    feed, a, b = halves()
    assert feed.new(1, 12, 2, 13) == [("a", [0, 2]), ("b", [1, 3])]
    assert (a.permits, a.unacked, b.permits, b.unacked) == (98, 2, 98, 2)
    assert feed.new(30) == [], "nobody has that hash"
    assert feed.again() == []
    feed.seat("c", 5, sticky((30, 30)))
    assert feed.again() == [("c", [4])]


def test_a_seat_without_room_keeps_its_own_back_and_nobody_elses() -> None:
    feed, a, b = halves(permits=1)
    feed.machine.flow(b, 10)
    assert feed.new(1, 2, 12, 1, 13) == [("a", [0]), ("b", [2, 4])]
    assert feed.again() == []
    feed.machine.flow(a, 9)
    assert feed.again() == [("a", [1, 3])]
    feed.machine.set_blocked(a, True)
    assert feed.new(3) == feed.again() == []
    feed.machine.set_blocked(a, False)
    assert feed.again() == [("a", [5])]


def test_what_is_refused_goes_before_what_is_new_of_its_hash() -> None:
    feed, a, _ = halves()
    feed.new(1, 1, 1, 2)
    feed.take_back(a, 1)
    assert feed.new(1, 2) == [("a", [5])], "4 is behind 1"
    assert feed.again() == [("a", [1, 4])]


def test_unacknowledged_messages_are_bounded() -> None:
    feed, a, _ = halves(unacked_max=2)
    assert feed.new(1, 2, 3) == [("a", [0, 1])]
    assert feed.machine.is_full(a)
    assert feed.settle(1)
    assert feed.again() == [("a", [2])]
    assert not feed.settle(7), "it is out nowhere"


def auto(*permits: int, out_of_order: bool = False) -> tuple[Feed, list[Seat[str]]]:
    feed = Feed(KeyPolicy(out_of_order=out_of_order))
    return feed, [feed.seat(f"c{n}", count) for n, count in enumerate(permits)]


def moving(feed: Feed, owner: Seat[str], newcomer: str) -> int:
    """A hash that will belong to ``newcomer`` when it comes."""
    ring: HashRing[str] = HashRing()
    for seat in (*feed.machine.seats, other := Seat(newcomer, newcomer, 0)):
        ring.add(seat, KeyPolicy())
    ours = feed.machine._assignment
    return next(h for h in range(1, HASH_MAX) if ours.owner(h) is owner and ring.owner(h) is other)


def test_a_hash_drains_before_it_moves() -> None:
    feed, [a] = auto(100)
    h = moving(feed, a, "b")
    feed.new(h, h)
    feed.seat("b", 100)
    assert feed.new(h, h) == feed.again() == []
    assert feed.machine.draining() == {a: [Draining(h, 2, 2)]}
    assert not feed.settle(0)
    assert feed.again() == []
    assert feed.settle(1), "somebody can be served"
    assert feed.again() == [("b", [2, 3])]
    assert (feed.machine.drained(a), feed.machine.draining()) == (1, {})


def test_a_hash_that_comes_back_stays() -> None:
    feed, [a] = auto(100)
    h = moving(feed, a, "b")
    feed.new(h)
    b = feed.seat("b", 100)
    assert feed.new(h) == []
    feed.leave(b)
    assert feed.again() == [("c0", [1])]
    assert feed.machine.draining() == {}


def test_what_was_out_at_one_who_left_goes_to_the_next_in_order() -> None:
    feed, [a, b] = auto(100, 100)
    h = next(n for n in range(1, HASH_MAX) if feed.machine._assignment.owner(n) is a)
    feed.new(h, h, h)
    feed.settle(1)
    feed.leave(a)
    assert feed.new(h) == []
    assert feed.again() == [("c1", [0, 2, 3])]
    assert list(b.out) == [(1, 0), (1, 2), (1, 3)]


def test_what_is_refused_waits_while_its_hash_drains() -> None:
    feed, [a] = auto(100)
    h = moving(feed, a, "b")
    feed.new(h, h)
    feed.seat("b", 100)
    feed.take_back(a, 0)
    assert feed.again() == [], "1 is out at a"
    feed.take_back(a, 1)
    assert feed.again() == [("b", [0, 1])]
    assert feed.machine.waiting.counts == {(1, 0): 1, (1, 1): 1}


def test_out_of_order_nothing_keeps_a_hash() -> None:
    feed, [a] = auto(100, out_of_order=True)
    h = moving(feed, a, "b")
    feed.new(h, h)
    b = feed.seat("b", 100)
    feed.take_back(a, 0)
    assert feed.new(h) == [("b", [2])]
    assert feed.again() == [("b", [0])]
    feed.settle(1, 2, 0)
    assert (a.unacked, b.unacked, feed.machine._held) == (0, 0, {})


def test_the_chunks_of_a_message_stay_together() -> None:
    feed, [a] = auto(100)
    h = moving(feed, a, "b")
    first, last = Description(1, Chunk(7, False)), Description(1, Chunk(7, True))
    feed.new((h, first))
    b = feed.seat("b", 100)
    assert feed.new((h, first), h, (h, last), h) == [("c0", [1, 2, 3])]
    assert feed.machine.draining() == {a: [Draining(h, 4, 1)]}
    assert feed.again() == []
    feed.settle(0, 1, 2, 3)
    assert feed.again() == [("b", [4])]
    assert (a.unacked, b.unacked, feed.machine._begun) == (0, 1, {})


def test_chunks_may_pass_the_bound_of_what_is_unacknowledged() -> None:
    feed, a, _ = halves(permits=CHUNKS_MAX * 2, unacked_max=2)
    part = Description(1, Chunk(7, False))
    assert feed.new(*[(1, part)] * 5) == [("a", [0, 1, 2, 3, 4])]
    assert feed.new((1, Description(1, Chunk(7, True))), 2) == [("a", [5])]
    assert feed.machine.is_full(a)
    feed.leave(a)
    assert feed.machine._begun == feed.machine._held == {}


def test_what_was_delayed_is_read_first_and_passed_by_nobody() -> None:
    feed, _, _ = halves()
    feed.hashes |= {0: 1, 1: 2, 2: 1}
    feed.descriptions |= dict.fromkeys(range(3), Description(1))
    feed.machine.waiting.add([(1, 1)], counted=False)
    assert feed.machine.waiting.unread == 1
    assert feed.place([0, 2]) == [("a", [0])], "nobody knows yet what 1 is"
    assert feed.again() == [("a", [1, 2])]


def test_look_ahead_is_bounded_by_consumer_by_subscription_and_together() -> None:
    shared = LookAhead(per_consumer=2, per_subscription=3, together=4)
    feeds = [Feed(LOW, look_ahead=shared) for _ in range(2)]
    one, other = feeds
    for feed in feeds:
        feed.seat("a", 0, LOW)
    one.new(1)
    assert not one.machine.waiting.full
    one.new(1)
    assert one.machine.waiting.full, "two for one consumer"
    one.seat("b", 0, HIGH)
    assert not one.machine.waiting.full
    one.new(1)
    assert one.machine.waiting.full, "three in a subscription"
    assert not other.machine.waiting.full, "nothing waits there"
    other.new(1)
    assert other.machine.waiting.full, "four together"
    one.machine.waiting.clear()
    assert (shared.used, other.machine.waiting.full) == (1, False)
    other.settle(0)
    assert shared.used == 0


def test_what_waits_is_forgotten_when_it_is_acknowledged() -> None:
    feed, a, _ = halves(permits=0)
    feed.new(1, 1, 2)
    assert feed.settle(0), "what is behind it may go"
    assert feed.machine.waiting.up_to((1, 1)) == [(1, 1)]
    feed.machine.flow(a, 9)
    assert feed.again() == [("a", [1, 2])]
    assert len(feed.machine.waiting) == 0


def test_no_seat_with_room_is_kept_waiting_by_another() -> None:
    feed, a, b = halves(permits=0)
    feed.new(*[1, 11] * 50)
    feed.machine.flow(a, 100)
    feed.machine.flow(b, 100)
    first: list[str] = []
    for _ in range(4):
        assert feed.machine.waiting.ready
        runs = feed.machine.waiting.take(10)
        got = feed.place([run.entry_id + i for run in runs for i in range(run.length)])
        first += [owner for owner, _ in got]
    assert first == ["a", "b", "a", "b"] or first == ["b", "a", "b", "a"]


# -- random histories -----------------------------------------------------------------------------


class Histories(RuleBasedStateMachine):
    """Consumers come and go, give permits, acknowledge and refuse; entries come, and are read again
    where somebody has room. ``HASHES`` hashes of few, so that they meet."""

    POLICY = KeyPolicy()
    HASHES = (7, 9_000, 18_000, 27_000, 36_000, 45_000, 54_000, 65_000)

    def __init__(self) -> None:
        super().__init__()
        self.feed = Feed(self.POLICY, unacked_max=12, look_ahead=LookAhead(10, 25, 1000))
        self.seats: list[Seat[str]] = []
        self.acked: set[int] = set()
        self.names = 0

    @property
    def machine(self) -> KeyShared[str]:
        return self.feed.machine

    def policy(self) -> KeyPolicy | None:
        return None

    @precondition(lambda self: len(self.seats) < 4)
    @rule(permits=st.integers(0, 9))
    def come(self, permits: int) -> None:
        self.names += 1
        self.seats.append(self.feed.seat(f"n{self.names % 5}", permits, self.policy()))

    @precondition(lambda self: self.seats)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.feed.leave(self.seats.pop(data.draw(st.integers(0, len(self.seats) - 1))))

    @precondition(lambda self: self.seats)
    @rule(data=st.data(), permits=st.integers(1, 9))
    def flow(self, data: st.DataObject, permits: int) -> None:
        self.machine.flow(data.draw(st.sampled_from(self.seats)), permits)

    @precondition(lambda self: self.seats)
    @rule(data=st.data(), blocked=st.booleans())
    def block(self, data: st.DataObject, blocked: bool) -> None:
        self.machine.set_blocked(data.draw(st.sampled_from(self.seats)), blocked)

    @precondition(lambda self: self.seats and not self.machine.waiting.full)
    @rule(
        what=st.lists(st.tuples(st.sampled_from(HASHES), st.integers(1, 3)), min_size=1, max_size=6)
    )
    def publish(self, what: list[tuple[int, int]]) -> None:
        self.feed.again()
        self.check(self.feed.new(*[(h, Description(messages)) for h, messages in what]))

    @rule(most=st.integers(1, 5))
    def read_again(self, most: int) -> None:
        self.check(self.feed.again(most))

    def check(self, got: list[tuple[str, list[int]]]) -> None:
        for _, numbers in got:
            assert numbers == sorted(numbers)

    @precondition(lambda self: any(seat.out for seat in self.seats))
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        numbers = self.some(data, [n for seat in self.seats for _, n in seat.out])
        self.feed.settle(*numbers)
        self.acked.update(numbers)

    @precondition(lambda self: len(self.machine.waiting) > 0)
    @rule(data=st.data())
    def acknowledge_what_waits(self, data: st.DataObject) -> None:
        numbers = self.some(data, [n for _, n in self.machine.waiting.up_to((2, 0))])
        numbers = [number for number in numbers if (1, number) in self.machine.waiting]
        self.feed.settle(*numbers)
        self.acked.update(numbers)

    @precondition(lambda self: any(seat.out for seat in self.seats))
    @rule(data=st.data(), everything=st.booleans())
    def refuse(self, data: st.DataObject, everything: bool) -> None:
        seat = data.draw(st.sampled_from([seat for seat in self.seats if seat.out]))
        mine = [] if everything else self.some(data, [n for _, n in seat.out])
        self.feed.take_back(seat, *mine)

    def some(self, data: st.DataObject, numbers: list[int]) -> list[int]:
        return data.draw(st.lists(st.sampled_from(numbers), min_size=1, unique=True))

    # -- what holds -----------------------------------------------------------------------------

    @invariant()
    def everything_is_in_one_place(self) -> None:
        out = [number for seat in self.seats for _, number in seat.out]
        waiting = [number for _, number in self.machine.waiting.up_to((2, 0))]
        waiting = [number for number in waiting if (1, number) in self.machine.waiting]
        assert len(out) == len(set(out))
        assert len(waiting) == len(self.machine.waiting) == self.feed.look_ahead.used
        assert sorted([*out, *waiting, *self.acked]) == sorted(self.feed.hashes)

    @invariant()
    def a_hash_is_out_at_one_seat(self) -> None:
        holders: dict[int, set[str]] = {}
        for index, seat in enumerate(self.seats):
            for _, number in seat.out:
                holders.setdefault(self.feed.hashes[number], set()).add(str(index))
        assert all(len(each) == 1 for each in holders.values()), holders

    @invariant()
    def numbers_agree(self) -> None:
        for seat in self.seats:
            assert seat.unacked == sum(seat.out.values())
        held = {h: each.count for h, each in self.machine._held.items()}
        out = [self.feed.hashes[n] for seat in self.seats for _, n in seat.out]
        assert held == {h: out.count(h) for h in out}

    @invariant()
    def nobody_starves(self) -> None:
        """Of each hash the lowest that waits goes if its owner has room and nobody else has it."""
        if self.machine.waiting.ready:
            return
        for hashed in self.HASHES:
            lowest = self.machine.waiting.lowest(hashed)
            seat = self.machine.goes_to(hashed)
            if lowest is not None and seat is not None:
                full = seat.blocked or seat.permits <= 0 or seat.unacked >= 12
                assert full, f"{lowest} could go to {seat.name}"

    def teardown(self) -> None:
        """With room for all everything comes, in order, and all of it."""
        self.seats = self.seats or [self.feed.seat("last", 0, self.policy())]
        order: dict[int, list[int]] = {}
        for _ in range(10_000):
            if len(self.acked) == len(self.feed.hashes):
                break
            for seat in self.seats:
                self.machine.set_blocked(seat, False)
                self.machine.flow(seat, 1000)
            for _, numbers in self.feed.again():
                for number in numbers:
                    order.setdefault(self.feed.hashes[number], []).append(number)
            out = [n for seat in self.seats for _, n in seat.out]
            self.feed.settle(*out)
            self.acked.update(out)
        assert len(self.acked) == len(self.feed.hashes), "something never came"
        for numbers in order.values():
            assert numbers == sorted(numbers)
        assert self.feed.look_ahead.used == 0
        assert self.machine._held == {} == self.machine._out
        assert self.machine._begun == {}


class StickyHistories(Histories):
    """Each of at most four has a quarter, whoever is there."""

    POLICY = sticky((0, 1))

    def policy(self) -> KeyPolicy | None:
        taken = {each for mine in self.machine.ranges().values() for each in mine}
        quarters = [HashRange(n * 16_384, n * 16_384 + 16_383) for n in range(4)]
        return KeyPolicy(STICKY, False, [next(each for each in quarters if each not in taken)])

    def teardown(self) -> None:
        while len(self.seats) < 4:
            self.seats.append(self.feed.seat("late", 0, self.policy()))
        super().teardown()


class UnorderedHistories(Histories):
    POLICY = KeyPolicy(out_of_order=True)

    @invariant()
    def a_hash_is_out_at_one_seat(self) -> None:
        pass

    @invariant()
    def numbers_agree(self) -> None:
        for seat in self.seats:
            assert seat.unacked == sum(seat.out.values())


for histories in (Histories, StickyHistories, UnorderedHistories):
    histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

TestHistories = Histories.TestCase
TestStickyHistories = StickyHistories.TestCase
TestUnorderedHistories = UnorderedHistories.TestCase
