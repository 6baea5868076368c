"""Reads straight from storage: three bookies as processes, a broker that rolls ledgers early, a
real ZooKeeper, and Spark's tasks that fetch entries from the bookies."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from magnetar.env.network.free_ports import free_port
from magnetar.model.errors import BrokerError
from magnetar.pipeline.planning.splits import ByBroker
from magnetar.pipeline.planning.storage_splits import ByStorage
from magnetar.pipeline.reading.batch_reader import BatchReader, SplitPartition
from magnetar.pipeline.schema import spark_schema
from magnetar.pipeline.source import MagnetarDataSource
from tests.scenarios.cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.timeout(600)]

ROWS = 10_000


class StoredTopic:
    """A topic of one partition over several ledgers, the last of them open."""

    def __init__(self, cluster: Cluster, service_url: str) -> None:
        self.cluster = cluster
        self.service_url = service_url
        self.name = "history"

    def options(self, **more: str) -> dict[str, str]:
        return {"service.url": self.service_url, "topic": self.name, **more}

    def frame(self, spark: SparkSession, **more: str) -> DataFrame:
        return spark.read.format("magnetar").options(**self.options(**more)).load()

    def plan(self, **more: str) -> tuple[BatchReader, list[SplitPartition]]:
        """A reader as Spark has it on the driver, and its tasks."""
        source = MagnetarDataSource(self.options(**more))
        reader = source.reader(spark_schema(["value", "offset"]))
        assert isinstance(reader, BatchReader)
        tasks = list(reader.partitions())
        assert all(isinstance(task, SplitPartition) for task in tasks)
        return reader, tasks  # type: ignore[return-value]


@pytest.fixture(scope="module")
def stored(zookeeper: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredTopic]:
    address = zookeeper.address  # type: ignore[attr-defined]
    cluster = Cluster(tmp_path_factory.mktemp("storage"), f"zk://{address}/spark-storage", 3)
    cluster.start_bookies()
    port = free_port()
    rolling = ("--set", "ledger.ledger_entries_max=8")
    cluster.begin_broker(port, (3, 2, 2), more=rolling).wait_ready()
    topic = StoredTopic(cluster, f"pulsar://127.0.0.1:{port}")
    publish(topic)
    yield topic
    cluster.end()


def publish(topic: StoredTopic) -> None:
    client = pulsar.Client(topic.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(
        topic.name, batching_enabled=True, batching_max_messages=500, block_if_queue_full=True,
        compression_type=pulsar.CompressionType.ZSTD,
    )  # fmt: skip
    for number in range(ROWS):
        producer.send_async(
            b"%06d-" % number + b"x" * 200,
            lambda _result, _id: None,
            partition_key=f"key-{number % 5}",
            properties={"parity": str(number % 2)},
            event_timestamp=1_700_000_000_000 + number,
        )
    producer.flush()
    large = client.create_producer(topic.name, batching_enabled=False, chunking_enabled=True)
    large.send(b"large-" + bytes(6 << 20))
    client.close()


ALL = "key,value,topic,partition,message_id,publish_time,event_time,properties,offset"


def rows(frame: DataFrame) -> pa.Table:
    return frame.toArrow().sort_by("offset").combine_chunks()


def test_the_same_rows_as_through_the_broker(spark: SparkSession, stored: StoredTopic) -> None:
    at_bookies = stored.frame(spark, readMode="storage", columns=ALL, maxPartitionBytes="64k")
    assert at_bookies.rdd.getNumPartitions() > 4
    found = rows(at_bookies)
    assert found.num_rows == ROWS + 1
    assert found.column("offset").to_pylist()[:ROWS] == list(range(ROWS))
    assert found == rows(stored.frame(spark, readMode="broker", columns=ALL))


def test_splits_cover_the_open_ledger_too(stored: StoredTopic) -> None:
    reader, tasks = stored.plan(readMode="storage", minPartitions="7")
    assert len(tasks) == 7
    assert all(isinstance(task.splits[0].by, ByStorage) for task in tasks)
    spans = [span for task in tasks for span in task.splits[0].by.spans]
    assert len({span.ledger_id for span in spans}) >= 3
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == ROWS + 1


def test_auto_takes_storage_for_what_is_large(stored: StoredTopic) -> None:
    _, tasks = stored.plan(readMode="auto")
    assert all(isinstance(task.splits[0].by, ByStorage) for task in tasks)
    assert all(task.splits[0].by.or_broker for task in tasks)
    _, broker = stored.plan(readMode="broker")
    assert [type(task.splits[0].by) for task in broker] == [ByBroker]


def test_a_stream_reads_at_the_bookies(
    spark: SparkSession, stored: StoredTopic, tmp_path: Path
) -> None:
    options = stored.options(readMode="storage", maxOffsetsPerTrigger="4000", columns="offset")
    found: list[int] = []

    def take(batch: DataFrame, _id: int) -> None:
        found.extend(row["offset"] for row in batch.collect())

    stream = spark.readStream.format("magnetar").options(**options, startingOffsets="earliest")
    query = (
        stream.load().writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    assert sorted(found)[:ROWS] == list(range(ROWS))
    assert len(found) == ROWS + 1


def test_any_replica_will_do(stored: StoredTopic) -> None:
    reader, tasks = stored.plan(readMode="storage")
    bookie = stored.cluster.bookies[0]
    bookie.kill()
    try:
        assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == ROWS + 1
    finally:
        bookie.start()


def test_out_of_reach_is_an_error_or_means_the_broker(
    stored: StoredTopic, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A task that reaches the broker and not the bookies, as behind a firewall."""
    storage, storage_tasks = stored.plan(readMode="storage")
    auto, auto_tasks = stored.plan(readMode="auto")
    nowhere = free_port()
    read = "magnetar.ledger.told_ledgers.ToldLedgers._resolve"

    async def firewall(self: object, bookie_id: object) -> tuple[str, int]:
        return "127.0.0.1", nowhere

    monkeypatch.setattr(read, firewall)
    with pytest.raises(
        BrokerError, match=r"readMode=storage.*readMode=auto reads through the broker"
    ):
        list(storage.read(storage_tasks[0]))
    with caplog.at_level(logging.WARNING, "magnetar.pipeline"):
        found = [
            offset
            for task in auto_tasks
            for batch in auto.read(task)
            for offset in batch.column("offset").to_pylist()
        ]
    assert found[:ROWS] == list(range(ROWS))
    assert "is read through the broker, as its entries cannot be read at the bookies" in caplog.text


def test_the_driver_finds_bookies_out_of_reach(
    stored: StoredTopic, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(address: object, timeout: object) -> object:
        raise ConnectionRefusedError("refused")

    with caplog.at_level(logging.WARNING, "magnetar.pipeline"):
        monkeypatch.setattr("magnetar.pipeline.planning.storage_planning._connect", refused)
        _, tasks = stored.plan(readMode="auto")
    assert [type(task.splits[0].by) for task in tasks] == [ByBroker]
    assert "out of reach: refused" in caplog.text
