"""Where a read starts and ends, and how much a micro-batch takes of which partition."""

from __future__ import annotations

import pickle
from typing import cast

import pytest

from magnetar.model.errors import BrokerError, ConfigError, DataLossError, TopicNotFoundError
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.brokers.topic_reader import LogAnswer
from magnetar.pipeline.options.source_options import TriggerLimits
from magnetar.pipeline.places import START, Offset, Place, Point, from_offset
from magnetar.pipeline.planning.planner import Planner
from magnetar.pipeline.planning.plans import Points
from magnetar.pipeline.reading.stream_reader import StreamReader
from magnetar.pipeline.schema import spark_schema
from tests.unit.pipeline.driving import options
from tests.unit.pipeline.fake_cluster import FakeCluster

A, B = "persistent://public/default/a", "persistent://public/default/b"


def cluster_of(**counts: int) -> FakeCluster:
    """Topics with so many unbatched messages each."""
    cluster = FakeCluster()
    for short, count in counts.items():
        name = f"persistent://public/default/{short}"
        cluster.make(name)
        cluster.publish(name, count)
    return cluster


def planner(cluster: FakeCluster, **given: str) -> Planner:
    given = given or {"topics": "a,b"}
    if not {"topics", "assign", "subscribePattern"} & set(given):
        given["topics"] = "a,b"
    return Planner(options(**given), cast(BrokerClient, cluster), lambda: cluster.now_ms)


def bounds(plan: Planner) -> tuple[Points, Points]:
    extents = plan.extents()
    starts = plan.starts(extents)
    return starts, plan.ends(extents, starts)


def test_a_read_goes_from_the_earliest_to_the_latest() -> None:
    cluster = cluster_of(a=3, b=5)
    cluster.logs[B].roll()
    cluster.logs[B].trim(1)
    cluster.publish(B, 2)
    starts, ends = bounds(planner(cluster))
    assert starts == {A: Point(START, 0), B: Point(Place(2, 5, 0), 5)}
    assert ends == {A: Point(Place(1, 3, 0), 3), B: Point(Place(3, 2, 0), 7)}


@pytest.mark.parametrize("text", ['{"a": "1:2:0"}', '{"a": 2}', '{"a": {"0": 2}}'])
def test_given_starts_are_places_or_offsets(text: str) -> None:
    starts, _ = bounds(planner(cluster_of(a=5, b=1), startingOffsets=text))
    assert starts == {A: Point(Place(1, 2, 0), 2), B: Point(START, 0)}


def test_ends_of_the_log_by_number() -> None:
    plan = planner(cluster_of(a=5, b=3), startingOffsets='{"a": -1, "b": -2}')
    assert bounds(plan)[0] == {A: Point(Place(1, 5, 0), 5), B: Point(START, 0)}


def test_times() -> None:
    cluster = cluster_of(a=5, b=1)
    middle_ms = cluster.now_ms + 1
    cluster.publish(A, 2)
    starts, _ = bounds(planner(cluster, startingTimestamp=str(middle_ms)))
    assert starts == {A: Point(Place(1, 5, 0), 5), B: Point(Place(2, 1, 0), 1)}
    given = planner(cluster, endingOffsetsByTimestamp=f'{{"a": {middle_ms}}}')
    assert bounds(given)[1] == {A: Point(Place(1, 5, 0), 5), B: Point(Place(2, 1, 0), 1)}


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize("spot", ['"1:6:0"', "6"])
def test_a_start_or_an_end_past_the_log_is_refused(option: str, spot: str) -> None:
    plan = planner(cluster_of(a=5, b=1), **{option: f'{{"a": {spot}}}'})
    with pytest.raises(
        ConfigError, match=rf"{option}.*1:6:0.* is past the end of .*1:5:0 \(5\) now"
    ):
        bounds(plan)


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_a_place_of_a_partition_that_is_not_read_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match="none of the partitions read"):
        bounds(planner(cluster_of(a=1, b=1), **{option: '{"c": "1:1:0"}'}))


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize("spot", ['"1:2:0"', "2"])
def test_a_place_that_retention_deleted_is_a_loss(option: str, spot: str) -> None:
    cluster = cluster_of(a=5, b=1)
    cluster.logs[A].roll()
    cluster.logs[A].trim(1)
    cluster.publish(A, 1)
    given = {option: f'{{"a": {spot}}}'}
    with pytest.raises(
        DataLossError, match=r"deleted everything from .*\b3 (messages|entries)\); to"
    ):
        bounds(planner(cluster, **given))
    starts, ends = bounds(planner(cluster, **given, failOnDataLoss="false"))
    assert (starts if option == "startingOffsets" else ends)[A] == Point(Place(1, 5, 0), 5)


