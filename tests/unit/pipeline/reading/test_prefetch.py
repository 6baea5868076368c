"""Small micro-batches are read with their plan, by readers that stay open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pyarrow as pa
import pytest

from magnetar.pipeline.loss_reports import LossReports
from magnetar.pipeline.places import START, Place
from magnetar.pipeline.planning.splits import PlannedRange, Split
from magnetar.pipeline.reading import prefetch
from magnetar.pipeline.reading.decode import read_range
from magnetar.pipeline.reading.prefetch import MESSAGES_MAX, RANGES_MAX, Prefetch
from magnetar.pipeline.reading.tails import IDLE_S, TAILS_MAX, Readers, Tails, TooMuchError
from tests.unit.pipeline.fake_cluster import FakeCluster

TOPIC = "persistent://public/default/t"


class Stream:
    """A stream of one topic that reads what is new, as often as it is told."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.cluster.make(TOPIC)
        self.start, self.start_offset = START, 0
        self.now_s = 0.0
        self.prefetch = Prefetch(cast(Readers, self.cluster), self._rows)
        self.prefetch._tails = Tails(
            cast(Readers, self.cluster), self.cluster.timeout_s, lambda: self.now_s
        )

    @staticmethod
    def _rows(split: Split, client: Readers) -> Iterator[pa.RecordBatch]:
        return read_range(client, split.part, ("value",), LossReports(fatal=True))

    def part(self) -> PlannedRange:
        """What is new."""
        extent = self.cluster.logs[TOPIC].extent()
        found = PlannedRange(
            TOPIC, self.start, extent.end, extent.created_ms, self.start_offset, extent.end_offset
        )
        self.start, self.start_offset = extent.end, extent.end_offset
        return found

    def read(self) -> list[int] | None:
        rows = self.prefetch.read([self.part()])
        return None if rows is None else _values(rows)

    @property
    def opened(self) -> int:
        return len(self.cluster.opened)


def _values(rows: list[pa.RecordBatch]) -> list[int]:
    return [int(value) for batch in rows for value in batch.column("value").to_pylist()]


def test_one_reader_follows_the_topic() -> None:
    stream = Stream()
    for batched in (False, True, False, True):
        written = stream.cluster.publish(TOPIC, 5, batched)
        assert stream.read() == written
    assert stream.opened == 1


def test_it_follows_into_the_next_ledger() -> None:
    stream = Stream()
    stream.cluster.publish(TOPIC, 2)
    stream.read()
    stream.cluster.logs[TOPIC].roll()
    written = stream.cluster.publish(TOPIC, 3)
    assert stream.read() == written
    assert stream.opened == 1


def test_a_range_that_begins_elsewhere_gets_a_reader_of_its_own() -> None:
    stream = Stream()
    stream.cluster.publish(TOPIC, 2)
    stream.read()
    stream.cluster.publish(TOPIC, 5)
    stream.part()
    written = stream.cluster.publish(TOPIC, 3)
    assert stream.read() == written
    assert stream.opened == 2


def test_readers_do_not_stay_behind_where_tasks_read() -> None:
    stream = Stream()
    stream.cluster.publish(TOPIC, 2)
    stream.read()
    assert stream.cluster.open_readers == 1
    stream.cluster.publish(TOPIC, MESSAGES_MAX + 1, batched=True)
    assert stream.read() is None
    assert stream.cluster.open_readers == 0


def test_a_range_within_a_batch() -> None:
    stream = Stream()
    written = stream.cluster.publish(TOPIC, 5, batched=True)
    whole = stream.part()
    first = whole.end._replace(entry_id=whole.end.entry_id - 1)
    parts = [
        PlannedRange(TOPIC, START, first._replace(batch_index=3), whole.created_ms, 0, 3),
        PlannedRange(TOPIC, first._replace(batch_index=3), whole.end, whole.created_ms, 3, 5),
    ]
    found = [_values(stream.prefetch.read([part]) or []) for part in parts]
    assert found == [written[:3], written[3:]]


def test_a_reader_that_was_idle_for_long_is_replaced() -> None:
    """Nobody has answered its broker's pings."""
    stream = Stream()
    stream.cluster.publish(TOPIC, 2)
    stream.read()
    stream.now_s += IDLE_S
    written = stream.cluster.publish(TOPIC, 2)
    assert stream.read() == written
    assert stream.opened == 2


def test_what_fails_is_left_to_tasks_and_the_next_is_read_again() -> None:
    stream = Stream()
    stream.cluster.publish(TOPIC, 2)
    stream.read()
    stream.cluster.publish(TOPIC, 2)
    stream.cluster.failures = 1000
    assert stream.read() is None
    stream.cluster.failures = 0
    written = stream.cluster.publish(TOPIC, 2)
    assert stream.read() == written


def test_a_loss_is_left_to_tasks_to_tell() -> None:
    stream = Stream()
    stream.cluster.publish(TOPIC, 2)
    stream.cluster.logs[TOPIC].roll()
    stream.cluster.publish(TOPIC, 2)
    part = stream.part()
    stream.cluster.logs[TOPIC].trim(1)
    assert stream.prefetch.read([part]) is None


def test_large_micro_batches_are_left_to_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    stream.cluster.publish(TOPIC, MESSAGES_MAX + 1, batched=True)
    assert stream.read() is None
    assert stream.opened == 0
    monkeypatch.setattr(prefetch, "BYTES_MAX", 100)
    stream.cluster.publish(TOPIC, 50, batched=True)
    assert stream.read() is None  # found out when it was read
    before = stream.opened
    stream.cluster.publish(TOPIC, 50, batched=True)
    assert stream.read() is None
    assert stream.opened == before  # and known from then on
    written = stream.cluster.publish(TOPIC, 2)
    assert stream.read() == written


def test_rows_that_were_compressed_are_left_to_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "ROW_BYTES_MAX", 10)
    stream = Stream()
    stream.cluster.publish(TOPIC, 50, batched=True)
    assert stream.read() is None


def test_many_ranges_and_uncounted_ones_are_left_to_tasks() -> None:
    stream = Stream()
    stream.cluster.publish(TOPIC, 2)
    part = stream.part()
    assert stream.prefetch.read([part] * (RANGES_MAX + 1)) is None
    assert stream.prefetch.read([part.piece(part.start, part.end)]) is not None
    uncounted = PlannedRange(TOPIC, START, part.end, part.created_ms)
    assert stream.prefetch.read([uncounted]) is None


class CountedReader:
    """A reader without entries."""

    def __init__(self, open_ones: list[CountedReader]) -> None:
        self._open = open_ones
        open_ones.append(self)

    def close(self) -> None:
        self._open.remove(self)


class Opener:
    timeout_s = 1.0

    def __init__(self) -> None:
        self.open_ones: list[CountedReader] = []

    def open(self, topic: str, place: Place = START) -> CountedReader:
        return CountedReader(self.open_ones)


def test_readers_that_are_kept_are_bounded() -> None:
    opener = Opener()
    tails = Tails(cast(Readers, opener), 1.0)
    for number in range(TAILS_MAX + 5):
        with tails.open(f"t{number}", Place(1, 0, 0)):
            pass
    assert len(opener.open_ones) == TAILS_MAX
    tails.close()
    assert opener.open_ones == []


def test_readers_that_failed_or_asked_only_are_closed() -> None:
    opener = Opener()
    tails = Tails(cast(Readers, opener), 1.0)
    with tails.open("t"):
        assert len(opener.open_ones) == 1
    tails.begin(10)
    with pytest.raises(TooMuchError), tails.open("t", Place(1, 0, 0)):
        tails.take(11)
    assert opener.open_ones == []
