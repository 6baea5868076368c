"""Topic compaction with the official Python client on a real platform: by REST, read by consumers,
readers and table views; batches, tombstones, restarts, trimming."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest

from tests.standalone import Standalone

RECEIVE_MS = 10_000
QUIET_MS = 1_000


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("compaction") / "data") as running:
        yield running


@pytest.fixture
def client(platform: Standalone) -> Iterator[pulsar.Client]:
    connected = connect(platform)
    yield connected
    connected.close()


def connect(platform: Standalone) -> pulsar.Client:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(platform.service_url, logger=logger)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).replace("[", "-").replace("]", "")


def compact(platform: Standalone, topic: str) -> None:
    url = f"{platform.http_url}/admin/v2/persistent/public/default/{topic}/compaction"
    answer = httpx.put(url)
    assert answer.status_code == 204, answer.text
    deadline = time.monotonic() + 60
    while (told := httpx.get(url).json())["status"] == "RUNNING" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert told == {"status": "SUCCESS", "lastError": ""}


def internal(platform: Standalone, topic: str) -> Any:
    url = f"{platform.http_url}/admin/v2/persistent/public/default/{topic}/internalStats"
    return httpx.get(url).raise_for_status().json()


def publish(
    client: pulsar.Client, topic: str, messages: list[tuple[str | None, bytes]], batched: bool
) -> None:
    producer = client.create_producer(
        topic,
        batching_enabled=batched,
        batching_max_messages=10,
        batching_max_publish_delay_ms=1000,
        compression_type=pulsar.CompressionType.LZ4 if batched else pulsar.CompressionType.NONE,
    )
    for key, value in messages:
        producer.send_async(value, None, partition_key=key)
    producer.flush()
    producer.close()


def read(client: pulsar.Client, topic: str, **more: Any) -> list[tuple[str, bytes]]:
    """All that a compacted reader sees until it says that there is no more."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True, **more)
    found = []
    while reader.has_message_available():
        message = reader.read_next(RECEIVE_MS)
        found.append((message.partition_key(), message.data()))
    reader.close()
    return found


def view_of(messages: list[tuple[str | None, bytes]]) -> list[tuple[str, bytes]]:
    """What compaction is to leave, by its definition."""
    last = {key: number for number, (key, _) in enumerate(messages)}
    return [
        (key, value)
        for number, (key, value) in enumerate(messages)
        if key is not None and last[key] == number and value
    ]


def updates(count: int, keys: int) -> list[tuple[str | None, bytes]]:
    """Each key many times, some deleted at the end, some messages without a key."""
    found: list[tuple[str | None, bytes]] = []
    for number in range(count):
        key = None if number % 17 == 5 else f"key-{number * 7 % keys}"
        found.append((key, b"value %d" % number))
    found += [(f"key-{number}", b"") for number in range(0, keys, 5)]
    found += [("key-0", b"again")]
    return found


@pytest.mark.parametrize("batched", [False, True])
def test_readers_see_the_last_message_of_each_key(
    platform: Standalone, client: pulsar.Client, topic: str, batched: bool
) -> None:
    messages = updates(200, 23)
    publish(client, topic, messages, batched)
    everything = [(key or "", value) for key, value in messages]
    assert read(client, topic) == everything, "it was never compacted"
    compact(platform, topic)
    assert read(client, topic) == view_of(messages)
    publish(client, topic, [("key-1", b"new"), ("other", b"newer")], batched)
    tail = [("key-1", b"new"), ("other", b"newer")]
    assert read(client, topic) == view_of(messages) + tail, "the view, then the log's tail"
    plain = client.create_reader(topic, pulsar.MessageId.earliest)
    found = [plain.read_next(RECEIVE_MS).data() for _ in range(len(messages) + 2)]
    assert found == [value for _, value in messages] + [b"new", b"newer"]
    plain.close()
    compact(platform, topic)
    assert read(client, topic) == view_of([*messages, *tail])
    assert internal(platform, topic)["compactedLedger"]["entries"] > 0


