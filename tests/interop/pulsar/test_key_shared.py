"""Key_Shared subscriptions with the official client: order by key, whoever comes and goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pulsar
import pytest

from tests.interop.pulsar.helpers import WAIT_MS, assert_quiet, receive, texts
from tests.interop.pulsar.services import Service

KEY_SHARED = pulsar.ConsumerType.KeyShared
EARLIEST = pulsar.InitialPosition.Earliest
LOOK_MS = 50


def sticky(*ranges: tuple[int, int]) -> pulsar.ConsumerKeySharedPolicy:
    return pulsar.ConsumerKeySharedPolicy(
        key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=list(ranges)
    )


def key_shared(client: pulsar.Client, topic: str, **options: object) -> pulsar.Consumer:
    return client.subscribe(
        topic, "s", KEY_SHARED, initial_position=EARLIEST, receiver_queue_size=10, **options
    )


class Taken:
    """What consumers have got: of each key in order, and at one of them."""

    def __init__(self) -> None:
        self.numbers: dict[str, list[int]] = {}
        self.again: set[int] = set()
        """What was got before by one who did not acknowledge it."""

    def take(self, message: pulsar.Message) -> None:
        number, key = int(message.data()), message.partition_key()
        found = self.numbers.setdefault(key, [])
        if number in self.again and number in found:
            return
        assert number > max(found, default=-1), f"{number} of {key} after {found[-3:]}"
        found.append(number)

    @property
    def count(self) -> int:
        return sum(map(len, self.numbers.values()))

    def drain(self, consumers: Sequence[pulsar.Consumer], until: int) -> None:
        """Take and acknowledge in turn."""
        idle = 0
        while self.count < until:
            idle += 1
            assert idle < WAIT_MS / LOOK_MS, f"{self.count} of {until} came"
            for consumer in consumers:
                try:
                    message = consumer.receive(LOOK_MS)
                except pulsar.Timeout:
                    continue
                idle = 0
                self.take(message)
                consumer.acknowledge(message)


def publish_by_key(producer: pulsar.Producer, first: int, count: int, keys: int = 20) -> None:
    for number in range(first, first + count):
        producer.send_async(
            str(number).encode(), lambda *_: None, partition_key=f"k{number % keys}"
        )
    producer.flush()


@pytest.mark.parametrize("batching", [None, pulsar.BatchingType.KeyBased])
def test_order_by_key_while_consumers_come_and_go(
    connect: Callable[[], pulsar.Client], topic: str, batching: pulsar.BatchingType | None
) -> None:
    client = connect()
    producer = client.create_producer(
        topic,
        block_if_queue_full=True,
        batching_enabled=batching is not None,
        batching_type=batching or pulsar.BatchingType.Default,
    )
    taken = Taken()
    first = key_shared(client, topic)
    publish_by_key(producer, 0, 200)
    taken.drain([first], 30)
    others = [key_shared(connect(), topic) for _ in range(3)]
    taken.drain([first, *others], 120)
    publish_by_key(producer, 200, 200)
    gone_client = connect()
    gone = key_shared(gone_client, topic)
    taken.drain([first, *others], 200)
    for _ in range(5):  # it takes some, acknowledges none, and goes
        try:
            message = gone.receive(LOOK_MS)
        except pulsar.Timeout:
            break
        taken.take(message)
        taken.again.add(int(message.data()))
    gone_client.close()
    if batching is not None:  # of a batch that it has acknowledged in part all comes again
        taken.again.update(number for numbers in taken.numbers.values() for number in numbers)
    others.pop().close()
    taken.drain([first, *others], 400)
    assert all(numbers == sorted(numbers) for numbers in taken.numbers.values())
    for consumer in (first, *others):
        assert_quiet(consumer)


def test_a_key_stays_with_who_has_not_acknowledged_it(
    connect: Callable[[], pulsar.Client], topic: str
) -> None:
    first = key_shared(connect(), topic)
    producer = connect().create_producer(topic, batching_enabled=False)
    publish_by_key(producer, 0, 40)
    messages = receive(first, 10)  # and some more are in its queue
    others = [key_shared(connect(), topic) for _ in range(3)]
    publish_by_key(producer, 40, 40)
    for other in others:
        got: list[pulsar.Message] = []
        while True:
            try:
                got.append(other.receive(500))
            except pulsar.Timeout:
                break
        keys = {message.partition_key() for message in got}
        assert not keys & {message.partition_key() for message in messages}
        messages += got
        for message in got:
            other.acknowledge(message)
    taken = Taken()
    for message in messages:
        taken.take(message)
    for message in messages[:10]:
        first.acknowledge(message)
    taken.drain([first, *others], 80)


def test_what_is_refused_comes_again_before_what_is_new_of_its_key(
    client: pulsar.Client, topic: str
) -> None:
    consumer = key_shared(client, topic, negative_ack_redelivery_delay_ms=100)
    producer = client.create_producer(topic, batching_enabled=False)
    publish_by_key(producer, 0, 1)
    (message,) = receive(consumer, 1)
    consumer.negative_acknowledge(message)
    (again,) = receive(consumer, 1)
    assert (again.data(), again.redelivery_count()) == (b"0", 1)
    publish_by_key(producer, 20, 2, keys=20)
    assert texts(receive(consumer, 2)) == ["20", "21"]
    consumer.redeliver_unacknowledged_messages()
    assert sorted(texts(receive(consumer, 3)), key=int) == ["0", "20", "21"]


def test_a_slow_consumer_keeps_back_its_own_keys_only(
    connect: Callable[[], pulsar.Client], topic: str
) -> None:
    slow = key_shared(connect(), topic, key_shared_policy=sticky((0, 32_767)))
    fast = key_shared(connect(), topic, key_shared_policy=sticky((32_768, 65_535)))
    producer = connect().create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    publish_by_key(producer, 0, 1000, keys=50)
    taken, mine = Taken(), 0
    while True:
        try:
            message = fast.receive(2000)
        except pulsar.Timeout:
            break
        mine += 1
        taken.take(message)
        fast.acknowledge(message)
    assert 200 < mine < 800
    taken.drain([slow], 1000)


def test_sticky_ranges(connect: Callable[[], pulsar.Client], topic: str) -> None:
    low = key_shared(connect(), topic, key_shared_policy=sticky((0, 20_000), (30_000, 40_000)))
    with pytest.raises(pulsar.PulsarException, match=r"Assign"):
        key_shared(connect(), topic, key_shared_policy=sticky((40_000, 50_000)))
    with pytest.raises(pulsar.ConsumerBusy):
        key_shared(connect(), topic)
    with pytest.raises(pulsar.ConsumerBusy):
        connect().subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = connect().create_producer(topic, batching_enabled=False)
    publish_by_key(producer, 0, 100, keys=100)
    high = key_shared(connect(), topic, key_shared_policy=sticky((40_001, 65_535)))
    taken = Taken()
    for consumer in (low, high):
        while True:
            try:
                message = consumer.receive(1000)
            except pulsar.Timeout:
                break
            taken.take(message)
            consumer.acknowledge(message)
    assert 60 < taken.count < 100, "some keys are nobody's"
    rest = key_shared(connect(), topic, key_shared_policy=sticky((20_001, 29_999)))
    taken.drain([rest], 100)


def test_out_of_order_delivery_is_a_mode_of_its_own(
    connect: Callable[[], pulsar.Client], topic: str
) -> None:
    policy = pulsar.ConsumerKeySharedPolicy(
        key_shared_mode=pulsar.KeySharedMode.AutoSplit, allow_out_of_order_delivery=True
    )
    consumer = key_shared(connect(), topic, key_shared_policy=policy)
    with pytest.raises(pulsar.ConsumerBusy):
        key_shared(connect(), topic)
    other = key_shared(connect(), topic, key_shared_policy=policy)
    publish_by_key(connect().create_producer(topic, batching_enabled=False), 0, 100, keys=100)
    Taken().drain([consumer, other], 100)


def test_the_ordering_key_goes_before_the_partition_key(
    connect: Callable[[], pulsar.Client], topic: str
) -> None:
    consumers = [key_shared(connect(), topic) for _ in range(3)]
    producer = connect().create_producer(topic, batching_enabled=False)
    for number in range(9):
        producer.send(str(number).encode(), partition_key=f"k{number}", ordering_key="one")
    found = []
    for consumer in consumers:
        try:
            found.append([int(consumer.receive(2000).data())])
        except pulsar.Timeout:
            continue
        found[-1] += map(int, texts(receive(consumer, 8)))
    assert found == [list(range(9))]


def test_chunked_messages_by_key(
    connect: Callable[[], pulsar.Client], topic: str, service: Service
) -> None:
    consumers = [key_shared(connect(), topic) for _ in range(2)]
    producer = connect().create_producer(topic, chunking_enabled=True, batching_enabled=False)
    bodies = [str(n).encode() * (6 << 20) for n in range(4)]
    for number, body in enumerate(bodies):
        producer.send(body, partition_key=f"k{number % 2}")
    found: list[bytes] = []
    for _ in range(1200):
        for consumer in consumers:
            try:
                message = consumer.receive(LOOK_MS)
            except pulsar.Timeout:
                continue
            found.append(message.data())
            consumer.acknowledge(message)
        if len(found) == 4:
            break
    numbers = sorted(int(body[:1]) for body in found)
    assert numbers == [0, 1, 2, 3], service.told(topic, "s")
    assert sorted(found) == bodies


def test_messages_without_a_key_are_spread(
    connect: Callable[[], pulsar.Client], topic: str
) -> None:
    consumers = [key_shared(connect(), topic) for _ in range(2)]
    producer = connect().create_producer(topic, batching_enabled=False)
    for number in range(100):
        producer.send_async(str(number).encode(), lambda *_: None)
    producer.flush()
    got = [0, 0]
    for _ in range(1200):
        for index, consumer in enumerate(consumers):
            try:
                consumer.acknowledge(consumer.receive(LOOK_MS))
            except pulsar.Timeout:
                continue
            got[index] += 1
        if sum(got) == 100:
            break
    assert sum(got) == 100
    assert min(got) > 5


def test_a_seek_begins_anew_for_all(connect: Callable[[], pulsar.Client], topic: str) -> None:
    consumers = [key_shared(connect(), topic) for _ in range(2)]
    producer = connect().create_producer(topic, batching_enabled=False)
    publish_by_key(producer, 0, 40)
    taken = Taken()
    taken.drain(consumers, 40)
    consumers[0].seek(pulsar.MessageId.earliest)
    Taken().drain(consumers, 40)
