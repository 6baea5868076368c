"""Topics that are deleted while a query goes on: between two questions about them, between a plan
and its tasks, between a plan and the restart that runs it again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from magnetar.model.errors import ConfigError, DataLossError
from magnetar.pipeline.brokers import log_watch
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.options.source_options import parse_read_options
from magnetar.pipeline.places import from_offset
from magnetar.pipeline.planning.micro_batches import MicroBatches
from magnetar.pipeline.planning.planner import Planner
from magnetar.pipeline.planning.storage_planning import BookieReach
from magnetar.pipeline.reading.batch_reader import SplitPartition
from magnetar.pipeline.reading.stream_reader import StreamReader
from magnetar.pipeline.schema import spark_schema
from tests.unit.pipeline.fake_cluster import FakeCluster

A, B, C = (f"persistent://public/default/{name}" for name in "abc")
Form = dict[str, Any]


class Stream:
    """A query as Spark drives it, on brokers in memory; ``restart`` keeps its offsets alone."""

    def __init__(self, cluster: FakeCluster, **given: str) -> None:
        self.cluster = cluster
        self.given = {"topics": "a,b"} if not {"assign", "subscribePattern"} & set(given) else {}
        self.given |= {"service.url": "pulsar://127.0.0.1:1", "columns": "value"} | given
        self.restart()
        initial = self.reader.initialOffset()
        self.start = self.next(initial)

    def restart(self) -> None:
        options = parse_read_options(self.given)
        self.reader = StreamReader(options, spark_schema(options.columns), None)
        planner = Planner(options, cast(BrokerClient, self.cluster))
        self.reader._planner = planner
        self.reader._plan = MicroBatches(planner, options.limits)
        self.reader._reach = BookieReach(planner)
        self.reader._prefetches = False

    def next(self, start: Form) -> Form:
        found = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        return cast(Form, json.loads(json.dumps(found)))

    def values(self, start: Form, end: Form) -> list[int]:
        """Of the tasks of a micro-batch."""
        found: list[int] = []
        for task in self.reader.partitions(start, end):
            assert isinstance(task, SplitPartition)
            for split in task.splits:
                for batch in self.reader._rows(split, cast(BrokerClient, self.cluster)):
                    found += [int(value) for value in batch["value"].to_pylist()]
        return found


@pytest.fixture
def cluster() -> FakeCluster:
    """Topics ``a`` and ``b``, each with three messages and another two in a second ledger."""
    made = FakeCluster()
    for name in (A, B):
        made.make(name)
        made.publish(name, 3)
        made.logs[name].roll()
        made.publish(name, 2)
    return made


OPTIONS: list[dict[str, str]] = [
    {},
    {"minPartitions": "4"},
    {"readMode": "broker"},
    {"filter": "message_id.ledger_id >= 0"},
    {"pinTimeoutMs": "0"},
]


@pytest.mark.parametrize("given", OPTIONS, ids=lambda given: ",".join(given) or "usual")
@pytest.mark.parametrize("restarts", [True, False])
def test_a_topic_that_went_after_it_was_planned_is_a_loss(
    cluster: FakeCluster, given: dict[str, str], restarts: bool
) -> None:
    """A stream whose micro-batch was planned before could not be started any more, whatever
    ``failOnDataLoss`` said: the driver held the topic, and asked for its ledgers."""
    left = cluster.logs[B].values()
    stream = Stream(cluster, failOnDataLoss="false", **given)
    end = stream.next(stream.start)
    cluster.delete(A)
    if restarts:
        stream.restart()
    assert stream.values(stream.start, end) == left
    following = from_offset(stream.next(end))
    assert set(following.points) == {B}
    assert following.lost == {A: 1}


def test_a_stream_that_is_started_again_waits_for_a_broker(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that had a micro-batch planned asked once, for the ledgers of its ranges, and ended."""
    monkeypatch.setattr(log_watch, "PAUSE_S", 0.001)
    stream = Stream(cluster)
    end = stream.next(stream.start)
    stream.restart()
    cluster.failures = 4
    assert sorted(stream.values(stream.start, end)) == list(range(10))


def test_it_ends_the_query_with_a_way_out(cluster: FakeCluster) -> None:
    stream = Stream(cluster)
    end = stream.next(stream.start)
    cluster.delete(A)
    for _ in range(2):
        stream.restart()
        with pytest.raises(DataLossError, match=r"/a: the topic is not there any more.*set failOn"):
            stream.values(stream.start, end)


@pytest.mark.parametrize("given", [{"maxOffsetsPerTrigger": "3"}, {"maxBytesPerTrigger": "30"}])
@pytest.mark.parametrize("losing", [True, False])
def test_one_that_goes_between_two_questions_about_it(
    cluster: FakeCluster, given: dict[str, str], losing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(cluster, failOnDataLoss=str(not losing), **given)
    _after_extents(stream, monkeypatch, lambda: cluster.delete(A))
    if not losing:
        with pytest.raises(DataLossError, match="/a: the partition is not there any more"):
            stream.next(stream.start)
        return
    end = from_offset(stream.next(stream.start))
    assert set(end.points) == {B}
    assert end.lost == {A: 1}


def _after_extents(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, happen: Callable[[], None]
) -> None:
    """Once, right after the logs were asked how far they reach."""
    whole = stream.reader._planner.extents
    left = [happen]

    def extents(*args: Any, **more: Any) -> Any:
        found = whole(*args, **more)
        while left:
            left.pop()()
        return found

    monkeypatch.setattr(stream.reader._planner, "extents", extents)


def _assigned(cluster: FakeCluster, **given: str) -> Stream:
    cluster.make(C, 3)
    for name in cluster.names_of(C):
        cluster.publish(name, 1)
    return Stream(cluster, assign='{"b": [0], "c": [0, 2]}', **given)


@pytest.mark.parametrize("partitions", [None, 0, 1])
def test_partitions_that_were_assigned_and_went(
    cluster: FakeCluster, partitions: int | None
) -> None:
    """They were no loss: the query ended, whatever ``failOnDataLoss`` said, as its option named a
    partition that the topic did not have. ``partitions``: of the topic that was made anew."""
    lost = {f"{C}-partition-0": 1, f"{C}-partition-2": 1}
    stream = _assigned(cluster, failOnDataLoss="false")
    cluster.delete(C)
    if partitions is not None:
        cluster.make(C, partitions)
        cluster.publish(cluster.names_of(C)[0], 1)
    there = [B] if partitions is None else [B, cluster.names_of(C)[0]]
    end = stream.next(stream.start)
    assert from_offset(end).lost == lost
    assert sorted(from_offset(end).points) == sorted(there)
    assert stream.values(stream.start, end) == [
        value for name in there for value in cluster.logs[name].values()
    ]


def test_they_end_the_query_as_others_do(cluster: FakeCluster) -> None:
    stream = _assigned(cluster)
    cluster.delete(C)
    with pytest.raises(DataLossError, match="/c-partition-0: the partition is not there any more"):
        stream.next(stream.start)
    with pytest.raises(ConfigError, match="/b has no partition 1; it has 1"):
        Stream(cluster, assign='{"b": [1]}')
