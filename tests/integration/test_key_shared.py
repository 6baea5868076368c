"""Key_Shared subscriptions of a real broker: consumers are processes, and some are killed; what
REST says of it; dead letters, and messages for later."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.standalone import Standalone

WAIT_S = 120.0
KEYS = 16
COUNT = 1600
KEY_SHARED = pulsar.ConsumerType.KeyShared
EARLIEST = pulsar.InitialPosition.Earliest

CONSUMER = """
import sys, pulsar
url, topic, name, path = sys.argv[1:]
logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
client = pulsar.Client(url, logger=logger)
consumer = client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared, consumer_name=name,
    receiver_queue_size=20, initial_position=pulsar.InitialPosition.Earliest,
    negative_ack_redelivery_delay_ms=50)
with open(path, "a", buffering=1) as told:
    while True:
        message = consumer.receive()
        number = int(message.data())
        if number % 97 == 0 and message.redelivery_count() == 0 and name == "refuses":
            consumer.negative_acknowledge(message)
            continue
        told.write(f"{message.partition_key()} {number}\\n")
        consumer.acknowledge(message)
"""


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    with Standalone(tmp_path / "data") as made:
        yield made


@pytest.fixture
def client(standalone: Standalone) -> Iterator[pulsar.Client]:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    made = pulsar.Client(standalone.service_url, operation_timeout_seconds=60, logger=logger)
    yield made
    made.close()


def eventually(true: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def subscription(standalone: Standalone, topic: str) -> Any:
    path = f"/admin/v2/persistent/public/default/{topic}/stats"
    with urllib.request.urlopen(standalone.http_url + path, timeout=30) as answer:
        return json.load(answer)["subscriptions"]["s"]


class Consumers:
    """Processes that consume; each notes what it acknowledges, right before it does."""

    def __init__(self, standalone: Standalone, topic: str, where: Path) -> None:
        self._arguments = (standalone.service_url, topic)
        self._where = where
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        command = [sys.executable, "-c", CONSUMER, *self._arguments, name, str(self._path(name))]
        self.running[name] = subprocess.Popen(command)

    def _path(self, name: str) -> Path:
        return self._where / f"{name}.txt"

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def told(self) -> dict[str, dict[str, list[int]]]:
        """By consumer: the numbers of each key, in the order in which they came."""
        found: dict[str, dict[str, list[int]]] = {}
        for path in sorted(self._where.glob("*.txt")):
            mine = found[path.stem] = {}
            for line in path.read_text().splitlines():
                key, _, number = line.partition(" ")
                mine.setdefault(key, []).append(int(number))
        return found

    def numbers(self) -> set[int]:
        return {n for mine in self.told().values() for each in mine.values() for n in each}


def publish(client: pulsar.Client, topic: str, first: int, stop: int) -> None:
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    for number in range(first, stop):
        producer.send_async(
            str(number).encode(), lambda *_: None, partition_key=f"k{number % KEYS}"
        )
    producer.flush()
    producer.close()


def test_consumers_come_go_refuse_and_are_killed(
    standalone: Standalone, client: pulsar.Client, tmp_path: Path
) -> None:
    (tmp_path / "told").mkdir()
    consumers = Consumers(standalone, "crash", tmp_path / "told")
    client.subscribe("crash", "s", KEY_SHARED, initial_position=EARLIEST).close()
    try:
        consumers.start("one")
        consumers.start("two")
        publish(client, "crash", 0, COUNT // 2)
        eventually(lambda: len(consumers.numbers()) > 50, consumers.numbers)
        consumers.start("refuses")
        consumers.kill("one")
        publish(client, "crash", COUNT // 2, COUNT)
        consumers.start("three")
        eventually(lambda: len(consumers.numbers()) > COUNT // 2, consumers.numbers)
        consumers.kill("two")
        eventually(
            lambda: consumers.numbers() == set(range(COUNT)),
            lambda: sorted(set(range(COUNT)) - consumers.numbers()),
        )
        eventually(
            lambda: subscription(standalone, "crash")["msgBacklog"] == 0,
            lambda: subscription(standalone, "crash"),
        )
        for name, mine in consumers.told().items():
            for key, numbers in mine.items():
                kept = [n for n in numbers if n % 97 or name != "refuses"]
                assert kept == sorted(kept), f"{key} at {name}"
    finally:
        for name in list(consumers.running):
            consumers.kill(name)


def test_rest_says_who_has_which_hashes_and_what_drains(
    standalone: Standalone, client: pulsar.Client
) -> None:
    first = client.subscribe(
        "told", "s", KEY_SHARED, consumer_name="first", initial_position=EARLIEST
    )
    publish(client, "told", 0, 200)
    held = [first.receive(60_000) for _ in range(200)]
    client.subscribe("told", "s", KEY_SHARED, consumer_name="second")
    publish(client, "told", 200, 200 + KEYS * 2)
    eventually(
        lambda: subscription(standalone, "told")["msgInReplay"] > 0,
        lambda: subscription(standalone, "told"),
    )
    told = subscription(standalone, "told")
    assert (told["type"], told["keySharedMode"]) == ("Key_Shared", "AUTO_SPLIT")
    assert not told["allowOutOfOrderDelivery"]
    one, two = sorted(told["consumers"], key=lambda each: str(each["consumerName"]))
    ranges = sorted([*one["keyHashRangeArrays"], *two["keyHashRangeArrays"]])
    assert [start for start, _ in ranges] == [1, *(end + 1 for _, end in ranges[:-1])]
    assert one["keyHashRanges"] == [f"[{a}, {b}]" for a, b in one["keyHashRangeArrays"]]
    assert one["drainingHashesCount"] == len(one["drainingHashes"]) > 0
    assert (
        sum(each["unackMsgs"] for each in one["drainingHashes"])
        == (one["drainingHashesUnackedMessages"])
    )
    assert two["drainingHashesCount"] == 0
    drains = one["drainingHashesCount"]
    for message in held:
        first.acknowledge(message)
    eventually(
        lambda: subscription(standalone, "told")["msgInReplay"] == 0,
        lambda: subscription(standalone, "told"),
    )
    assert subscription(standalone, "told")["drainingHashesClearedTotal"] == drains


def test_dead_letters_and_messages_for_later(client: pulsar.Client) -> None:
    letters = client.subscribe("letters", "all", initial_position=EARLIEST)
    consumer = client.subscribe(
        "later", "s", KEY_SHARED, negative_ack_redelivery_delay_ms=50,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(
            max_redeliver_count=2, dead_letter_topic="letters"
        ),
    )  # fmt: skip
    producer = client.create_producer("later", batching_enabled=False)
    due = time.time() + 1
    producer.send(b"later", partition_key="k", deliver_at=int(due * 1000))
    producer.send(b"now", partition_key="k")
    producer.send(b"bad", partition_key="bad")
    seen: list[bytes] = []
    while b"later" not in seen:
        message = consumer.receive(60_000)
        seen.append(message.data())
        if message.data() == b"bad":
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    assert time.time() >= due
    assert seen.index(b"now") < seen.index(b"later")
    while True:
        try:
            consumer.negative_acknowledge(consumer.receive(2_000))
        except pulsar.Timeout:
            break
    assert letters.receive(60_000).data() == b"bad"