def test_message_ids_are_kept(platform: Standalone, client: pulsar.Client, topic: str) -> None:
    messages = updates(60, 9)
    publish(client, topic, messages, batched=True)
    ids = {}
    plain = client.create_reader(topic, pulsar.MessageId.earliest)
    for _ in messages:
        message = plain.read_next(RECEIVE_MS)
        ids[str(message.message_id())] = (message.partition_key(), message.data())
    plain.close()
    compact(platform, topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    found = []
    while reader.has_message_available():
        message = reader.read_next(RECEIVE_MS)
        assert ids[str(message.message_id())] == (message.partition_key(), message.data())
        found.append(message.message_id())
    # A reader from the middle of the view on goes on with the next survivor.
    assert len(found) > 3
    middle = client.create_reader(topic, found[1], is_read_compacted=True)
    assert middle.read_next(RECEIVE_MS).message_id() == found[2]
    middle.close()
    reader.close()


def test_consumers_that_read_compacted(
    platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    """As the official client's own test of it: a subscription that is there before compaction sees
    the view after it; another one everything."""
    client.subscribe(topic, "compacted", is_read_compacted=True).close()
    other = client.subscribe(topic, "all")
    publish(client, topic, [("key", b"one"), ("key", b"two")], batched=False)
    compact(platform, topic)
    consumer = client.subscribe(topic, "compacted", is_read_compacted=True)
    message = consumer.receive(RECEIVE_MS)
    assert message.data() == b"two"
    consumer.acknowledge(message)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(QUIET_MS)
    publish(client, topic, [("key", b"three")], batched=False)
    assert consumer.receive(RECEIVE_MS).data() == b"three"
    consumer.close()
    assert [other.receive(RECEIVE_MS).data() for _ in range(3)] == [b"one", b"two", b"three"]


def test_everything_deleted_leaves_nothing_and_no_wait(
    platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, [("a", b"1"), ("b", b"2"), ("a", b""), ("b", b"")], batched=True)
    compact(platform, topic)
    assert read(client, topic) == []
    assert internal(platform, topic)["compactedLedger"]["ledgerId"] == -1
    publish(client, topic, [("c", b"3")], batched=True)
    assert read(client, topic) == [("c", b"3")]


def test_a_table_view_over_a_compacted_topic(
    platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    messages = updates(100, 11)
    publish(client, topic, messages, batched=True)
    compact(platform, topic)
    publish(client, topic, [("key-3", b"later")], batched=True)
    view = client.create_table_view(topic)
    wanted = {key: value.decode() for key, value in view_of(messages)} | {"key-3": "later"}
    found = {}
    view.for_each(lambda key, value: found.setdefault(key, value))
    assert {key: bytes(value).decode() for key, value in found.items()} == wanted
    view.close()


def test_the_view_outlives_the_broker_and_the_ledgers_that_it_came_from(tmp_path: Path) -> None:
    """Nothing is retained: what was compacted is trimmed, and the view has it still."""
    settings = ("--set", "ledger.retention_ms=0", "--set", "ledger.ledger_entries_max=10")
    messages = updates(80, 9)
    with Standalone(tmp_path / "data", *settings) as platform:
        client = connect(platform)
        holding = client.subscribe(
            "trimmed", "holding", initial_position=pulsar.InitialPosition.Earliest
        )
        publish(client, "trimmed", messages, batched=False)
        first = internal(platform, "trimmed")["ledgers"][0]["ledgerId"]
        compact(platform, "trimmed")
        former = internal(platform, "trimmed")["compactedLedger"]["ledgerId"]
        holding.unsubscribe()
        deadline = time.monotonic() + 60
        while any(each["ledgerId"] == first for each in internal(platform, "trimmed")["ledgers"]):
            assert time.monotonic() < deadline, "what was compacted is trimmed"
            time.sleep(0.2)
        assert read(client, "trimmed") == view_of(messages)
        client.close()
        platform.kill()
        platform.start()
        client = connect(platform)
        assert read(client, "trimmed") == view_of(messages)
        tail: list[tuple[str | None, bytes]] = [("key-2", b"tail"), ("key-4", b"")]
        publish(client, "trimmed", tail, batched=False)
        compact(platform, "trimmed")
        assert read(client, "trimmed") == view_of([*messages, *tail])
        ids = [
            each["ledgerId"]
            for each in httpx.get(f"{platform.http_url}/magnetar/v1/ledgers").json()
        ]
        assert former not in ids, "the old compacted ledger is deleted"
        client.close()
