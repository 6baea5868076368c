"""What is written for Spark's Kafka source reads topics here: its options, and its columns."""

from __future__ import annotations

import json

import httpx
import pulsar
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.integration.spark.test_batch import numbers, publish
from tests.standalone import Standalone

pytestmark = pytest.mark.spark


def load(spark: SparkSession, platform: Standalone, **options: str) -> DataFrame:
    reader = spark.read.format("magnetar").option("service.url", platform.service_url)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


@pytest.fixture
def many(platform: Standalone, client: pulsar.Client, topic: str) -> str:
    """A topic of three partitions with a hundred messages each, in batches."""
    url = f"{platform.http_url}/admin/v2/persistent/public/default/{topic}/partitions"
    assert httpx.put(url, json=3, timeout=60).status_code < 300
    for number in range(3):
        publish(client, f"{topic}-partition-{number}", 100, batching=True, first=100 * number)
    return topic


def test_columns_of_kafka(spark: SparkSession, platform: Standalone, many: str) -> None:
    frame = load(spark, platform, subscribe=many, columnNames="kafka", includeHeaders="true")
    assert frame.columns == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    rows = frame.orderBy("partition", "offset").collect()
    assert [int(row.value) for row in rows] == list(range(300))
    assert [row.offset for row in rows] == 3 * list(range(100))
    row = rows[142]
    assert (bytes(row.key), row.partition, row.timestampType) == (b"key-2", 1, 0)
    assert row.topic == f"persistent://public/default/{many}"
    assert [(item.key, bytes(item.value)) for item in row.headers] == [("parity", b"0")]


def test_offsets_of_kafka_and_assigned_partitions(
    spark: SparkSession, platform: Standalone, many: str
) -> None:
    frame = load(
        spark, platform,
        assign=json.dumps({many: [0, 2]}),
        startingOffsets=json.dumps({many: {"0": 95, "2": -2}}),
        endingOffsets=json.dumps({many: {"0": -1, "2": 4}}),
        columns="offset,value,partition",
    )  # fmt: skip
    rows = sorted((row.partition, row.offset, int(row.value)) for row in frame.collect())
    assert rows == [
        *((0, number, number) for number in range(95, 100)),
        *((2, number, 200 + number) for number in range(4)),
    ]


def test_a_pattern_and_the_least_number_of_tasks(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, many: str
) -> None:
    publish(client, f"{many}-more", 30, batching=False, first=300)
    frame = load(spark, platform, subscribePattern=f"{many}.*", minPartitions="7")
    assert 7 <= frame.rdd.getNumPartitions() <= 10
    assert sorted(numbers(frame)) == list(range(330))
    with_offsets = load(
        spark, platform, subscribe=f"{many}-more", minPartitions="4", columns="offset,value"
    )
    assert with_offsets.rdd.getNumPartitions() == 4
    assert all(row.offset == int(row.value) - 300 for row in with_offsets.collect())


def test_a_misspelt_option_is_named_with_the_nearest(
    spark: SparkSession, platform: Standalone, topic: str
) -> None:
    with pytest.raises(PySparkException, match="'failondatalos'; did you mean 'failOnDataLoss'"):
        load(spark, platform, subscribe=topic, failOnDataLos="false")
