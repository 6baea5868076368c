"""What the tests with the official client say over and over."""

from __future__ import annotations

import time
from collections.abc import Callable

import pulsar
import pytest

WAIT_MS = 60_000
QUIET_MS = 300


def receive(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    """The next ``count`` messages."""
    return [consumer.receive(WAIT_MS) for _ in range(count)]


def texts(messages: list[pulsar.Message]) -> list[str]:
    return [message.data().decode() for message in messages]


def assert_quiet(consumer: pulsar.Consumer, quiet_ms: int = QUIET_MS) -> None:
    """Nothing comes for a while."""
    with pytest.raises(pulsar.Timeout):
        consumer.receive(quiet_ms)


def publish(producer: pulsar.Producer, count: int, first: int = 0) -> list[pulsar.MessageId]:
    """Send "0", "1", ... one by one; their ids."""
    return [producer.send(str(number).encode()) for number in range(first, first + count)]


def publish_batches(producer: pulsar.Producer, batches: int, size: int) -> None:
    """Send ``batches`` entries of ``size`` messages each: "0", "1", ..."""
    for batch in range(batches):
        for index in range(size):
            producer.send_async(str(batch * size + index).encode(), None)
        producer.flush()


def eventually(true: Callable[[], bool], seconds: float = WAIT_MS / 1000) -> None:
    """Wait until ``true()`` is."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)
