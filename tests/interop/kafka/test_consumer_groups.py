"""Kafka 4's Java consumer with ``group.protocol=consumer``, and the tool that looks after groups:
peer tests, not part of ``make test``. What they need: ``test_clients``.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_kafka_clients import KafkaStandalone
from tests.interop.kafka.test_clients import GROUPS, TOOLS, JavaTools, java_tools

COUNT = 5_000
DEADLINE_S = 300.0

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaStandalone]:
    quick = [
        "--set",
        "kafka.consumer_heartbeat_interval_ms=500",
        "--set",
        "kafka.consumer_session_timeout_ms=10000",
    ]
    with KafkaStandalone(tmp_path_factory.mktemp("kafka") / "data", *quick) as running:
        yield running


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory, server: KafkaStandalone) -> JavaTools:
    return java_tools(tmp_path_factory, server)


class JavaConsumer:
    """VerifiableConsumer, which prints what it is given and reads, a JSON object a line."""

    def __init__(self, tools: JavaTools, topic: str, group: str, *options: str) -> None:
        self._process = subprocess.Popen(
            tools.command(
                f"{TOOLS}.VerifiableConsumer",
                *("--topic", topic, "--group-id", group, "--group-protocol", "consumer"),
                *("--reset-policy", "earliest", *options),
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.assigned: set[int] = set()
        self.read = 0
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._follow, daemon=True)
        self._reader.start()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)
            try:
                said: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            numbers = {each["partition"] for each in said.get("partitions", [])}
            if said["name"] == "partitions_assigned":
                self.assigned = self.assigned | numbers
            elif said["name"] == "partitions_revoked":
                self.assigned = self.assigned - numbers
            elif said["name"] == "records_consumed":
                self.read += int(said["count"])

    def end(self, *, kill: bool = False) -> None:
        if kill:
            self._process.kill()
        else:
            self._process.terminate()
        self._process.wait(60)
        self._reader.join(60)


def until(holds: Callable[[], object], *consumers: JavaConsumer) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, [each.lines[-10:] for each in consumers]
        time.sleep(0.2)


def produced(tools: JavaTools, topic: str, partitions: int) -> None:
    made = ["--create", "--topic", topic, "--partitions", str(partitions)]
    tools.run(f"{TOOLS}.TopicCommand", *made)
    sent = ["--topic", topic, "--max-messages", str(COUNT)]
    assert f'"acked":{COUNT}' in tools.run(f"{TOOLS}.VerifiableProducer", *sent)


def test_members_come_crash_and_leave(tools: JavaTools, server: KafkaStandalone) -> None:
    produced(tools, "shared", 4)
    one = JavaConsumer(tools, "shared", "g")
    other = None
    try:
        until(lambda: one.read == COUNT, one)
        assert one.assigned == {0, 1, 2, 3}
        other = JavaConsumer(tools, "shared", "g", "--group-remote-assignor", "range")
        until(lambda: len(one.assigned) == len(other.assigned) == 2, one, other)
        assert one.assigned | other.assigned == {0, 1, 2, 3}

        listed = tools.run(GROUPS, "--list", "--state", "--type", "consumer")
        assert Counter(listed.split())["Stable"] == 1, listed
        state = tools.run(GROUPS, "--describe", "--group", "g", "--state", "--verbose")
        assert "Stable" in state
        members = tools.run(GROUPS, "--describe", "--group", "g", "--members", "--verbose")
        assert members.count("shared") == 4, members
        offsets = tools.run(GROUPS, "--describe", "--group", "g", "--offsets")
        assert offsets.count("shared") == 4, offsets

        other.end(kill=True)
        until(lambda: one.assigned == {0, 1, 2, 3}, one)
        other = JavaConsumer(tools, "shared", "g")
        until(lambda: len(one.assigned) == len(other.assigned) == 2, one, other)
        one.end()
        until(lambda: other.assigned == {0, 1, 2, 3}, other)
        assert one.read + other.read == COUNT, "offsets were committed"
    finally:
        one.end(kill=True)
        if other is not None:
            other.end(kill=True)


def test_a_static_member_comes_back_to_what_it_had(
    tools: JavaTools, server: KafkaStandalone
) -> None:
    produced(tools, "static", 4)
    one = JavaConsumer(tools, "static", "s", "--group-instance-id", "one")
    two = JavaConsumer(tools, "static", "s", "--group-instance-id", "two")
    try:
        until(lambda: len(one.assigned) == len(two.assigned) == 2, one, two)
        had = one.assigned
        one.end()
        one = JavaConsumer(tools, "static", "s", "--group-instance-id", "one")
        until(lambda: one.assigned == had, one, two)
        until(lambda: two.read + one.read <= COUNT and len(two.assigned) == 2, one, two)
    finally:
        one.end(kill=True)
        two.end(kill=True)


def test_offsets_of_an_empty_group_are_reset_and_it_is_deleted(
    tools: JavaTools, server: KafkaStandalone, tmp_path: Path
) -> None:
    produced(tools, "again", 2)
    protocol = ["--consumer-property", "group.protocol=consumer"]
    most = ["--max-messages", str(COUNT), "--timeout-ms", "60000", "--from-beginning"]
    consumer = f"{TOOLS}.consumer.ConsoleConsumer"

    def read() -> int:
        options = ["--topic", "again", "--group", "a", *most, *protocol]
        return len(tools.run(consumer, *options).splitlines())

    assert read() == COUNT
    reset = ["--reset-offsets", "--to-earliest", "--topic", "again", "--execute", "--group", "a"]
    tools.run(GROUPS, *reset)
    assert read() == COUNT
    assert "a" in tools.run(GROUPS, "--list", "--type", "consumer").split()
    tools.run(GROUPS, "--delete", "--group", "a")
    assert "a" not in tools.run(GROUPS, "--list").split()


def test_a_regular_expression(tools: JavaTools, server: KafkaStandalone) -> None:
    produced(tools, "some-1", 1)
    produced(tools, "some-2", 1)
    most = ["--max-messages", str(2 * COUNT), "--timeout-ms", "60000"]
    options = ["--include", "some-.*", "--group", "r", *most]
    options += ["--consumer-property", "group.protocol=consumer"]
    options += ["--consumer-property", "auto.offset.reset=earliest"]
    said = tools.run(f"{TOOLS}.consumer.ConsoleConsumer", *options)
    assert len(said.splitlines()) == 2 * COUNT
