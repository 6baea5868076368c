"""Members of classic groups over the end of their coordinator: real clients go on with their ids,
and see no rebalance."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import confluent_kafka as confluent
import kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.abc import ConsumerRebalanceListener as AioListener
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.test_kafka_clients import DEADLINE_S, KafkaStandalone
from tests.integration.test_kafka_several_brokers import bootstrap_of
from tests.integration.test_several_brokers import Several

TOPIC, PARTITIONS = "members", 4
T = TypeVar("T")


def made(bootstrap: str) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(DEADLINE_S)
    return admin


def send(bootstrap: str, count: int = 20) -> None:
    producer = confluent.Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(TOPIC, partition=number % PARTITIONS, value=b"%d" % number)
    assert producer.flush(DEADLINE_S) == 0


def members_of(bootstrap: str, group: str) -> dict[str, list[int]]:
    """Ids, and the partitions that each has; none while the group is not stable."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_consumer_groups([group])[group].result(DEADLINE_S)
    if found.state is not confluent.ConsumerGroupState.STABLE:
        return {}
    return {
        each.member_id: sorted(part.partition for part in each.assignment.topic_partitions)
        for each in found.members
    }


class Confluent:
    """librdkafka's consumer; ``revoked`` counts how often it was told to give something up."""

    def __init__(self, bootstrap: str, group: str, **settings: Any) -> None:
        said = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 20_000,
            "heartbeat.interval.ms": 500,
        }
        self.consumer = confluent.Consumer({**said, **settings})
        self.assigned = self.revoked = 0
        self.consumer.subscribe(
            [TOPIC], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )

    def _on_assign(self, consumer: object, partitions: object) -> None:
        self.assigned += 1

    def _on_revoke(self, consumer: object, partitions: object) -> None:
        self.revoked += 1

    def read(self) -> int:
        return sum(1 for each in self.consumer.consume(100, 0.5) if each.error() is None)

    def commit(self) -> None:
        self.consumer.commit(asynchronous=False)

    def close(self) -> None:
        self.consumer.close()


class Python(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    """kafka-python's."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=20_000,
            heartbeat_interval_ms=500,
        )
        self.assigned = self.revoked = 0
        self.consumer.subscribe([TOPIC], listener=self)

    def on_partitions_assigned(self, assigned: object) -> None:
        self.assigned += 1

    def on_partitions_revoked(self, revoked: object) -> None:
        self.revoked += bool(revoked)

    def read(self) -> int:
        return sum(map(len, self.consumer.poll(1_000).values()))

    def commit(self) -> None:
        self.consumer.commit()

    def close(self) -> None:
        self.consumer.close()


class Aio(AioListener):  # type: ignore[misc]
    """aiokafka's, on a loop of its own."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.assigned = self.revoked = 0

        async def started() -> AIOKafkaConsumer:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=20_000,
                heartbeat_interval_ms=500,
            )
            consumer.subscribe([TOPIC], listener=self)
            await consumer.start()
            return consumer

        self.consumer = self._result(started())

    def _result(self, awaited: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(awaited, self._loop).result(DEADLINE_S)

    def on_partitions_assigned(self, assigned: object) -> None:
        self.assigned += 1

    def on_partitions_revoked(self, revoked: object) -> None:
        self.revoked += bool(revoked)

    def read(self) -> int:
        return sum(map(len, self._result(self.consumer.getmany(timeout_ms=500)).values()))

    def commit(self) -> None:
        self._result(self.consumer.commit())

    def close(self) -> None:
        self._result(self.consumer.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()


Client = Confluent | Python | Aio


def read_until(clients: Sequence[Client], holds: Callable[[int], bool], what: str) -> None:
    """All clients read at once, or one would wait for another that is to join: until what they have
    read together is enough."""
    count = 0
    deadline = time.monotonic() + DEADLINE_S
    with ThreadPoolExecutor(len(clients)) as pool:
        while not holds(count):
            assert time.monotonic() < deadline, f"{what}: {count} were read"
            count += sum(pool.map(lambda each: each.read(), clients))


def read_for(clients: Sequence[Client], seconds: float) -> None:
    """As long as some heartbeats take."""
    over = time.monotonic() + seconds
    read_until(clients, lambda _: time.monotonic() > over, "time does not pass")


def times_of(clients: Sequence[Client]) -> list[tuple[int, int]]:
    """How often each was told that it has something, and that it is to give it up."""
    return [(each.assigned, each.revoked) for each in clients]


@pytest.mark.parametrize("kind", [Confluent, Python, Aio])
def test_members_go_on_over_a_kill_of_their_coordinator(tmp_path: Path, kind: type[Client]) -> None:
    with ExitStack() as stack:
        server = KafkaStandalone(tmp_path / "data")
        server.start()
        stack.callback(server.kill)
        made(server.bootstrap)
        clients = [kind(server.bootstrap, "group") for _ in range(2)]
        for each in clients:
            stack.callback(each.close)

        def shared(count: int) -> bool:
            known = members_of(server.bootstrap, "group")
            return len(known) == 2 and all(known.values())

        read_until(clients, shared, "both have some")
        read_for(clients, 2)  # and have heard of it
        before, times = members_of(server.bootstrap, "group"), times_of(clients)
        for kills in range(2):
            server.kill()
            server.start()
            send(server.bootstrap)
            read_until(clients, lambda count: count >= 20, f"kill {kills}")
            read_for(clients, 4)
            for each in clients:
                each.commit()
        assert members_of(server.bootstrap, "group") == before
        assert times_of(clients) == times


def test_members_go_on_at_another_broker(tmp_path: Path) -> None:
    several = Several(tmp_path, "--brokers", "2", "--kafka-port", "0")
    with ExitStack() as stack:
        stack.callback(several.role.kill)
        bootstrap = bootstrap_of(several)
        known = made(bootstrap).list_topics(timeout=DEADLINE_S).brokers.values()
        addresses = ",".join(f"{each.host}:{each.port}" for each in known)
        groups = [f"group-{number}" for number in range(6)]
        clients = []
        for number, group in enumerate(groups):
            static = {"group.instance.id": "one"} if number % 2 else {}
            clients.append(Confluent(addresses, group, **static))
            stack.callback(clients[-1].close)
        admin = AdminClient({"bootstrap.servers": addresses})
        asked = admin.describe_consumer_groups(groups)
        coordinators = {each.result(DEADLINE_S).coordinator.id for each in asked.values()}
        assert len(coordinators) == 2

        def members() -> list[list[str]]:
            return [list(members_of(addresses, group)) for group in groups]

        read_until(clients, lambda _: all(map(len, members())), "each is stable")
        read_for(clients, 2)
        before, times = members(), times_of(clients)
        os.kill(several.pids()[-1], signal.SIGKILL)
        send(addresses)
        read_until(clients, lambda count: count >= 20 * len(groups), "the other broker serves")
        read_for(clients, 4)
        for each in clients:
            each.commit()
        assert members() == before
        assert times_of(clients) == times
