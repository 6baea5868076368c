"""How many messages a micro-batch takes from which partition."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from magnetar.model.errors import BrokerError
from magnetar.pipeline.broker_client import BrokerClient, StoredEntry
from magnetar.pipeline.decode import check_continuity
from magnetar.pipeline.options import ReadOptions, parse_read_options
from magnetar.pipeline.places import START, Place
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
    assert plan.limited({A: START}, {A: Place(2, 3, 5)}, 7) == {A: Place(2, 1, 2)}


def test_a_plan_goes_on_where_the_last_one_ended_without_reading_again() -> None:
    plan, client = planner({A: BATCHES})
    place = START
    for count in (2, 3, 4, 11):
        place = plan.limited({A: place}, {A: Place(2, 3, 5)}, count)[A]
    assert place == Place(2, 3, 5)
    assert client.opened == [(A, START)]


def test_what_one_partition_leaves_goes_to_the_other() -> None:
    plan, _ = planner({A: PLAIN[:1], B: BATCHES})
    ends = {A: Place(1, 1, 0), B: Place(2, 3, 5)}
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


def test_gaps_are_noticed() -> None:
    check_continuity(A, Place(1, 3, 0), entry(1, 4, None))
    check_continuity(A, Place(1, 3, 0), entry(2, 0, None))
    check_continuity(A, None, entry(1, 4, None))
    with pytest.raises(BrokerError, match="1 entries are missing before 1:5"):
        check_continuity(A, Place(1, 3, 0), entry(1, 5, None))
    with pytest.raises(BrokerError, match="2 entries are missing before 2:2"):
        check_continuity(A, Place(1, 3, 0), entry(2, 2, None))