def test_a_read_that_ends_before_it_starts_is_refused() -> None:
    given = {"startingOffsets": '{"a": 4}', "endingOffsets": '{"a": 2}'}
    with pytest.raises(ConfigError, match=r"'endingOffsets'.*1:2:0, before it starts at 1:4:0"):
        bounds(planner(cluster_of(a=5, b=1), **given))


def test_times_that_were_taken_for_each_other_are_refused() -> None:
    """They gave no row, without a word."""
    given = {"startingTimestamp": "2000", "endingTimestamp": "1000"}
    with pytest.raises(ConfigError, match=r"'endingTimestamp'.*at 1000, before it starts at 2000"):
        bounds(planner(cluster_of(a=5, b=1), **given))
    by_partition = {"endingOffsetsByTimestamp": '{"b": 999}', "startingTimestamp": "1000"}
    with pytest.raises(ConfigError, match=r"'endingOffsetsByTimestamp': the read of .*/b would"):
        bounds(planner(cluster_of(a=5, b=1), **by_partition))
    bounds(planner(cluster_of(a=5, b=1), startingTimestamp="5", endingTimestamp="5"))


def test_a_stream_does_not_start_in_the_future() -> None:
    cluster = cluster_of(a=1, b=1)
    future = str(cluster.now_ms + 60_000)
    with pytest.raises(ConfigError, match="60000 ms in the future"):
        planner(cluster, startingTimestamp=future).check_start()
    planner(cluster, startingTimestamp=str(cluster.now_ms)).check_start()
    allowed = {"startingOffsetsByTimestampStrategy": "latest"}
    planner(cluster, startingTimestamp=future, **allowed).check_start()


# -- which partitions ---------------------------------------------------------------------------


def test_assigned_partitions() -> None:
    cluster = cluster_of(a=1)
    cluster.make(B, 3)
    plan = planner(cluster, assign='{"b": [2, 0], "a": [0]}')
    assert plan.partitions() == [f"{B}-partition-0", f"{B}-partition-2", A]
    with pytest.raises(ConfigError, match=r"/b has no partition 3; it has 3"):
        planner(cluster, assign='{"b": [3]}').partitions()


def test_topics_of_a_pattern_come_and_go(caplog: pytest.LogCaptureFixture) -> None:
    cluster = cluster_of(a1=1, other=1)
    plan = planner(cluster, subscribePattern="a.*")
    assert list(plan.extents()) == [f"{A}1"]
    cluster.make(f"{A}2", 2)
    assert plan.partitions() == [f"{A}1", f"{A}2-partition-0", f"{A}2-partition-1"]
    assert not planner(cluster, subscribePattern="zz.*").extents()
    assert "no topic matches persistent://public/default/zz.*" in caplog.text


def test_a_topic_that_is_not_there_is_an_error_at_the_start() -> None:
    with pytest.raises(TopicNotFoundError, match="/b is not there; make it, or mend the option"):
        planner(cluster_of(a=1)).extents()


# -- limits ---------------------------------------------------------------------------------------


def limited(plan: Planner, starts: Points, **limits: int) -> Points:
    extents = plan.extents()
    ends = {name: Point(extents[name].end, extents[name].end_offset) for name in starts}
    return plan.limited(starts, ends, TriggerLimits(**limits))


