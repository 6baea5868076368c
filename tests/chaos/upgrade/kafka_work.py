"""Kafka's clients beside Pulsar's: producers, groups, and a pipe in transactions, on both engines.

Each producer numbers its records per partition. What must hold at the end: each partition of a
topic has what was acknowledged, once and in order; each group has had all of it; and of each input
the pipe has written one output, in the order of its partition.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import confluent_kafka as confluent
from confluent_kafka.admin import AdminClient, NewTopic

WAIT_S: Final = 120.0
PARTITIONS: Final = 3
PAUSE_S: Final = 0.02
TRANSACTION_S: Final = 30.0
LOG_LEVEL: Final = 2
"""Of the library: critical. Connections that break are what this is about."""
ENGINES: Final = ("ledger", "partition")
GROUPS: Final = ("classic", "consumer")
"""Protocols of groups: whose leader assigns, and whose coordinator does."""
OUT: Final = "out"


class Producing(threading.Thread):
    """Writes to each partition of one topic, with idempotence."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(name=f"producer of {topic}", daemon=True)
        self.acknowledged: list[list[int]] = [[] for _ in range(partitions)]
        self.refused: list[str] = []
        self.over = threading.Event()
        self._topic = topic
        self._producer = confluent.Producer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": LOG_LEVEL,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": int(WAIT_S * 1000),
            }
        )

    def run(self) -> None:
        number = 0
        while not self.over.wait(PAUSE_S):
            for partition in range(len(self.acknowledged)):
                value = b"%d" % number
                told = self._told(partition, number)
                self._producer.produce(self._topic, value, partition=partition, on_delivery=told)
            number += 1
            self._producer.poll(0)
        if self._producer.flush(WAIT_S):
            self.refused.append("not all was answered")

    def _told(self, partition: int, number: int) -> Callable[[Any, Any], None]:
        def told(error: Any, _message: Any) -> None:
            if error is None:
                self.acknowledged[partition].append(number)
            else:
                self.refused.append(f"{self._topic}:{partition} {number}: {error}")

        return told


class Consuming(threading.Thread):
    """The only member of a group, which commits what it has had."""

    def __init__(self, bootstrap: str, topics: Sequence[str], protocol: str, number: int) -> None:
        super().__init__(name=f"group {protocol}-{number}", daemon=True)
        self.had: Counter[tuple[str, int, int]] = Counter()
        self.over = threading.Event()
        self.troubles: list[str] = []
        self._topics = topics
        self._consumer = confluent.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": LOG_LEVEL,
                "group.id": f"{protocol}-{number}",
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
            }
        )

    def run(self) -> None:
        self._consumer.subscribe(list(self._topics))
        while not self.over.is_set():
            for each in self._consumer.consume(500, 0.5):
                if each.error() is None:
                    place = str(each.topic()), int(each.partition() or 0), int(each.value() or b"")
                    self.had[place] += 1
                elif each.error().fatal():
                    self.troubles.append(f"{self.name}: {each.error()}")
        self._consumer.close()


