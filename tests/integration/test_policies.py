"""Policies of a real standalone: what they delete, how they replicate, and that a restart keeps
them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest

from tests.standalone import Standalone

WAIT_S = 60.0
LEDGER_ENTRIES = 50
SETTINGS = {
    "ledger.ledger_entries_max": LEDGER_ENTRIES,
    "broker.expiry_check_interval_ms": 100,
}
NAMESPACE = "/admin/v2/namespaces/public/default"


class Platform:
    def __init__(self, data_dir: Path) -> None:
        pairs = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
        self.process = Standalone(data_dir, "--bookies", "3", *pairs)
        self.process.start()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        answer = httpx.request(method, self.process.http_url + path, json=body, timeout=60)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def topic(self, name: str, part: str) -> Any:
        return self.ask("GET", f"/admin/v2/persistent/public/default/{name}/{part}")

    def client(self) -> pulsar.Client:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        return pulsar.Client(self.process.service_url, logger=logger)


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    made = Platform(tmp_path / "data")
    yield made
    made.process.stop()


def eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def publish(client: pulsar.Client, topic: str, count: int) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(count):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    producer.close()


def test_data_goes_when_a_policy_says_so_and_stays_where_one_says_otherwise(
    platform: Platform,
) -> None:
    """Nothing is restarted; a subscription that has not acknowledged keeps its data."""
    client = platform.client()
    for name in ("goes", "kept", "waits"):
        client.subscribe(name, "s").close()
        publish(client, name, 4 * LEDGER_ENTRIES)
    for name in ("goes", "kept"):
        consumer = client.subscribe(name, "s")
        for _ in range(4 * LEDGER_ENTRIES):
            last = consumer.receive(60_000)
        consumer.acknowledge_cumulative(last)
        consumer.close()
    keep = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    platform.ask("POST", "/admin/v2/persistent/public/default/kept/retention", keep)
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    platform.ask("POST", f"{NAMESPACE}/retention", nothing)
    eventually(lambda: platform.topic("goes", "stats")["storedEntries"] <= LEDGER_ENTRIES)
    for name in ("kept", "waits"):
        assert platform.topic(name, "stats")["storedEntries"] == 4 * LEDGER_ENTRIES
    # It has not acknowledged, and its messages expire: then they go, too.
    time.sleep(1.0)
    platform.ask("POST", f"{NAMESPACE}/messageTTL", 1)
    eventually(lambda: platform.topic("waits", "stats")["storedEntries"] <= LEDGER_ENTRIES)
    stats = platform.topic("waits", "stats")["subscriptions"]["s"]
    assert stats["msgBacklog"] == 0
    client.close()


def test_a_new_ledger_is_replicated_as_the_topic_says_also_after_a_restart(
    platform: Platform,
) -> None:
    client = platform.client()
    publish(client, "t", 10)
    said = {"bookkeeperEnsemble": 2, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 1}
    platform.ask("POST", "/admin/v2/persistent/public/default/t/persistence", said)
    publish(client, "t", LEDGER_ENTRIES)  # which fills the first one
    publish(client, "t", 10)
    client.close()
    assert quorums(platform, "t") == [(3, 3, 2), (2, 2, 1)]
    platform.process.stop()
    platform.process.start()
    client = platform.client()
    publish(client, "t", 10)
    client.close()
    assert quorums(platform, "t") == [(3, 3, 2), (2, 2, 1), (2, 2, 1)]


def quorums(platform: Platform, topic: str) -> list[tuple[int, int, int]]:
    """Of the topic's ledgers."""
    ledgers = [each["ledgerId"] for each in platform.topic(topic, "internalStats")["ledgers"]]
    found = [platform.ask("GET", f"/magnetar/v1/ledgers/{each}") for each in ledgers]
    return [(each["ensembleSize"], each["writeQuorum"], each["ackQuorum"]) for each in found]
