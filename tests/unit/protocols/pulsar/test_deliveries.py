"""What one consumer's and one producer's client is told: frames, over a session that remembers."""

from __future__ import annotations

import asyncio
from threading import get_ident
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.env.tasks import TaskScope, awaited
from magnetar.model.entry import Entry
from magnetar.model.errors import LogError
from magnetar.protocols.entry_work import TO_PULSAR
from magnetar.protocols.pulsar import deliveries
from magnetar.protocols.pulsar.deliveries import SessionConsumer
from magnetar.protocols.pulsar.receipts import SessionProducer
from magnetar.protocols.pulsar.session import Session
from magnetar.topics.consuming.consumer import ConsumerNews
from magnetar.wire.crossing.kafka_to_pulsar import pulsar_entry
from magnetar.wire.kafka.batches import STAMP_BYTES, read_batch_header, stamp
from magnetar.wire.kafka.compression import Codec
from magnetar.wire.kafka.records import KafkaRecord, batch_of
from magnetar.wire.pulsar.batches import iterate_messages
from magnetar.wire.pulsar.commands import decode_command, encode_command
from magnetar.wire.pulsar.metadata import entry_metadata
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.interop.pulsar.wire import message


class Written:
    """A session: what is written to it."""

    def __init__(self) -> None:
        self.data = b""
        self.protocol_version = 19
        self.payload_bytes_max = 1 << 20

    def write(self, part: bytes) -> None:
        self.data += part

    def write_parts(self, parts: list[bytes], byte_count: int) -> None:
        assert byte_count == sum(map(len, parts))
        self.data += b"".join(parts)

    def send_command(self, command: BaseCommand) -> None:
        self.write(encode_command(command))

    def publish_ended(self, byte_count: int) -> None:
        raise AssertionError("nothing was published")

    def frames(self) -> list[tuple[BaseCommand, bytes]]:
        """Commands since the last look, each with the payload that follows it."""
        found = []
        data, self.data = memoryview(self.data), b""
        while data:
            end = 4 + int.from_bytes(data[:4], "big")
            stop = 8 + int.from_bytes(data[4:8], "big")
            found.append((decode_command(data, 4, stop), bytes(data[stop:end])))
            data = data[end:]
        return found


def session() -> tuple[Session, Written]:
    written = Written()
    return cast(Session, cast(Any, written)), written


def test_entries_go_out_as_they_are_stored_behind_a_header_each() -> None:
    client, written = session()
    entries = [Entry(7, n, b"head" + payload, 4) for n, payload in ((3, b"one"), (4, b"four"))]
    counts, ack_sets = {(7, 3): 2}, {(7, 4): [6]}
    byte_count = SessionConsumer(client, 5, 1).deliver(entries, counts, ack_sets)
    assert byte_count == len(written.data)
    found = written.frames()
    assert [payload for _, payload in found] == [b"one", b"four"]
    first, second = found[0][0].message, found[1][0].message
    assert (first.consumer_id, first.redelivery_count, list(first.ack_set)) == (5, 2, [])
    assert (second.consumer_id, second.redelivery_count, list(second.ack_set)) == (5, 0, [6])
    ids = [
        (m.message_id.ledgerId, m.message_id.entryId, m.message_id.partition)
        for m in (first, second)
    ]
    assert ids == [(7, 3, 1), (7, 4, 1)]


def test_a_record_batch_that_no_frame_holds_as_messages_goes_out_whole() -> None:
    client, written = session()
    records = [KafkaRecord(number, 0, b"\xff\xfe", b"x", []) for number in range(100)]
    batch = batch_of(records, 5_000)
    entry = Entry(7, 3, bytes(36) + stamp(100, len(batch) - 12, 4) + batch[STAMP_BYTES:], 36)
    assert len(entry.payload) < 1_500 < len(pulsar_entry(entry.payload))
    for bytes_max, expected in ((1_500, [bytes(entry.payload)]), (1 << 20, [b"x"] * 100)):
        written.payload_bytes_max = bytes_max
        SessionConsumer(client, 5, -1).deliver([entry], {}, {})
        ((_, payload),) = written.frames()
        assert len(payload) <= bytes_max
        meta = entry_metadata(payload)
        assert meta.num_messages == 100, "as many as were counted"
        found = iterate_messages(payload, meta)
        assert [bytes(value) for told, value in found if not told.compacted_out] == expected


def test_receipts_leave_in_the_order_of_the_sends() -> None:
    client, written = session()
    producer = SessionProducer(client, 9)
    producer.stored([(1, 0), (2, 5)], 7, 30)
    producer.stored([(6, 0)], 8, 0)
    producer.refused((7, 0), LogError("gone"), final=False)
    producer.refused((8, 9), LogError("gone"), final=False)
    producer.refused((10, 0), LogError("gone"), final=True)
    found = [command for command, _ in written.frames()]
    receipts = [item.send_receipt for item in found[:3]]
    assert [(r.sequence_id, r.highest_sequence_id) for r in receipts] == [(1, 0), (2, 5), (6, 0)]
    assert [(r.message_id.ledgerId, r.message_id.entryId) for r in receipts] == [
        (7, 30),
        (7, 31),
        (8, 0),
    ]
    assert [item.send_error.sequence_id for item in found[3:5]] == [7, 9]
    assert found[5].close_producer.producer_id == 9


