"""What clients do while everything breaks: topics, how they are published to, who reads them. Pure.

Every kind of publishing (single messages, batches, keys over partitions, messages for later) and
every kind of subscription but Key_Shared (``tests/integration/test_key_shared.py``) meet here at
least once, at the owner and at the read-only brokers.

A message is ``producer number due`` and padding. A producer numbers from 0 and never uses a number
twice; one that is killed is followed by one of another name. Order is promised per *lane*: what one
producer sent with one key.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NAMESPACE: Final = "persistent://public/default/"
READ_ONLY: Final = "ro-"
"""Subscriptions whose names begin so are sent to read-only brokers, by a policy."""
AUDIT: Final = "audit"
"""A reader that begins when all is over, from the start: what the log holds."""
KEYS: Final = 8
PARTITIONS: Final = 4
PADDING: Final = b"." * 128
DELAY_S: Final = (0.5, 15.0)

EXCLUSIVE: Final = "Exclusive"
FAILOVER: Final = "Failover"
SHARED: Final = "Shared"
READER: Final = "Reader"
RECEIPTS: Final = "Receipts"
"""Shared, by a client of the harness: Python's cannot ask for receipts of acknowledgements."""
JAVA: Final = "Java"
"""Shared, by Pulsar's Java client, with receipts; where its parts are at hand."""
ORDERED: Final = frozenset((EXCLUSIVE, FAILOVER, READER))


class Subscription(NamedTuple):
    """``name`` says at which brokers; a reader has one too, which its client makes longer."""

    name: str
    kind: str


class Topic(NamedTuple):
    """``partitions`` 0: not partitioned. ``rate``: messages a second."""

    name: str
    rate: float
    subscriptions: tuple[Subscription, ...]
    batched: bool = False
    partitions: int = 0
    delayed: bool = False

    @property
    def url(self) -> str:
        return NAMESPACE + self.name

    @property
    def urls(self) -> list[str]:
        """Of its partitions, or of itself."""
        if not self.partitions:
            return [self.url]
        return [f"{self.url}-partition-{number}" for number in range(self.partitions)]


def _both(kind: str) -> tuple[Subscription, ...]:
    name = kind.lower()
    return Subscription(name, kind), Subscription(READ_ONLY + name, kind)


TOPICS: Final[tuple[Topic, ...]] = (
    Topic("single-0", 10, _both(EXCLUSIVE)),
    Topic("single-1", 10, (*_both(FAILOVER), Subscription("reader", READER))),
    Topic("single-2", 10, (*_both(SHARED), Subscription("ro-reader", READER))),
    Topic("single-3", 10, _both(RECEIPTS)),
    Topic("single-4", 10, (*_both(RECEIPTS), *_both(EXCLUSIVE))),
    Topic("batches-0", 15, (*_both(EXCLUSIVE), Subscription("reader", READER)), batched=True),
    Topic("batches-1", 15, (*_both(SHARED), *_both(FAILOVER)), batched=True),
    Topic("parts", 20, (*_both(FAILOVER), *_both(SHARED)), partitions=PARTITIONS),
    Topic("later", 5, _both(SHARED), delayed=True),
)  # fmt: skip


def topics(java: bool) -> tuple[Topic, ...]:
    """With ``java`` each topic that has subscriptions with receipts has Java's too."""
    if not java:
        return TOPICS
    return tuple(
        topic._replace(subscriptions=(*topic.subscriptions, *_both(JAVA)))
        if any(each.kind == RECEIPTS for each in topic.subscriptions)
        else topic
        for topic in TOPICS
    )


def lane(topic: Topic, number: int) -> int:
    """Which of a producer's messages come in order: those of one key, where there are keys."""
    return number % KEYS if topic.partitions else 0


def payload(producer: str, number: int, due_s: float) -> bytes:
    """``due_s``: on the monotonic clock, 0 for at once."""
    return f"{producer} {number} {due_s:.3f} ".encode() + PADDING


def parse(data: bytes) -> tuple[str, int, float]:
    """(producer, number, due); raises ``ValueError`` for what no producer has sent."""
    producer, number, due, _ = data.split(b" ", 3)
    return producer.decode(), int(number), float(due)


class Duty(NamedTuple):
    """A subscription, or reader, that a client process has on one topic."""

    topic: Topic
    subscription: Subscription


def duties(client: str) -> list[Duty]:
    """``first`` has all subscriptions of the official client, ``second`` is beside it where several
    consumers are allowed, ``reader``, ``receipts`` and ``java`` have what their names say."""
    kinds = {
        "first": (EXCLUSIVE, FAILOVER, SHARED),
        "second": (FAILOVER, SHARED),
        "reader": (READER,),
        "receipts": (RECEIPTS,),
        "java": (JAVA,),
    }[client]
    return [
        Duty(topic, subscription)
        for topic in topics(java=True)
        for subscription in topic.subscriptions
        if subscription.kind in kinds
    ]


PUBLISHERS: Final = ("even", "odd")
"""Each publishes to every topic, so that topics have several producers."""
CONSUMERS: Final = ("first", "second", "reader", "receipts")
"""Beside them ``java``, where it is at hand."""
