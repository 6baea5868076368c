"""Batch reads and writes of topics with a real Spark and the official client."""

from __future__ import annotations

import datetime as dt
import json
import time

import httpx
import pulsar
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.standalone import Standalone

pytestmark = pytest.mark.spark


def publish(
    client: pulsar.Client, topic: str, count: int, *, batching: bool, first: int = 0
) -> None:
    producer = client.create_producer(
        topic, batching_enabled=batching, batching_max_messages=7, block_if_queue_full=True
    )
    for number in range(first, first + count):
        producer.send_async(
            b"%d" % number,
            lambda _result, _id: None,
            partition_key=f"key-{number % 5}",
            properties={"parity": str(number % 2)},
            event_timestamp=1_700_000_000_000 + number,
        )
    producer.flush()
    producer.close()


def read(spark: SparkSession, platform: Standalone, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("magnetar").option("service.url", platform.service_url)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.option("topic", topic).load()


def numbers(frame: DataFrame) -> list[int]:
    return [int(row.value) for row in frame.select("value").collect()]


@pytest.mark.parametrize("batching", [True, False])
def test_every_column(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, batching: bool
) -> None:
    before = dt.datetime.now(dt.UTC).replace(tzinfo=None) - dt.timedelta(minutes=1)
    publish(client, topic, 100, batching=batching)
    frame = read(spark, platform, topic)
    rows = frame.orderBy("message_id").collect()
    assert [int(row.value) for row in rows] == list(range(100))
    row = rows[42]
    event_time = dt.datetime.fromtimestamp(1_700_000_000.042, dt.UTC).replace(tzinfo=None)
    assert row.key == "key-2"
    assert row.topic == f"persistent://public/default/{topic}"
    assert row.partition == -1
    assert row.properties == {"parity": "0"}
    assert row.event_time == event_time
    assert before < row.publish_time < before + dt.timedelta(minutes=3)
    assert (row.message_id.batch_index >= 0) == batching
    assert len({r.message_id for r in rows}) == 100


def test_an_empty_and_a_missing_topic(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic).close()
    assert read(spark, platform, topic).count() == 0
    with pytest.raises(PySparkException, match=r"(?i)topic"):
        read(spark, platform, topic + "-missing").count()


def test_partitions_are_read_in_parallel_and_in_order(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    url = f"{platform.http_url}/admin/v2/persistent/public/default/{topic}/partitions"
    assert httpx.put(url, json=3, timeout=60).status_code < 300
    publish(client, topic, 300, batching=False)
    frame = read(spark, platform, topic)
    assert frame.rdd.getNumPartitions() == 3
    rows = frame.collect()
    assert sorted(int(row.value) for row in rows) == list(range(300))
    assert {row.partition for row in rows} == {0, 1, 2}
    for number in range(3):
        part = [row for row in rows if row.partition == number]
        assert [r.message_id for r in part] == sorted(r.message_id for r in part)
        assert [int(r.value) for r in part] == sorted(int(r.value) for r in part)


def test_between_places(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, 60, batching=True)
    rows = read(spark, platform, topic).orderBy("message_id").collect()
    name = f"persistent://public/default/{topic}"
    first, last = rows[11].message_id, rows[40].message_id
    places = {
        "startingOffsets": f"{first.ledger_id}:{first.entry_id}:{first.batch_index}",
        "endingOffsets": f"{last.ledger_id}:{last.entry_id}:{last.batch_index}",
    }
    options = {key: json.dumps({name: place}) for key, place in places.items()}
    assert numbers(read(spark, platform, topic, **options)) == list(range(11, 40))


def test_by_time(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, 20, batching=False)
    time.sleep(0.05)
    middle = str(time.time_ns() // 10**6)
    time.sleep(0.05)
    publish(client, topic, 20, batching=False, first=20)
    assert numbers(read(spark, platform, topic, startingTimestamp=middle)) == list(range(20, 40))
    assert numbers(read(spark, platform, topic, endingTimestamp=middle)) == list(range(20))
    future = str(time.time_ns() // 10**6 + 60_000)
    assert numbers(read(spark, platform, topic, startingTimestamp=future)) == []


def test_chosen_columns_and_compressed_batches(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    kinds = pulsar.CompressionType
    for kind in (kinds.NONE, kinds.LZ4, kinds.ZLib, kinds.ZSTD, kinds.SNAPPY):
        producer = client.create_producer(topic, compression_type=kind, batching_enabled=True)
        for _ in range(50):
            producer.send_async(str(kind).encode() * 20, lambda _result, _id: None)
        producer.flush()
        producer.close()
    frame = read(spark, platform, topic, columns="value,partition")
    assert frame.columns == ["value", "partition"]
    counts = frame.groupBy("value").count().collect()
    assert sorted(row["count"] for row in counts) == [50] * 5


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_written_rows_are_messages(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, guarantee: str
) -> None:
    rows = [(f"k{n % 3}", f"v{n}", {"n": str(n)}) for n in range(1000)]
    frame = spark.createDataFrame(rows, "key string, value string, properties map<string,string>")
    writer = frame.write.format("magnetar").option("service.url", platform.service_url)
    writer.option("topic", topic).option("deliveryGuarantee", guarantee).mode("append").save()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        message = reader.read_next(60_000)
        found.append((message.partition_key(), message.data().decode(), message.properties()))
    reader.close()
    assert sorted(found, key=lambda row: int(row[1][1:])) == rows


def test_rows_through_brokers_to_topics_with_partitions(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    """A key's rows are in one partition, in their order, whatever the compression."""
    url = f"{platform.http_url}/admin/v2/persistent/public/default/{topic}/partitions"
    assert httpx.put(url, json=3, timeout=60).status_code < 300
    rows = [(f"k{n % 50}", str(n), topic if n % 2 else f"{topic}-other") for n in range(4000)]
    frame = spark.createDataFrame(rows, "key string, value string, topic string").coalesce(1)
    writer = frame.write.format("magnetar").option("service.url", platform.service_url)
    options = {"deliveryGuarantee": "at-least-once", "compression": "zstd"}
    writer.options(**options).mode("append").save()
    found = read(spark, platform, topic).orderBy("partition", "message_id").collect()
    assert {row.partition for row in found} == {0, 1, 2}
    by_key: dict[str, list[int]] = {}
    for row in found:
        by_key.setdefault(row.key, []).append(int(row.value))
    assert by_key == {f"k{k}": list(range(k, 4000, 50)) for k in range(1, 50, 2)}
    assert numbers(read(spark, platform, f"{topic}-other")) == list(range(0, 4000, 2))


def test_what_cannot_be_written_is_refused(
    spark: SparkSession, platform: Standalone, topic: str
) -> None:
    def save(frame: DataFrame, mode: str = "append", **options: str) -> None:
        writer = frame.write.format("magnetar").option("service.url", platform.service_url)
        for name, value in options.items():
            writer = writer.option(name, value)
        writer.mode(mode).save()

    good = spark.createDataFrame([("x",)], "value string")
    with pytest.raises(PySparkException, match="say where to write"):
        save(good)
    with pytest.raises(PySparkException, match="has no place in a message"):
        save(spark.createDataFrame([("x", 1)], "value string, other int"), topic=topic)
    with pytest.raises(PySparkException, match="cannot be int"):
        save(spark.createDataFrame([(1,)], "value int"), topic=topic, valueFormat="bytes")


def test_an_absent_broker_is_named(spark: SparkSession) -> None:
    frame = spark.read.format("magnetar").option("service.url", "pulsar://127.0.0.1:1")
    with pytest.raises(PySparkException, match=r"cannot connect to the broker at 127\.0\.0\.1:1"):
        frame.option("topic", "t").load().count()


def test_tables_and_views_of_sql(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    """A catalog hands the options of a new table over twice, once as ``option.NAME`` and among its
    own, and none of them when the table is read."""
    publish(client, topic, 20, batching=True)
    options = f"'service.url' '{platform.service_url}', topic '{topic}', failOnDataLoss 'true'"
    spark.sql(f"CREATE TABLE flights USING magnetar OPTIONS ({options})")
    spark.sql(f"CREATE TEMPORARY VIEW seen USING magnetar OPTIONS ({options})")
    spark.sql("CREATE TABLE listed (value binary) USING magnetar")
    try:
        assert sorted(numbers(spark.sql("SELECT * FROM seen"))) == list(range(20))
        assert sorted(numbers(spark.sql("SELECT * FROM flights"))) == list(range(20))
        latest = "SELECT * FROM flights WITH ('startingOffsets' = 'latest')"
        assert spark.sql(latest).count() == 0
        with pytest.raises(PySparkException, match=r"no options came.*without a list of columns"):
            spark.sql("SELECT * FROM listed").count()
        spark.sql("INSERT INTO flights (key, value) VALUES ('k', cast('20' AS binary))")
        assert sorted(numbers(spark.read.table("flights"))) == list(range(21))
        with pytest.raises(PySparkException, match=r"'partition' cannot be written, the broker"):
            spark.sql("INSERT INTO flights SELECT * FROM flights")
        assert spark.read.table("flights").count() == 21
    finally:
        for name in ("flights", "listed"):
            spark.sql(f"DROP TABLE {name}")
        spark.sql("DROP VIEW seen")


def test_a_schema_of_the_user_is_a_choice_of_columns_or_refused(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, 5, batching=False)

    def with_schema(schema: str) -> DataFrame:
        reader = spark.read.format("magnetar").option("service.url", platform.service_url)
        return reader.option("topic", topic).schema(schema).load()

    frame = with_schema("value binary, partition int")
    assert frame.columns == ["value", "partition"]
    assert sorted(numbers(frame)) == list(range(5))
    with pytest.raises(PySparkException, match="there is no column 'foo' to read; there are key"):
        with_schema("foo string").count()
    with pytest.raises(PySparkException, match="column 'value' is binary, not string"):
        with_schema("value string").count()
