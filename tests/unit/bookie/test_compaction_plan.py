"""When entry logs are compacted, and which."""

from __future__ import annotations

from magnetar.bookie.storage.compaction_plan import PRESSING_S, PRESSING_SHARE, Schedule, dead, plan
from magnetar.bookie.storage.log_usage import LogUsage, LogUse

NO_LIMIT = 1 << 40


def test_live_bytes_go_down_with_deleted_ledgers() -> None:
    usage = LogUsage()
    usage.add(1, 1000, 200)
    usage.add(2, 500, 500)
    assert usage.uses(9) == [LogUse(1, 1000, 200), LogUse(2, 500, 500)]
    usage.forget([(1, 100), (2, 500), (3, 7)])
    assert usage.uses(9) == [LogUse(1, 1000, 100), LogUse(2, 500, 0)]
    assert usage.uses(2) == [LogUse(1, 1000, 100)]
    assert dead(usage.uses(9)) == [2]
    usage.drop([1])
    assert 1 not in usage
    assert 2 in usage


def test_what_is_not_live_is_counted_as_it_changes() -> None:
    usage = LogUsage()
    usage.add(1, 1000, 1000)
    assert usage.dead_bytes == 0
    usage.forget([(1, 100)])
    assert usage.dead_bytes == 100
    usage.add(2, 500, 400)
    assert usage.dead_bytes == 200
    usage.add(2, 500, 400)
    assert usage.dead_bytes == 200, "it was known already"
    usage.drop([1, 3])
    assert usage.dead_bytes == 100
    usage.drop([2])
    assert usage.dead_bytes == 0


def test_the_emptiest_logs_come_first_and_dead_ones_not_at_all() -> None:
    uses = [LogUse(1, 100, 19), LogUse(2, 100, 0), LogUse(3, 100, 20), LogUse(4, 200, 10)]
    found = plan(uses, 0.2, NO_LIMIT, NO_LIMIT, 10)
    assert found is not None
    assert found.sources == (1, 4)
    assert found.live_bytes == 29
    one = plan(uses, 0.2, NO_LIMIT, NO_LIMIT, 1)
    assert one is not None
    assert one.sources == (4,)
    assert plan(uses, 0.05, NO_LIMIT, NO_LIMIT, 10) is None


def test_no_more_is_taken_than_there_is_room_for() -> None:
    uses = [LogUse(1, 1000, 300), LogUse(2, 1000, 400), LogUse(3, 1000, 100)]
    for room, log_bytes_max in ((450, NO_LIMIT), (NO_LIMIT, 450)):
        found = plan(uses, 0.5, room, log_bytes_max, 10)
        assert found is not None
        assert found.sources == (1, 3)
    assert plan(uses, 0.5, 99, NO_LIMIT, 10) is None


def test_minor_major_and_pressing_passes() -> None:
    schedule = Schedule(0.2, 100, 0.5, 1000, now_s=0)
    assert schedule.due(99, pressing=False) is None
    assert schedule.due(100, pressing=False) == 0.2
    assert schedule.due(101, pressing=False) is None
    assert schedule.due(1000, pressing=False) == 0.5
    assert schedule.due(1050, pressing=False) is None  # a major pass is a minor one too
    assert schedule.due(1050, pressing=True) == PRESSING_SHARE
    assert schedule.due(1051, pressing=True) is None
    assert schedule.due(1050 + PRESSING_S, pressing=True) == PRESSING_SHARE
    assert schedule.due(1100, pressing=False) == 0.2
