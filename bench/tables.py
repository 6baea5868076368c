"""A topic becomes a table, its ledgers go, and everybody reads it: compared message by message, and
measured.

    python -m bench.tables [--messages 20000000] [--value-bytes 100] [--spark]

One platform, one topic without partitions, batches of 1000. A reader reads everything from the
bookies; the job puts the closed ledgers into a table in this process; they are deleted at the
bookies; a reader reads everything again, now from the table. Ids, keys and bytes of both are held
against each other, and against the rows of the table; DuckDB, Polars and (``--spark``) Spark count.
A shared subscription with random holes goes on over the border.

CPU is that of the processes: of this one for the job, of the platform for readers. The reader
itself (Python) is slower than what it reads from, so its time is not what is compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import duckdb
import httpx
import polars
import psutil
import pulsar
import pyarrow as pa
from pyarrow.dataset import dataset

from magnetar.pipeline.jobs.table import catalog_of
from magnetar.pipeline.tables.taking import Taking, TakingOptions
from magnetar.pipeline.tables.topic_table import TopicTable
from tests.standalone import Standalone

TOPIC: Final = "persistent://public/default/measured"
FLUSH_EVERY: Final = 100_000
HOLES: Final = 50_000
GONE_S: Final = 600.0

Told = tuple[int, int, int, str, bytes]


def publish(client: pulsar.Client, count: int, value_bytes: int) -> None:
    producer = client.create_producer(
        TOPIC, batching_enabled=True, batching_max_messages=1000, block_if_queue_full=True,
        max_pending_messages=50_000,
    )  # fmt: skip
    drawn = random.Random(4)
    values = [drawn.randbytes(value_bytes // 2).hex().encode() for _ in range(10_000)]
    for number in range(count):
        producer.send_async(
            b"%09d" % number + values[number % 9973],
            callback=lambda *_: None,
            partition_key=f"k{number % 1000}",
        )
        if number % FLUSH_EVERY == FLUSH_EVERY - 1:
            producer.flush()
    producer.flush()
    producer.close()


def messages(client: pulsar.Client, count: int) -> Iterable[Told]:
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, receiver_queue_size=20_000)
    for _ in range(count):
        message = reader.read_next(timeout_millis=120_000)
        place = message.message_id()
        yield (
            place.ledger_id(), place.entry_id(), place.batch_index(),
            message.partition_key(), message.data(),
        )  # fmt: skip
    reader.close()


def digest(found: Iterable[Told]) -> str:
    whole = hashlib.blake2b(digest_size=16)
    for ledger_id, entry_id, index, key, value in found:
        whole.update(b"%d:%d:%d:%s:" % (ledger_id, entry_id, index, key.encode()) + value)
    return whole.hexdigest()


def rows(paths: list[str]) -> Iterable[Told]:
    columns = ["ledger_id", "entry_id", "batch_index", "key", "payload"]
    table: pa.Table = dataset(paths).to_table(columns=columns)
    order = [(name, "ascending") for name in columns[:3]]
    for batch in table.sort_by(order).to_batches():
        yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)


def cpu_of(platform: Standalone) -> float:
    """Of all its processes, in seconds."""
    first = psutil.Process(platform.pid)
    times = [each.cpu_times() for each in (first, *first.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def measured(work: Callable[[], Any], cpu_s: Callable[[], float]) -> tuple[Any, float, float]:
    """What it gave, and how long it took, by the clock and in CPU."""
    begun, begun_cpu = time.monotonic(), cpu_s()
    found = work()
    return found, round(time.monotonic() - begun, 2), round(cpu_s() - begun_cpu, 2)


def ledgers(platform: Standalone) -> list[dict[str, Any]]:
    path = "/admin/v2/persistent/public/default/measured/internalStats"
    found: list[dict[str, Any]] = httpx.get(platform.http_url + path, timeout=60).json()["ledgers"]
    return found


def holes(client: pulsar.Client, platform: Standalone, take: Callable[[], None]) -> None:
    """A subscription acknowledges half of what it gets, at random; the rest comes when the ledgers
    are gone, and nothing else."""
    drawn = random.Random(9)
    settings = {
        "consumer_type": pulsar.ConsumerType.Shared,
        "initial_position": pulsar.InitialPosition.Earliest,
        "batch_index_ack_enabled": True,
    }
    consumer = client.subscribe(TOPIC, "holes", **settings)
    seen, done = set(), set()
    for _ in range(HOLES):
        message = consumer.receive(timeout_millis=60_000)
        seen.add(message.data())
        if drawn.random() < 0.5:
            consumer.acknowledge(message)
            done.add(message.data())
    consumer.close()
    take()
    consumer = client.subscribe(TOPIC, "holes", **settings)
    left = seen - done
    while left:
        message = consumer.receive(timeout_millis=60_000)
        assert message.data() not in done, "it was acknowledged"
        left.discard(message.data())
    consumer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--spark", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(run(Path(folder), arguments), indent=2))
    return 0


def run(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    count = arguments.messages
    catalog = catalog_of(str(folder / "tables"), None, ())
    entries = max(20, min(2000, count // 40_000))  # of a ledger: some forty ledgers
    settings = (f"ledger.ledger_entries_max={entries}", "ledger.tabled_ledger_ms_least=0")
    flags = [word for setting in settings for word in ("--set", setting)]
    with Standalone(folder / "data", *flags) as platform:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(platform.service_url, logger=logger)
        publish(client, count, arguments.value_bytes)
        before = measured(lambda: digest(messages(client, count)), lambda: cpu_of(platform))
        options = TakingOptions(platform.service_url, catalog, kept_ms=1)
        with closing(Taking(options)) as job:
            taken: list[Any] = []

            def take() -> None:
                taken.append(measured(lambda: job.take([TOPIC]), time.process_time))
                deadline = time.monotonic() + GONE_S
                while sum(each["offloaded"] for each in ledgers(platform)) < taken[0][0][0].ledgers:
                    assert time.monotonic() < deadline, "bookies keep what is in the table"
                    time.sleep(0.5)

            holes(client, platform, take)
        (done,), job_s, job_cpu_s = taken[0]
        assert done.errors == [], done.errors
        after = measured(lambda: digest(messages(client, count)), lambda: cpu_of(platform))
        assert after[0] == before[0], "the table gives other messages than the bookies gave"
        client.close()
    counts = counted(catalog.place(TOPIC), done.rows, arguments.spark, before[0], count)
    return {
        "messages": count,
        "ledgers": done.ledgers,
        "rows": done.rows,
        "ledger_bytes": done.stored_bytes,
        "file_bytes": done.file_bytes,
        "files_to_one_copy": round(done.file_bytes / done.stored_bytes, 3),
        "offload_mb_per_core_s": round(done.stored_bytes / job_cpu_s / 1e6, 1),
        "offload_s": job_s,
        "read_from_bookies": {"s": before[1], "platform_cpu_s": before[2]},
        "read_from_table": {"s": after[1], "platform_cpu_s": after[2]},
        "others": counts,
    }


def counted(place: Any, expected: int, spark: bool, whole: str, count: int) -> dict[str, int]:
    table = TopicTable(place, TOPIC)
    assert table.look()
    paths = [e.file.file_path.removeprefix("file://") for e in table.main.scan().plan_files()]
    query = f"SELECT count(DISTINCT (ledger_id, entry_id, batch_index)) FROM read_parquet({paths})"
    lazily = polars.scan_parquet(paths).select(polars.len())
    found = {"DuckDB": duckdb.sql(query).fetchall()[0][0], "Polars": lazily.collect().item()}
    if expected == count:  # all ledgers are closed: the rows are the topic
        assert digest(rows(paths)) == whole, "the rows are not what the consumers got"
    if spark:
        from pyspark.sql import SparkSession

        session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        found["Spark"] = session.getOrCreate().read.parquet(*paths).count()
    assert set(found.values()) == {expected}, found
    return found


if __name__ == "__main__":
    sys.exit(main())