def test_only_clients_that_know_the_command_hear_who_is_active() -> None:
    client, written = session()
    consumer = SessionConsumer(client, 5, -1)
    consumer.tell(ConsumerNews.ACTIVE)
    assert written.frames()[0][0].active_consumer_change.is_active
    written.protocol_version = 11
    consumer.tell(ConsumerNews.PASSIVE)
    assert not written.frames()


class Subscribed:
    """A consumer as its session has it; counts how often its subscription looks again."""

    def __init__(self, client: SessionConsumer) -> None:
        self.consumer = SimpleNamespace(client=client)
        self.subscription = self
        self.looks = 0

    def follow_connection(self, consumer: object) -> None:
        assert consumer is self.consumer
        self.looks += 1


class Served(Written):
    """A session with what it needs to convert on a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.peer = "client"
        self.writable = True
        self.closed = False
        scope = TaskScope("test", awaited(by="the test"))
        connections = SimpleNamespace(turn_bytes=1 << 20)
        conversions = asyncio.Lock()
        self.services = SimpleNamespace(
            scope=scope, conversions=conversions, connections=connections
        )
        self.unsent_bytes = 0
        self.consumers: dict[int, Subscribed] = {}

    async def until_taken(self) -> None:
        pass

    def consumer(self) -> SessionConsumer:
        client = SessionConsumer(cast(Session, cast(Any, self)), 5, -1)
        self.consumers[5] = Subscribed(client)
        return client


def records_entry(number: int, records: int, codec: Codec = Codec.NONE) -> Entry:
    made = [KafkaRecord(each, 0, b"k", b"%d" % number) for each in range(records)]
    batch = batch_of(made, 5_000, codec=codec)
    return Entry(7, number, stamp(100, len(batch) - 12, 4) + batch[STAMP_BYTES:], 0)


def pulsar_message(number: int) -> Entry:
    return Entry(7, number, message(b"%d" % number, number), 0)


async def until_delivered(client: SessionConsumer) -> None:
    for _ in range(20_000):
        if client.writable:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("never delivered")


def numbers(written: Written) -> list[tuple[int, int, int]]:
    """Of the messages: which entry, how many messages it says, and how often it was sent."""
    return [
        (
            told.message.message_id.entryId,
            entry_metadata(payload).num_messages,
            told.message.redelivery_count,
        )
        for told, payload in written.frames()
    ]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD], ids=lambda codec: codec.name)
def test_a_large_batch_is_converted_aside_and_keeps_its_place(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch has up to a million records: all clients stood still for five seconds."""
    threads = set()

    def noted(payload: memoryview, **bounds: int) -> bytes:
        header = read_batch_header(payload)
        if header.record_count > 4 * TO_PULSAR.at_once:
            threads.add(get_ident())
        return pulsar_entry(payload, **bounds)

    monkeypatch.setattr(deliveries, "pulsar_entry", noted)

    async def main() -> None:
        served = Served()
        client = served.consumer()
        large = records_entry(3, 5 * TO_PULSAR.at_once, codec)
        small = records_entry(4, 2, codec)
        entries = [pulsar_message(1), small, large, pulsar_message(5), small]
        client.deliver(entries, {(7, 5): 2}, {})
        assert numbers(served) == [(1, 1, 0), (4, 2, 0)]
        assert not client.writable
        assert client.crowded
        client.deliver([pulsar_message(6)], {}, {})
        await until_delivered(client)
        assert numbers(served) == [(3, 5000, 0), (5, 1, 2), (4, 2, 0), (6, 1, 0)]
        assert threads
        assert get_ident() not in threads
        assert served.consumers[5].looks == 1
        await served.services.scope.close()

    asyncio.run(main())


def test_of_many_small_batches_some_go_out_in_each_turn() -> None:
    async def main() -> None:
        served = Served()
        client = served.consumer()
        client.deliver([records_entry(each, 300) for each in range(50)], {}, {})
        found = numbers(served)
        assert 1 <= len(found) <= 3
        await until_delivered(client)
        found += numbers(served)
        assert found == [(each, 300, 0) for each in range(50)]
        await served.services.scope.close()

    asyncio.run(main())


def test_little_that_unpacks_to_much_is_converted_aside() -> None:
    async def main() -> None:
        served = Served()
        client = served.consumer()
        batch = batch_of([KafkaRecord(0, 0, None, bytes(1 << 20))], 5_000, codec=Codec.ZSTD)
        assert len(batch) < 200
        client.deliver([Entry(7, 3, batch, 0)], {}, {})
        assert numbers(served) == []
        await until_delivered(client)
        assert numbers(served) == [(3, 1, 0)]
        await served.services.scope.close()

    asyncio.run(main())


def test_what_is_converted_for_a_consumer_that_has_gone_is_dropped() -> None:
    async def main() -> None:
        served = Served()
        client = served.consumer()
        client.deliver([records_entry(3, 5000), pulsar_message(4)], {}, {})
        again = served.consumer()  # of the same id
        await until_delivered(client)
        again.deliver([pulsar_message(9)], {}, {})
        assert numbers(served) == [(9, 1, 0)]
        assert served.consumers[5].looks == 0
        await served.services.scope.close()

    asyncio.run(main())
