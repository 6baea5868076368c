"""The budget of unfinished frames: what is held, who waits, who must go."""

from __future__ import annotations

import random

from magnetar.env.network.frame_budget import FrameBudget

PATIENCE_S = 5.0


def budget(bytes_max: int) -> FrameBudget[str]:
    return FrameBudget(bytes_max, PATIENCE_S)


def test_a_holder_grows_and_gives_back() -> None:
    b = budget(100)
    assert b.ask("a", 10, 40, 0)
    assert b.ask("a", 40, 100, 0)
    assert (b.held_bytes, b.tight) == (100, True)
    b.release("a")
    b.release("a")
    assert (b.held_bytes, b.tight, b.waiting) == (0, False, 0)


def test_without_room_they_wait_in_order_and_keep_what_arrived() -> None:
    b = budget(100)
    assert b.ask("a", 10, 90, 0)
    assert not b.ask("b", 20, 50, 1)
    assert not b.ask("c", 1, 2, 2), "nobody passes one who waits"
    assert b.held_bytes == 111
    assert b.serve(3) == [], "a may go on, and will make room"
    b.release("a")
    assert b.serve(4) == ["b", "c"]
    assert (b.held_bytes, b.waiting) == (52, 0)


def test_when_all_wait_the_first_goes_on() -> None:
    b = budget(100)
    assert b.ask("a", 10, 60, 0)
    assert not b.ask("b", 30, 80, 0)
    assert not b.ask("a", 60, 200, 1)
    assert b.serve(1) == ["b"], "one at a time past the budget"
    assert b.serve(1) == []
    b.release("b")
    assert b.serve(2) == ["a"]


def test_one_who_does_not_finish_while_others_wait_must_go() -> None:
    b = budget(100)
    assert b.ask("slow", 10, 40, 0)
    assert b.ask("slower", 10, 40, 0)
    assert b.ask("new", 10, 20, 9)
    assert not b.ask("waiter", 10, 50, 6)
    assert b.overdue(10.9) == [], "the waiter has not been patient yet"
    assert b.overdue(11) == ["slow", "slower"], "both are needed, oldest first"
    b.release("slow")
    b.release("slower")
    assert b.serve(11) == ["waiter"]
    assert b.overdue(100) == [], "nobody waits"


def test_time_spent_waiting_is_not_held_against_it() -> None:
    b = budget(100)
    assert b.ask("a", 90, 90, 0)
    assert not b.ask("b", 10, 50, 1)
    b.release("a")
    assert b.serve(20) == ["b"]
    assert not b.ask("c", 60, 60, 20)
    assert b.overdue(24.9) == []
    assert b.overdue(25) == ["b"]


def test_random_frames_all_finish_within_the_bound() -> None:
    """Peers that send: every frame becomes whole, and no more is held than the rules say."""
    for seed in range(200):
        rng = random.Random(seed)
        limit, piece = rng.randrange(1, 200), rng.randrange(1, 30)
        b: FrameBudget[int] = FrameBudget(limit, PATIENCE_S)
        left = {number: rng.randrange(1, 100) for number in range(rng.randrange(1, 12))}
        largest = max(left.values())
        arrived = dict.fromkeys(left, 0)
        can_read = set(left)
        for _ in range(20_000):
            if not left:
                break
            reading = sorted(can_read)
            assert reading, f"seed {seed}: nobody can go on"
            number = rng.choice(reading)
            arrived[number] += min(piece, left[number] - arrived[number])
            if arrived[number] == left[number]:
                can_read.remove(number)
                del left[number]
                b.release(number)
            elif not b.ask(number, arrived[number], min(left[number], 4 * arrived[number]), 0):
                can_read.remove(number)
            can_read.update(b.serve(0))
            assert b.held_bytes <= limit + largest + piece * len(arrived)
        assert (left, b.held_bytes, b.waiting) == ({}, 0, 0), seed
