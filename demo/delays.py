"""Daily delays per airport and carrier: as a Spark stream, and directly, to compare.

A result is one row per (day, origin, carrier): flights, cancelled, delayed (left 15 minutes late
or more), and the sum and the largest of the departure delays. All are whole numbers, so the two
computations must agree to the last digit.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TypeAlias

import pandas as pd
import pulsar
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

LATE_MINUTES = 15
FIELDS = ("flights", "cancelled", "delayed", "delay_sum", "delay_max")

Key: TypeAlias = tuple[str, str, str]
"""(day, origin, airline's name)"""
Row: TypeAlias = tuple[int | None, ...]
"""The values of FIELDS."""


def session(warehouse: Path) -> SparkSession:
    """Spark on this machine, with settings that suit small and frequent batches."""
    os.environ["PYSPARK_PYTHON"] = sys.executable  # its workers run in this environment too
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_CONF_DIR"] = str(Path(__file__).resolve().parent / "conf")
    return (
        SparkSession.builder.master("local[2]")
        .appName("magnetar-demo")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(warehouse))
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


def read_stream(spark: SparkSession, service_url: str, topic: str, per_trigger: int) -> DataFrame:
    """The flights as they come, typed by the topic's schema, with their time."""
    stream = (
        spark.readStream.format("magnetar")
        .option("service.url", service_url)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(per_trigger))
        .option("valueFormat", "schema")
        # What the query has not read is held against deletion, until it is stopped; Spark may end
        # its processes before they have said so, and then until this has passed.
        .option("pinTimeoutMs", "10000")
        .load()
    )
    return stream.select("value.*", "event_time")


def daily_delays(flights: DataFrame, airlines: DataFrame) -> DataFrame:
    """The windowed aggregation, joined with the airlines' names."""
    late = (f.col("dep_delay") >= LATE_MINUTES).cast("int")
    grouped = flights.groupBy(f.window("event_time", "1 day"), "origin", "carrier").agg(
        f.count(f.lit(1)).alias("flights"),
        f.sum(f.col("dep_delay").isNull().cast("int")).alias("cancelled"),
        f.coalesce(f.sum(late), f.lit(0)).alias("delayed"),
        f.coalesce(f.sum("dep_delay"), f.lit(0)).alias("delay_sum"),
        f.max("dep_delay").alias("delay_max"),
    )
    day = f.date_format(f.col("window.start"), "yyyy-MM-dd").alias("day")
    return grouped.join(f.broadcast(airlines), "carrier").select(day, "origin", "name", *FIELDS)


def write_batch(results: DataFrame, batch_id: int, service_url: str, topic: str, to: Path) -> None:
    """One micro-batch of changed results, to the results topic and to Parquet.

    Spark calls this again for a batch that failed: in the topic it is written once, as it says
    which batch it is, and the Parquet folder is the batch's own.
    """
    results.persist()
    key = f.concat_ws("|", "day", "origin", "name").alias("key")
    (
        results.select(key, "day", "origin", "name", *FIELDS)
        .write.format("magnetar")
        .option("service.url", service_url)
        .option("topic", topic)
        .option("valueFormat", "json")  # the columns make a value, and the topic's schema
        .option("txnAppId", "daily-delays")
        .option("txnVersion", batch_id)
        .mode("append")
        .save()
    )
    results.coalesce(1).write.mode("overwrite").parquet(str(to / f"batch={batch_id}"))
    results.unpersist()


def direct(flights: pd.DataFrame, airlines: pd.DataFrame) -> dict[Key, Row]:
    """The same computation over the table itself, without the platform."""
    table = flights.merge(airlines, on="carrier")
    table["day"] = table["time_hour"].str[:10]
    table["late"] = table["dep_delay"] >= LATE_MINUTES
    table["missing"] = table["dep_delay"].isna()
    groups = table.groupby(["day", "origin", "name"]).agg(
        flights=("dep_delay", "size"),
        cancelled=("missing", "sum"),
        delayed=("late", "sum"),
        delay_sum=("dep_delay", "sum"),
        delay_max=("dep_delay", "max"),
    )
    results: dict[Key, Row] = {}
    for (day, origin, name), row in zip(
        groups.index, groups.itertuples(index=False, name=None), strict=True
    ):
        results[(day, origin, name)] = tuple(None if v != v else int(v) for v in row)
    return results


def from_topic(client: pulsar.Client, topic: str) -> tuple[dict[Key, Row], int]:
    """The results topic read back: the last value of each key, and how many messages it has."""
    results: dict[Key, Row] = {}
    messages = 0
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    while reader.has_message_available():
        value = json.loads(reader.read_next(30_000).data())
        key = (value["day"], value["origin"], value["name"])
        results[key] = tuple(value.get(field) for field in FIELDS)
        messages += 1
    reader.close()
    return results, messages


def from_parquet(folder: Path) -> tuple[dict[Key, Row], int]:
    """The Parquet folder read back: the last batch's row of each key, and how many rows it has."""
    results: dict[Key, Row] = {}
    table = pd.read_parquet(folder).sort_values("batch", kind="stable")
    for row in table[["day", "origin", "name", *FIELDS]].itertuples(index=False, name=None):
        results[row[:3]] = tuple(None if v != v or v is None else int(v) for v in row[3:])
    return results, len(table)


def mismatches(expected: dict[Key, Row], found: dict[Key, Row]) -> list[Key]:
    """The keys whose results differ, or that only one side has."""
    keys = sorted(expected.keys() | found.keys())
    return [key for key in keys if expected.get(key) != found.get(key)]