def test_a_budget_is_never_passed_and_cuts_inside_a_batch() -> None:
    cluster = cluster_of(a=0, b=0)
    for _ in range(4):
        cluster.publish(A, 5, batched=True)
    plan = planner(cluster)
    assert limited(plan, {A: Point(START, 0)}, messages_max=7) == {A: Point(Place(1, 1, 2), 7)}


def test_no_entry_is_read_to_count() -> None:
    cluster = cluster_of(a=50, b=50)
    plan = planner(cluster)
    point = Point(START, 0)
    for count in (2, 3, 4, 30):
        point = limited(plan, {A: point}, messages_max=count)[A]
    assert point == Point(Place(1, 39, 0), 39)
    assert cluster.opened == [(A, START), (B, START)]  # asked, and kept


def test_what_one_partition_leaves_goes_to_the_other() -> None:
    plan = planner(cluster_of(a=1, b=20))
    reached = limited(plan, {A: Point(START, 0), B: Point(START, 0)}, messages_max=10)
    assert reached == {A: Point(Place(1, 1, 0), 1), B: Point(Place(2, 9, 0), 9)}


def test_the_end_stops_a_plan_before_the_budget_does() -> None:
    plan = planner(cluster_of(a=4, b=0))
    assert limited(plan, {A: Point(START, 0)}, messages_max=100)[A] == Point(Place(1, 4, 0), 4)


def test_bytes_are_met_about_and_one_entry_is_taken_at_least() -> None:
    cluster = cluster_of(a=10, b=10)
    cluster.logs[A].roll()
    cluster.publish(A, 10)
    plan = planner(cluster)  # ten bytes a message
    starts = {A: Point(START, 0), B: Point(START, 0)}
    assert limited(plan, starts, bytes_max=250) == {
        A: Point(Place(3, 5, 0), 15),
        B: Point(Place(2, 10, 0), 10),
    }
    assert limited(plan, {A: Point(START, 0)}, bytes_max=1)[A] == Point(Place(1, 1, 0), 1)
    both = limited(plan, {A: Point(START, 0)}, bytes_max=100, messages_max=3)
    assert both[A] == Point(Place(1, 3, 0), 3)


