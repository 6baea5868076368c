"""Writes down what the installed Kafka clients say to a platform, and what they are answered.

Usage, from the project's root::

    python -m tests.golden.kafka.capture

writes ``tests/golden/kafka/CLIENT-VERSION.json``: of each API and version that a client used, the
first exchange. The tests read every one of them. Run it again with new versions of the clients and
commit the new files beside the old.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from magnetar.app.standalone import run
from magnetar.config import BrokerConfig, Config, HttpConfig, KafkaConfig
from magnetar.env.network.free_ports import free_port
from magnetar.protocols.kafka import session

WAIT_S = 30.0
HERE = Path(__file__).parent
Exchanges = dict[tuple[int, int], dict[str, Any]]


class Recorder:
    """Listens between the sessions of this process and what they call."""

    def __init__(self) -> None:
        self.found: Exchanges = {}
        self._request = session.KafkaSession._request
        self._encode = session.encode_response
        self._numbers: dict[tuple[int, int], int] = {}

    def install(self) -> None:
        def request(of: session.KafkaSession, frame: memoryview) -> None:
            key, number = int.from_bytes(frame[:2]), int.from_bytes(frame[4:8])
            place = key, int.from_bytes(frame[2:4])
            if place not in self.found:
                self._numbers[place] = number
                said = {"api_key": key, "version": place[1], "request": frame.hex()}
                self.found[place] = {**said, "response": ""}
            self._request(of, frame)

        def encode(key: int, of_version: int, number: int, response: Any) -> Any:
            parts, size = self._encode(key, of_version, number, response)
            place = key, of_version
            found = self.found.get(place)
            if found is not None and not found["response"] and self._numbers[place] == number:
                found["response"] = b"".join(parts)[4:].hex()
            return parts, size

        session.KafkaSession._request = request  # type: ignore[method-assign]
        session.encode_response = encode

    def write(self, client: str) -> None:
        found, self.found = self.found, {}
        listed = [found[place] for place in sorted(found)]
        (HERE / f"{client}.json").write_text(json.dumps(listed, indent=1) + "\n")


@contextmanager
def platform(data_dir: Path) -> Iterator[str]:
    """A standalone in a thread of this process; where its Kafka port is."""
    ready, stopped, port = threading.Event(), asyncio.Event(), free_port()
    config = replace(
        Config(data_dir=data_dir),
        broker=BrokerConfig(port=0),
        http=HttpConfig(port=0),
        kafka=KafkaConfig(port=port),
    )
    loop = asyncio.new_event_loop()
    serving = run(config, 1, False, lambda _line: ready.set(), stopped)
    thread = threading.Thread(target=partial(loop.run_until_complete, serving))
    thread.start()
    assert ready.wait(WAIT_S)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()


def with_librdkafka(bootstrap: str) -> None:
    producer = confluent.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce("rd", key=b"k", value=b"v", headers={"h": b"1"})
    producer.flush(WAIT_S)
    consumer = confluent.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "rd", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["rd"])
    assert consumer.consume(1, WAIT_S)
    consumer.offsets_for_times([confluent.TopicPartition("rd", 0, 1)], WAIT_S)
    consumer.commit(asynchronous=False)
    consumer.close()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    with_assigned_group(bootstrap, admin)
    admin.create_topics([NewTopic("other", 1)])["other"].result(WAIT_S)
    admin.create_partitions([NewPartitions("other", 2)])["other"].result(WAIT_S)
    admin.list_consumer_groups().result(WAIT_S)
    admin.describe_consumer_groups(["rd"])["rd"].result(WAIT_S)
    admin.delete_consumer_groups(["rd"])["rd"].result(WAIT_S)
    admin.describe_cluster().result(WAIT_S)
    admin.list_topics(timeout=WAIT_S)
    admin.delete_topics(["other"])["other"].result(WAIT_S)


def with_assigned_group(bootstrap: str, admin: AdminClient) -> None:
    """A group whose coordinator assigns."""
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "assigned",
            "group.protocol": "consumer",
            "group.instance.id": "one",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["^rd$"])
    assert consumer.consume(1, WAIT_S)
    admin.describe_consumer_groups(["assigned"])["assigned"].result(WAIT_S)
    consumer.close()


def with_kafka_python(bootstrap: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    producer.send("py", key=b"k", value=b"v", headers=[("h", b"1")]).get(WAIT_S)
    producer.close()
    consumer = kafka.KafkaConsumer(
        "py", bootstrap_servers=bootstrap, group_id="py", auto_offset_reset="earliest"
    )
    next(consumer)
    place = kafka.TopicPartition("py", 0)
    consumer.end_offsets([place])
    consumer.commit()
    consumer.close()


def with_aiokafka(bootstrap: str) -> None:
    async def scenario() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        await producer.start()
        await producer.send_and_wait("aio", b"v", key=b"k")
        await producer.stop()
        consumer = AIOKafkaConsumer(
            "aio", bootstrap_servers=bootstrap, group_id="aio", auto_offset_reset="earliest"
        )
        await consumer.start()
        await asyncio.wait_for(consumer.getone(), WAIT_S)
        await consumer.commit()
        await consumer.stop()

    asyncio.run(scenario())


CLIENTS: tuple[tuple[str, Callable[[str], None]], ...] = (
    ("confluent-kafka", with_librdkafka),
    ("kafka-python", with_kafka_python),
    ("aiokafka", with_aiokafka),
)


def main() -> None:
    recorder = Recorder()
    recorder.install()
    with tempfile.TemporaryDirectory() as folder, platform(Path(folder) / "data") as bootstrap:
        for name, scenario in CLIENTS:
            scenario(bootstrap)
            recorder.write(f"{name}-{version(name)}")


if __name__ == "__main__":
    main()
