"""A process of consumers: ``python -m tests.chaos.whole.consume NAME SERVICE_URL HISTORY``.

``NAME`` is ``first`` or ``second`` (``modes.duties``) and a number of the start. Official client.
What comes is noted, then acknowledged one by one. Of what shared subscriptions get, some is sent
back first (negative acknowledgement), so that it comes again.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
from pathlib import Path
from typing import Final

import pulsar

from tests.chaos.whole.connecting import connect, until_it_works
from tests.chaos.whole.history import ACKED, GOT, NOTE, HistoryWriter
from tests.chaos.whole.modes import FAILOVER, SHARED, Duty, duties, parse

TYPES: Final = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Failover": pulsar.ConsumerType.Failover,
    "Shared": pulsar.ConsumerType.Shared,
}
SENT_BACK: Final = 0.03
QUEUE: Final = 100


class Subscribed:
    """One subscription of one topic (of all its partitions)."""

    def __init__(
        self, client: pulsar.Client, duty: Duty, name: str, history: HistoryWriter
    ) -> None:
        self._duty = duty
        self._name = name
        self._history = history
        self._random = random.Random(f"{name} {duty.topic.name}")
        self._consumer = until_it_works(lambda: self._open(client))

    def _open(self, client: pulsar.Client) -> pulsar.Consumer:
        kind = self._duty.subscription.kind
        return client.subscribe(
            self._duty.topic.url,
            self._duty.subscription.name,
            consumer_type=TYPES[kind],
            consumer_name=self._name if kind == FAILOVER else None,
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=QUEUE,
            batch_index_ack_enabled=kind == SHARED,
            negative_ack_redelivery_delay_ms=1000,
            message_listener=self._listen,
        )

    def _listen(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        producer, number, _due = parse(message.data())
        topic, subscription = self._duty.topic.name, self._duty.subscription
        redelivery = message.redelivery_count()
        self._history.write(
            GOT, topic, subscription.name, producer, number, redelivery, self._name, 0
        )
        if subscription.kind == SHARED and self._random.random() < SENT_BACK:
            consumer.negative_acknowledge(message)
            return
        self._history.write(ACKED, topic, subscription.name, producer, number)
        consumer.acknowledge(message)


def main() -> None:
    name, service_url, path = sys.argv[1:]
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: over.set())
    history = HistoryWriter(Path(path))
    client = connect(service_url)
    kept = [Subscribed(client, duty, name, history) for duty in duties(name.partition(".")[0])]
    history.write(NOTE, f"{len(kept)} subscriptions are there")
    while not over.wait(1.0):
        pass
    client.close()


if __name__ == "__main__":
    main()
