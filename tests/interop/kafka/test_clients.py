"""Kafka's Java client with its command line tools, and a Go client, against a standalone: peer
tests, not part of ``make test``.

Need Maven and Java, or ``go``, and a place to fetch from. Run: ``make interop``.
``MAGNETAR_PEER_DIR`` (in make: ``KEPT``) keeps what was fetched and built.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.cli.rest import RestClient
from magnetar.env.metadata_stores.zookeeper_server import find_java
from tests.integration.test_kafka_clients import KafkaStandalone

HERE = Path(__file__).parent
TOOLS = "org.apache.kafka.tools"
GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
COUNT = 20_000

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaStandalone]:
    with KafkaStandalone(tmp_path_factory.mktemp("kafka") / "data") as running:
        yield running


def kept(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    folder = os.environ.get("MAGNETAR_PEER_DIR")
    return Path(folder) / name if folder else tmp_path_factory.mktemp(name)


class JavaTools:
    def __init__(self, jars: Path, server: KafkaStandalone) -> None:
        self._java = [find_java(), "-Xmx512m", "-cp", str(jars / "*")]
        self._bootstrap = server.bootstrap

    def command(self, tool: str, *options: str, to: str = "--bootstrap-server") -> list[str]:
        return [*self._java, tool, *([to, self._bootstrap] if to else []), *options]

    def run(self, tool: str, *options: str, to: str = "--bootstrap-server") -> str:
        """What it prints; it ends with 0."""
        found = self._ended(tool, *options, to=to)
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout

    def refused(self, tool: str, *options: str) -> str:
        """What it prints, also as errors; it ends with 1."""
        found = self._ended(tool, *options, to="--bootstrap-server")
        assert found.returncode == 1, found.stdout + found.stderr
        return found.stdout + found.stderr

    def _ended(self, tool: str, *options: str, to: str) -> subprocess.CompletedProcess[str]:
        command = self.command(tool, *options, to=to)
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory, server: KafkaStandalone) -> JavaTools:
    return java_tools(tmp_path_factory, server)


def java_tools(tmp_path_factory: pytest.TempPathFactory, server: KafkaStandalone) -> JavaTools:
    if shutil.which("mvn") is None:
        pytest.skip("mvn is not installed")
    jars = kept(tmp_path_factory, "kafka-tools")
    if not any(jars.glob("kafka-tools-*.jar")):
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        command = ["mvn", "-q", "-B", "-f", str(HERE / "tools.pom.xml"), *goal]
        subprocess.run(command, check=True, timeout=1000)
    return JavaTools(jars, server)


def performed(tools: JavaTools, server: KafkaStandalone, topic: str, *options: str) -> None:
    props = ["--producer-props", f"bootstrap.servers={server.bootstrap}"]
    size = ["--num-records", str(COUNT), "--record-size", "100", "--throughput", "-1"]
    said = tools.run(
        f"{TOOLS}.ProducerPerformance", *size, "--topic", topic, *options, *props, to=""
    )
    assert f"{COUNT} records sent" in said


def consumed(tools: JavaTools, topic: str, *options: str) -> list[str]:
    """Values from the beginning on, as many as come."""
    most = ["--max-messages", str(COUNT), "--timeout-ms", "30000", "--from-beginning"]
    consumer = f"{TOOLS}.consumer.ConsoleConsumer"
    return tools.run(consumer, "--topic", topic, *most, *options).splitlines()


def test_topics_and_their_configuration(tools: JavaTools) -> None:
    topics = f"{TOOLS}.TopicCommand"
    tools.run(topics, "--create", "--topic", "made", "--partitions", "2")
    described = tools.run(topics, "--describe", "--topic", "made")
    assert "PartitionCount: 2" in described
    (topic_id,) = set(re.findall(r"TopicId: ([^\s]+)", described))
    assert "Topic: made" in tools.run(topics, "--describe", "--topic-id", topic_id)
    tools.run(topics, "--alter", "--topic", "made", "--partitions", "3")
    of_topic = ["--entity-type", "topics", "--entity-name", "made"]
    configs = "kafka.admin.ConfigCommand"
    tools.run(configs, *of_topic, "--alter", "--add-config", "retention.ms=600000")
    assert "retention.ms=600000" in tools.run(configs, *of_topic, "--describe")
    tools.run(topics, "--delete", "--topic", "made")
    assert "made" not in tools.run(topics, "--list").split()


@pytest.mark.parametrize("engine", ["ledger", "partition"])
def test_records_are_deleted(
    tools: JavaTools, server: KafkaStandalone, tmp_path: Path, engine: str
) -> None:
    # Not by TopicCommand, which refuses the names of settings that it does not know.
    begun = f"begun-{engine}"
    path = f"/admin/v2/persistent/public/default/{begun}/partitions"
    RestClient(server.http_url).put(path, 1, engine=engine)
    performed(tools, server, begun)
    offsets = tmp_path / "offsets.json"
    place = {"topic": begun, "partition": 0, "offset": 1234}
    offsets.write_text(json.dumps({"version": 1, "partitions": [place]}))
    said = tools.run(f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", str(offsets))
    assert "low_watermark: 1234" in said
    earliest = ["--topic", begun, "--time", "earliest"]
    assert f"{begun}:0:1234" in tools.run(f"{TOOLS}.GetOffsetShell", *earliest)
    assert len(consumed(tools, begun)) == COUNT - 1234


def test_what_is_produced_is_consumed_and_its_group_described(
    tools: JavaTools, server: KafkaStandalone
) -> None:
    performed(tools, server, "plain")
    assert len(consumed(tools, "plain", "--group", "readers")) == COUNT
    described = tools.run(GROUPS, "--describe", "--group", "readers")
    assert f"{COUNT}" in described
    reset = ["--reset-offsets", "--to-earliest", "--topic", "plain", "--execute"]
    tools.run(GROUPS, *reset, "--group", "readers")
    measured = tools.run(
        f"{TOOLS}.ConsumerPerformance", "--topic", "plain", "--messages", str(COUNT)
    )
    assert f" {COUNT}, " in measured
    assert f"plain:0:{COUNT}" in tools.run(f"{TOOLS}.GetOffsetShell", "--topic", "plain")


def test_transactions(tools: JavaTools, server: KafkaStandalone) -> None:
    named = ["--transactional-id", "perf", "--transaction-duration-ms", "100"]
    performed(tools, server, "in-transactions", *named)
    committed = ["--isolation-level", "read_committed"]
    assert len(consumed(tools, "in-transactions", *committed)) == COUNT
    transactions = f"{TOOLS}.TransactionsCommand"
    assert "perf" in tools.run(transactions, "list")
    assert "CompleteCommit" in tools.run(transactions, "describe", "--transactional-id", "perf")
    place = ["--topic", "in-transactions", "--partition", "0"]
    described = tools.run(transactions, "describe-producers", *place).splitlines()
    assert len(described) == 2, "the names, and the one producer"
    assert described[1].split()[-1] == "None", "it has nothing open"
    tools.run(transactions, "find-hanging", "--topic", "in-transactions")


def test_what_is_not_served_is_refused_in_their_words(tools: JavaTools, tmp_path: Path) -> None:
    tools.run(f"{TOOLS}.TopicCommand", "--create", "--topic", "stays", "--partitions", "1")
    assert "No Authorizer is configured" in tools.refused(f"{TOOLS}.AclCommand", "--list")
    of_user = ["--entity-type", "users", "--entity-name", "bob"]
    quota = [*of_user, "--alter", "--add-config", "producer_byte_rate=1024"]
    assert "there are no quotas" in tools.refused("kafka.admin.ConfigCommand", *quota)
    none = ["--election-type", "preferred", "--topic", "none", "--partition", "0"]
    said = tools.refused(f"{TOOLS}.LeaderElectionCommand", *none)
    assert "UnknownTopicOrPartitionException" in said
    plan = tmp_path / "plan.json"
    place = {"topic": "stays", "partition": 0, "replicas": [0], "log_dirs": ["any"]}
    plan.write_text(json.dumps({"version": 1, "partitions": [place]}))
    reassign = f"{TOOLS}.reassign.ReassignPartitionsCommand"
    said = tools.run(reassign, "--reassignment-json-file", str(plan), "--verify")
    assert "Clearing topic-level throttles" in said


def test_the_verifiable_producer(tools: JavaTools) -> None:
    said = tools.run(f"{TOOLS}.VerifiableProducer", "--topic", "verified", "--max-messages", "500")
    assert '"acked":500' in said


@pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed")
def test_a_go_client_copies_in_transactions(
    tmp_path_factory: pytest.TempPathFactory, server: KafkaStandalone
) -> None:
    """franz-go: what it has committed is read once, though every third transaction is aborted."""
    folder = kept(tmp_path_factory, "kafka-go")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("go.mod", "main.go"):
        shutil.copy(HERE / "go" / name, folder / name)
    for command in (["go", "mod", "tidy"], ["go", "build", "-o", "peer", "."]):
        subprocess.run(command, cwd=folder, check=True, timeout=1000)
    done = subprocess.run(
        [folder / "peer", server.bootstrap, "go-from", "go-to", "1000"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [int(line) for line in done.stdout.split()] == list(range(1000))