class Piping(threading.Thread):
    """Reads one topic and writes ``OUT``, with its offsets, in one transaction after the other.

    A client that stands still is left for a new one with the same transactional id: librdkafka
    (2.16 too) waits for ever, past the time it is given, where a broker that coordinates the group
    leaves the cluster's metadata within ``send_offsets_to_transaction`` (its issues 5456, 5511).
    One that goes on after all, when its transaction has been aborted by time, has been fenced."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(name="pipe", daemon=True)
        self.over = threading.Event()
        self.committed = self.aborted = self.left = 0
        self.troubles: list[str] = []
        self._servers = bootstrap
        self._topic = topic

    def run(self) -> None:
        while not self.over.is_set() and not self.troubles:
            client = _PipeClient(self, self._servers, self._topic)
            client.start()
            while client.is_alive() and not client.stands_still:
                client.join(0.5)
            if client.is_alive():
                client.leave()
            self.left += client.left


class _PipeClient(threading.Thread):
    """Of the pipe until it is over, or until it is left: its producer is fenced then."""

    def __init__(self, pipe: Piping, bootstrap: str, topic: str) -> None:
        super().__init__(name="pipe's client", daemon=True)
        self._pipe = pipe
        self._topic = topic
        self.left = False
        self._begun_s = time.monotonic()
        self._consumer = confluent.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": LOG_LEVEL,
                "group.id": "pipe",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        self._producer = confluent.Producer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": LOG_LEVEL,
                "transactional.id": "pipe",
                "transaction.timeout.ms": int(TRANSACTION_S * 1000),
                "linger.ms": 5,
            }
        )

    @property
    def stands_still(self) -> bool:
        """Its transaction has been aborted since, by time."""
        return time.monotonic() - self._begun_s > 1.5 * TRANSACTION_S

    def leave(self) -> None:
        """Its partitions go to the next one."""
        self.left = True
        self._consumer.close()

    def run(self) -> None:
        pipe = self._pipe
        try:
            self._producer.init_transactions(WAIT_S)
            self._consumer.subscribe([self._topic])
            while not pipe.over.is_set():
                self._begun_s = time.monotonic()
                found = [each for each in self._consumer.consume(200, 0.5) if not each.error()]
                if found:
                    self._pass_on(found)
            self._consumer.close()
        except (confluent.KafkaException, RuntimeError) as error:  # a consumer that was closed
            if self.left:
                return
            if self._is_late(error):
                self.leave()
            else:
                pipe.troubles.append(f"pipe: {error}")

    def _is_late(self, error: Exception) -> bool:
        """Its transaction was over, by time, before it said so."""
        if not isinstance(error, confluent.KafkaException):
            return False
        fenced = error.args[0].code() == confluent.KafkaError._FENCED
        return fenced and time.monotonic() - self._begun_s > TRANSACTION_S

    def _pass_on(self, found: Sequence[Any]) -> None:
        self._producer.begin_transaction()
        try:
            for each in found:
                self._producer.produce(OUT, each.value(), partition=each.partition())
            self._producer.send_offsets_to_transaction(
                self._consumer.position(self._consumer.assignment()),
                self._consumer.consumer_group_metadata(),
                WAIT_S,
            )
            self._producer.commit_transaction(WAIT_S)
            self._pipe.committed += 1
        except confluent.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._producer.abort_transaction(WAIT_S)
            self._pipe.aborted += 1
            self._go_back(found)

    def _go_back(self, found: Sequence[Any]) -> None:
        """To the first of what was not passed on, of the partitions that are still its own."""
        first: dict[int, int] = {}
        for each in found:
            first.setdefault(each.partition(), each.offset())
        for owned in self._consumer.assignment():
            if owned.partition in first:
                self._consumer.seek(
                    confluent.TopicPartition(self._topic, owned.partition, first[owned.partition])
                )


class KafkaWork:
    """All of it. Topics are made by ``start``. ``groups``: of each protocol."""

    def __init__(
        self, bootstrap: str, replicas: int, *, partitions: int = PARTITIONS, groups: int = 1
    ) -> None:
        self._bootstrap = bootstrap
        self._replicas = replicas
        self._partitions = partitions
        self._topics = [f"k-{engine}" for engine in ENGINES]
        self.producers = [Producing(bootstrap, topic, partitions) for topic in self._topics]
        self.consumers = [
            Consuming(bootstrap, self._topics, protocol, number)
            for protocol in GROUPS
            for number in range(groups)
        ]
        self.pipe = Piping(bootstrap, self._topics[1])

    def start(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": LOG_LEVEL})
        new = []
        for topic, engine in zip((*self._topics, OUT), (*ENGINES, "partition"), strict=True):
            copies = self._replicas if engine == "partition" else 1
            config = {"magnetar.engine": engine}
            if copies > 1:
                config["min.insync.replicas"] = "2"
            new.append(NewTopic(topic, self._partitions, copies, config=config))
        for made in admin.create_topics(new).values():
            made.result(WAIT_S)
        for each in (*self.producers, *self.consumers, self.pipe):
            each.start()

    def finish(self) -> Iterator[str]:
        """What went wrong, once all has arrived or should have."""
        for each in self.producers:
            each.over.set()
        for each in self.producers:
            each.join()
            yield from each.refused[:3]
            if not all(each.acknowledged):
                yield f"{each.name}: nothing was acknowledged, so nothing is shown"
        wanted = {
            (topic, partition, number)
            for topic, each in zip(self._topics, self.producers, strict=True)
            for partition, numbers in enumerate(each.acknowledged)
            for number in numbers
        }
        deadline_s = time.monotonic() + WAIT_S
        while any(wanted - each.had.keys() for each in self.consumers):
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.5)
        for consumer in self.consumers:
            yield from consumer.troubles
            missing = wanted - consumer.had.keys()
            if missing:
                yield f"{consumer.name}: {len(missing)} missing, {sorted(missing)[:3]}"
        yield from self._judge_logs(deadline_s + WAIT_S)
        for other in (*self.consumers, self.pipe):
            other.over.set()
        for other in (*self.consumers, self.pipe):
            other.join()
        yield from self.pipe.troubles
        if not self.pipe.committed:
            yield "the pipe: no transaction was committed, so nothing is shown"

    def _judge_logs(self, deadline_s: float) -> Iterator[str]:
        for topic, producer in zip(self._topics, self.producers, strict=True):
            for partition, numbers in enumerate(producer.acknowledged):
                yield from _compare(topic, partition, self._read(topic, partition), numbers)
        passed = self.producers[1].acknowledged
        for partition, numbers in enumerate(passed):
            found = self._read(OUT, partition)
            while len(found) < len(numbers) and time.monotonic() < deadline_s:
                time.sleep(0.5)
                found = self._read(OUT, partition)
            yield from _compare(OUT, partition, found, numbers)

    def _read(self, topic: str, partition: int) -> list[int]:
        """All that is committed."""
        consumer = confluent.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "log_level": LOG_LEVEL,
                "group.id": "audit",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([confluent.TopicPartition(topic, partition, 0)])
        found: list[int] = []
        deadline_s = time.monotonic() + WAIT_S
        try:
            while time.monotonic() < deadline_s:
                for each in consumer.consume(1000, 1.0):
                    if each.error() is None:
                        found.append(int(each.value() or b""))
                    elif each.error().code() == confluent.KafkaError._PARTITION_EOF:
                        return found
        finally:
            consumer.close()
        return found

    @property
    def counts(self) -> dict[str, int]:
        return {
            "acknowledged": sum(len(n) for each in self.producers for n in each.acknowledged),
            **{f"had by {each.name}": each.had.total() for each in self.consumers},
            "transactions": self.pipe.committed,
            "aborted": self.pipe.aborted,
            "clients of the pipe that stood still": self.pipe.left,
        }


def _compare(topic: str, partition: int, found: list[int], wanted: list[int]) -> Iterator[str]:
    if found != wanted:
        lost = len(set(wanted) - set(found))
        twice = len(found) - len(set(found))
        yield (
            f"{topic}:{partition}: {len(found)} records of {len(wanted)}, {lost} lost, {twice} "
            f"twice, {'in' if found == sorted(found) else 'out of'} order"
        )
