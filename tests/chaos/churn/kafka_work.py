"""What librdkafka does with topics and groups that it makes and deletes, on both engines."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from tests.chaos.churn.server import Server, UnexpectedAnswerError

WAIT_S: Final = 60.0
RECORDS: Final = 300


def kafka(server: Server, name: str, engine: str) -> None:
    topic = f"{name}-{engine}"
    given: dict[str, object] = {"bootstrap.servers": server.bootstrap, "log_level": 2}
    admin = AdminClient(given)
    wanted = NewTopic(topic, 2, 1, config={"magnetar.engine": engine})
    admin.create_topics([wanted])[topic].result(WAIT_S)
    producer = Producer({**given, "enable.idempotence": True, "linger.ms": 5})
    for number in range(RECORDS):
        producer.produce(topic, key=str(number % 5), value=b"v" * 100)
    if producer.flush(WAIT_S):
        raise UnexpectedAnswerError(f"{topic}: not all was stored")
    for protocol in ("classic", "consumer"):
        _consume(given, topic, protocol)
    _transactions(given, topic)
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(WAIT_S)
    place = TopicPartition(topic, 0)
    admin.list_offsets({place: OffsetSpec.latest()})[place].result(WAIT_S)
    groups = [f"{topic}-classic", f"{topic}-consumer"]
    for deleted in admin.delete_consumer_groups(groups).values():
        deleted.result(WAIT_S)
    admin.delete_topics([topic])[topic].result(WAIT_S)


def _consume(given: dict[str, object], topic: str, protocol: str) -> None:
    settings = {
        **given, "group.id": f"{topic}-{protocol}", "group.protocol": protocol,
        "auto.offset.reset": "earliest", "enable.auto.commit": False,
    }  # fmt: skip
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic])
        count, until_s = 0, time.monotonic() + WAIT_S
        while count < RECORDS:
            count += len(consumer.consume(100, 0.5))
            if time.monotonic() > until_s:
                raise UnexpectedAnswerError(f"{topic}, {protocol}: {count} of {RECORDS} came")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def _transactions(given: dict[str, object], topic: str) -> None:
    producer = Producer({**given, "transactional.id": f"{topic}-tx"})
    producer.init_transactions(WAIT_S)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, b"t")
        producer.flush(WAIT_S)
        end(WAIT_S)


def refused(server: Server, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    wrong = [NewTopic("..", 1, 1), NewTopic(f"{name}-no", 0, 1)]
    for asked in admin.create_topics(wrong).values():
        try:
            asked.result(WAIT_S)
        except KafkaException:
            continue
        raise UnexpectedAnswerError("a topic was made that cannot be")


WORK: Final = (partial(kafka, engine="ledger"), partial(kafka, engine="partition"), refused)
