"""The official client on many topics at once, while their owners change: one producer and one
consumer per topic, numbered messages, and how long each topic was without an answer."""

from __future__ import annotations

import itertools
import struct
import threading
import time
from collections.abc import Sequence

import pulsar

from tests.scenarios.publisher import WAIT_S, connect

ROUND_S = 0.02
PENDING_MAX = 100


class TopicTraffic:
    """What was sent to one topic, and what came of it."""

    def __init__(self, name: str, producers: pulsar.Client, consumers: pulsar.Client) -> None:
        self.name = name
        self.acknowledged: set[int] = set()
        self.times_s: list[float] = []
        """When each acknowledgement came."""
        self.failed: list[str] = []
        self.received: list[int] = []
        self.received_s: list[float] = []
        """When each delivery came."""
        self._sent = 0
        self._consumer = consumers.subscribe(
            name,
            "all",
            initial_position=pulsar.InitialPosition.Earliest,
            message_listener=self._listen,
        )
        self._producer = producers.create_producer(
            name,
            batching_enabled=False,
            send_timeout_millis=0,
            max_pending_messages=2 * PENDING_MAX,
        )

    def _listen(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        self.received.append(struct.unpack(">Q", message.data())[0])
        self.received_s.append(time.monotonic())
        consumer.acknowledge(message)

    def send(self) -> None:
        """One message, unless too many wait for their answers."""
        if self._sent - len(self.acknowledged) - len(self.failed) >= PENDING_MAX:
            return
        number, self._sent = self._sent, self._sent + 1
        self._producer.send_async(
            struct.pack(">Q", number), lambda result, _id: self._answered(number, result)
        )

    def _answered(self, number: int, result: pulsar.Result) -> None:
        if result == pulsar.Result.Ok:
            self.acknowledged.add(number)
            self.times_s.append(time.monotonic())
        else:
            self.failed.append(str(result))

    def flush(self) -> None:
        self._producer.flush()

    def longest_gap_s(self, since_s: float, until_s: float) -> float:
        """The longest time without an acknowledgement in between."""
        return _longest_gap_s(self.times_s, since_s, until_s)

    def longest_silence_s(self, since_s: float, until_s: float) -> float:
        """The longest time without a delivery in between."""
        return _longest_gap_s(self.received_s, since_s, until_s)


def _longest_gap_s(events_s: Sequence[float], since_s: float, until_s: float) -> float:
    times = [since_s, *(at for at in list(events_s) if since_s < at < until_s), until_s]
    return max(after - before for before, after in itertools.pairwise(times))


class ManyTopics(threading.Thread):
    """Traffic on all of ``topics`` until it is told to stop: a message to each, then a pause of
    ``round_s``."""

    def __init__(self, service_url: str, topics: Sequence[str], round_s: float = ROUND_S) -> None:
        super().__init__(name="traffic", daemon=True)
        self._clients = connect(service_url), connect(service_url)
        self.topics = [TopicTraffic(name, *self._clients) for name in topics]
        self._stopped = threading.Event()
        self._round_s = round_s

    def run(self) -> None:
        while not self._stopped.is_set():
            for topic in self.topics:
                topic.send()
            time.sleep(self._round_s)

    def wait_all_answered(self, more: int = 5) -> None:
        """Until each topic has that many more acknowledgements."""
        goals = [len(topic.times_s) + more for topic in self.topics]
        deadline_s = time.monotonic() + WAIT_S
        for topic, goal in zip(self.topics, goals, strict=True):
            while len(topic.times_s) < goal:
                assert time.monotonic() < deadline_s, f"{topic.name} is not served"
                time.sleep(0.01)

    def gaps_s(self, since_s: float) -> list[float]:
        """Of each topic since then, the longest first."""
        now_s = time.monotonic()
        return sorted((each.longest_gap_s(since_s, now_s) for each in self.topics), reverse=True)

    def wait_all_received(self) -> None:
        """After ``stop_sending``: until each consumer has what was acknowledged."""
        deadline_s = time.monotonic() + WAIT_S
        for topic in self.topics:
            while not topic.acknowledged <= set(topic.received):
                missing = sorted(topic.acknowledged - set(topic.received))[:10]
                assert time.monotonic() < deadline_s, f"{topic.name}: {missing} not received"
                time.sleep(0.05)

    def stop_sending(self) -> None:
        """Returns when everything sent has its answer."""
        self._stopped.set()
        self.join(WAIT_S)
        for topic in self.topics:
            topic.flush()

    def close(self) -> None:
        for client in self._clients:
            client.close()
