"""A process of readers: ``python -m tests.chaos.whole.read NAME SERVICE_URL HISTORY PLACES``.

Each reads its topic from the start; after it was killed, from the message after the last that it
has noted, whose id is in the folder ``PLACES``.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import pulsar

from tests.chaos.whole.connecting import connect, until_it_works
from tests.chaos.whole.history import GOT, NOTE, HistoryWriter
from tests.chaos.whole.modes import READ_ONLY, Duty, duties, parse


class Reading:
    """One reader of one topic."""

    def __init__(
        self, client: pulsar.Client, duty: Duty, name: str, history: HistoryWriter, places: Path
    ) -> None:
        self._duty = duty
        self._name = name
        self._history = history
        self._place = places / f"{duty.topic.name}-{duty.subscription.name}"
        self._reader = until_it_works(lambda: self._open(client))

    def _open(self, client: pulsar.Client) -> pulsar.Reader:
        start = pulsar.MessageId.earliest
        if self._place.exists():
            start = pulsar.MessageId.deserialize(self._place.read_bytes())
        elsewhere = self._duty.subscription.name.startswith(READ_ONLY)
        return client.create_reader(
            self._duty.topic.url,
            start,
            reader_listener=self._listen,
            subscription_role_prefix=READ_ONLY if elsewhere else None,
            receiver_queue_size=100,
        )

    def _listen(self, _reader: pulsar.Reader, message: pulsar.Message) -> None:
        producer, number, _due = parse(message.data())
        topic, subscription = self._duty.topic.name, self._duty.subscription.name
        self._history.write(GOT, topic, subscription, producer, number, 0, self._name, 0)
        following = self._place.with_suffix(".new")
        following.write_bytes(message.message_id().serialize())
        following.replace(self._place)  # at once, so that a kill leaves one or the other


def main() -> None:
    name, service_url, path, places = sys.argv[1:]
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: over.set())
    history = HistoryWriter(Path(path))
    client = connect(service_url)
    duty = duties(name.partition(".")[0])
    kept = [Reading(client, each, name, history, Path(places)) for each in duty]
    history.write(NOTE, f"{len(kept)} readers are there")
    while not over.wait(1.0):
        pass
    client.close()


if __name__ == "__main__":
    main()
