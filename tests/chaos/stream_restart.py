"""Kill a Spark streaming query at random, restart it from its checkpoint, and count its sink.

    python -m tests.chaos.stream_restart [--messages 200000] [--kills 5] [--seed N]

A query copies a topic into another. Its whole process group (Python and JVM) is killed with
SIGKILL at random and started again on the same checkpoint. At the end the copy must hold every
message; how many came more than once is counted and printed (the sink delivers at least once).
Offsets must not run backwards or skip: a Parquet sink of the same stream, which is exactly-once by
Spark's own file log, must hold every message exactly once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from pathlib import Path

import pulsar

from tests.standalone import Standalone

TOPIC, COPY = "restart-source", "restart-copy"

JOB = """
    import sys
    from pyspark.sql import SparkSession

    url, folder, per_trigger = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "ERROR")
        .config("spark.sql.warehouse.dir", folder + "/warehouse").getOrCreate()
    )
    def stream():
        reader = spark.readStream.format("magnetar").option("service.url", url)
        return (
            reader.option("topic", "restart-source")
            .option("maxOffsetsPerTrigger", per_trigger).load()
        )
    copy = (
        stream().select("value").writeStream.format("magnetar").option("service.url", url)
        .option("topic", "restart-copy").option("checkpointLocation", folder + "/copy-checkpoint")
        .trigger(availableNow=True).start()
    )
    files = (
        stream().select("value").writeStream.format("parquet").option("path", folder + "/files")
        .option("checkpointLocation", folder + "/files-checkpoint")
        .trigger(availableNow=True).start()
    )
    copy.awaitTermination()
    files.awaitTermination()
    print("DONE", flush=True)
"""


def publish(url: str, messages: int) -> None:
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(TOPIC, batching_enabled=True, block_if_queue_full=True)
    for number in range(messages):
        producer.send_async(struct.pack(">Q", number) + bytes(92), lambda _result, _id: None)
    producer.flush()
    client.close()


def run_once(url: str, folder: Path, per_trigger: int, kill_after_s: float | None) -> bool:
    """Run the query, killed after a while if asked; True when it ended by itself."""
    log = (folder / "spark.log").open("ab")
    process = subprocess.Popen(
        [sys.executable, str(folder / "job.py"), url, str(folder), str(per_trigger)],
        stdout=log,
        stderr=log,
        start_new_session=True,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
    )
    try:
        code = process.wait(kill_after_s if kill_after_s is not None else 600)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False
    finally:
        log.close()
    if code != 0:
        raise RuntimeError((folder / "spark.log").read_text()[-4000:])
    return True


def copied(url: str) -> Counter[int]:
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(COPY, pulsar.MessageId.earliest, receiver_queue_size=5000)
    seen: Counter[int] = Counter()
    while reader.has_message_available():
        seen[struct.unpack_from(">Q", reader.read_next(10_000).data())[0]] += 1
    client.close()
    return seen


def in_files(folder: Path) -> Counter[int]:
    """What Spark's own log says belongs to the file sink."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    )
    rows = spark.read.parquet(str(folder / "files")).collect()
    spark.stop()
    return Counter(struct.unpack_from(">Q", row.value)[0] for row in rows)


def run(args: argparse.Namespace) -> int:
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="magnetar-restart-") as name:
        folder = Path(name)
        (folder / "job.py").write_text(textwrap.dedent(JOB))
        with Standalone(folder / "data") as platform:
            publish(platform.service_url, args.messages)
            kills, begun = 0, time.monotonic()
            while kills < args.kills:
                ended = run_once(
                    platform.service_url, folder, args.per_trigger, rng.uniform(7.0, 14.0)
                )
                if ended:
                    break
                kills += 1
            run_once(platform.service_url, folder, args.per_trigger, None)
            seconds = time.monotonic() - begun
            copy, files = copied(platform.service_url), in_files(folder)
    everything = set(range(args.messages))
    result = {
        "seed": args.seed,
        "kills": kills,
        "seconds": round(seconds, 1),
        "copy_missing": len(everything - copy.keys()),
        "copy_came_twice_or_more": sum(1 for count in copy.values() if count > 1),
        "copy_extra_copies": sum(copy.values()) - len(copy),
        "files_missing": len(everything - files.keys()),
        "files_came_twice": sum(1 for count in files.values() if count > 1),
    }
    print(json.dumps(result))
    bad = result["copy_missing"] or result["files_missing"] or result["files_came_twice"]
    good = not bad and kills == args.kills
    print("PASS" if good else f"FAIL: repeat with --seed {args.seed}")
    return 0 if good else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--per-trigger", type=int, default=4_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
