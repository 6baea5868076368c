"""What the source reads does not depend on the engine under a topic, nor on who wrote it: batches,
whose ids are offsets on partitions, and Kafka's transactions. Without Spark's Java."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pulsar
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from magnetar.env.network.free_ports import free_port
from magnetar.model.errors import BrokerError
from magnetar.pipeline.reading.stream_reader import StreamReader
from magnetar.pipeline.source import MagnetarDataSource
from tests.integration.spark.test_batch import publish
from tests.standalone import Standalone

pytestmark = pytest.mark.spark

Row = dict[str, Any]


class Platform(Standalone):
    def __init__(self, folder: Path, engine: str) -> None:
        self.kafka_port = free_port()
        super().__init__(
            folder, "--set", f"broker.engine={engine}", "--kafka-port", str(self.kafka_port)
        )


@pytest.fixture(scope="module", params=["ledger", "partition"])
def platform(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Platform]:
    with Platform(tmp_path_factory.mktemp("engines") / "data", request.param) as running:
        yield running


def read(platform: Platform, topic: str, **given: str) -> list[Row]:
    options = {"service.url": platform.service_url, "topic": topic, "pinTimeoutMs": "0"}
    source = MagnetarDataSource(options | {"columns": "value,offset"} | given)
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    batches = (cast("Iterator[pa.RecordBatch]", reader.read(task)) for task in tasks)
    return [row for task in batches for batch in task for row in batch.to_pylist()]


@pytest.mark.parametrize("batching", [True, False])
def test_messages_and_their_offsets(
    platform: Platform, client: pulsar.Client, topic: str, batching: bool
) -> None:
    """A batch on a partition looked as if entries were missing behind it."""
    publish(client, topic, 50, batching=batching)
    rows = [{"value": b"%d" % number, "offset": number} for number in range(50)]
    assert read(platform, topic) == rows
    assert read(platform, topic, readMode="broker", minPartitions="4") == rows
    for first in (1, 7, 48):
        where = json.dumps({topic: {"0": first}})
        assert read(platform, topic, startingOffsets=where) == rows[first:]
        assert read(platform, topic, endingOffsets=where) == rows[:first]


def test_micro_batches_and_tasks_are_of_equal_size(
    platform: Platform, client: pulsar.Client, topic: str
) -> None:
    """On partitions a micro-batch had a part of what it might, and a later one all there was."""
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=10, block_if_queue_full=True
    )
    for _ in range(400):
        producer.send_async(bytes(1000), lambda _result, _id: None)
    producer.flush()
    options = {"service.url": platform.service_url, "topic": topic, "maxBytesPerTrigger": "100k"}
    source = MagnetarDataSource(options)
    stream = cast("StreamReader", source.streamReader(source.schema()))
    ends, offset = [], stream.initialOffset()
    offset = stream.latestOffset(offset, stream.getDefaultReadLimit())
    while not ends or ends[-1] < 400:
        offset = stream.latestOffset(offset, stream.getDefaultReadLimit())
        ends.append(next(iter(cast("dict[str, int]", offset["offsets"]).values())))
    stream.stop()
    assert len(ends) == 4
    assert all(80 <= end - before <= 120 for before, end in pairwise([0, *ends]))
    reader = MagnetarDataSource(options | {"minPartitions": "4", "readMode": "broker"}).reader(
        source.schema()
    )
    tasks = [list(cast("Iterator[pa.RecordBatch]", reader.read(t))) for t in reader.partitions()]
    rows = [sum(batch.num_rows for batch in task) for task in tasks]
    assert sum(rows) == 400
    assert all(90 <= each <= 110 for each in rows)


@pytest.mark.parametrize("last", ["committed", "aborted"])
def test_what_transactions_aborted_is_not_there(platform: Platform, topic: str, last: str) -> None:
    """Its place was told as a loss, and a query that met a transaction ended."""
    producer = Producer(
        {"bootstrap.servers": f"127.0.0.1:{platform.kafka_port}", "transactional.id": topic}
    )
    producer.init_transactions(60)
    wanted: list[Row] = []
    commits = [True, False, False, True, *([False] if last == "aborted" else [])]
    for number, committed in enumerate(commits):
        producer.begin_transaction()
        for index in range(3):
            value = b"%d-%d" % (number, index)
            producer.produce(topic, value, partition=0)
            if committed:
                wanted.append({"value": value, "offset": 4 * number + index})
        producer.flush(60)
        if committed:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
    assert read(platform, topic) == wanted
    if platform.arguments[1].endswith("ledger"):
        with pytest.raises(BrokerError, match=r"readMode=storage, .*a transaction of a Kafka prod"):
            read(platform, topic, readMode="storage")


def test_filters_by_times_that_do_not_rise(platform: Platform, topic: str) -> None:
    """On partitions rows were left out that were published before the first one."""
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{platform.kafka_port}"})
    times_ms = [5000, 1000, 3000, 9000, 2000]
    for number, time_ms in enumerate(times_ms):
        producer.produce(topic, b"%d" % number, partition=0, timestamp=time_ms)
        producer.flush(60)
    for sign, kept in (
        ("<", lambda time_ms: time_ms < 3000),
        ("<=", lambda time_ms: time_ms <= 3000),
        (">", lambda time_ms: time_ms > 3000),
        ("=", lambda time_ms: time_ms == 3000),
    ):
        rows = read(platform, topic, filter=f"publish_time {sign} timestamp'1970-01-01 00:00:03 Z'")
        wanted = [number for number, time_ms in enumerate(times_ms) if kept(time_ms)]
        assert [row["offset"] for row in rows] == wanted
