"""A split read at the bookies, against brokers and bookies in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from magnetar.model.entry import Entry
from magnetar.model.errors import (
    BrokerError,
    DataLossError,
    EntryDamagedError,
    LedgerError,
    NoEntryError,
)
from magnetar.pipeline.loss_reports import LossReports
from magnetar.pipeline.places import NO_OFFSETS, Place
from magnetar.pipeline.planning.planner import Planner
from magnetar.pipeline.planning.splits import PlannedRange, Split, WholeRanges
from magnetar.pipeline.planning.storage_planning import BookieReach, StorageSplitter
from magnetar.pipeline.planning.storage_splits import ByStorage, stored_range
from magnetar.pipeline.reading.decode import decoded
from magnetar.pipeline.reading.storage_reading import StorageReading
from magnetar.wire.pulsar.pulsar_pb2 import LogQuestion
from tests.unit.pipeline.fake_cluster import FakeCluster

TOPIC = "persistent://public/default/orders"


class FakeBookies:
    """``told_ledgers.ToldLedgers``. ``before_entry`` is called before each entry, with its number
    among all."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.before_entry: Callable[[int], None] = lambda _number: None
        self.given = 0
        self.damaged: set[tuple[int, int]] = set()
        self.missing: set[tuple[int, int]] = set()
        self.asked: list[tuple[int, int, int]] = []

    def __call__(self, _bookies: Mapping[str, tuple[str, int]]) -> Any:
        return self

    def __enter__(self) -> FakeBookies:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def entries(self, ledger_id: int, told: bytes, first: int, stop: int) -> Iterator[Entry]:
        assert told == b"metadata of %d" % ledger_id
        self.asked.append((ledger_id, first, stop))
        for entry_id in range(first, stop):
            self.before_entry(self.given)
            if (ledger_id, entry_id) in self.damaged:
                raise EntryDamagedError(f"no replica has a sound copy of {ledger_id}:{entry_id}")
            ledgers = {ledger.ledger_id: ledger for ledger in self._cluster.logs[TOPIC].ledgers}
            if (ledger_id, entry_id) in self.missing:
                raise NoEntryError(f"no replica has entry {ledger_id}:{entry_id}")
            if ledger_id not in ledgers or entry_id >= len(ledgers[ledger_id].entries):
                raise NoEntryError(f"no replica has entry {ledger_id}:{entry_id}")
            payload = bytes(ledgers[ledger_id].entries[entry_id].payload())
            self.given += 1
            yield Entry(ledger_id, entry_id, payload, 0)


class World:
    """A log of three closed ledgers and an open one."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.bookies = FakeBookies(self.cluster)
        self.cluster.make(TOPIC)
        self.values: list[int] = []
        for _ in range(3):
            self.publish()
            self.cluster.logs[TOPIC].roll()
        self.publish()

    def publish(self) -> None:
        self.values += self.cluster.publish(TOPIC, 4)
        self.values += self.cluster.publish(TOPIC, 5, batched=True)

    def splits(self, splits: int = 1, or_broker: bool = False) -> list[Split]:
        extent = self.cluster.log(TOPIC).extent()
        part = PlannedRange(TOPIC, extent.kept_from, extent.end, extent.created_ms, 0, 36)
        options = _Options("storage", splits)
        splitter = StorageSplitter(options, _Logs(self.cluster), None, 1, WholeRanges())  # type: ignore[arg-type]
        found = splitter.split(part)
        for split in found:
            assert isinstance(split.by, ByStorage)
        return [Split(s.part, ByStorage(s.by.spans, or_broker)) for s in found]  # type: ignore[attr-defined]

    def read(self, split: Split, *, fatal: bool = True) -> list[int]:
        reports = LossReports(fatal=fatal)
        client: Any = self.cluster
        reading = StorageReading(client, split, reports, numbers=False, open_ledgers=self.bookies)
        batches = decoded(client, split.part, ["value"], reports, reading.entries())
        return [int(value) for batch in batches for value in batch.column(0).to_pylist()]


class _Options:
    split_bytes: int | None = 1 << 30

    def __init__(self, read_mode: str, partitions_min: int) -> None:
        self.read_mode = read_mode
        self.partitions_min = partitions_min


class _Logs:
    """As ``Planner`` asks."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._logs = cluster.logs
        self.ledgers = lambda name, start, end: self._logs[name].answer(_all_ledgers()).ledgers
        self.where = lambda name, ledger_id: self._logs[name].answer(None)


