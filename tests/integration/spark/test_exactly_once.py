"""Rows are written exactly once, in a Spark of its own that tries failed tasks again: tasks that
fail, batches that run again after a restart with their rows in another order, runs that live on
after another has begun, writes that fail for good.

The cluster's metadata are in ZooKeeper, which tasks can reach; there is one bookie.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from magnetar.model.errors import StaleRunError
from magnetar.pipeline.writing.staged_session import StagedSession
from magnetar.staging.committer import Committer, QueryRun
from magnetar.staging.marks import SENDER_PREFIX
from tests.spark_cluster import environment
from tests.standalone import Standalone

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.timeout(600)]

ROWS = 20_000

BEGIN = """
    import glob, json, os, random, sys, time
    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    service, metadata, folder = sys.argv[1:]
    options = {"service.url": service, "metadata.url": metadata}
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
        .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2").getOrCreate()
    )
"""

BATCH = """
    def fails(batches):
        task = TaskContext.get()
        yield from batches
        if task.partitionId() == 1 and task.attemptNumber() < int(times_that_fail):
            raise RuntimeError("planted")

    def write(topic, times):
        global times_that_fail
        times_that_fail = times
        rows = spark.range(0, ROWS, 1, 4).selectExpr(
            "cast(id as string) as value", "concat('k', id % 7) as key")
        rows = rows.mapInArrow(fails, rows.schema)
        rows.write.format("magnetar").mode("append").options(**options).option("topic", topic) \\
            .option("commitWait", "taken-in").save()

    write("once", 1)
    try:
        write("never", 9)
    except Exception as error:
        print("failed:", "planted" in str(error))
"""

STREAM = """
    def shuffled(batches):
        # The rows of a batch stand in another order each time it runs.
        for batch in batches:
            yield batch.take(random.sample(range(batch.num_rows), batch.num_rows))

    def values():
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "500").load()
        rows = rows.selectExpr("cast(value as string) as value").repartition(2)
        return rows.mapInArrow(shuffled, rows.schema)

    def run(until):
        query = (values().writeStream.format("magnetar").options(**options)
            .option("topic", "stream").option("checkpointLocation", folder + "/checkpoint").start())
        end = time.time() + 120
        while query.lastProgress is None or query.lastProgress["batchId"] < until:
            assert time.time() < end and query.exception() is None, query.exception()
            time.sleep(0.05)
        query.stop()
        return str(query.id), str(query.runId)

    def last_of(log):
        names = [os.path.basename(path) for path in glob.glob(f"{folder}/checkpoint/{log}/*")]
        return max(int(name) for name in names if name.isdigit())

    runs = []
    for round in range(3):
        runs.append(run(4 * (round + 1)))
        # As if the engine had died after the commit of the sink, and before its own.
        last = last_of("offsets")
        for name in (f"{last}", f".{last}.crc"):  # with one left, Spark finds the commit there
            if os.path.exists(f"{folder}/checkpoint/commits/{name}"):
                os.remove(f"{folder}/checkpoint/commits/{name}")
    last = run(14)
    print("runs:", json.dumps([*runs, last]))
"""


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperServer
) -> Iterator[tuple[Standalone, str]]:
    url = f"zk://{zookeeper.address}/exactly-once"
    with Standalone(tmp_path_factory.mktemp("exactly") / "data", "--metadata", url) as running:
        yield running, url


def spark_job(cluster: tuple[Standalone, str], folder: Path, *parts: str) -> str:
    """What a job prints."""
    script = folder / "job.py"
    script.write_text("".join(map(textwrap.dedent, (BEGIN, f"\n    ROWS = {ROWS}\n", *parts))))
    platform, url = cluster
    command = [sys.executable, str(script), platform.service_url, url, str(folder)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def read_all(platform: Standalone, topic: str) -> list[pulsar.Message]:
    client = pulsar.Client(
        platform.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(60_000))
        return found
    finally:
        client.close()


def test_tasks_that_fail_and_are_run_again(cluster: tuple[Standalone, str], tmp_path: Path) -> None:
    assert "failed: True" in spark_job(cluster, tmp_path, BATCH)
    platform, _ = cluster
    messages = read_all(platform, "once")
    assert Counter(int(m.data()) for m in messages) == Counter(range(ROWS))
    assert all(m.partition_key() == f"k{int(m.data()) % 7}" for m in messages)
    assert all(m.producer_name().startswith(SENDER_PREFIX) for m in messages)
    assert len({m.message_id().entry_id() for m in messages}) <= 2 * ROWS // 1000, "keys in batches"
    by_task = [int(m.data()) for m in messages]
    assert by_task == sorted(by_task), "tasks in their order, rows in theirs"
    assert read_all(platform, "never") == []


def test_batches_that_run_again_in_another_order(
    cluster: tuple[Standalone, str], tmp_path: Path
) -> None:
    out = spark_job(cluster, tmp_path, STREAM)
    runs = json.loads(out.partition("runs: ")[2].partition("\n")[0])
    query = runs[0][0]
    platform, url = cluster
    session = StagedSession(url)
    try:
        committer = Committer(session.queries, session.ledgers(None, None))
        record = session.run(session.queries.read(query))
        assert record is not None
        session.run(committer.wait_taken_in(query, record.last_batch, 60))
        assert [*record.retired, record.run] == [run for _, run in runs]
        found = Counter(int(m.data()) for m in read_all(platform, "stream"))
        assert found == Counter(range(500 * (record.last_batch + 1)))
        late = QueryRun(query, runs[0][1])
        with pytest.raises(StaleRunError, match="has begun since"):
            session.run(committer.commit(late, record.last_batch + 1, [], 5))
    finally:
        session.close()
