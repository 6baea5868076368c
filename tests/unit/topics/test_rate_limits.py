"""How much passes at a limited rate: by the clock that is given, to the message."""

from __future__ import annotations

import random

import pytest

from magnetar.topics.rate_limits import (
    ANY,
    EACH_MAX,
    GRAIN_S,
    Allowance,
    MayPass,
    PublishPace,
    RateLimit,
    TimesOfEach,
    TokenBucket,
)


def test_a_bucket_begins_full_and_fills_at_its_rate() -> None:
    bucket = TokenBucket(10, 1.0, now_s=100.0)
    assert bucket.left(100.0) == 10
    bucket.take(10)
    assert bucket.left(100.0) == 0
    assert bucket.left(100.35) == 3
    assert bucket.left(200.0) == 10, "no more than one period's"


def test_its_period_may_be_long() -> None:
    bucket = TokenBucket(30, 60.0, now_s=0.0)
    bucket.take(30)
    assert (bucket.left(1.9), bucket.left(2.0), bucket.left(60.0)) == (0, 1, 30)


def test_what_is_taken_too_much_is_paid_for() -> None:
    bucket = TokenBucket(10, 1.0, now_s=0.0)
    bucket.take(35)  # a batch
    assert bucket.wait_s(0.0) == pytest.approx(2.6)
    assert bucket.left(2.59) == 0
    assert bucket.left(2.6) == 1


def test_who_waits_waits_for_more_than_a_message_where_they_come_fast() -> None:
    bucket = TokenBucket(100_000, 1.0, now_s=0.0)
    assert bucket.wait_s(0.0) == 0.0
    bucket.take(100_000)
    assert bucket.wait_s(0.0) == pytest.approx(GRAIN_S)
    assert bucket.left(GRAIN_S) == 1000


@pytest.mark.parametrize("amount", [1, 3, 7, 1000, 123_457])
@pytest.mark.parametrize("period_s", [1.0, 7.0, 60.0])
def test_after_the_wait_there_is_something(amount: int, period_s: float) -> None:
    """Whatever is rounded: else its waiters would be woken again and again at once."""
    rng = random.Random(amount)
    bucket, now_s = TokenBucket(amount, period_s, 0.0), 0.0
    for _ in range(2000):
        wait_s = bucket.wait_s(now_s)
        now_s += wait_s
        assert bucket.left(now_s) >= 1
        bucket.take(rng.randint(1, max(1, bucket.left(now_s))))
        now_s += rng.choice((0.0, 0.0, rng.random() / amount))


def test_over_any_time_no_more_passes_than_the_rate_says() -> None:
    rng = random.Random(7)
    for _ in range(50):
        amount, largest = rng.randint(1, 500), rng.randint(1, 200)
        bucket, now_s = TokenBucket(amount, 1.0, 0.0), 0.0
        passed: list[tuple[float, int]] = []
        for _ in range(300):
            now_s += rng.random() * 0.2
            if bucket.left(now_s):
                count = rng.randint(1, largest)
                bucket.take(count)
                passed.append((now_s, count))
        for first in range(0, len(passed), 20):
            total = sum(count for _, count in passed[first:])
            passed_s = passed[-1][0] - passed[first][0]
            assert total <= amount + amount * passed_s + largest + 1


def test_messages_and_bytes_whichever_is_used_up_first() -> None:
    allowance = Allowance(RateLimit(10, 1000), 0.0)
    assert allowance.left(0.0) == MayPass(10, 1000)
    allowance.take(2, 1500)
    assert allowance.left(0.0) is None
    assert allowance.wait_s(0.0) == pytest.approx(0.51)
    left = allowance.left(0.51)
    assert left is not None
    assert (left.messages, left.byte_count) == (10, 10)
    allowance = Allowance(RateLimit(byte_count=5), 0.0)
    assert allowance.left(0.0) == MayPass(ANY, 5)
    allowance = Allowance(RateLimit(messages=5), 0.0)
    allowance.take(5, 1 << 40)
    assert allowance.left(0.0) is None
    assert allowance.left(0.2) == MayPass(1, ANY)


def test_the_pace_of_what_is_published() -> None:
    pace = PublishPace((100, 1000), 0.0)
    assert not pace.look((200, 2000), 0.9)
    assert pace.look((300, 3000), 2.0)
    assert pace.per_s == (100.0, 1000.0)
    assert pace.look((0, 0), 3.0), "counts that begin anew are no loss"
    assert pace.per_s == (0.0, 0.0)


def test_a_relative_rate_is_so_much_more_than_what_is_published() -> None:
    allowance = Allowance(RateLimit(10, relative=True), 0.0)
    published, passed, now_s = 0, 0, 0.0
    for _ in range(1000):
        now_s += 0.01
        published += 5  # 500 a second
        allowance.published((published, 0), now_s)
        left = allowance.left(now_s)
        if left is not None:
            allowance.take(left.messages, 0)
            passed += left.messages
    assert 0 < passed - (published - 500) < 200, "10 a second more, from when the pace is known"


def test_nothing_is_limited_by_numbers_that_are_none() -> None:
    assert not RateLimit(0, 0, 30, True).limits
    assert RateLimit(0, 1).limits
    assert Allowance(RateLimit(), 0.0).left(0.0) == MayPass(ANY, ANY)


def test_each_has_its_own_number_of_times() -> None:
    times = TimesOfEach(RateLimit(2, 0, 30))
    assert [times.admits("a", 0.0) for _ in range(3)] == [True, True, False]
    assert times.admits("b", 0.0)
    assert [times.admits("a", 15.0), times.admits("a", 15.0)] == [True, False]


def test_of_many_those_are_remembered_that_came_last() -> None:
    times = TimesOfEach(RateLimit(1, 0, 30))
    for number in range(EACH_MAX + 1):
        assert times.admits(number, 0.0)
    assert not times.admits(1, 0.0)
    assert times.admits(0, 0.0), "forgotten"
