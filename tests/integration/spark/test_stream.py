"""Streaming reads and writes: offsets that survive, limits, available-now."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pulsar
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.integration.spark.test_batch import publish
from tests.standalone import Standalone

pytestmark = pytest.mark.spark


def stream(spark: SparkSession, platform: Standalone, topic: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("magnetar").option("service.url", platform.service_url)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.option("topic", topic).load()


class Collected:
    """A sink that remembers every micro-batch it was given (last attempt wins)."""

    def __init__(self) -> None:
        self.batches: dict[int, list[int]] = {}
        self.fail_at: int | None = None

    def __call__(self, frame: DataFrame, number: int) -> None:
        values = [int(row.value) for row in frame.select("value").collect()]
        if self.fail_at == number:
            self.fail_at = None
            raise RuntimeError("planted failure")
        self.batches[number] = values

    @property
    def values(self) -> list[int]:
        return [value for number in sorted(self.batches) for value in self.batches[number]]


def run_available(frame: DataFrame, sink: Collected, checkpoint: Path) -> StreamingQuery:
    query = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(250)
    return query


def test_available_now_in_limited_batches_then_only_what_is_new(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, 100, batching=True)
    sink = Collected()
    frame = stream(spark, platform, topic, maxOffsetsPerTrigger="30")
    run_available(frame, sink, tmp_path / "checkpoint")
    assert sink.values == list(range(100))
    assert [len(v) for v in sink.batches.values() if v] == [30, 30, 30, 10]
    publish(client, topic, 25, batching=False, first=100)
    run_available(frame, sink, tmp_path / "checkpoint")
    assert sink.values == list(range(125))
    run_available(frame, sink, tmp_path / "checkpoint")
    assert sink.values == list(range(125))


def test_a_failed_batch_is_read_again_the_same(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, 50, batching=True)
    sink = Collected()
    sink.fail_at = 1
    frame = stream(spark, platform, topic)
    with pytest.raises(StreamingQueryException, match="planted failure"):
        run_available(frame, sink, tmp_path / "checkpoint")
    publish(client, topic, 50, batching=True, first=50)
    run_available(frame, sink, tmp_path / "checkpoint")
    assert sink.batches[1] == list(range(50))
    assert sink.values == list(range(100))


def test_latest_is_pinned_before_the_first_batch(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    """Messages that arrive while the first micro-batch fails are not skipped at the restart."""
    publish(client, topic, 10, batching=False)
    sink = Collected()
    sink.fail_at = 0
    frame = stream(spark, platform, topic, startingOffsets="latest")
    with pytest.raises(StreamingQueryException, match="planted failure"):
        run_available(frame, sink, tmp_path / "checkpoint")
    publish(client, topic, 10, batching=False, first=10)
    run_available(frame, sink, tmp_path / "checkpoint")
    assert sink.values == list(range(10, 20))


def test_a_topic_streams_into_another(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, 200, batching=True)
    copy = topic + "-copy"
    query = (
        stream(spark, platform, topic)
        .select("key", "value", "event_time", "properties")
        .writeStream.format("magnetar")
        .option("service.url", platform.service_url)
        .option("topic", copy)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    publish(client, topic, 100, batching=False, first=200)
    query.processAllAvailable()
    query.stop()
    reader = client.create_reader(copy, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        message = reader.read_next(60_000)
        found.append(int(message.data()))
        assert message.event_timestamp() == 1_700_000_000_000 + found[-1]
        assert message.properties() == {"parity": str(found[-1] % 2)}
    reader.close()
    assert sorted(found) == list(range(300))


def test_an_older_copy_of_a_checkpoint_is_refused(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    """What was read by it went nowhere, and the query said that all was well: its numbers of
    batches were those of others, which were committed."""
    copy, checkpoint, older = topic + "-copy", tmp_path / "checkpoint", tmp_path / "older"

    def copied(by: Path) -> None:
        query = (
            stream(spark, platform, topic)
            .select("key", "value")
            .writeStream.format("magnetar")
            .option("service.url", platform.service_url)
            .option("topic", copy)
            .option("commitWait", "taken-in")
            .option("checkpointLocation", str(by))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(250)

    for number in range(4):
        publish(client, topic, 5, batching=False, first=number * 5)
        copied(checkpoint)
        if number == 0:
            shutil.copytree(checkpoint, older)
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="its checkpoint is an older copy"):
            copied(older)
    copied(checkpoint)
    reader = client.create_reader(copy, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(int(reader.read_next(60_000).data()))
    reader.close()
    assert sorted(found) == list(range(20))


def test_a_stream_that_stops_holds_nothing(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    """Spark ends the process that plans a stream before it hears of that, and what it had held was
    kept from retention for twenty minutes."""

    def holders() -> list[str]:
        path = f"/admin/v2/persistent/public/default/{topic}/internalStats"
        return [each["holder"] for each in httpx.get(platform.http_url + path).json()["holds"]]

    def wait_for(held: bool) -> None:
        deadline = time.monotonic() + 60
        while bool(holders()) is not held:
            assert time.monotonic() < deadline, holders()
            time.sleep(0.1)

    publish(client, topic, 10, batching=False)
    query = (
        stream(spark, platform, topic)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    wait_for(True)
    query.stop()
    wait_for(False)
    run_available(stream(spark, platform, topic), Collected(), tmp_path / "other")
    wait_for(False)


def test_progress_tells_the_lag(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, 40, batching=False)
    sink = Collected()
    frame = stream(spark, platform, topic, maxOffsetsPerTrigger="10")
    query = run_available(frame, sink, tmp_path / "checkpoint")
    rows = [progress.numInputRows for progress in query.recentProgress]
    assert sum(rows) == 40
    sources = [progress.sources[0] for progress in query.recentProgress if progress.numInputRows]
    name = f"persistent://public/default/{topic}"
    latest = [json.loads(source.latestOffset) for source in sources]
    assert [told["messages_behind"] for told in latest] == [30, 20, 10, 0]
    assert [told["behind"][name] for told in latest] == [30, 20, 10, 0]
    ends = [json.loads(source.endOffset)["offsets"][name] for source in sources]
    assert ends == [10, 20, 30, 40]


def test_limits_by_bytes_and_by_the_least_number(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(20):
        producer.send(b"%d" % number + b" " * 10_000)
    producer.close()
    sink = Collected()
    frame = stream(spark, platform, topic, maxBytesPerTrigger="50k")
    run_available(frame, sink, tmp_path / "checkpoint")
    assert sink.values == list(range(20))
    assert all(len(values) <= 5 for values in sink.batches.values())
    assert len(sink.batches) <= 7
    waiting = Collected()
    least = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h", "startingOffsets": "latest"}
    query = (
        stream(spark, platform, topic, **least)
        .writeStream.foreachBatch(waiting)
        .option("checkpointLocation", str(tmp_path / "least"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        wait_until(lambda: query.lastProgress is not None)
        publish(client, topic, 6, batching=False, first=20)
        ticks = len(query.recentProgress)
        time.sleep(1.5)
        assert waiting.values in ([], list(range(20, 26)))  # the first one does not wait
        ten = client.create_producer(topic, batching_max_publish_delay_ms=60_000)
        for number in range(26, 36):  # all ten at once: with a part of them there may be ten too
            ten.send_async(b"%d" % number, None)
        ten.flush()
        ten.close()
        wait_until(lambda: len(waiting.values) == 16)
        assert ticks <= len(query.recentProgress)
    finally:
        query.stop()
    assert waiting.values == list(range(20, 36))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_broker_that_restarts_ends_no_query(
    spark: SparkSession, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    with Standalone(tmp_path / "own") as own:
        mine = pulsar.Client(own.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        publish(mine, topic, 10, batching=True)
        sink = Collected()
        query = (
            stream(spark, own, topic)
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            query.processAllAvailable()
            own.kill()
            own.start()
            publish(mine, topic, 10, batching=True, first=10)
            query.processAllAvailable()
        finally:
            query.stop()
            mine.close()
        assert sink.values == list(range(20))
