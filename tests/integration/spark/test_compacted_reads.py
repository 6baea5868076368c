"""What compaction left of a partition's log, read by the source: the same messages with their own
offsets from wherever a read starts, and nothing is called lost. Without Spark's Java."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeAlias, cast

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from magnetar.pipeline.reading.stream_reader import StreamReader
from magnetar.pipeline.source import MagnetarDataSource
from tests.integration.test_kafka_admin import admin_of, made
from tests.integration.test_kafka_clients import KafkaStandalone, until
from tests.integration.test_kafka_compaction import (
    DIRTY,
    SETTINGS,
    is_compacted,
    put,
    to_the_end,
)

pytestmark = pytest.mark.spark

MESSAGES = 2000

Row: TypeAlias = tuple[bytes, int]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaStandalone]:
    folder = tmp_path_factory.mktemp("compacted")
    with KafkaStandalone(folder / "data", *SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def topic(server: KafkaStandalone) -> str:
    """Its first 1500 messages, at least, are gone."""
    made(admin_of(server), "compacted", cleanup_policy="compact", **DIRTY)
    put(server, "compacted", 0, MESSAGES)
    until(lambda: is_compacted(server, "compacted", 500), "it is compacted")
    return "compacted"


def left_of(server: KafkaStandalone, topic: str) -> list[Row]:
    return [(each.value(), each.offset()) for each in to_the_end(server, topic)]


def source(server: KafkaStandalone, topic: str, **given: str) -> MagnetarDataSource:
    options = {"service.url": server.service_url, "topic": topic, "pinTimeoutMs": "0"}
    return MagnetarDataSource(options | {"columns": "value,offset"} | given)


def rows_of(reader: Any, tasks: Any) -> list[Row]:
    batches = [
        batch for task in tasks for batch in cast("Iterator[pa.RecordBatch]", reader.read(task))
    ]
    return [(row["value"], row["offset"]) for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("first", [0, 275, 1000, 1999])
def test_a_read_from_what_was_compacted_away(
    server: KafkaStandalone, topic: str, first: int
) -> None:
    """It was told that retention had deleted it."""
    where = json.dumps({topic: {"0": first}})
    read = source(server, topic, startingOffsets=where)
    reader = read.reader(read.schema())
    left = left_of(server, topic)
    assert rows_of(reader, reader.partitions()) == [row for row in left if row[1] >= first]
    read = source(server, topic, endingOffsets=where)
    reader = read.reader(read.schema())
    assert rows_of(reader, reader.partitions()) == [row for row in left if row[1] < first]


def test_a_checkpoint_with_a_number_of_what_was_compacted_away(
    server: KafkaStandalone, topic: str
) -> None:
    """As earlier releases planned it: one micro-batch had the offsets of other messages, and with
    less than these a micro-batch the query stood still."""
    left = left_of(server, topic)
    read = source(server, topic, maxOffsetsPerTrigger="5")
    stream = cast("StreamReader", read.streamReader(read.schema()))
    begin = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    former = stream.latestOffset(begin, stream.getDefaultReadLimit())
    numbers = cast("dict[str, int]", former["offsets"])
    ((name, first),) = numbers.items()
    former = former | {"offsets": {name: first - 18}}
    assert stream.latestOffset(former, stream.getDefaultReadLimit())["offsets"][name] > first  # type: ignore[index]
    following = stream.latestOffset(former, ReadAllAvailable())
    rows = rows_of(stream, stream.partitions(former, following))
    stream.getCache(former, following)
    assert rows == [row for row in left if row[1] >= first]
    again = cast("StreamReader", read.streamReader(read.schema()))  # planned before a restart
    assert rows_of(again, again.partitions(former, following)) == rows
    for each in (stream, again):
        each.stop()


def test_a_stream_over_what_was_compacted_away(server: KafkaStandalone, topic: str) -> None:
    """Behind it the offsets were those of messages that are gone."""
    start = json.dumps({topic: {"0": 100}})
    read = source(server, topic, startingOffsets=start, maxOffsetsPerTrigger="51")
    stream = cast("StreamReader", read.streamReader(read.schema()))
    rows: list[Row] = []
    offset = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    while True:
        following = stream.latestOffset(offset, stream.getDefaultReadLimit())
        if following == offset:
            break
        tasks = stream.partitions(offset, following)
        stream.getCache(offset, following)  # if they came with the plan: tasks read the same
        rows += rows_of(stream, tasks)
        offset = following
    stream.stop()
    assert rows == left_of(server, topic)
