"""Kafka Streams 4.1 on the default engine: its changelog is made on partitions, what it counts is
right over a kill of the server and restored from the changelog alone. Peer tests, not part of
``make test``. What they need: ``test_clients``, and javac.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import confluent_kafka as confluent
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from magnetar.env.metadata_stores.zookeeper_server import find_java
from tests.integration.test_kafka_admin import described
from tests.integration.test_kafka_clients import KafkaStandalone, confluent_producer
from tests.interop.kafka.test_clients import kept

HERE = Path(__file__).parent / "streams"
COUNT, PARTITIONS = 2_000, 4
DEADLINE_S = 300.0
REFUSED = "The cluster does not support the STREAMS group protocol"

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def jars(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A class path: Kafka Streams, and the program."""
    for tool in ("mvn", "javac"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    folder = kept(tmp_path_factory, "kafka-streams")
    if not any(folder.glob("kafka-streams-*.jar")):
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        command = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), *goal]
        subprocess.run(command, check=True, timeout=1000)
    classes = tmp_path_factory.mktemp("classes")
    sources = sorted(map(str, HERE.glob("*.java")))
    command = ["javac", "-cp", str(folder / "*"), "-d", str(classes), *sources]
    subprocess.run(command, check=True, timeout=300)
    return f"{classes}:{folder / '*'}"


class Counts:
    """The program, and what it has said."""

    def __init__(self, jars: str, bootstrap: str, state: Path, protocol: str = "classic") -> None:
        self._process = subprocess.Popen(
            [find_java(), "-Xmx512m", "-cp", jars, "Counts", bootstrap, str(state), protocol],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.lines.extend(self._process.stdout)

    def said(self, words: str) -> list[str]:
        return [line for line in [*self.lines] if words in line]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(60)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


def fed(server: KafkaStandalone, first: int) -> None:
    producer = confluent_producer(server, **{"enable.idempotence": True})
    for number in range(first, first + COUNT):
        producer.produce("lines", f"w{number % 7} w{number % 11}")
    assert producer.flush(DEADLINE_S) == 0


def counted(server: KafkaStandalone) -> tuple[dict[str, int], int]:
    """The last count of each word; how many were no more than one before."""
    settings = {"bootstrap.servers": server.bootstrap, "group.id": "looks"}
    settings |= {"enable.partition.eof": True, "isolation.level": "read_committed"}
    consumer = confluent.Consumer(settings)
    consumer.assign([confluent.TopicPartition("counts", n, 0) for n in range(PARTITIONS)])
    last: dict[str, int] = {}
    ends = not_growing = 0
    while ends < PARTITIONS:
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        if message.error() is not None:
            ends += 1
            continue
        word, count = message.key().decode(), int.from_bytes(message.value(), "big")
        not_growing += count <= last.get(word, 0)
        last[word] = count
    consumer.close()
    return last, not_growing


def expected(count: int) -> dict[str, int]:
    return Counter(f"w{number % each}" for number in range(count) for each in (7, 11))


def test_counts_survive_kills_and_lost_state(jars: str, tmp_path: Path) -> None:
    with KafkaStandalone(tmp_path / "data") as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        for each in ("lines", "counts"):
            admin.create_topics([NewTopic(each, PARTITIONS)])[each].result(DEADLINE_S)
        refused = Counts(jars, server.bootstrap, tmp_path / "refused", "streams")
        until(lambda: bool(refused.said(REFUSED)), "it says why it does not go on")
        refused.close()
        program = Counts(jars, server.bootstrap, tmp_path / "state")
        fed(server, 0)
        until(lambda: bool(program.said("state RUNNING")), "it runs")
        found = described(admin, "counts-store-changelog")
        assert found["magnetar.engine"].value == "partition"
        assert found["cleanup.policy"].value == "compact"
        server.kill()
        server.start()
        fed(server, COUNT)
        until(lambda: counted(server)[0] == expected(2 * COUNT), "all is counted")
        program.kill()
        program = Counts(jars, server.bootstrap, tmp_path / "other-state")
        until(lambda: len(program.said("restored")) == PARTITIONS, "state is restored")
        fed(server, 2 * COUNT)
        until(lambda: counted(server)[0] == expected(3 * COUNT), "it goes on from there")
        program.close()
        assert sum(int(each.split()[1]) for each in program.said("restored")) > 0
        assert counted(server)[1] == 0, "nothing twice"
        assert not program.said("failed")
