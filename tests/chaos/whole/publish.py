"""A process of producers: ``python -m tests.chaos.whole.publish NAME SERVICE_URL HISTORY``.

One ordinary producer per topic (``modes``), each at its topic's pace, until SIGTERM; then it waits
until all it has sent is answered, and ends with 0. What is sent is noted before, answers when they
come. A message that waits for its answer is not followed by more than ``PENDING_MAX`` others.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Final

import pulsar

from tests.chaos.whole.connecting import connect, until_it_works
from tests.chaos.whole.history import NOTE, REFUSED, SEND, SENT, HistoryWriter
from tests.chaos.whole.modes import DELAY_S, KEYS, PUBLISHERS, TOPICS, Topic, payload

PENDING_MAX: Final = 500
TURN_S: Final = 0.01
"""Two messages of a topic come closer than a batch waits, so batches are batches."""
BATCH_DELAY_MS: Final = 300


class TopicProducer:
    """``name`` is never used again by another."""

    def __init__(
        self, client: pulsar.Client, topic: Topic, name: str, history: HistoryWriter
    ) -> None:
        self._topic = topic
        self._name = name
        self._history = history
        self._number = 0
        self._pending = 0
        self._lock = threading.Lock()
        self._random = random.Random(name)
        self._period_s = len(PUBLISHERS) / topic.rate
        self._next_s = time.monotonic() + self._random.uniform(0.0, self._period_s)
        self._producer = until_it_works(lambda: self._open(client))

    def _open(self, client: pulsar.Client) -> pulsar.Producer:
        return client.create_producer(
            self._topic.url,
            batching_enabled=self._topic.batched,
            batching_max_publish_delay_ms=BATCH_DELAY_MS,
            message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
            send_timeout_millis=0,
            max_pending_messages=2 * PENDING_MAX,
            block_if_queue_full=True,
        )

    def turn(self) -> None:
        """One message, if it is time."""
        now_s = time.monotonic()
        if now_s < self._next_s or self._pending >= PENDING_MAX:
            return
        self._next_s = max(self._next_s + self._period_s, now_s)
        delay_s = self._random.uniform(*DELAY_S) if self._topic.delayed else 0.0
        number, self._number = self._number, self._number + 1
        due_s = now_s + delay_s if delay_s else 0.0
        self._history.write(SEND, self._topic.name, self._name, number, round(due_s, 3))
        with self._lock:
            self._pending += 1
        self._producer.send_async(
            payload(self._name, number, due_s),
            lambda result, at, number=number: self._answered(number, result, at),
            partition_key=f"k{number % KEYS}" if self._topic.partitions else None,
            deliver_after=timedelta(milliseconds=round(delay_s * 1000)) if delay_s else None,
        )

    def _answered(self, number: int, result: pulsar.Result, at: pulsar.MessageId) -> None:
        with self._lock:
            self._pending -= 1
        if result == pulsar.Result.Ok:
            self._history.write(SENT, self._topic.name, self._name, number, str(at))
        else:
            self._history.write(REFUSED, self._topic.name, self._name, number, str(result))

    def flush(self) -> None:
        self._producer.flush()


def main() -> None:
    name, service_url, path = sys.argv[1:]
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: over.set())
    history = HistoryWriter(Path(path))
    client = connect(service_url)
    producers = [TopicProducer(client, each, f"{name}/{each.name}", history) for each in TOPICS]
    history.write(NOTE, "all producers are there")
    while not over.is_set():
        for producer in producers:
            producer.turn()
        time.sleep(TURN_S)
    for producer in producers:
        producer.flush()
    client.close()
    history.write(NOTE, "all is answered")


if __name__ == "__main__":
    main()
