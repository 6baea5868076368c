"""What a message takes from one topic into another, seen from outside: a process that sends at a
steady rate into the first and receives from the second.

    python -m bench.peers.probe pulsar|kafka ADDRESS IN OUT RATE WARM_S SECONDS BYTES

Prints ``ready``, begins on a line of input, as soon as a message has come through, and prints one
line of JSON. A message carries when it was due, so a pause shows in all that it delayed; those that
were due in the first ``WARM_S`` do not count.
"""

from __future__ import annotations

import json
import struct
import sys
import threading
import time
from typing import Any, Protocol

from bench.measure import Histogram

AFTER_S = 60.0
FIRST_S = 300.0
DUE = struct.Struct(">d")


class Client(Protocol):
    """A producer of one topic and a consumer of another."""

    def send(self, body: bytes) -> None: ...

    def flush(self) -> None: ...

    def receive(self) -> bytes | None:
        """None when nothing came for a while."""
        ...


class PulsarClient:
    def __init__(self, address: str, source: str, sink: str) -> None:
        import pulsar

        self._timeout = pulsar.Timeout
        client = pulsar.Client(address, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self._client = client
        self._producer = client.create_producer(
            source, batching_enabled=True, batching_max_publish_delay_ms=1
        )
        self._consumer = client.subscribe(sink, "probe")

    def send(self, body: bytes) -> None:
        self._producer.send_async(body, None)

    def flush(self) -> None:
        self._producer.flush()

    def receive(self) -> bytes | None:
        try:
            body: bytes = self._consumer.receive(200).data()
        except self._timeout:
            return None
        return body


class KafkaClient:
    def __init__(self, address: str, source: str, sink: str) -> None:
        from confluent_kafka import Consumer, Producer, TopicPartition

        self._source = source
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 1})
        self._consumer = Consumer(
            {"bootstrap.servers": address, "group.id": "probe", "enable.auto.commit": False}
        )
        place = TopicPartition(sink, 0)
        place.offset = self._consumer.get_watermark_offsets(place)[1]
        self._consumer.assign([place])

    def send(self, body: bytes) -> None:
        self._producer.produce(self._source, body)
        self._producer.poll(0)

    def flush(self) -> None:
        self._producer.flush()

    def receive(self) -> bytes | None:
        message = self._consumer.poll(0.2)
        if message is None:
            return None
        body: bytes = message.value()
        return body


def produce(client: Client, begun: float, rate: float, seconds: float, size: int) -> None:
    padding = bytes(size - DUE.size)
    for number in range(int(rate * seconds)):
        due = begun + number / rate
        while (left := due - time.time()) > 0:
            time.sleep(left)
        client.send(DUE.pack(due) + padding)
    client.flush()


def wait_first(client: Client, size: int) -> None:
    """The query between the topics runs."""
    deadline = time.time() + FIRST_S
    while time.time() < deadline:
        client.send(DUE.pack(0.0) + bytes(size - DUE.size))
        client.flush()
        if client.receive() is not None:
            return
    raise SystemExit(f"nothing came through in {FIRST_S:.0f} s")


def measure(
    client: Client, rate: float, warm_s: float, seconds: float, size: int
) -> dict[str, Any]:
    wait_first(client, size)
    begun = time.time()
    total_s = warm_s + seconds
    sending = threading.Thread(
        target=produce, args=(client, begun, rate, total_s, size), daemon=True
    )
    sending.start()
    latency, received, twice = Histogram(), 0, set()
    while received < int(rate * total_s) and time.time() < begun + total_s + AFTER_S:
        body = client.receive()
        if body is None:
            continue
        (due,) = DUE.unpack_from(body)
        if due < begun or due in twice:
            continue  # of a run before this one, or again
        twice.add(due)
        received += 1
        if due >= begun + warm_s:
            latency.record(time.time() - due)
    return {
        "sent": int(rate * total_s),
        "received": received,
        "latency_ms": latency.summary_ms(),
    }


def main() -> None:
    kind, address, source, sink = sys.argv[1:5]
    rate, warm_s, seconds, size = map(float, sys.argv[5:])
    client: Client = (PulsarClient if kind == "pulsar" else KafkaClient)(address, source, sink)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(measure(client, rate, warm_s, seconds, int(size))), flush=True)


if __name__ == "__main__":
    main()
