"""The official client under faults: publishes numbered messages until it is told to stop, notes
what was acknowledged, and reads a topic back."""

from __future__ import annotations

import os
import struct
import threading
import time

import pulsar

QUIET = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
WINDOW = 200
WAIT_S = 120.0


def connect(service_url: str) -> pulsar.Client:
    return pulsar.Client(service_url, operation_timeout_seconds=60, logger=QUIET)


class Publisher(threading.Thread):
    """One ordinary producer, numbering from ``first``, that reconnects by itself and sends again
    what was not acknowledged."""

    def __init__(self, service_url: str, topic: str, first: int = 0) -> None:
        super().__init__(name="publisher", daemon=True)
        self.acknowledged: set[int] = set()
        self.failed: list[str] = []
        self._first = first
        self._stopped = threading.Event()
        self._room = threading.Semaphore(WINDOW)
        self._client = connect(service_url)
        self._producer = self._client.create_producer(
            topic, batching_enabled=False, send_timeout_millis=0, max_pending_messages=2 * WINDOW
        )

    def run(self) -> None:
        number = self._first
        while not self._stopped.is_set():
            if not self._room.acquire(timeout=0.1):
                continue
            self._producer.send_async(
                struct.pack(">Q", number),
                lambda result, _id, number=number: self._sent(number, result),
            )
            number += 1
            if number % 16 == 0:
                time.sleep(0.002)  # some thousands a second are load enough

    def _sent(self, number: int, result: pulsar.Result) -> None:
        if result == pulsar.Result.Ok:
            self.acknowledged.add(number)
        else:
            self.failed.append(str(result))
        self._room.release()

    def wait_acknowledged(self, more: int) -> None:
        goal = len(self.acknowledged) + more
        deadline = time.monotonic() + WAIT_S
        while len(self.acknowledged) < goal:
            assert time.monotonic() < deadline, f"{len(self.acknowledged)} of {goal} acknowledged"
            time.sleep(0.01)

    def stop(self) -> None:
        """Returns when everything sent has its answer."""
        self._stopped.set()
        self.join(WAIT_S)
        self._producer.flush()
        self._client.close()


def read_back(service_url: str, topic: str) -> list[int]:
    """The numbers in the topic, as a new reader gets them."""
    client = connect(service_url)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=2000)
    numbers = []
    while reader.has_message_available():
        numbers.append(struct.unpack(">Q", reader.read_next(60_000).data())[0])
    client.close()
    return numbers
