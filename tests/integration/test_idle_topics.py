"""Topics that nobody uses are unloaded under the official client, which notices nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pulsar

from tests.integration.test_standalone import connected, read_all
from tests.standalone import Standalone

DEADLINE_S = 60.0


def wait_unloaded(rest: httpx.Client, count: int) -> None:
    """Until so many topics were unloaded, and none is open."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        lines = dict(
            line.rsplit(" ", 1)
            for line in rest.get("/metrics").text.splitlines()
            if line.startswith("magnetar_broker_") and "{" not in line
        )
        unloaded = float(lines["magnetar_broker_unloaded_idle_topics_total"])
        if unloaded >= count and float(lines["magnetar_broker_open_topics"]) == 0:
            return
        time.sleep(0.1)
    raise AssertionError(f"{count} topics were not unloaded within {DEADLINE_S} s")


def publish_on(client: Any, bodies: list[bytes]) -> None:
    producer = client.create_producer("idle", batching_enabled=False)
    for body in bodies:
        producer.send(body)
    producer.close()


def receive(client: Any, count: int) -> tuple[Any, list[Any]]:
    consumer = client.subscribe("idle", "s", initial_position=pulsar.InitialPosition.Earliest)
    return consumer, [consumer.receive(timeout_millis=60_000) for _ in range(count)]


def test_idle_topics_are_unloaded_and_nothing_is_lost(tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(30)]
    setting = "broker.idle_topic_unload_ms=200"
    with (
        Standalone(tmp_path / "data", "--set", setting) as platform,
        httpx.Client(base_url=platform.http_url, trust_env=False, timeout=60) as rest,
    ):
        client = connected(platform)  # one connection all the time: it is topics that are idle
        publish_on(client, bodies[:10])
        consumer, messages = receive(client, 10)
        for message in messages[:4]:
            consumer.acknowledge(message)
        consumer.acknowledge(messages[6])
        consumer.close()
        wait_unloaded(rest, 1)

        publish_on(client, bodies[10:20])
        wait_unloaded(rest, 2)

        stats = rest.get("/admin/v2/persistent/public/default/idle/stats").json()
        assert stats["entriesInCounter"] == 0
        assert stats["storedEntries"] == 20
        assert stats["subscriptions"]["s"]["msgBacklog"] == 15
        wait_unloaded(rest, 3)

        publish_on(client, bodies[20:])
        consumer, messages = receive(client, 25)
        assert [message.data() for message in messages] == bodies[4:6] + bodies[7:]
        for message in messages:
            consumer.acknowledge(message)
        client.close()
        wait_unloaded(rest, 4)
        assert read_all(platform, "idle", 30) == bodies
