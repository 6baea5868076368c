"""What the Spark source and sink do: rows a second on ``local[2]``.

    python -m bench.spark_source [--quick]

Reads go to Spark's ``noop`` sink; writes come from generated rows. Spark, the platform and Python's
workers share the machine's cores.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import pulsar
from pyspark.sql import DataFrame, SparkSession

from bench import results
from bench.measure import machine
from bench.server import Server, standalone

SIZES = (100, 1024)


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def url(server: Server) -> str:
    return f"pulsar://127.0.0.1:{server.broker_port}"


def publish(server: Server, topic: str, rows: int, size: int) -> None:
    client = pulsar.Client(url(server), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
    body = bytes(size)
    for _ in range(rows):
        producer.send_async(body, lambda _result, _id: None)
    producer.flush()
    client.close()


def read(spark: SparkSession, server: Server, topic: str, columns: str | None) -> DataFrame:
    reader = spark.read.format("magnetar").option("service.url", url(server))
    if columns is not None:
        reader = reader.option("columns", columns)
    return reader.option("topic", topic).load()


def seconds_of(frame: DataFrame, server: Server | None = None, topic: str = "") -> float:
    begun = time.monotonic()
    if server is None:
        frame.write.format("noop").mode("append").save()
    else:
        writer = frame.write.format("magnetar").option("service.url", url(server))
        writer.option("topic", topic).mode("append").save()
    return time.monotonic() - begun


def measure(spark: SparkSession, server: Server, rows: int, size: int) -> list[dict[str, object]]:
    topic = f"rows-{size}"
    publish(server, topic, rows, size)
    read(spark, server, topic, "value").limit(1).count()  # workers are up
    whole = seconds_of(read(spark, server, topic, None))
    values = seconds_of(read(spark, server, topic, "value"))
    made = spark.range(0, rows, 1, 2).selectExpr(f"repeat('x', {size}) as value")
    written = seconds_of(made, server, f"{topic}-written")
    cases = (("read, all columns", whole), ("read, value only", values), ("write", written))
    return [
        {"case": name, "bytes": size, "rows": rows, "rows_per_s": round(rows / seconds)}
        for name, seconds in cases
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Rows a second through the Spark source.")
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    where = machine()
    spark = session()
    found: list[dict[str, object]] = []
    with standalone() as server:
        for size in SIZES:
            found += measure(spark, server, 50_000 if quick else 500_000, size)
    spark.stop()
    text = results.table(
        ("case", "bytes a row", "rows", "rows/s"), [list(case.values()) for case in found]
    )
    results.store("spark_source", {"cases": found}, text, where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
