"""Entries that Spark's tasks send through a broker, while it is killed and comes back."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx
import pytest

from magnetar.model.errors import MagnetarError
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.writing.entry_sending import EntrySender
from magnetar.wire.pulsar.batches import iterate_messages
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.compression import find_compressor
from magnetar.wire.pulsar.writing import Columns, EntryBuilder, Head
from tests.standalone import Standalone

TOPIC = "persistent://public/default/sent"
ENTRIES, KILLS = 3000, 3


def stored(client: BrokerClient, count: int) -> list[int]:
    """The numbers of the topic's entries until each of ``count`` was seen."""
    found: list[int] = []
    with client.open(TOPIC) as reader:
        while len(set(found)) < count:
            entry = reader.entry_within(60.0)
            assert entry is not None
            found += [int(value.tobytes()) for _, value in iterate_messages(entry.payload)]
    return found


def test_every_entry_is_there_in_order_after_kills(tmp_path: Path) -> None:
    builder = EntryBuilder(Compression.NONE, find_compressor(Compression.NONE))
    with Standalone(tmp_path / "data") as platform:
        client = BrokerClient(platform.service_url, 90.0)
        sender = EntrySender(client, 90.0)
        done = threading.Event()

        def kill() -> None:
            for _ in range(KILLS):
                time.sleep(0.3)
                platform.kill()
                platform.start()
            done.set()

        killer = threading.Thread(target=kill)
        killer.start()
        sent = 0
        while sent < ENTRIES or not done.is_set():
            head = Head(sender.name, sent, time.time_ns() // 1_000_000)
            sender.send(TOPIC, [builder.entry(head, Columns([b"%d" % sent]))])
            sent += 1
            time.sleep(0.001)
        sender.finish()
        killer.join()
        sender.close()
        found = stored(client, sent)
        client.close()
    first_seen = list(dict.fromkeys(found))
    assert first_seen == list(range(sent))


def test_a_terminated_topic_is_said_at_once(tmp_path: Path) -> None:
    builder = EntryBuilder(Compression.NONE, find_compressor(Compression.NONE))
    with Standalone(tmp_path / "data") as platform:
        client = BrokerClient(platform.service_url, 90.0)
        sender = EntrySender(client, 90.0)

        def send(number: int) -> None:
            head = Head(sender.name, number, time.time_ns() // 1_000_000)
            sender.send(TOPIC, [builder.entry(head, Columns([b"%d" % number]))])
            sender.finish()

        send(0)
        path = f"{platform.http_url}/admin/v2/persistent/public/default/sent/terminate"
        assert httpx.post(path, timeout=60).status_code == 200
        begun_s = time.monotonic()
        with pytest.raises(MagnetarError, match="terminated"):
            send(1)
        assert time.monotonic() - begun_s < 30.0
        sender.close()
        client.close()
