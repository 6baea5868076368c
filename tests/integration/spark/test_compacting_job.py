"""The job ``compact`` on a real platform: what the broker's own compaction leaves, it leaves, in
all shapes; who is done first wins; by the command line, a call, ``spark-submit`` on a master."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest
from pyspark.sql import SparkSession

from magnetar.cli.pipeline import SCRIPT
from magnetar.pipeline.jobs import compact_running
from magnetar.pipeline.jobs.compact import COMPACT, CompactOptions, CompactReport
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.job import run
from tests.spark_cluster import SparkCluster, environment, submit
from tests.standalone import Standalone

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

RECEIVE_MS = 10_000
Message = tuple[str | None, bytes]


def publish(client: pulsar.Client, topics: list[str], messages: list[Message], **more: Any) -> None:
    """The same to each of them, one topic after the other."""
    for topic in topics:
        producer = client.create_producer(topic, **more)
        for key, value in messages:
            producer.send_async(value, None, partition_key=key)
        producer.flush()
        producer.close()


def updates(count: int, keys: int, since: int = 0) -> list[Message]:
    found: list[Message] = []
    for number in range(since, since + count):
        key = None if number % 17 == 5 else f"key-{number * 7 % keys}"
        value = b"" if number % 23 == 7 else b"value %d" % number
        found.append((key, value))
    return found


def view_of(messages: list[Message]) -> list[tuple[str, bytes]]:
    last = {key: number for number, (key, _) in enumerate(messages)}
    return [
        (key, value)
        for number, (key, value) in enumerate(messages)
        if key is not None and last[key] == number and value
    ]


def read(client: pulsar.Client, topic: str) -> list[tuple[str, bytes]]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    found = []
    while reader.has_message_available():
        message = reader.read_next(RECEIVE_MS)
        found.append((message.partition_key(), message.data()))
    reader.close()
    return found


def by_broker(platform: Standalone, topic: str) -> None:
    url = f"{platform.http_url}/admin/v2/persistent/public/default/{topic}/compaction"
    httpx.put(url).raise_for_status()
    deadline = time.monotonic() + 60
    while httpx.get(url).json()["status"] == "RUNNING" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert httpx.get(url).json()["status"] == "SUCCESS"


def compacted(platform: Standalone, topic: str) -> Any:
    url = f"{platform.http_url}/admin/v2/persistent/public/default/{topic}/internalStats"
    return httpx.get(url).raise_for_status().json()["compactedLedger"]


def ledger_ids(platform: Standalone) -> list[int]:
    told = httpx.get(f"{platform.http_url}/magnetar/v1/ledgers").raise_for_status().json()
    return [each["ledgerId"] for each in told]


def by_job(spark: SparkSession, platform: Standalone, *topics: str) -> CompactReport:
    options = CompactOptions(topics, service_url=platform.service_url)
    return run(COMPACT, options, JobContext(spark))


def test_the_job_leaves_what_the_broker_leaves(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    """Batches, compressed ones, plain messages, large ones in chunks; three rounds, with the
    compacted ledger of the round before as what is read; the job and the broker in turn."""
    one, two = f"{topic}-job", f"{topic}-broker"
    shapes: list[dict[str, Any]] = [
        {"batching_enabled": True, "batching_max_messages": 7},
        {"batching_enabled": True, "compression_type": pulsar.CompressionType.ZLib},
        {"batching_enabled": False},
    ]
    every: list[Message] = []
    for number, shape in enumerate(shapes):
        messages = updates(150, 31, since=150 * number)
        publish(client, [one, two], messages, **shape)
        large: list[Message] = [("large", bytes([number]) * (6 << 20))]
        publish(client, [one, two], large, batching_enabled=False, chunking_enabled=True)
        every += [*messages, *large]
        if number == 1:
            by_broker(platform, one)  # and the job goes on from what the broker has left
        else:
            report = by_job(spark, platform, one)
            assert report.ok, report.topics
        by_broker(platform, two)
        assert read(client, one) == view_of(every) == read(client, two)
        told, wanted = compacted(platform, one), compacted(platform, two)
        assert told["entries"] == wanted["entries"]
    assert by_job(spark, platform, one).topics[0].entries_read == 0, "nothing came since"


def test_all_that_is_deleted_leaves_no_ledger(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    publish(client, [topic], [("a", b"1"), ("b", b"2"), ("a", b""), ("b", b"")])
    assert by_job(spark, platform, topic).ok
    assert compacted(platform, topic)["ledgerId"] == -1
    assert read(client, topic) == []
    publish(client, [topic], [("c", b"3")])
    assert read(client, topic) == [("c", b"3")]
    assert by_job(spark, platform, topic).topics[0].entries == 1
    assert read(client, topic) == [("c", b"3")]


def test_who_is_done_first_wins_and_the_other_ledger_goes(
    spark: SparkSession,
    platform: Standalone,
    client: pulsar.Client,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages = updates(100, 11)
    publish(client, [topic], messages)
    tell = compact_running.TopicCompaction._tell
    found: list[int] = []

    def late(self: Any, holder: str, base: Any, left: Any) -> None:
        found.append(left.ledger_id)
        by_broker(platform, topic)
        tell(self, holder, base, left)

    monkeypatch.setattr(compact_running.TopicCompaction, "_tell", late)
    report = by_job(spark, platform, topic)
    assert not report.ok
    assert "compacted by somebody else" in report.topics[0].error
    assert read(client, topic) == view_of(messages)
    deadline = time.monotonic() + 60
    while found[0] in ledger_ids(platform):
        assert time.monotonic() < deadline, "the loser's ledger is deleted"
        by_broker(platform, topic)
        time.sleep(0.2)
    assert compacted(platform, topic)["ledgerId"] in ledger_ids(platform)


def _told(*command: str) -> Any:
    """The report of a job that has a Spark of its own: nobody says which Python its workers run."""
    said = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=said, check=True)
    return json.loads(done.stdout)


def test_a_dry_run_and_the_command_line(
    platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    messages = updates(60, 11)
    publish(client, [topic], messages)
    command = [
        sys.executable, "-m", "magnetar", "pipeline", "compact", topic,
        "--service-url", platform.service_url, "--json",
    ]  # fmt: skip
    tried = _told(*command, "--dry-run")
    assert (tried["dryRun"], tried["topics"][0]["ledgerId"]) == (True, -1)
    assert tried["topics"][0]["entriesRead"] > 0
    assert read(client, topic) == [(key or "", value) for key, value in messages]
    told = _told(*command)
    assert told["ok"]
    assert told["topics"][0]["entries"] > 0
    assert read(client, topic) == view_of(messages)


def test_compact_by_spark_submit_on_a_master(
    platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    messages = updates(120, 13)
    publish(client, [topic], messages)
    with SparkCluster(tmp_path, workers=2) as cluster:
        command = submit(
            cluster.url, ["spark.executor.memory=512m"], SCRIPT,
            "compact", topic, "--service-url", platform.service_url,
            "--report", str(tmp_path / "report.json"), "--progress", "lines",
        )  # fmt: skip
        subprocess.run(command, env=environment(), check=True, timeout=400)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["ok"], report
    assert read(client, topic) == view_of(messages)