def test_a_broker_of_another_kind_counts_and_says_what_does_not_hold(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It neither numbers messages nor tells ledgers."""
    cluster = cluster_of(a=2, b=0)
    for _ in range(3):
        cluster.publish(A, 3, batched=True)
    extent = cluster.logs[A].extent()._replace(first_offset=-1, end_offset=-1)
    cluster.logs[A].answer = lambda _question: LogAnswer(extent)  # type: ignore[method-assign]
    plan = planner(cluster, topics="a")
    start = {A: Point(START)}
    ends = {A: Point(extent.end)}
    assert plan.limited(start, ends, TriggerLimits(messages_max=6)) == {A: Point(Place(1, 3, 1))}
    for _ in range(2):
        assert plan.limited(start, ends, TriggerLimits(bytes_max=1)) == ends
    assert caplog.text.count("maxBytesPerTrigger limits nothing") == 1
    with pytest.raises(ConfigError, match="does not number its messages; give places"):
        bounds(planner(cluster, topics="a", startingOffsets='{"a": 2}'))


def test_a_planner_travels_without_its_connections() -> None:
    plan = planner(cluster_of(a=1, b=1))
    plan.extents()
    again = pickle.loads(pickle.dumps(plan))
    assert not again._logs._readers


# -- resuming -------------------------------------------------------------------------------------


def test_a_stream_goes_on_with_what_is_left_and_what_was_added() -> None:
    cluster = cluster_of(a=5, b=3)
    plan = planner(cluster)
    extents = plan.extents()
    offset = Offset({A: Point(Place(1, 2, 0), 2)}, {A: extents[A].created_ms})
    starts, lost = plan.resumed(offset, extents)
    assert starts == {A: Point(Place(1, 2, 0), 2), B: Point(START, 0)}
    assert not lost


def test_an_older_checkpoint_is_numbered() -> None:
    cluster = cluster_of(a=5, b=0)
    plan = planner(cluster)
    offset = Offset({A: Point(Place(1, 2, 0)), B: Point(START)})
    assert plan.resumed(offset, plan.extents())[0] == {
        A: Point(Place(1, 2, 0), 2),
        B: Point(START, 0),
    }


def test_a_partition_that_is_gone_is_a_loss_or_counted() -> None:
    cluster = cluster_of(a=5, b=3)
    extents = planner(cluster).extents()
    made = {name: extent.created_ms for name, extent in extents.items()}
    offset = Offset({A: Point(START, 0), B: Point(START, 0)}, made)
    cluster.delete(B)
    plan = planner(cluster)
    with pytest.raises(DataLossError, match="/b: the partition is not there any more"):
        plan.resumed(offset, plan.extents(list(offset.points)))
    plan = planner(cluster, failOnDataLoss="false")
    starts, lost = plan.resumed(offset, plan.extents(list(offset.points)))
    assert starts == {A: Point(START, 0)}
    assert lost == {B: 1}


def test_a_topic_made_anew_is_a_loss_or_counted() -> None:
    cluster = cluster_of(a=5, b=3)
    made = {name: extent.created_ms for name, extent in planner(cluster).extents().items()}
    offset = Offset({A: Point(START, 0), B: Point(Place(2, 1, 0), 1)}, made)
    cluster.delete(B)
    cluster.make(B)
    cluster.publish(B, 7)
    plan = planner(cluster)
    with pytest.raises(DataLossError, match="deleted and made anew"):
        plan.resumed(offset, plan.extents(list(offset.points)))
    plan = planner(cluster, failOnDataLoss="false")
    assert plan.resumed(offset, plan.extents([]))[0][B] == Point(START, 0)


def test_a_checkpoint_of_other_topics_is_refused() -> None:
    for given in ({}, {"failOnDataLoss": "false"}, {"subscribePattern": "a|b"}):
        plan = planner(cluster_of(a=1, b=1), **given)
        with pytest.raises(ConfigError, match="checkpointLocation of its own"):
            plan.resumed(Offset({"persistent://public/default/c": Point(START)}), plan.extents())
        plan.check_topics(Offset({f"{A}-partition-3": Point(START)}))


# -- brokers that restart -------------------------------------------------------------------------


def test_a_broker_that_restarts_ends_no_query() -> None:
    cluster = cluster_of(a=1, b=1)
    plan = planner(cluster, topics="a", pollTimeoutMs="60000")
    plan.extents()
    cluster.failures = 3
    assert plan.extents()[A].end_offset == 1
    assert cluster.failures == 0


def test_a_wrong_address_is_said_at_once() -> None:
    cluster = cluster_of(a=1, b=1)
    cluster.failures = 1
    with pytest.raises(BrokerError, match="broke"):
        planner(cluster, pollTimeoutMs="3600000").extents()


def test_a_query_that_begins_waits_for_a_broker_that_restarts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """For a bounded time, and says so."""
    cluster = cluster_of(a=1, b=1)
    settings = options(topics="a", pollTimeoutMs="60000")
    cluster.failures = 3
    assert Planner(settings, cast(BrokerClient, cluster), start_s=10.0).extents()[A].end_offset == 1
    assert caplog.text.count("it is asked again, for 10 s") == 1
    cluster.failures = 10**6
    with pytest.raises(BrokerError, match="broke"):
        Planner(settings, cast(BrokerClient, cluster), start_s=0.3).extents()
    assert cluster.failures > 10**6 - 10


def test_a_stream_that_begins_is_as_patient_as_one_that_runs() -> None:
    cluster = cluster_of(a=1, b=1)
    reader = StreamReader(options(topics="a", pollTimeoutMs="60000"), spark_schema(None), None)
    reader._planner = planner(cluster, topics="a", pollTimeoutMs="60000")
    cluster.failures = 3
    assert from_offset(reader.initialOffset()).points == {A: Point(START, 0)}
