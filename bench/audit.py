"""The job ``audit`` over much, against what the disk gives: is it as quick as reading the files?

    python -m bench.audit --directory DIR [--gb 50] [--message-kb 128] [--bookies 1]

One platform on ``DIR``, one topic, messages of one size (unbatched, not compressed).
Then, in turns, with the kernel's memory of the files given back before each: the entry logs are
read by as many readers as the machine has cores, in order, and nothing is done with the bytes
(what the disk gives); and the job runs, on ``local[*]``. Both in MB/s of what is stored, and the
job's CPU by process: this one with Spark's, and the platform.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import psutil
import pulsar

from bench.compaction import cpu_s, spark_processes
from bench.measure import machine
from magnetar.pipeline.jobs.audit import AUDIT, AuditOptions
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.job import run
from tests.standalone import Standalone

TOPIC: Final = "persistent://public/default/audited"
CHUNK: Final = 1 << 20
ROUNDS: Final = 2

Figures = dict[str, Any]


def publish(client: pulsar.Client, count: int, size: int) -> None:
    producer = client.create_producer(
        TOPIC, batching_enabled=False, block_if_queue_full=True, max_pending_messages=200
    )
    values = [os.urandom(size) for _ in range(64)]
    failed: list[pulsar.Result] = []

    def answered(result: pulsar.Result, _message_id: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    for number in range(count):
        producer.send_async(values[number % 64], answered)
    producer.flush()
    producer.close()
    assert not failed, failed[0]


def entry_logs(folder: Path) -> list[Path]:
    return sorted(folder.rglob("????????.log"))  # RocksDB's have six digits


def forget(paths: list[Path]) -> None:
    """The kernel gives back what it has of the files."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_all(paths: list[Path]) -> int:
    def read(path: Path) -> int:
        with path.open("rb", buffering=0) as file:
            buffer, total = bytearray(CHUNK), 0
            while got := file.readinto(buffer):
                total += got
        return total

    with ThreadPoolExecutor(os.cpu_count()) as readers:
        return sum(readers.map(read, paths))


def one_round(logs: list[Path], url: str, server: psutil.Process, context: JobContext) -> Figures:
    forget(logs)
    begun = time.monotonic()
    file_bytes = read_all(logs)
    files_s = time.monotonic() - begun
    forget(logs)
    own_before, server_before = cpu_s(spark_processes()), cpu_s([server])
    report = run(AUDIT, AuditOptions((TOPIC,), service_url=url), context)
    assert report.ok, list(report.lines())
    return {
        "files_mb_per_s": round(file_bytes / 1e6 / files_s),
        "audit_mb_per_s": round(report.byte_count / 1e6 / report.seconds),
        "audit_s": round(report.seconds, 1),
        "audited_gb": round(report.byte_count / 1e9, 2),
        "messages": report.messages,
        "cpu_s_spark": round(cpu_s(spark_processes()) - own_before, 1),
        "cpu_s_platform": round(cpu_s([server]) - server_before, 1),
    }


def measured(options: argparse.Namespace, folder: Path) -> Figures:
    size = options.message_kb << 10
    count = int(options.gb * 1e9 / size)
    found: Figures = {"machine": machine(), "messages": count, "message_bytes": size}
    with (
        Standalone(folder / "data", "--bookies", str(options.bookies)) as platform,
        JobContext() as context,
    ):
        server = psutil.Process(platform.pid)
        client = pulsar.Client(
            platform.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        client.subscribe(TOPIC, "holds-all").close()
        begun = time.monotonic()
        publish(client, count, size)
        client.close()
        found["publish_mb_per_s"] = round(count * size / 1e6 / (time.monotonic() - begun))
        context.spark.range(10).count()  # warm
        time.sleep(5)  # the last of it goes to the entry logs
        logs = entry_logs(folder)
        found["rounds"] = []
        for _ in range(ROUNDS):
            found["rounds"].append(one_round(logs, platform.service_url, server, context))
            assert found["rounds"][-1]["messages"] == count
            print(found["rounds"][-1], flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--gb", type=float, default=50.0)
    parser.add_argument("--message-kb", type=int, default=128)
    parser.add_argument("--bookies", type=int, default=1)
    options = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    options.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        print(json.dumps(measured(options, Path(folder)), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
