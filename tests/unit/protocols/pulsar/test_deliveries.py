"""What one consumer's and one producer's client is told: frames, over a session that remembers."""

from __future__ import annotations

from typing import Any, cast

from magnetar.model.entry import Entry
from magnetar.model.errors import LogError
from magnetar.protocols.pulsar.deliveries import SessionConsumer
from magnetar.protocols.pulsar.receipts import SessionProducer
from magnetar.protocols.pulsar.session import Session
from magnetar.topics.consumer import ConsumerNews
from magnetar.wire.crossing.kafka_to_pulsar import pulsar_entry
from magnetar.wire.kafka.batches import STAMP_BYTES, stamp
from magnetar.wire.kafka.records import KafkaRecord, batch_of
from magnetar.wire.pulsar.batches import iterate_messages
from magnetar.wire.pulsar.commands import decode_command, encode_command
from magnetar.wire.pulsar.metadata import entry_metadata
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand


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
