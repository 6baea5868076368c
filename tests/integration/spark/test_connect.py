"""The data source through Spark Connect: the client has neither Java nor the platform's package,
the server finds the format.

Needs what ``pyspark[connect]`` brings (gRPC); skipped without.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from magnetar.env.network.free_ports import free_port
from tests.integration.spark.test_batch import publish
from tests.spark_cluster import HOME, READY_S, end_group, environment
from tests.standalone import Standalone

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.timeout(600)]

for needed in ("grpc", "grpc_status", "zstandard"):
    pytest.importorskip(needed, reason="pip install 'pyspark[connect]'")

CLIENT = """
    import json, sys
    sys.modules.update({"magnetar": None, "pyspark_magnetar": None})  # as if not installed
    from pyspark.sql import SparkSession

    remote, service, metadata, folder = sys.argv[1:]
    spark = SparkSession.builder.remote(remote).getOrCreate()
    assert "connect" in type(spark).__module__, type(spark)
    source = {"service.url": service, "subscribe": "connect-in"}
    exactly = {"service.url": service, "metadata.url": metadata}

    frame = spark.read.format("magnetar").options(**source).load()
    found = {"columns": frame.columns, "rows": frame.count()}
    found["filtered"] = frame.where("cast(cast(value as string) as int) < 10").count()
    spark.sql(
        f"CREATE TABLE connected USING magnetar OPTIONS ('service.url' '{service}', "
        "topic 'connect-in')"
    )
    found["table"] = spark.sql("SELECT count(DISTINCT value) FROM connected").collect()[0][0]

    values = frame.select("key", "value")
    writer = values.write.format("magnetar").mode("append").options(**exactly)
    writer.option("topic", "connect-batch").option("commitWait", "taken-in").save()

    stream = spark.readStream.format("magnetar").options(**source).load()
    writer = stream.select("key", "value").writeStream.format("magnetar").options(**exactly)
    query = (
        writer.option("topic", "connect-stream").option("commitWait", "taken-in")
        .option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
    )
    assert query.awaitTermination(200), query.status
    found["behind"] = query.lastProgress["sources"][0]["latestOffset"] is not None
    try:
        spark.read.format("magnetar").option("service.url", service).option(
            "subscribe", "connect-absent").load().count()
    except Exception as error:
        found["refused"] = "connect-absent" in str(error)
    print("FOUND", json.dumps(found))
"""


@pytest.fixture(scope="module")
def platform(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperServer
) -> Iterator[tuple[Standalone, str]]:
    url = f"zk://{zookeeper.address}/connect"
    with Standalone(tmp_path_factory.mktemp("connect") / "data", "--metadata", url) as running:
        yield running, url


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    """The URL of a Spark Connect server."""
    port = free_port()
    command = [
        str(HOME / "bin" / "spark-submit"),
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--master", "local[2]",
        "--conf", f"spark.connect.grpc.binding.port={port}",
        "--conf", "spark.connect.grpc.binding.address=127.0.0.1",
        "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2",
        "--conf", f"spark.sql.warehouse.dir={tmp_path / 'warehouse'}",
        "spark-internal",
    ]  # fmt: skip
    path = tmp_path / "server.log"
    with path.open("wb") as log:
        server = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env=environment() | {"SPARK_DAEMON_MEMORY": "768m"},  # spark-submit's rule for servers
            cwd=tmp_path,
            start_new_session=True,
        )
    try:
        wait_listening(server, port, path)
        yield f"sc://127.0.0.1:{port}"
    finally:
        end_group(server)


def wait_listening(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert server.poll() is None, log.read_text()[-4000:]
        time.sleep(0.2)
    raise TimeoutError(f"no Spark Connect server; see {log}")


def read_all(platform: Standalone, topic: str) -> Counter[int]:
    client = pulsar.Client(
        platform.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found: Counter[int] = Counter()
    while reader.has_message_available():
        found[int(reader.read_next(60_000).data())] += 1
    client.close()
    return found


def test_reads_writes_and_streams(
    platform: tuple[Standalone, str], remote: str, tmp_path: Path
) -> None:
    running, url = platform
    client = pulsar.Client(
        running.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    publish(client, "connect-in", 1000, batching=True)
    client.close()
    job = tmp_path / "client.py"
    job.write_text(textwrap.dedent(CLIENT))
    # Without Java: a client of Spark Connect speaks gRPC only.
    without_java = environment() | {"JAVA_HOME": "/nonexistent", "SPARK_HOME": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, str(job), remote, running.service_url, url, str(tmp_path)],
        env=without_java,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.partition("FOUND ")[2])
    assert found["columns"][:2] == ["key", "value"]
    assert (found["rows"], found["filtered"], found["table"]) == (1000, 10, 1000)
    assert found["refused"], "the platform's own words reach the client"
    assert found["behind"]
    for topic in ("connect-batch", "connect-stream"):
        assert read_all(running, topic) == Counter(range(1000)), topic
