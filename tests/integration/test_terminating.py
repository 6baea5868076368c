"""Topics that are terminated, with official clients: over kill -9, and at other brokers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import confluent_kafka as confluent
import httpx
import kafka
import pulsar
import pytest

from magnetar.env.network.free_ports import free_port
from tests.integration.test_several_brokers import Several, eventually
from tests.standalone import Standalone

WAIT_S = 120.0
TOPIC = "persistent://public/default/ended"
PATH = "/admin/v2/persistent/public/default"


def client_of(service_url: str) -> pulsar.Client:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(service_url, logger=logger, operation_timeout_seconds=60)


def check_refused(client: pulsar.Client, topic: str = TOPIC) -> None:
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(topic)


def check_read(client: pulsar.Client, count: int, topic: str = TOPIC) -> None:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(int(reader.read_next(60_000).data()))
    assert found == list(range(count))
    reader.close()


def test_the_python_client_and_a_platform_that_is_killed(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as platform:
        client = client_of(platform.service_url)
        consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
        producer = client.create_producer(TOPIC)
        for number in range(20):
            producer.send(b"%d" % number)
        command = [sys.executable, "-m", "magnetar", "topics", "terminate", "ended"]
        told = subprocess.run(
            [*command, "--url", platform.http_url], capture_output=True, text=True, check=False
        )
        assert told.returncode == 0, told.stderr
        assert "terminated ended; its last message is " in told.stdout
        with pytest.raises(pulsar.PulsarException):
            producer.send(b"late")
        check_refused(client)
        for number in range(20):
            message = consumer.receive(60_000)
            assert int(message.data()) == number
            consumer.acknowledge(message)
        # Its client would drop the connection over what Java's is told: all on it come back then.
        stats = f"{platform.http_url}{PATH}/ended/stats"

        def connected() -> list[str]:
            about = httpx.get(stats, timeout=WAIT_S).json()["subscriptions"]["s"]
            assert about["msgBacklog"] == 0
            return [each["connectedSince"] for each in about["consumers"]]

        eventually(lambda: _is_zero(stats), "all is acknowledged")
        before = connected()
        with pytest.raises(pulsar.Timeout):
            consumer.receive(2_000)
        assert connected() == before
        platform.kill()
        platform.start()
        check_refused(client)
        check_read(client, 20)
        client.close()


def _is_zero(stats: str) -> bool:
    found = httpx.get(stats, timeout=WAIT_S).json()["subscriptions"]["s"]
    return bool(found["msgBacklog"] == 0)


def test_it_holds_at_other_brokers_and_for_all_partitions(tmp_path: Path) -> None:
    several = Several(tmp_path, "--brokers", "2")
    try:
        base = f"{several.http_url}{PATH}/ended"
        assert httpx.put(f"{base}/partitions", json=4, timeout=WAIT_S).is_success
        client = client_of(several.service_url)
        for number in range(4):
            producer = client.create_producer(f"{TOPIC}-partition-{number}")
            for value in range(5):
                producer.send(b"%d" % value)
            producer.close()
        answer = httpx.post(f"{base}/terminate/partitions", timeout=WAIT_S)
        assert answer.status_code == 200, answer.text
        assert sorted(answer.json()) == ["0", "1", "2", "3"]
        assert {each["partitionIndex"] for each in answer.json().values()} == {0, 1, 2, 3}
        for pid in several.pids():
            os.kill(pid, signal.SIGKILL)
            eventually(lambda pid=pid: len(several.pids()) == 2 and pid not in several.pids(), "up")
            for number in range(4):
                check_refused(client, f"{TOPIC}-partition-{number}")
                check_read(client, 5, f"{TOPIC}-partition-{number}")
        client.close()
    finally:
        several.role.kill()


def test_kafkas_clients_fail_what_they_send_and_read_on(tmp_path: Path) -> None:
    port = free_port()
    with Standalone(tmp_path / "data", "--set", f"kafka.port={port}") as platform:
        address = f"127.0.0.1:{port}"
        producer = kafka.KafkaProducer(bootstrap_servers=address)
        for number in range(5):
            producer.send("ended", b"%d" % number).get(60)
        path = f"{platform.http_url}{PATH}/ended"
        count = httpx.get(f"{path}/partitions", timeout=WAIT_S).json()["partitions"]
        part = "/terminate/partitions" if count else "/terminate"
        answer = httpx.post(path + part, timeout=WAIT_S)
        assert answer.status_code == 200, answer.text
        with pytest.raises(kafka.errors.PolicyViolationError):
            producer.send("ended", b"late").get(60)
        told: list[str] = []
        other = confluent.Producer({"bootstrap.servers": address, "enable.idempotence": True})
        other.produce("ended", b"late", on_delivery=lambda error, _: told.append(error.name()))
        assert other.flush(60) == 0
        assert told == ["POLICY_VIOLATION"]
        consumer = kafka.KafkaConsumer(
            "ended",
            bootstrap_servers=address,
            auto_offset_reset="earliest",
            consumer_timeout_ms=5_000,
        )
        assert sorted(int(each.value) for each in consumer) == list(range(5))
        consumer.close()
        producer.close()
