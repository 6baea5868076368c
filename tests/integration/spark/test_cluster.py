"""The data source on a real Spark standalone cluster: a master, a worker, an executor."""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.integration.spark.test_batch import publish
from tests.spark_cluster import SparkCluster, environment, submit
from tests.standalone import Standalone

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

JOB = """
    import sys
    from pyspark.sql import SparkSession

    url, topic, copy, checkpoint = sys.argv[1:]
    spark = SparkSession.builder.appName("cluster").getOrCreate()
    assert spark.sparkContext.master.startswith("spark://"), spark.sparkContext.master
    frame = spark.read.format("magnetar").option("service.url", url).option("topic", topic).load()
    print("ROWS", frame.count(), "DISTINCT", frame.select("message_id").distinct().count())
    stream = spark.readStream.format("magnetar").option("service.url", url)
    stream = stream.option("topic", topic).option("maxOffsetsPerTrigger", "400").load()
    query = (
        stream.select("key", "value").writeStream.format("magnetar")
        .option("service.url", url).option("topic", copy)
        .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    spark.stop()
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a master with one worker that is alive."""
    with SparkCluster(tmp_path) as cluster:
        yield cluster.url


def test_reads_and_streams_on_a_cluster(
    master: str, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, 1000, batching=True)
    job = tmp_path / "job.py"
    job.write_text(textwrap.dedent(JOB))
    command = submit(
        master, ("spark.executor.memory=512m", "spark.sql.shuffle.partitions=2"),
        job, platform.service_url, topic, topic + "-copy", str(tmp_path / "checkpoint"),
    )  # fmt: skip
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "ROWS 1000 DISTINCT 1000" in done.stdout
    reader = client.create_reader(topic + "-copy", pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(int(reader.read_next(60_000).data()))
    reader.close()
    assert sorted(found) == list(range(1000))
