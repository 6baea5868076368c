"""Topics and partitions that come and go while a query runs."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pulsar
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.integration.spark.test_batch import publish
from tests.integration.spark.test_stream import Collected, stream
from tests.standalone import Standalone

pytestmark = pytest.mark.spark

WAIT_S = 90.0


def send(client: pulsar.Client, topic: str, first: int, count: int) -> None:
    publish(client, topic, count, batching=False, first=first)


def partitions(platform: Standalone, topic: str, count: int, *, grow: bool = False) -> str:
    """Make, or grow, a partitioned topic; its REST path."""
    path = f"{platform.http_url}/admin/v2/persistent/public/default/{topic}/partitions"
    ask = httpx.post if grow else httpx.put
    assert ask(path, json=count, timeout=60).status_code < 300
    return path


def test_partitions_that_are_added_are_read_from_their_start(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    partitions(platform, topic, 1)
    send(client, f"{topic}-partition-0", 0, 5)
    sink, checkpoint = Collected(), tmp_path / "checkpoint"
    frame = stream(spark, platform, topic, startingOffsets="latest")
    query = (
        frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint)).start()
    )
    try:
        query.processAllAvailable()
        assert sink.values == []
        partitions(platform, topic, 2, grow=True)
        send(client, f"{topic}-partition-1", 5, 5)
        send(client, f"{topic}-partition-0", 10, 5)
        query.processAllAvailable()
        assert sorted(sink.values) == list(range(5, 15))
    finally:
        query.stop()


@pytest.mark.parametrize("fatal", [True, False], ids=["fails", "counted"])
def test_a_topic_that_goes_while_the_query_runs(
    spark: SparkSession,
    platform: Standalone,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    fatal: bool,
) -> None:
    other = topic + "-other"
    path = partitions(platform, topic, 2)
    send(client, f"{topic}-partition-1", 0, 5)
    send(client, other, 5, 5)
    sink, checkpoint = Collected(), tmp_path / "checkpoint"
    reader = spark.readStream.format("magnetar").option("service.url", platform.service_url)
    frame = reader.option("subscribe", f"{topic},{other}").option("failOnDataLoss", fatal).load()
    query = (
        frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint)).start()
    )
    try:
        query.processAllAvailable()
        assert sorted(sink.values) == list(range(10))
        assert httpx.delete(f"{path}?force=true", timeout=60).status_code < 300
        send(client, other, 10, 5)
        if fatal:
            with pytest.raises(StreamingQueryException, match="is not there any more") as caught:
                query.awaitTermination(int(WAIT_S))
            # One line of ours, before anything of Spark's or Python's.
            assert "Traceback" not in str(caught.value)
            assert "set failOnDataLoss=false; to begin anew give the query a new" in str(
                caught.value
            )
        else:
            query.processAllAvailable()
            assert sorted(sink.values) == list(range(15))
            end = json.loads(query.lastProgress.sources[0].endOffset)
            assert set(end["places"]) == {f"persistent://public/default/{other}"}
            assert sum(end["lost"].values()) == 2  # partitions: what they had, nobody knows
    finally:
        query.stop()