def _all_ledgers() -> LogQuestion:
    return LogQuestion(ledgers=True)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("count", [1, 2, 5, 13])
def test_every_message_once(world: World, count: int) -> None:
    splits = world.splits(count)
    assert len(splits) == count
    assert [value for split in splits for value in world.read(split)] == world.values
    assert not world.cluster.opened or all(topic == TOPIC for topic, _ in world.cluster.opened)


def test_the_cores_share_a_range_if_no_size_is_given(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.pipeline.planning.storage_splits.SPLIT_BYTES_MIN", 1)
    (whole,) = world.splits()

    def tasks(split_bytes: int | None, cores: int, ranges: int) -> int:
        options = _Options("storage", 1)
        options.split_bytes = split_bytes
        logs: Any = _Logs(world.cluster)
        reach: Any = None
        splitter = StorageSplitter(options, logs, reach, ranges, WholeRanges(), cores)  # type: ignore[arg-type]
        return len(splitter.split(whole.part))

    assert tasks(None, 4, 1) == 4
    assert tasks(None, 4, 3) == 2
    assert tasks(1 << 30, 4, 1) == 1


def test_a_range_within_batches(world: World) -> None:
    (split,) = world.splits()
    ids = [ledger.ledger_id for ledger in world.cluster.logs[TOPIC].ledgers]
    part = PlannedRange(
        TOPIC, Place(ids[0], 4, 2), Place(ids[1], 4, 3), split.part.created_ms, NO_OFFSETS
    )
    options = _Options("storage", 1)
    splitter = StorageSplitter(options, _Logs(world.cluster), None, 1, WholeRanges())  # type: ignore[arg-type]
    (piece,) = splitter.split(part)
    assert world.read(piece) == world.values[6:16]


def test_what_was_deleted_before_the_task_is_a_loss(world: World) -> None:
    (split,) = world.splits()
    world.cluster.logs[TOPIC].trim(2)
    with pytest.raises(DataLossError, match="retention or DeleteRecords has deleted"):
        world.read(split)
    assert world.read(split, fatal=False) == world.values[18:]


def test_what_is_deleted_while_it_is_read_is_a_loss(world: World) -> None:
    def trim(number: int) -> None:
        log = world.cluster.logs[TOPIC]
        if number == 7 and not log.gone:
            log.trim(2)

    (split,) = world.splits()
    world.bookies.before_entry = trim
    with pytest.raises(DataLossError, match="retention or DeleteRecords has deleted"):
        world.read(split)
    world = World()
    (split,) = world.splits()
    world.bookies.before_entry = trim
    found = world.read(split, fatal=False)
    assert found == world.values[:11] + world.values[18:]


def test_a_split_that_is_gone_ends(world: World) -> None:
    splits = world.splits(4)
    world.cluster.logs[TOPIC].trim(3)
    with pytest.raises(DataLossError):
        world.read(splits[0])
    assert world.read(splits[0], fatal=False) == []


def test_a_topic_that_is_gone_or_made_anew_is_a_loss(world: World) -> None:
    (split,) = world.splits()
    world.cluster.delete(TOPIC)
    with pytest.raises(DataLossError, match="not there any more"):
        world.read(split)
    assert world.read(split, fatal=False) == []
    world.cluster.make(TOPIC)
    world.publish()
    with pytest.raises(DataLossError, match="made anew"):
        world.read(split)


def test_bookies_out_of_reach_are_an_error(world: World) -> None:
    def fail(number: int) -> None:
        raise LedgerError("no replica gave entry 1:0")

    world.bookies.before_entry = fail
    (split,) = world.splits()
    with pytest.raises(BrokerError, match=r"readMode=storage, .*no replica gave"):
        world.read(split)


@pytest.mark.parametrize("error", [LedgerError("no replica gave it"), NoEntryError("no replica")])
@pytest.mark.parametrize("at", [0, 1, 5, 6, 12])
def test_the_rest_comes_through_the_broker(
    world: World, error: Exception, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(number: int) -> None:
        if number == at:
            raise error

    world.bookies.before_entry = fail
    (split,) = world.splits(or_broker=True)
    with caplog.at_level(logging.WARNING, "magnetar.pipeline"):
        assert world.read(split) == world.values
    assert world.bookies.given == at
    assert "is read through the broker, as its entries cannot be read at the bookies" in caplog.text
    assert len(caplog.records) == 1


def test_a_broker_that_tells_nothing_is_read_through(world: World) -> None:
    world.cluster.logs[TOPIC].tells_bookies = False
    (split,) = world.splits(or_broker=True)
    assert world.read(split) == world.values
    assert world.bookies.given == 0
    (split,) = world.splits()
    with pytest.raises(BrokerError, match="the broker does not tell where they are"):
        world.read(split)


def test_a_broker_that_restarts_ends_no_task(world: World) -> None:
    (split,) = world.splits()
    world.cluster.failures = 1
    assert world.read(split) == world.values


@pytest.mark.parametrize("or_broker", [True, False])
def test_an_entry_without_a_sound_copy_is_a_loss(
    world: World, or_broker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.pipeline.reading.storage_reading.LOST_AGAIN_S", 0.0)
    (split,) = world.splits(or_broker=or_broker)
    (first, second, *_) = (ledger.ledger_id for ledger in world.cluster.logs[TOPIC].ledgers)
    world.bookies.damaged = {(first, 1), (first, 2), (second, 4)}  # the last one is a batch
    with pytest.raises(DataLossError, match=f"{TOPIC}: entry {first}:1 is lost: no .*failOnDataLo"):
        world.read(split)
    left = [value for value in world.values if value not in {1, 2, *range(13, 18)}]
    assert world.read(split, fatal=False) == left


def test_an_entry_that_no_bookie_has_is_a_loss_where_no_broker_is_asked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was an error, whatever ``failOnDataLoss`` said, which led to ``readMode=auto``: there it
    was a loss."""
    monkeypatch.setattr("magnetar.pipeline.reading.storage_reading.LOST_AGAIN_S", 0.0)
    (split,) = world.splits()
    (first, second, *_) = (ledger.ledger_id for ledger in world.cluster.logs[TOPIC].ledgers)
    world.bookies.missing = {(first, 0), (first, 2), (first, 3), (second, 4)}
    with pytest.raises(DataLossError, match=f"{TOPIC}: entry {first}:0 is lost: no replica has"):
        world.read(split)
    left = [value for value in world.values if value not in {0, 2, 3, *range(13, 18)}]
    assert world.read(split, fatal=False) == left
    (split,) = world.splits(or_broker=True)
    assert world.read(split) == world.values, "the broker has them, here"


def test_a_ledger_that_moved_is_read_where_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (split,) = world.splits()
    first = world.cluster.logs[TOPIC].ledgers[0].ledger_id
    world.bookies.damaged = {(first, 2)}
    monkeypatch.setattr(
        "magnetar.pipeline.reading.storage_reading.time.sleep",
        lambda _s: world.bookies.damaged.clear(),  # its other copy came to a new bookie
    )
    assert world.read(split) == world.values


# -- the driver ---------------------------------------------------------------------------------


def test_the_driver_looks_for_bookies_again_after_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s, reached = [0.0], [False]

    class _Socket:
        def close(self) -> None:
            pass

    def connect(address: tuple[str, int], timeout_s: float) -> _Socket:
        if not reached[0]:
            raise ConnectionRefusedError("refused")
        return _Socket()

    monkeypatch.setattr("magnetar.pipeline.planning.storage_planning._connect", connect)
    reach = BookieReach(_Logs(world.cluster), lambda: now_s[0])  # type: ignore[arg-type]
    stored = _stored(world)
    with caplog.at_level(logging.WARNING, "magnetar.pipeline"):
        assert not reach.reached(stored)
        assert not reach.reached(stored)
        now_s[0] = 61.0
        assert not reach.reached(stored)
    assert len(caplog.records) == 1
    assert "bookie b at 127.0.0.1:1 is out of reach: refused" in caplog.text
    reached[0] = True
    assert not reach.reached(stored)
    now_s[0] = 130.0
    assert reach.reached(stored)


def _stored(world: World) -> Any:
    (split,) = world.splits()
    return stored_range(split.part, world.cluster.logs[TOPIC].answer(_all_ledgers()).ledgers)


def test_the_planner_asks_once_for_all_ledgers(world: World) -> None:
    """And for none of them alone: planning costs one question, however many there are."""
    options: Any = _Options("storage", 1)
    options.service_url, options.poll_timeout_ms, options.fail_on_data_loss = "", 1000, True
    planner = Planner(options, world.cluster)  # type: ignore[arg-type]
    extent = world.cluster.log(TOPIC).extent()
    part = PlannedRange(TOPIC, extent.kept_from, extent.end, extent.created_ms)
    StorageSplitter(options, planner, BookieReach(planner), 1, WholeRanges()).split(part)
    assert len(world.cluster.questions) == 1
