"""How many messages a micro-batch takes from which partition."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from magnetar.model.errors import ConfigError, DataLossError
from magnetar.pipeline.broker_client import BrokerClient, StoredEntry
from magnetar.pipeline.losses import LogExtent
from magnetar.pipeline.options import ReadOptions, parse_read_options
from magnetar.pipeline.places import START, Offset, Place
from magnetar.pipeline.planner import Planner
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata

A, B = "persistent://public/default/a", "persistent://public/default/b"


def entry(ledger: int, number: int, batch: int | None) -> StoredEntry:
    metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
    if batch is not None:
        metadata.num_messages_in_batch = batch
    body = metadata.SerializeToString()
    return StoredEntry(ledger, number, memoryview(len(body).to_bytes(4, "big") + body))


class FakeReader:
    """Hands out a partition's entries from a place on, as the broker would."""

    def __init__(self, entries: list[StoredEntry], place: Place) -> None:
        self._entries = [e for e in entries if Place(e.ledger_id, e.entry_id + 1, 0) > place]
        self.handed_out = 0

    def entries(self) -> Iterator[StoredEntry]:
        for item in self._entries:
            self.handed_out += 1
            yield item

    def close(self) -> None:
        pass


class FakeClient:
    def __init__(self, topics: dict[str, list[StoredEntry]]) -> None:
        self.topics = topics
        self.opened: list[tuple[str, Place]] = []

    def open(self, topic: str, place: Place) -> FakeReader:
        self.opened.append((topic, place))
        return FakeReader(self.topics[topic], place)


def options() -> ReadOptions:
    return parse_read_options({"service.url": "pulsar://127.0.0.1:1", "topics": "a,b"})


def planner(topics: dict[str, list[StoredEntry]]) -> tuple[Planner, FakeClient]:
    made, client = Planner(options()), FakeClient(topics)
    made._client = client  # type: ignore[assignment]
    return made, client


PLAIN = [entry(1, n, None) for n in range(10)]
BATCHES = [entry(2, n, 5) for n in range(4)]


def test_a_budget_is_never_passed_and_cuts_inside_a_batch() -> None:
    plan, _ = planner({A: BATCHES})
    assert plan.limited({A: START}, {A: Place(2, 4, 0)}, 7) == {A: Place(2, 1, 2)}


def test_a_plan_goes_on_where_the_last_one_ended_without_reading_again() -> None:
    plan, client = planner({A: BATCHES})
    place = START
    for count in (2, 3, 4, 11):
        place = plan.limited({A: place}, {A: Place(2, 4, 0)}, count)[A]
    assert place == Place(2, 4, 0)
    assert client.opened == [(A, START)]


def test_what_one_partition_leaves_goes_to_the_other() -> None:
    plan, _ = planner({A: PLAIN[:1], B: BATCHES})
    ends = {A: Place(1, 1, 0), B: Place(2, 4, 0)}
    reached = plan.limited({A: START, B: START}, ends, 10)
    assert reached == {A: Place(1, 1, 0), B: Place(2, 1, 4)}


def test_the_end_stops_a_plan_before_the_budget_does() -> None:
    plan, _ = planner({A: PLAIN})
    assert plan.limited({A: START}, {A: Place(1, 4, 0)}, 100) == {A: Place(1, 4, 0)}


def test_a_planner_travels_without_its_connections() -> None:
    plan, _ = planner({A: PLAIN})
    plan.limited({A: START}, {A: Place(1, 4, 0)}, 2)
    again = pickle.loads(pickle.dumps(plan))
    assert isinstance(again._client, BrokerClient)
    assert not again._scans


def extent(kept_from: Place = START, created_ms: int = 7) -> LogExtent:
    return LogExtent(kept_from, kept_from, Place(9, 5, 0), created_ms)


def test_a_read_from_the_earliest_begins_where_the_log_does() -> None:
    plan, _ = planner({})
    extents = {A: extent(), B: extent(Place(4, 7, 0))}
    assert plan.starts(extents) == {A: START, B: Place(4, 7, 0)}
    assert plan.ends(extents) == {A: Place(9, 5, 0), B: Place(9, 5, 0)}


def given(**options: str) -> Planner:
    return Planner(
        parse_read_options({"service.url": "pulsar://127.0.0.1:1", "topics": "a,b", **options})
    )


def test_given_places_are_held_against_the_log() -> None:
    extents = {A: extent(Place(4, 7, 0)), B: extent()}
    plan = given(startingOffsets='{"a": "4:7:0"}')
    assert plan.starts(extents) == {A: Place(4, 7, 0), B: START}
    with pytest.raises(DataLossError, match=r"deleted everything from 4:2:0 to 4:7:0.*failOnData"):
        given(startingOffsets='{"a": "4:2:0"}').starts(extents)
    plan = given(startingOffsets='{"a": "4:2:0"}', failOnDataLoss="false")
    assert plan.starts(extents) == {A: Place(4, 7, 0), B: START}
    for option in ("startingOffsets", "endingOffsets"):
        plan = given(**{option: '{"a": "9:6:0"}'})
        with pytest.raises(ConfigError, match=f"{option}.*9:6:0 is past the end of .*9:5:0 now"):
            plan.starts(extents) if option == "startingOffsets" else plan.ends(extents)
        plan = given(**{option: '{"c": "1:1:0"}'})
        with pytest.raises(ConfigError, match="none of the partitions read"):
            plan.starts(extents) if option == "startingOffsets" else plan.ends(extents)


def test_a_stream_goes_on_with_what_is_left_and_what_was_added() -> None:
    plan, _ = planner({})
    offset = Offset({A: Place(3, 1, 0)}, {A: 7})
    assert plan.resumed(offset, {A: extent(), B: extent()}) == {A: Place(3, 1, 0), B: START}


def test_a_partition_that_is_gone_or_made_anew_is_a_loss() -> None:
    offset = Offset({A: Place(3, 1, 0), B: Place(2, 0, 0)}, {A: 7, B: 7})
    plan, _ = planner({})
    with pytest.raises(DataLossError, match="not there any more"):
        plan.resumed(offset, {A: extent()})
    with pytest.raises(DataLossError, match="made anew"):
        plan.resumed(offset, {A: extent(created_ms=8), B: extent()})
    plan = given(failOnDataLoss="false")
    assert plan.resumed(offset, {A: extent(created_ms=8)}) == {A: START}


def test_a_checkpoint_of_other_topics_is_refused() -> None:
    for plan in (given(), given(failOnDataLoss="false")):
        with pytest.raises(ConfigError, match="checkpointLocation of its own"):
            plan.resumed(Offset({"persistent://public/default/c": START}), {A: extent()})
        plan.check_topics(Offset({f"{A}-partition-3": START}))
