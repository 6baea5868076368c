"""The driver's connections for questions about logs: one reader per partition, kept open.

A micro-batch asks every partition how far its log reaches; looking the owner up and connecting each
time cost more than the answer. A connection that broke is replaced, and the question asked again,
for ``patience_s``: a broker that restarts does not end a query. The very first answer is waited for
``start_s`` at most, as the address may be wrong. That a question is asked again is said once.

Jobs (``job_watch``) begin as a stream does, which nobody stands by: they wait for a broker as long
as for any answer later, once, before their first question (``wait_for_broker``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from magnetar.model.errors import BrokerError
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.brokers.connection import worth_another_try
from magnetar.pipeline.brokers.topic_reader import LogAnswer, TopicReader
from magnetar.pipeline.loss_reports import warn
from magnetar.pipeline.places import NO_OFFSETS, Place
from magnetar.wire.pulsar.pulsar_pb2 import LogQuestion

PAUSE_S, PAUSE_S_MAX = 0.1, 2.0
START_S = 10.0
"""A broker of its own kind has restarted by then."""

Answer = TypeVar("Answer")


class LogWatch:
    """Asks brokers about logs."""

    def __init__(self, client: BrokerClient, patience_s: float, start_s: float = 0.0) -> None:
        self._client = client
        self._patience_s = patience_s
        self._start_s = min(start_s, patience_s)
        self._readers: dict[str, TopicReader] = {}
        self._asked: tuple[str, TopicReader] | None = None
        self._known_good = False

    def be_patient(self) -> None:
        """From the first question on: the address has been good before."""
        self._known_good = True

    def wait_for_broker(self) -> None:
        """Until one of the addresses answers; patience is for that alone, whatever is asked then.
        Raises ``BrokerError``, at once when the broker refuses."""
        self.be_patient()
        try:
            self._persist(self._client.reach)
        except BrokerError as error:
            if not worth_another_try(error):
                raise
            raise BrokerError(
                f"{error} It was waited for, {self._patience_s:g} s; start it, or give the address "
                "of one that runs (--service-url)"
            ) from error

    def partitions(self, topic: str) -> list[str]:
        """The names of the topic's partitions; the topic itself when it has none."""
        return self._persist(lambda: self._client.partitions(topic))

    def partitions_to_write(self, topic: str) -> list[str]:
        """As ``partitions``, of a topic that is made if it is not there. Raises
        ``TopicNotFoundError`` for one that is not made."""
        return self._persist(lambda: self._client.partitions(topic, make=True))

    def topics(self, namespace: str) -> list[str]:
        """Full names of all topics and partitions of a namespace."""
        return self._persist(lambda: self._client.topics(namespace))

    def ask(
        self, topic: str, question: LogQuestion | None = None, *, patient: bool = True
    ) -> LogAnswer:
        """What the broker says of a partition's log. Raises ``TopicNotFoundError`` for one that is
        not there, ``BrokerError`` when patience ends."""
        if not patient:
            return self._ask(topic, question)
        return self._persist(lambda: self._ask(topic, question))

    def place_at(self, topic: str, time_ms: int, now_ms: int) -> Place:
        """The place before the first entry published at ``time_ms`` or later; the end if there is
        none."""
        answer = self.ask(topic, LogQuestion(times_ms=[max(0, time_ms)]))
        if answer.of_times:
            return answer.of_times[0]
        return self._persist(lambda: self._client.place_at(topic, time_ms, now_ms))

    def say_last(self, topic: str, question: LogQuestion) -> None:
        """Nothing is asked behind it. It comes behind what is asked just now, when a signal comes
        in between. Raises ``BrokerError``."""
        if self._asked is not None and self._asked[0] == topic:
            self._asked[1].ask(question)
        else:
            self._ask(topic, question)

    def _ask(self, topic: str, question: LogQuestion | None) -> LogAnswer:
        kept = self._readers.pop(topic, None)
        reader = kept or self._client.open(topic)
        self._asked = topic, reader
        try:
            answer = reader.ask(question)
            if kept is not None and answer.extent.first_offset == NO_OFFSETS:
                # A broker of another kind: where its log begins only a new reader can tell.
                reader.close()
                reader = self._client.open(topic)
                answer = reader.ask(question)
        except BaseException:
            reader.close()
            raise
        finally:
            self._asked = None
        self._readers[topic] = reader
        return answer

    def _persist(self, ask: Callable[[], Answer]) -> Answer:
        patience_s = self._patience_s if self._known_good else self._start_s
        deadline = time.monotonic() + patience_s
        pause_s = PAUSE_S
        while True:
            try:
                answer = ask()
            except BrokerError as error:
                out_of_time = time.monotonic() + pause_s > deadline
                if out_of_time or not worth_another_try(error):
                    raise
                if pause_s == PAUSE_S:
                    warn(f"{error}; it is asked again, for {patience_s:g} s")
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
            else:
                self._known_good = True
                return answer

    def forget(self, topic: str) -> None:
        """Nothing more will be asked of it."""
        reader = self._readers.pop(topic, None)
        if reader is not None:
            reader.close()

    def close(self) -> None:
        for topic in list(self._readers):
            self.forget(topic)
        self._client.close()


def job_watch(service_url: str, timeout_s: float) -> LogWatch:
    """Of a job, or of one of its tasks: patient from the first question on."""
    watch = LogWatch(BrokerClient(service_url, timeout_s), timeout_s)
    watch.be_patient()
    return watch
