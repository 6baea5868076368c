"""The data source on a real Spark standalone cluster: a master, a worker, an executor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pulsar
import pyspark
import pytest

from tests.integration.spark.test_batch import publish
from tests.standalone import Standalone, free_port

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


def environment() -> dict[str, str]:
    home = str(Path(pyspark.__file__).parent)
    return os.environ | {
        "SPARK_HOME": home,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def spark_class(log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), *arguments]
    with log.open("wb") as out:
        return subprocess.Popen(
            command, stdout=out, stderr=out, env=environment(), start_new_session=True
        )


def end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a master with one worker that is alive."""
    port, web, worker_port, worker_web = (free_port() for _ in range(4))
    url = f"spark://127.0.0.1:{port}"
    name = "org.apache.spark.deploy"
    processes = [
        spark_class(
            tmp_path / "master.log", f"{name}.master.Master",
            "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web),
        ),
        spark_class(
            tmp_path / "worker.log", f"{name}.worker.Worker",
            "--host", "127.0.0.1", "--port", str(worker_port), "--webui-port", str(worker_web),
            "-c", "1", "-m", "1g", "-d", str(tmp_path / "work"), url,
        ),
    ]  # fmt: skip
    try:
        wait_alive(f"http://127.0.0.1:{web}/json/")
        yield url
    finally:
        for process in reversed(processes):
            end(process)


def wait_alive(status_url: str) -> None:
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        try:
            if httpx.get(status_url).json()["aliveworkers"] == 1:
                return
        except (httpx.HTTPError, ValueError):
            pass
        time.sleep(0.2)
    raise TimeoutError(f"no worker at {status_url}")


def test_reads_and_streams_on_a_cluster(
    master: str, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, 1000, batching=True)
    job = tmp_path / "job.py"
    job.write_text(textwrap.dedent(JOB))
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [
        str(submit), "--master", master, "--conf", "spark.executor.memory=512m",
        "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false",
        "--conf", "spark.sql.shuffle.partitions=2",
        str(job), platform.service_url, topic, topic + "-copy", str(tmp_path / "checkpoint"),
    ]  # fmt: skip
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
