"""Applications that send again what they have sent, with the official client and real brokers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pulsar
import pytest

from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.integration.test_several_brokers import Several, eventually
from tests.interop.pulsar.wire import Wire, message, send_frame
from tests.standalone import Standalone

WAIT_S = 120.0
DEDUPLICATION = "/admin/v2/namespaces/public/default/deduplication"
TOPIC = "persistent://public/default/repeats"


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Standalone]:
    made = Standalone(tmp_path / "data")
    made.start()
    turn_on(made.http_url)
    yield made
    made.stop()


def turn_on(http_url: str) -> None:
    assert httpx.post(http_url + DEDUPLICATION, json=True, timeout=WAIT_S).status_code == 204


def client_of(service_url: str) -> pulsar.Client:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(service_url, logger=logger, operation_timeout_seconds=60)


def producer_of(client: pulsar.Client, **settings: object) -> pulsar.Producer:
    return client.create_producer(TOPIC, producer_name="app", **settings)


def send_again(service_url: str, first: int, stop: int) -> int:
    """An application that begins anew, and knows only its own numbers; what it is told first. Its
    ids begin at 1: the client takes 0 for none."""
    client = client_of(service_url)
    producer = producer_of(client)
    told = producer.last_sequence_id()
    for number in range(first, stop):
        producer.send(b"%d" % number, sequence_id=number + 1)
    assert producer.last_sequence_id() == stop
    client.close()
    return int(told)


def stored(service_url: str) -> list[int]:
    client = client_of(service_url)
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(int(reader.read_next(60_000).data()))
    client.close()
    return found


def test_it_holds_over_kill_9_unloading_and_lost_receipts(platform: Standalone) -> None:
    url = platform.service_url
    assert send_again(url, 0, 50) == -1
    assert send_again(url, 0, 60) == 50
    # Killed in the middle of sends: some are stored, and of some nobody knows.
    client = client_of(url)
    producer = producer_of(client, send_timeout_millis=1000)
    confirmed: list[int] = []
    for number in range(60, 400):
        producer.send_async(
            b"%d" % number,
            lambda result, _, n=number: confirmed.append(n) if result == pulsar.Result.Ok else None,
            sequence_id=number + 1,
        )
    eventually(lambda: len(confirmed) >= 20, "some are confirmed")
    platform.kill()
    with suppress(pulsar.PulsarException):  # what it has pending fails
        client.close()
    platform.start()
    told = send_again(url, 0, 420)
    assert told > max(confirmed)
    assert stored(url) == list(range(420))
    # Unloaded: the next owner reads what this one knew.
    path = f"{platform.http_url}/admin/v2/persistent/public/default/repeats/unload"
    assert httpx.put(path, timeout=WAIT_S).is_success
    assert send_again(url, 400, 430) == 420
    # A connection that breaks before its receipt is read.
    wire = Wire(url)
    command = BaseCommand(type=BaseCommand.PRODUCER)
    command.producer.topic, command.producer.producer_name = TOPIC, "wire"
    command.producer.producer_id = command.producer.request_id = 1
    command.producer.user_provided_producer_name = True
    assert wire.ask(command).producer_success.last_sequence_id == -1
    wire.send(send_frame(1, 5, message(b"430", 5)))
    wire.socket.close()
    again = Wire(url)
    last = again.ask(command).producer_success.last_sequence_id
    again.send(send_frame(1, 5, message(b"430", 5)))
    receipt = again.receive().send_receipt
    assert (receipt.sequence_id, receipt.message_id.ledgerId == (1 << 64) - 1) == (5, last == 5)
    again.socket.close()
    assert stored(url) == list(range(431))


def test_batches_and_chunks_of_the_official_client(platform: Standalone) -> None:
    url = platform.service_url
    client = client_of(url)
    producer = producer_of(
        client, batching_enabled=True, batching_max_publish_delay_ms=50, batching_max_messages=10
    )
    for number in range(25):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    producer.close()
    producer = producer_of(client, batching_enabled=True)
    assert producer.last_sequence_id() == 24
    producer.send(b"25")  # goes on by itself
    producer.close()
    large = b"26".rjust(12 << 20)
    for _ in range(2):  # each a message in chunks, under the same id
        producer = producer_of(client, chunking_enabled=True)
        producer.send(large, sequence_id=26)
        assert producer.last_sequence_id() == 26
        producer.close()
    client.close()
    assert stored(url) == list(range(27))


def test_the_next_owner_knows_what_a_killed_one_did(tmp_path: Path) -> None:
    several = Several(tmp_path, "--brokers", "2")
    try:
        turn_on(several.http_url)
        assert send_again(several.service_url, 0, 30) == -1
        for number, pid in enumerate(several.pids()):
            os.kill(pid, signal.SIGKILL)
            eventually(lambda pid=pid: len(several.pids()) == 2 and pid not in several.pids(), "up")
            told = send_again(several.service_url, 0, 40 + number)
            assert told == (30, 40)[number]
        assert stored(several.service_url) == list(range(41))
    finally:
        several.role.kill()
