"""A topic compacted on Spark, and another one with the same messages by the broker: the same view,
and what each costs.

    python -m bench.compaction [--messages 10000000] [--keys 1000000] [--value-bytes 100]

One platform, two topics without partitions, batches of 1000; keys at random, one message in fifty
is a tombstone. Both views are read by the official client (``read_compacted``) and held against
each other and against what was published, key by key, in order.

CPU is that of processes: of Spark's (the Java process that runs it and its Python workers) and of
the platform, which serves the entries, too. MB/s are of what is stored of the topic, which both
read twice.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pulsar

from magnetar.pipeline.jobs.compact import COMPACT, CompactOptions
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.job import run
from tests.standalone import Standalone

BY_JOB, BY_BROKER = "by-job", "by-broker"
FLUSH_EVERY: Final = 100_000
DEADLINE_S: Final = 3600.0
Message = tuple[str, bytes]


def messages(count: int, keys: int, value_bytes: int) -> Iterator[Message]:
    drawn = random.Random(7)
    filling = drawn.randbytes(value_bytes).hex().encode()[: max(0, value_bytes - 9)]
    for number in range(count):
        key = f"key-{drawn.randrange(keys):08d}"
        yield key, b"" if drawn.randrange(50) == 0 else b"%09d" % number + filling


def publish(client: pulsar.Client, topic: str, options: argparse.Namespace) -> None:
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=1000, block_if_queue_full=True,
        max_pending_messages=50_000,
    )  # fmt: skip
    every = messages(options.messages, options.keys, options.value_bytes)
    for number, (key, value) in enumerate(every):
        producer.send_async(value, callback=lambda *_: None, partition_key=key)
        if number % FLUSH_EVERY == FLUSH_EVERY - 1:
            producer.flush()
    producer.flush()
    producer.close()


def digest(view: Iterator[Message]) -> tuple[int, str]:
    whole, count = hashlib.sha256(), 0
    for key, value in view:
        count += 1
        whole.update(b"%d:%s%d:%s" % (len(key), key.encode(), len(value), value))
    return count, whole.hexdigest()


def expected(options: argparse.Namespace) -> Iterator[Message]:
    last: dict[str, int] = {}
    for number, (key, _) in enumerate(
        messages(options.messages, options.keys, options.value_bytes)
    ):
        last[key] = number
    for number, (key, value) in enumerate(
        messages(options.messages, options.keys, options.value_bytes)
    ):
        if last[key] == number and value:
            yield key, value


def read_compacted(client: pulsar.Client, topic: str, count: int) -> Iterator[Message]:
    reader = client.create_reader(
        topic, pulsar.MessageId.earliest, is_read_compacted=True, receiver_queue_size=20_000
    )
    for _ in range(count):
        message = reader.read_next(timeout_millis=120_000)
        yield message.partition_key(), message.data()
    assert not reader.has_message_available(), "there is more than there should be"
    reader.close()


def cpu_s(processes: list[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def spark_processes() -> list[psutil.Process]:
    """All of this process's own but the platform: Java, and its Python daemon with workers."""
    found = []
    for each in psutil.Process(os.getpid()).children(recursive=True):
        try:
            if "standalone" not in each.cmdline():
                found.append(each)
        except psutil.Error:
            continue  # it has ended meanwhile
    return found


def by_broker(platform: Standalone) -> None:
    url = f"{platform.http_url}/admin/v2/persistent/public/default/{BY_BROKER}/compaction"
    httpx.put(url).raise_for_status()
    deadline = time.monotonic() + DEADLINE_S
    while (told := httpx.get(url, timeout=60).json())["status"] == "RUNNING":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert told["status"] == "SUCCESS", told


def figures(seconds: float, stored_bytes: int, **cpu: float) -> dict[str, Any]:
    megabytes, cores_s = stored_bytes / 1e6, sum(cpu.values())
    return {
        "seconds": round(seconds, 1),
        **{f"cpu_s_{name}": round(value, 1) for name, value in cpu.items()},
        "mb_per_s": round(megabytes / seconds, 2),
        "mb_per_s_and_core": round(megabytes / cores_s, 2),
    }


def measured(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    with Standalone(folder / "data") as platform:
        server = psutil.Process(platform.pid)
        client = pulsar.Client(
            platform.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        for topic in (BY_JOB, BY_BROKER):
            publish(client, topic, options)
        stats = f"{platform.http_url}/admin/v2/persistent/public/default/{BY_JOB}/stats"
        stored_bytes = httpx.get(stats).json()["storageSize"]
        context = JobContext()
        context.spark.range(10).mapInArrow(lambda batches: batches, "id bigint").collect()  # warm
        before, broker_before = cpu_s(spark_processes()), cpu_s([server])
        report = run(COMPACT, CompactOptions((BY_JOB,), service_url=platform.service_url), context)
        assert report.ok, report.topics
        spark_s = cpu_s(spark_processes()) - before
        served_s = cpu_s([server]) - broker_before
        job = figures(report.seconds, stored_bytes, spark=spark_s, platform=served_s)
        context.close()
        broker_before, begun_s = cpu_s([server]), time.monotonic()
        by_broker(platform)
        seconds = time.monotonic() - begun_s
        broker = figures(seconds, stored_bytes, platform=cpu_s([server]) - broker_before)
        count, wanted = digest(expected(options))
        for topic in (BY_JOB, BY_BROKER):
            found = digest(read_compacted(client, topic, count))
            assert found == (count, wanted), f"{topic}: {found}"
        client.close()
    return {
        "messages": options.messages,
        "keys": options.keys,
        "stored_mb": round(stored_bytes / 1e6, 1),
        "survivors": count,
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "job": job,
        "broker": broker,
        "views": "the same",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    options = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(dir=Path("out")) as folder:
        print(json.dumps(measured(options, Path(folder)), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
