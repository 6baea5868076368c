"""The option ``filter``: the same rows as Spark's own filter in the same words; and why it is an
option."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, timedelta
from pathlib import Path
from typing import cast

import pulsar
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from magnetar.pipeline.schema import spark_schema
from magnetar.pipeline.source import MagnetarDataSource
from tests.standalone import Standalone

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

TOPIC = "filtered"
KEYS = [None, "", "a", "ab", "b", "ä", "\U0001f600"]
EVENTS = [0, 1_700_000_000_000, 1_700_000_000_001, 1_700_000_060_000]


@pytest.fixture(scope="module")
def published(platform: Standalone) -> str:
    """Messages of two partitions, in batches and alone, with times that a filter may hit."""
    topic = f"persistent://public/default/{TOPIC}"
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(platform.service_url, logger=logger)
    draw = random.Random(5)
    for number in range(2):
        for batched in (True, False):
            producer = client.create_producer(
                f"{topic}-{number}", batching_enabled=batched, batching_max_messages=7
            )
            for _ in range(60):
                producer.send_async(
                    b"v",
                    lambda _result, _id: None,
                    partition_key=draw.choice(KEYS) or "",
                    event_timestamp=draw.choice(EVENTS),
                )
            producer.flush()
    client.close()
    return f"{TOPIC}-0,{TOPIC}-1"


def frame(spark: SparkSession, platform: Standalone, topics: str, **more: str) -> DataFrame:
    options = {"service.url": platform.service_url, "topics": topics, **more}
    return spark.read.format("magnetar").options(**options).load()


IDS = ["partition", "message_id.ledger_id", "message_id.entry_id", "message_id.batch_index"]
TIMES = [
    "timestamp'2023-11-14 22:13:20 UTC'",
    "timestamp'2023-11-14 22:13:20.001+00:00'",
    "timestamp'2023-11-15 03:13:20.0005 +05:00'",
    "timestamp'2023-11-14 22:13:20.000999Z'",
]


def comparison(draw: random.Random, publish_times: list[str]) -> str:
    """Of one column with constants."""
    column = draw.choice(["key", "topic", "publish_time", "event_time", *IDS])
    values = {
        "key": [f"'{key}'" for key in KEYS if key is not None],
        "topic": [f"'persistent://public/default/{TOPIC}-{n}'" for n in range(3)],
        "publish_time": publish_times,
        "event_time": TIMES,
    }.get(column, [str(number) for number in range(-1, 9)])
    value, other = draw.choice(values), draw.choice([*values, "null"])
    forms = [f"{column} {sign} {value}" for sign in ("=", "<=>", "<", "<=", ">", ">=", "!=")]
    forms += [f"{column} in ({value}, {other})", f"{column} not in ({value}, {other}, {value})"]
    forms += [f"{column} is null", f"{column} is not null", f"{column} <=> {other}"]
    forms += [f"{column} between {value} and {other}", f"not ({column} <=> {value})"]
    if column in ("key", "topic"):
        forms += [f"{column} like '%{text}'" for text in ("a", "b", "-1")]
        forms += [f"{column} like 'a%'", f"{column} not like '%/filtered%'", f"{column} = 'A'"]
    return draw.choice(forms)


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    chosen = frame.selectExpr("topic", "message_id.*", "key", "publish_time", "event_time", "value")
    return sorted(map(tuple, chosen.collect()), key=repr)


def read(platform: Standalone, topics: str, text: str) -> list[tuple[str, int, int, int]]:
    """The messages of a filtered read, as tasks read them."""
    options = {"service.url": platform.service_url, "topics": topics, "filter": text}
    reader = MagnetarDataSource(options).reader(spark_schema(["topic", "message_id"]))
    found = []
    for task in reader.partitions():
        for batch in cast("Iterator[pa.RecordBatch]", reader.read(task)):
            ids = batch.column("message_id").to_pylist()
            topic = batch.column("topic").to_pylist()
            found += [(t, *one.values()) for t, one in zip(topic, ids, strict=True)]
    return sorted(found)


def test_random_filters(spark: SparkSession, platform: Standalone, published: str) -> None:
    everything = frame(spark, platform, published)
    instants = [row.publish_time for row in everything.select("publish_time").collect()]
    assert len(instants) == 240
    times = [
        f"timestamp'{instant.astimezone(UTC) + timedelta(microseconds=extra)}'"
        for instant in sorted(set(instants))
        for extra in (0, 1, -1)
    ]
    draw = random.Random(11)
    texts = [
        " and ".join(comparison(draw, times) for _ in range(draw.randint(1, 3))) for _ in range(150)
    ]
    spark.conf.set("spark.sql.session.timeZone", "America/Caracas")
    try:
        truths = [f"coalesce({text}, false) as t{number}" for number, text in enumerate(texts)]
        told = everything.selectExpr("topic", "message_id.*", *truths).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    kept = 0
    for number, text in enumerate(texts):
        wanted = sorted(tuple(row)[:4] for row in told if row[f"t{number}"])
        assert read(platform, published, text) == wanted, text
        kept += bool(wanted)
    assert kept > 50, "filters that nothing matches say little"


def test_what_does_not_match_is_no_task(
    spark: SparkSession, platform: Standalone, published: str
) -> None:
    one = f"topic = 'persistent://public/default/{TOPIC}-1'"
    assert frame(spark, platform, published).rdd.getNumPartitions() == 2
    assert frame(spark, platform, published, filter=one).rdd.getNumPartitions() == 1
    long_ago = "publish_time < timestamp'2001-01-01 00:00:00Z'"
    assert frame(spark, platform, published, filter=long_ago).count() == 0


def test_columns_of_kafka(spark: SparkSession, platform: Standalone, published: str) -> None:
    everything = frame(spark, platform, published, columnNames="kafka").collect()
    text = "key = X'61' and partition = 0 and timestamp > timestamp'2020-01-01 00:00:00Z'"
    found = frame(spark, platform, published, columnNames="kafka", filter=text).collect()
    assert sorted(found) == sorted(row for row in everything if row.key == b"a")


def test_a_stream_and_a_table_filter_too(
    spark: SparkSession, platform: Standalone, published: str, tmp_path: Path
) -> None:
    options = {"service.url": platform.service_url, "topics": published, "filter": "key like 'a%'"}
    stream = spark.readStream.format("magnetar").options(**options).load()
    writer = stream.writeStream.format("memory").queryName("filtered")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    wanted = rows(frame(spark, platform, published).where("key like 'a%'"))
    assert rows(spark.table("filtered")) == wanted
    given = ", ".join(f"'{name}' \"{value}\"" for name, value in options.items())
    spark.sql(f"CREATE TEMPORARY VIEW filtered_view USING magnetar OPTIONS ({given})")
    assert rows(spark.table("filtered_view")) == wanted


class Ten(DataSourceReader):
    """The numbers below ten; takes the filter ``x = CONSTANT``."""

    def __init__(self) -> None:
        self.only: int | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
        for each in filters:
            if isinstance(each, EqualTo):
                self.only = each.value
            else:
                yield each

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return ((number,) for number in range(10) if self.only in (None, number))


class TenSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "ten"

    def schema(self) -> str:
        return "x int"

    def reader(self, schema: StructType) -> DataSourceReader:
        return Ten()


def test_why_spark_is_not_let_push(spark: SparkSession) -> None:
    """A filter that a Python source takes stays with the DataFrame, for other queries too. When
    this fails Spark is mended, and the source may take Spark's filters (docs/adr/0083)."""
    spark.dataSource.register(TenSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        ten = spark.read.format("ten").load()
        assert ten.where("x = 3").count() == 1
        assert ten.count() == 1  # and there are ten
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
