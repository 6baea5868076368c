"""Backlog quotas with official clients: what applications see, over kill -9, at other brokers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import httpx
import kafka
import pulsar
import pytest

from magnetar.env.network.free_ports import free_port
from tests.integration.test_several_brokers import Several, eventually
from tests.standalone import Standalone

WAIT_S = 120.0
TOPIC = "persistent://public/default/limited"
PATH = "/admin/v2/persistent/public/default"
CHECKS = ("--set", "broker.backlog_quota_check_interval_ms=200")
BODY = bytes(1000)
LIMIT = 20_000


def client_of(service_url: str) -> pulsar.Client:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(service_url, logger=logger, operation_timeout_seconds=60)


def limit(http_url: str, policy: str, **limits: int) -> None:
    body = {"limitSize": -1, "limitTime": -1, "policy": policy} | limits
    kind = "message_age" if "limitTime" in limits else "destination_storage"
    url = f"{http_url}{PATH}/limited/backlogQuota?backlogQuotaType={kind}"
    answer = httpx.post(url, json=body, timeout=WAIT_S)
    assert answer.status_code == 204, answer.text


def stats(http_url: str) -> dict[str, Any]:
    answer = httpx.get(f"{http_url}{PATH}/limited/stats", timeout=WAIT_S, follow_redirects=True)
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def fill(client: pulsar.Client, name: str = "s") -> pulsar.Consumer:
    """A subscription that is behind by more than the limit."""
    consumer = client.subscribe(TOPIC, name, initial_position=pulsar.InitialPosition.Latest)
    producer = client.create_producer(TOPIC, batching_enabled=False)
    for number in range(30):
        producer.send(b"%03d" % number + BODY)
    producer.close()
    return consumer


def take(consumer: pulsar.Consumer, count: int) -> list[int]:
    found = []
    for _ in range(count):
        message = consumer.receive(60_000)
        found.append(int(message.data()[:3]))
        consumer.acknowledge(message)
    return found


@pytest.mark.parametrize("policy", ["producer_request_hold", "producer_exception"])
def test_producers_of_the_python_client_and_a_platform_that_is_killed(
    tmp_path: Path, policy: str
) -> None:
    refusal = {
        "producer_request_hold": pulsar.ProducerBlockedQuotaExceededError,
        "producer_exception": pulsar.ProducerBlockedQuotaExceededException,
    }[policy]
    failed = pulsar.Timeout if policy == "producer_request_hold" else refusal
    with Standalone(tmp_path / "data", *CHECKS) as platform:
        client = client_of(platform.service_url)
        consumer = fill(client)
        producer = client.create_producer(TOPIC, batching_enabled=False, send_timeout_millis=2000)
        limit(platform.http_url, policy, limitSize=LIMIT)
        eventually(lambda: not stats(platform.http_url)["publishers"], "it was sent away")
        with pytest.raises(failed):
            producer.send(b"030" + BODY)
        with pytest.raises(refusal):
            client.create_producer(TOPIC)
        platform.kill()
        platform.start()
        with pytest.raises(refusal):
            client.create_producer(TOPIC)
        assert "subscription s is" in stats(platform.http_url)["quotaExceeded"]
        assert take(consumer, 30) == list(range(30))
        eventually(lambda: _sends(producer), "the same producer goes on by itself")
        assert take(consumer, 1) == [31], "what failed is not there"
        client.create_producer(TOPIC).send(b"032" + BODY)
        assert not stats(platform.http_url)["quotaExceeded"]
        client.close()


def _comes(client: pulsar.Client) -> bool:
    try:
        client.create_producer(TOPIC).close()
    except pulsar.ProducerBlockedQuotaExceededException:
        return False
    return True


def _sends(producer: pulsar.Producer) -> bool:
    try:
        producer.send(b"031" + BODY)
    except pulsar.PulsarException:
        return False
    return True


def test_what_is_held_is_sent_when_there_is_place_again(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data", *CHECKS) as platform:
        client = client_of(platform.service_url)
        consumer = fill(client)
        producer = client.create_producer(TOPIC, batching_enabled=False, send_timeout_millis=0)
        limit(platform.http_url, "producer_request_hold", limitSize=LIMIT)
        eventually(lambda: not stats(platform.http_url)["publishers"], "it was sent away")
        told: list[pulsar.Result] = []
        for number in range(30, 35):
            producer.send_async(b"%03d" % number + BODY, lambda result, _id: told.append(result))
        time.sleep(3)
        assert told == []
        assert take(consumer, 35) == list(range(35))
        eventually(lambda: told == [pulsar.Result.Ok] * 5, "all are told so")
        client.close()


def test_an_eviction_is_stored_counted_and_of_the_slowest_alone(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data", *CHECKS) as platform:
        client = client_of(platform.service_url)
        slow, ahead = (
            client.subscribe(TOPIC, name, initial_position=pulsar.InitialPosition.Earliest)
            for name in ("slow", "ahead")
        )
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for number in range(30):
            producer.send(b"%03d" % number + BODY)
        assert take(ahead, 25) == list(range(25))
        slow.close()
        set_quota = ("topics", "policies", "set", "limited", "--backlog-size", str(LIMIT))
        command = [sys.executable, "-m", "magnetar", *set_quota, "--backlog-policy", "evict"]
        done = subprocess.run(
            [*command, "--url", platform.http_url], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

        def backlog(name: str) -> int:
            return int(stats(platform.http_url)["subscriptions"][name]["msgBacklog"])

        eventually(lambda: backlog("slow") < 20, "what is too much has gone")
        left = backlog("slow")
        assert 14 <= left <= 18, "nine tenths of the limit"
        assert backlog("ahead") == 5
        metrics = httpx.get(f"{platform.http_url}/metrics", timeout=WAIT_S).text
        assert f"magnetar_broker_evicted_entries_total {30 - left}.0" in metrics
        assert "backlog evicted" in platform.log_path.read_text()
        producer.send(b"030" + BODY)
        time.sleep(1)
        platform.kill()
        platform.start()
        slow = client.subscribe(TOPIC, "slow")
        assert take(slow, left + 1) == list(range(30 - left, 31))
        client.close()


def test_it_holds_at_other_brokers(tmp_path: Path) -> None:
    several = Several(tmp_path, "--brokers", "2", *CHECKS)
    try:
        client = client_of(several.service_url)
        consumer = fill(client)
        limit(several.http_url, "producer_exception", limitTime=1)
        time.sleep(1)
        for pid in several.pids():
            os.kill(pid, signal.SIGKILL)
            eventually(lambda pid=pid: len(several.pids()) == 2 and pid not in several.pids(), "up")
            with pytest.raises(pulsar.ProducerBlockedQuotaExceededException):
                client.create_producer(TOPIC)
        assert take(consumer, 30) == list(range(30))
        eventually(lambda: _comes(client), "what is acknowledged has come to the broker")
        client.close()
    finally:
        several.role.kill()


def test_kafkas_producers_wait_or_fail(tmp_path: Path) -> None:
    port = free_port()
    with Standalone(tmp_path / "data", *CHECKS, "--set", f"kafka.port={port}") as platform:
        client, address = client_of(platform.service_url), f"127.0.0.1:{port}"
        consumer = fill(client)
        waits = kafka.KafkaProducer(bootstrap_servers=address, retries=1000)
        other = confluent.Producer({"bootstrap.servers": address, "enable.idempotence": True})
        told: list[object] = []
        limit(platform.http_url, "producer_request_hold", limitSize=LIMIT)
        eventually(lambda: bool(stats(platform.http_url)["quotaExceeded"]), "seen")
        sent = [waits.send("limited", b"%03d" % number) for number in (30, 31)]
        for number in (32, 33):
            other.produce("limited", b"%03d" % number, on_delivery=lambda e, _: told.append(e))
        time.sleep(3)
        other.poll(0)
        assert not any(each.is_done for each in sent)
        assert told == []
        assert take(consumer, 30) == list(range(30))
        for each in sent:
            each.get(60)
        assert other.flush(60) == 0
        assert told == [None, None]
        assert sorted(take(consumer, 4)) == [30, 31, 32, 33]
        limit(platform.http_url, "producer_exception", limitSize=-1)
        consumer.close()
        fill(client, "other")
        limit(platform.http_url, "producer_exception", limitSize=LIMIT)
        eventually(lambda: bool(stats(platform.http_url)["quotaExceeded"]), "seen")
        with pytest.raises(kafka.errors.PolicyViolationError):
            waits.send("limited", b"late").get(60)
        failed: list[str] = []
        other.produce("limited", b"late", on_delivery=lambda error, _: failed.append(error.name()))
        assert other.flush(60) == 0
        assert failed == ["POLICY_VIOLATION"]
        waits.close()
        client.close()
