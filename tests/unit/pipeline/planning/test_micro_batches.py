"""When the next micro-batch comes, how far it goes, and what its progress report says."""

from __future__ import annotations

from typing import cast

from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.options.source_options import TriggerLimits
from magnetar.pipeline.places import START, Offset, Place, Point, from_offset, to_offset
from magnetar.pipeline.planning.micro_batches import MicroBatches
from magnetar.pipeline.planning.planner import Planner
from magnetar.pipeline.planning.plans import created_of
from tests.unit.pipeline.driving import options
from tests.unit.pipeline.fake_cluster import FakeCluster

A = "persistent://public/default/a"


class Case:
    """Topic ``a`` of two partitions with three messages each, and the plan of a query."""

    def __init__(self, limits: TriggerLimits | None = None, **given: str) -> None:
        self.cluster = FakeCluster()
        self.cluster.make(A, 2)
        self.names = self.cluster.names_of(A)
        for name in self.names:
            self.cluster.publish(name, 3)
        self.now_s = 100.0
        self.planner = Planner(options(topics="a", **given), cast(BrokerClient, self.cluster))
        self.plan = MicroBatches(self.planner, limits or TriggerLimits(), lambda: self.now_s)
        extents = self.planner.extents()
        self.start = Offset(self.planner.starts(extents), created_of(extents))

    def after(self, offset: Offset) -> Offset | None:
        return self.plan.after(offset, everything=False)


def test_nothing_new_is_the_same_offset() -> None:
    case = Case()
    end = case.after(case.start)
    assert end is not None
    assert {name: point.offset for name, point in end.points.items()} == dict.fromkeys(
        case.names, 3
    )
    again = case.after(from_offset(to_offset(end)))
    assert again is not None
    assert to_offset(again) == to_offset(end)


def test_a_run_that_stops_leaves_out_what_is_added_since() -> None:
    case = Case(TriggerLimits(messages_min=100, messages_max=100))
    case.plan.stop_at_the_present_end()
    case.cluster.publish(case.names[0], 5)
    case.cluster.make(A, 3)
    case.cluster.publish(f"{A}-partition-2", 5)
    end = case.after(case.start)  # though there are less than messages_min
    assert end is not None
    assert {name: point.offset for name, point in end.points.items()} == dict.fromkeys(
        case.names, 3
    )
    assert case.after(end) == end
    case.plan = MicroBatches(case.planner, TriggerLimits())
    following = case.after(end)
    assert following is not None
    assert [point.offset for point in following.points.values()] == [8, 3, 5]


def test_a_run_that_stops_ends_though_its_topic_is_made_anew() -> None:
    case = Case(failOnDataLoss="false")
    case.plan.stop_at_the_present_end()
    case.cluster.delete(A)
    case.cluster.make(A, 2)
    case.cluster.publish(case.names[0], 9)
    end = case.after(case.start)
    assert end is not None
    assert end.points == dict.fromkeys(case.names, Point(START, 0))
    assert end.lost == dict.fromkeys(case.names, 1)
    assert case.after(end) == end


def test_fewer_than_the_least_are_waited_for_so_long() -> None:
    case = Case(TriggerLimits(messages_min=5, delay_ms_max=10_000))
    first = case.after(case.start)  # the first one waits for nothing
    assert first is not None
    case.cluster.publish(case.names[0], 4)
    assert case.after(first) is None
    case.now_s += 9.9
    assert case.after(first) is None
    case.cluster.publish(case.names[1], 1)
    second = case.after(first)
    assert second is not None
    case.cluster.publish(case.names[0], 1)
    assert case.after(second) is None
    assert case.plan.after(second, everything=True) is not None
    case.now_s += 10
    assert case.after(second) is not None


def test_a_report_tells_what_is_left_and_asks_nobody() -> None:
    case = Case(TriggerLimits(messages_max=4))
    assert case.plan.backlog() is None
    case.cluster.publish(case.names[1], 5)
    case.after(case.start)
    case.cluster.failures = 100
    report = case.plan.backlog()
    assert report == {
        "places": {case.names[0]: "1:3:0", case.names[1]: "2:8:0"},
        "behind": {case.names[0]: 1, case.names[1]: 6},
        "messages_behind": 7,
    }


def test_ranges_of_a_plan_that_was_made_before_a_restart() -> None:
    case = Case()
    end = case.after(case.start)
    assert end is not None
    planned = case.plan.starts_of(case.start, end)
    again = MicroBatches(case.planner, TriggerLimits())
    assert again.starts_of(case.start, end) == planned
    added = Offset({**end.points, f"{A}-partition-2": Point(Place(9, 1, 0), 1)}, end.created_ms)
    assert again.starts_of(case.start, added)[f"{A}-partition-2"] == Point(START, 0)
    other = {name: made_ms + 1 for name, made_ms in end.created_ms.items()}
    anew = again.starts_of(case.start, Offset(end.points, other))
    assert anew == dict.fromkeys(case.names, Point(START, 0))


def test_a_loss_is_told_by_the_plan_or_by_the_tasks_of_one_that_runs_again() -> None:
    """Never by both: tasks of a micro-batch of before a restart read from its first offset on."""
    cluster = FakeCluster()
    cluster.make(A)
    cluster.publish(A, 2)
    settings = options(topics="a", failOnDataLoss="false")
    planner = Planner(settings, cast(BrokerClient, cluster), lambda: cluster.now_ms)
    plan = MicroBatches(planner, TriggerLimits())
    extents = planner.extents()
    first = Offset(planner.starts(extents), created_of(extents))
    cluster.logs[A].roll()
    cluster.logs[A].trim(1)
    cluster.publish(A, 1)
    last = plan.after(first, everything=True)
    assert last is not None
    (loss,) = plan.losses_of(first, last, {A})
    assert (loss.topic, loss.messages) == (A, 2)
    again = MicroBatches(planner, TriggerLimits())
    assert not again.losses_of(first, last, {A})
    assert [each.messages for each in again.losses_of(first, last, ())] == [2]


def test_of_a_partition_that_was_added_the_tasks_tell() -> None:
    """They read from its start on when the micro-batch runs again; the plan told the same."""
    case = Case(failOnDataLoss="false")
    first = case.after(case.start)
    assert first is not None
    case.cluster.make(A, 3)
    name = f"{A}-partition-2"
    case.cluster.publish(name, 2)
    case.cluster.logs[name].roll()
    case.cluster.logs[name].trim(1)
    case.cluster.publish(name, 1)
    last = case.after(first)
    assert last is not None
    assert [each.messages for each in case.plan.losses_of(first, last, {name})] == [2]
    again = MicroBatches(case.planner, TriggerLimits())
    assert again.starts_of(first, last)[name] == Point(START, 0)
    assert not again.losses_of(first, last, {name})
    before = Offset(case.start.points)  # of an older release: when logs were made it does not say
    assert not again.losses_of(before, Offset(last.points, last.created_ms, {A: 1}), {A})
