"""Limited rates, with official clients: all comes, in order, and no faster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import kafka
import pulsar
import pytest

from magnetar.env.network.free_ports import free_port
from tests.standalone import Standalone

WAIT_S = 60.0
TOPIC = "persistent://public/default/limited"
PATH = "/admin/v2/persistent/public/default/limited"
COUNT = 150
RATE = 50
LEAST_S = COUNT / RATE - 1 - 0.2
"""A burst of one second passes at once; and the time that the server goes by is that of the turn of
its loop, which has begun earlier than the client's on a busy machine."""


def client_of(platform: Standalone) -> pulsar.Client:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(platform.service_url, logger=logger, operation_timeout_seconds=60)


def say(platform: Standalone, part: str, body: object) -> None:
    answer = httpx.post(f"{platform.http_url}{PATH}/{part}", json=body, timeout=WAIT_S)
    assert answer.status_code == 204, answer.text
    applied = f"{platform.http_url}{PATH}/{part}?applied=true"
    assert httpx.get(applied, timeout=WAIT_S).json() == body


def dispatch(messages: int) -> dict[str, Any]:
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": -1,
        "ratePeriodInSecond": 1,
        "relativeToPublishRate": False,
    }


def publish(client: pulsar.Client, **options: Any) -> float:
    """``COUNT`` messages; returns the seconds until all are stored."""
    producer = client.create_producer(TOPIC, **options)
    failed: list[pulsar.Result] = []
    begun_s = time.monotonic()
    for number in range(COUNT):
        producer.send_async(b"%d" % number, lambda result, _: failed.append(result))
    producer.flush()
    took_s = time.monotonic() - begun_s
    assert set(failed) == {pulsar.Result.Ok}
    assert len(failed) == COUNT
    producer.close()
    return took_s


def read(client: pulsar.Client, name: str, kind: pulsar.ConsumerType) -> float:
    begun_s = time.monotonic()  # the first ones may be there before ``subscribe`` has returned
    consumer = client.subscribe(TOPIC, name, kind, initial_position=pulsar.InitialPosition.Earliest)
    found = []
    for _ in range(COUNT):
        message = consumer.receive(60_000)
        found.append(int(message.data()))
        consumer.acknowledge(message)
    took_s = time.monotonic() - begun_s
    assert found == list(range(COUNT))
    consumer.close()
    return took_s


@pytest.mark.parametrize("engine", ["ledger", "partition"])
def test_the_python_client_waits_for_what_may_pass(tmp_path: Path, engine: str) -> None:
    with Standalone(tmp_path / "data", "--set", f"broker.engine={engine}") as platform:
        client = client_of(platform)
        path = f"{platform.http_url}{PATH}"
        assert httpx.put(path, timeout=WAIT_S).status_code == 204
        say(
            platform,
            "publishRate",
            {"publishThrottlingRateInMsg": RATE, "publishThrottlingRateInByte": -1},
        )
        assert publish(client, batching_enabled=False) >= LEAST_S
        say(platform, "dispatchRate", dispatch(RATE))
        for kind in (
            pulsar.ConsumerType.Exclusive,
            pulsar.ConsumerType.Shared,
            pulsar.ConsumerType.KeyShared,
        ):
            time.sleep(1.5)  # what was left over is a burst again
            assert read(client, kind.name, kind) >= LEAST_S
        assert httpx.delete(f"{path}/dispatchRate", timeout=WAIT_S).status_code == 204
        say(platform, "subscriptionDispatchRate", dispatch(RATE))
        assert read(client, "own", pulsar.ConsumerType.Failover) >= LEAST_S
        client.close()


def test_a_limit_of_the_brokers_and_batches(tmp_path: Path) -> None:
    setting = f"broker.topic_publish_messages_per_s_max={RATE}"
    with Standalone(tmp_path / "data", "--set", setting) as platform:
        client = client_of(platform)
        options = {"batching_enabled": True, "batching_max_messages": 25}
        # A batch is not cut: the last one may pass when but a message of it may.
        assert publish(client, **options) >= LEAST_S - 0.5
        assert read(client, "s", pulsar.ConsumerType.Exclusive) >= 0
        client.close()


def test_kafkas_clients_are_told_to_wait(tmp_path: Path) -> None:
    port = free_port()
    with Standalone(tmp_path / "data", "--set", f"kafka.port={port}") as platform:
        address = f"127.0.0.1:{port}"
        path = f"{platform.http_url}{PATH}"
        assert httpx.put(f"{path}/partitions", json=1, timeout=WAIT_S).status_code == 204
        say(
            platform,
            "publishRate",
            {"publishThrottlingRateInMsg": RATE, "publishThrottlingRateInByte": -1},
        )
        producer = kafka.KafkaProducer(bootstrap_servers=address, linger_ms=0, batch_size=0)
        begun_s = time.monotonic()
        for number in range(COUNT):
            producer.send("limited", b"%d" % number).get(60)
        assert time.monotonic() - begun_s >= LEAST_S
        producer.close()
        say(platform, "dispatchRate", dispatch(RATE))
        consumer = kafka.KafkaConsumer(
            "limited",
            bootstrap_servers=address,
            auto_offset_reset="earliest",
            consumer_timeout_ms=20_000,
            max_partition_fetch_bytes=1000,
        )
        begun_s = time.monotonic()
        found = [int(next(consumer).value) for _ in range(COUNT)]
        assert found == list(range(COUNT))
        assert time.monotonic() - begun_s >= LEAST_S - 0.5
        consumer.close()
