"""Kafka's clients on several brokers: leaders, coordinators, and one that is killed."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as confluent
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.test_kafka_clients import DEADLINE_S, polled
from tests.integration.test_several_brokers import Several

TOPIC, PARTITIONS, COUNT = "spread", 8, 400


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Several]:
    made = Several(tmp_path, "--brokers", "2", "--kafka-port", "0")
    try:
        yield made
    finally:
        made.role.kill()


def bootstrap_of(several: Several) -> str:
    found = re.search(r"kafka (\S+) ", several.role.ready_line)
    assert found is not None, several.role.ready_line
    return found[1]


def produced(bootstrap: str, first: int) -> None:
    producer = confluent.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    errors: list[object] = []
    for number in range(first, first + COUNT):
        producer.produce(
            TOPIC,
            partition=number % PARTITIONS,
            value=b"%d" % number,
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
    assert producer.flush(DEADLINE_S) == 0
    assert errors == []


def test_partitions_and_groups_are_spread_and_go_on_when_a_broker_dies(several: Several) -> None:
    bootstrap = bootstrap_of(several)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(DEADLINE_S)
    produced(bootstrap, 0)
    known = admin.list_topics(timeout=DEADLINE_S)
    assert len(known.brokers) == 2
    leaders = {each.leader for each in known.topics[TOPIC].partitions.values()}
    assert leaders == set(known.brokers), "each has some"
    addresses = ",".join(f"{each.host}:{each.port}" for each in known.brokers.values())
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": addresses,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    values = [int(each.value()) for each in polled(consumer, COUNT)]
    assert sorted(values) == list(range(COUNT))
    consumer.commit(asynchronous=False)
    other = "with-partitions-of-both"
    producer = confluent.Producer({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(other, PARTITIONS)])[other].result(DEADLINE_S)
    for number in range(PARTITIONS):
        producer.produce(other, partition=number, value=b"x")
    assert producer.flush(DEADLINE_S) == 0
    admin.delete_topics([other])[other].result(DEADLINE_S)
    assert other not in admin.list_topics(timeout=DEADLINE_S).topics
    os.kill(several.pids()[-1], signal.SIGKILL)
    produced(addresses, COUNT)
    deadline = time.monotonic() + DEADLINE_S
    later: set[int] = set()
    while len(later) < COUNT and time.monotonic() < deadline:
        for each in consumer.consume(500, 1.0):
            if each.error() is None:
                later.add(int(each.value()))
    assert later >= set(range(COUNT, 2 * COUNT))
    consumer.commit(asynchronous=False)
    consumer.close()
