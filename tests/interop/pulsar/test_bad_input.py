"""Bad input on the wire: the reaction to each kind, and that nobody else notices.

Every test runs beside a bystander: an official client with a producer and a consumer that were
there before. After the test they still have their connection, and a message goes through.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pulsar
import pytest

from magnetar.cluster.topic_name import parse_topic
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.commands import encode_command, encode_payload_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, MessageMetadata
from tests.interop.pulsar.helpers import WAIT_MS
from tests.interop.pulsar.services import MemoryService
from tests.interop.pulsar.wire import ClosedError, Wire, checked, frame, message, send_frame

MESSAGE_MAX = 100_000
FAR_MS = 120_000
"""Deadlines far behind the patience of ``Wire``: what ends sooner does not end by one of them."""
FAR = {"handshake_timeout_ms": FAR_MS, "frame_timeout_ms": FAR_MS, "keep_alive_ms": FAR_MS}
HANDSHAKE_MS = 400
FRAME_MS = 1500
KEEP_ALIVE_MS = 1500

TOPIC = "persistent://public/default/bad-input"


Served = tuple[MemoryService, Callable[[], None]]


@contextmanager
def served(**deadlines: int) -> Iterator[Served]:
    """A broker for small messages, and a check that a client that was there before is
    undisturbed."""
    settings: dict[str, Any] = FAR | deadlines
    service = MemoryService(message_bytes_max=MESSAGE_MAX, **settings)
    try:
        with bystander(service) as check:
            yield service, check
    finally:
        service.close()


@contextmanager
def bystander(service: MemoryService) -> Iterator[Callable[[], None]]:
    client = pulsar.Client(service.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe("bystander", "s")
    producer = client.create_producer("bystander")
    number = 0

    def check() -> None:
        nonlocal number
        number += 1
        producer.send(str(number).encode())
        received = consumer.receive(WAIT_MS)
        consumer.acknowledge(received)
        assert received.data() == str(number).encode()
        stats = service.run(service.admin.stats("bystander"))
        # A client that lost its connection would have come back as another incarnation.
        assert [p.msg_in_counter for p in stats.publishers] == [number]
        assert service.run(sessions_of(service)) <= 3

    check()
    yield check
    client.close()


@pytest.fixture(scope="module")
def strict() -> Iterator[Served]:
    """One for all that no deadline is to end."""
    with served() as made:
        yield made


@pytest.fixture
def url(strict: Served) -> Iterator[str]:
    service, check = strict
    yield service.url
    check()


@pytest.fixture
def hasty_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a broker with one short deadline, the parameter."""
    with served(**request.param) as (service, check):
        yield service.url
        check()


def hasty(**deadline: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("hasty_url", [deadline], indirect=True, ids=str)


async def sessions_of(service: MemoryService) -> int:
    return service.broker.pulsar.connections


def drip(wire: Wire, data: bytes, pause_s: float, step: int = 1, times: int = 1) -> None:
    """Send ``data`` in pieces of ``step`` bytes, ``times`` over."""
    for _ in range(times):
        for start in range(0, len(data), step):
            wire.send(data[start : start + step])
            time.sleep(pause_s)


def hello() -> bytes:
    command = BaseCommand(type=BaseCommand.CONNECT)
    command.connect.client_version = "wire"
    return encode_command(command)


# -- before CONNECT -----------------------------------------------------------------------------


GREETINGS = {
    "garbage": os.urandom(16).replace(b"\x00", b"\x01") * 8,
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(190),
    "another magic": b"\xca\xfe\xba\xbe" * 10,
    "ping": encode_command(BaseCommand(type=BaseCommand.PING)),
    "lookup": frame(b"\x08\x17\xba\x01\x05\x0a\x01t\x10\x01"),
    "empty frame": bytes(4),
    "empty command": frame(b""),
}


@pytest.mark.parametrize("name", GREETINGS)
def test_anything_but_connect_ends_the_connection(url: str, name: str) -> None:
    with Wire(url, hello=False) as wire:
        wire.send(GREETINGS[name])
        assert wire.wait_closed() == []


@hasty(handshake_timeout_ms=HANDSHAKE_MS)
def test_silence_before_connect_ends_at_the_handshake_deadline(hasty_url: str) -> None:
    begun = time.monotonic()
    with Wire(hasty_url, hello=False) as wire:
        assert wire.wait_closed() == []
        assert time.monotonic() - begun > HANDSHAKE_MS / 1000 * 0.9


@hasty(handshake_timeout_ms=HANDSHAKE_MS)
def test_a_handshake_a_byte_at_a_time_ends_at_its_deadline(hasty_url: str) -> None:
    with (
        Wire(hasty_url, hello=False) as wire,
        pytest.raises((ClosedError, ConnectionError)),  # long before the last byte
    ):
        drip(wire, hello() + bytes(100), 0.1)


# -- frames that are none -------------------------------------------------------------------------


def truncated_command() -> bytes:
    return (8).to_bytes(4, "big") + (100).to_bytes(4, "big") + b"\x08\x12\x00\x00"


ENDINGS = {
    "oversize frame": (MESSAGE_MAX + (1 << 20)).to_bytes(4, "big") + b"x" * 100,
    "largest possible frame": b"\xff\xff\xff\xff",
    "empty frame": bytes(4),
    "three bytes": b"\x00\x00\x00\x03abc",
    "command longer than its frame": truncated_command(),
    "undecodable command": frame(b"\xff" * 20),
    "unknown command": frame(b"\x08\x7b\xda\x07\x00"),
    "no command type": frame(b"\x12\x00"),
    "body missing": frame(b"\x08\x17"),
    "required fields missing": frame(b"\x08\x17\xba\x01\x00"),
    "not utf-8": frame(b"\x08\x17\xba\x01\x06\x0a\x02\xff\xfe\x10\x01"),
    "second connect": hello(),
    "a command of servers": frame(b"\x08\x0d\x6a\x02\x08\x01"),
    "garbage": b"\x00\x00\x00\x40" + b"\xa5" * 64,
}


@pytest.mark.parametrize("name", ENDINGS)
def test_broken_frames_end_their_connection(url: str, name: str) -> None:
    with Wire(url) as wire:
        wire.send(ENDINGS[name])
        assert wire.wait_closed() == []


@hasty(frame_timeout_ms=FRAME_MS)
def test_a_slow_sender_ends_at_the_frame_deadline(hasty_url: str) -> None:
    with Wire(hasty_url) as wire:
        begun = time.monotonic()
        wire.send((5000).to_bytes(4, "big"))
        with pytest.raises((ClosedError, ConnectionError)):  # long before the last byte
            drip(wire, b"x" * 400, 0.05)
        assert time.monotonic() - begun > FRAME_MS / 1000 * 0.9


@hasty(frame_timeout_ms=FRAME_MS)
def test_slow_but_whole_frames_are_fine(hasty_url: str) -> None:
    ping = encode_command(BaseCommand(type=BaseCommand.PING))
    with Wire(hasty_url) as wire:
        for _ in range(4):
            wire.send(ping[:5])
            time.sleep(FRAME_MS / 3000)
            wire.send(ping[5:])
            assert wire.next_kind() == "PONG"


@hasty(keep_alive_ms=KEEP_ALIVE_MS)
def test_a_half_open_connection_is_asked_and_then_ended(hasty_url: str) -> None:
    begun = time.monotonic()
    with Wire(hasty_url) as wire:
        assert wire.wait_closed() == ["PING"]
        assert time.monotonic() - begun > KEEP_ALIVE_MS / 1000 * 1.8


def test_a_connection_cut_inside_of_a_frame_frees_what_it_had(url: str) -> None:
    with Wire(url) as wire:
        assert wire.produce(TOPIC).type == BaseCommand.PRODUCER_SUCCESS
        wire.send(send_frame(1, 0, message(b"x" * 1000))[:500])
    with Wire(url) as wire:
        assert until_free(wire) == BaseCommand.PRODUCER_SUCCESS


def until_free(wire: Wire) -> int:
    """The same producer name is free as soon as the broker has seen the end of the connection."""
    deadline = time.monotonic() + WAIT_MS / 1000
    while True:
        answer = wire.produce(TOPIC)
        if answer.type != BaseCommand.ERROR or time.monotonic() > deadline:
            return int(answer.type)
        time.sleep(0.02)


def test_a_reset_frees_what_it_had(url: str) -> None:
    wire = Wire(url)
    assert wire.produce(TOPIC).type == BaseCommand.PRODUCER_SUCCESS
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    wire.close()
    with Wire(url) as other:
        assert until_free(other) == BaseCommand.PRODUCER_SUCCESS


# -- messages that are none -----------------------------------------------------------------------


def test_a_bad_checksum_is_told_in_its_turn_and_the_producer_goes_on(url: str) -> None:
    with Wire(url) as wire:
        wire.produce(TOPIC)
        good = send_frame(1, 0, message(b"good"))
        bad = send_frame(1, 1, message(b"bad", flip=True))
        wire.send(good + bad + send_frame(1, 2, message(b"good too")))
        first, second, third = wire.receive(), wire.receive(), wire.receive()
        assert (first.send_receipt.sequence_id, third.send_receipt.sequence_id) == (0, 2)
        assert second.type == BaseCommand.SEND_ERROR
        assert second.send_error.sequence_id == 1
        assert second.send_error.error == ServerError.CHECKSUM
        assert "checksum" in second.send_error.message


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x0e\x01\x00",
        b"\x0e\x07" + bytes(20),
        checked((1000).to_bytes(4, "big") + b"short"),
        (1 << 30).to_bytes(4, "big") + b"x" * 50,
    ],
    ids=["nothing", "half a head", "wrong magic", "metadata past the end", "huge metadata"],
)
def test_what_is_no_message_ends_the_connection(url: str, payload: bytes) -> None:
    with Wire(url) as wire:
        wire.produce(TOPIC)
        wire.send(send_frame(1, 0, payload))
        assert wire.wait_closed() == []


JAVA = "Pulsar-Java-v4.0.8"


def test_a_message_too_large_ends_its_producer(url: str) -> None:
    """Clients that answer a SEND_ERROR by sending the same again are told in another way: the
    producer is closed and may not come back. Receipts of what came before leave before that."""
    with Wire(url) as wire:
        wire.produce(TOPIC)
        large = send_frame(1, 1, message(bytes(MESSAGE_MAX + 20_000)))
        wire.send(send_frame(1, 0, message(b"before")) + large)
        wire.send(send_frame(1, 2, message(b"after")))
        assert wire.receive().type == BaseCommand.SEND_RECEIPT
        assert wire.receive().close_producer.producer_id == 1
        refused_for_good(wire, str(MESSAGE_MAX))
        assert wire.produce(TOPIC, epoch=0).type == BaseCommand.PRODUCER_SUCCESS


def refused_for_good(wire: Wire, reason: str) -> None:
    """The client comes back on the same connection, and is told why its producer may not."""
    again = wire.produce(TOPIC, epoch=1).error
    assert again.error == ServerError.PRODUCER_FENCED
    assert reason in again.message


def test_one_message_too_large_is_refused_and_the_producer_goes_on(url: str) -> None:
    """Java's client fails the one message, by the last sequence id of its batch."""
    with Wire(url, client_version=JAVA) as wire:
        wire.produce(TOPIC)
        command = BaseCommand(type=BaseCommand.SEND)
        command.send.producer_id, command.send.sequence_id = 1, 1
        command.send.highest_sequence_id = 5
        large = encode_payload_command(command, message(bytes(MESSAGE_MAX + 20_000)))
        wire.send(send_frame(1, 0, message(b"before")) + large)
        wire.send(send_frame(1, 6, message(b"after")))
        assert wire.receive().send_receipt.sequence_id == 0
        refusal = wire.receive().send_error
        assert (refusal.sequence_id, refusal.error) == (5, ServerError.NOT_ALLOWED)
        assert str(MESSAGE_MAX) in refusal.message
        assert wire.receive().send_receipt.sequence_id == 6
        wire.produce(TOPIC, epoch=0)
    with Wire(url, client_version=JAVA) as wire:
        assert wire.produce(TOPIC, epoch=1).type == BaseCommand.PRODUCER_SUCCESS


BROKEN_METADATA = {
    "undecodable": b"\xff\xff\xff\xff",
    "nothing": b"",
    "no publish time": MessageMetadata(producer_name="p", sequence_id=7).SerializePartialToString(),
    "no sequence id": MessageMetadata(producer_name="p", publish_time=7).SerializePartialToString(),
    "no name": MessageMetadata(sequence_id=7, publish_time=7).SerializePartialToString(),
}


@pytest.mark.parametrize("metadata", BROKEN_METADATA.values(), ids=BROKEN_METADATA)
def test_metadata_that_cannot_be_read_is_left_out(url: str, metadata: bytes) -> None:
    topic = f"{TOPIC}-metadata-{list(BROKEN_METADATA.values()).index(metadata)}"
    with Wire(url) as wire:
        wire.subscribe(topic)
        wire.produce(topic)
        broken = checked(len(metadata).to_bytes(4, "big") + metadata + b"data")
        wire.send(send_frame(1, 0, broken))
        wire.send(send_frame(1, 1, message(b"good")))
        assert wire.receive().type == BaseCommand.SEND_RECEIPT
        assert wire.receive().type == BaseCommand.SEND_RECEIPT
        flow = BaseCommand(type=BaseCommand.FLOW)
        flow.flow.consumer_id = 1
        flow.flow.messagePermits = 10
        received = wire.ask(flow)
        assert received.type == BaseCommand.MESSAGE
        assert received.message.message_id.entryId == 1


HOSTILE_METADATA: dict[str, dict[str, int]] = {
    "a batch of many in four bytes": {"num_messages_in_batch": 100_000},
    "a batch of none": {"num_messages_in_batch": 0},
    "a batch of less than none": {"num_messages_in_batch": -1},
    "4 GB out of four bytes": {"compression": 1, "uncompressed_size": 2**32 - 1},
    "a chunk of a million": {
        "num_chunks_from_msg": 1_000_000,
        "chunk_id": 0,
        "total_chunk_msg_size": 2**31 - 1,
    },
}


def hostile(fields: dict[str, int]) -> bytes:
    metadata = MessageMetadata(producer_name="wire", sequence_id=0, publish_time=1)
    for name, value in fields.items():
        setattr(metadata, name, value)
    head = metadata.SerializeToString()
    return checked(len(head).to_bytes(4, "big") + head + b"data")


@pytest.mark.parametrize("name", HOSTILE_METADATA)
def test_numbers_that_cannot_be_true_are_refused_for_good(url: str, name: str) -> None:
    """Stored, they would end each official client that gets them: a batch by a segmentation
    fault, the others by the memory that they ask for."""
    with Wire(url) as wire:
        wire.produce(TOPIC)
        wire.send(send_frame(1, 0, hostile(HOSTILE_METADATA[name])))
        assert wire.receive().type == BaseCommand.CLOSE_PRODUCER
        refused_for_good(wire, "it says")
    with Wire(url, client_version=JAVA) as wire:
        wire.produce(TOPIC)
        wire.send(send_frame(1, 0, hostile(HOSTILE_METADATA[name])))
        assert wire.receive().send_error.error == ServerError.NOT_ALLOWED


@pytest.mark.parametrize("name", HOSTILE_METADATA)
def test_stored_numbers_that_cannot_be_true_reach_no_client(strict: Served, name: str) -> None:
    """As an earlier version may have stored them."""
    service, check = strict
    topic = f"hostile-{list(HOSTILE_METADATA).index(name)}"
    client = pulsar.Client(service.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(topic, "s")
    service.run(store(service, topic, hostile(HOSTILE_METADATA[name])))
    client.create_producer(topic).send(b"good")
    assert consumer.receive(WAIT_MS).data() == b"good"
    client.close()
    check()


async def store(service: MemoryService, topic: str, payload: bytes) -> None:
    """Into the log, past everything that looks at it."""
    log = service.store.logs[parse_topic(topic).log_name]
    log.append([payload], lambda *_: None)


@pytest.mark.parametrize("deliver_at_ms", [2, -1, 2**63 - 1, -(2**63)])
def test_any_time_of_delivery_is_taken(url: str, deliver_at_ms: int) -> None:
    due = MessageMetadata(producer_name="wire", sequence_id=0, publish_time=1)
    due.deliver_at_time = deliver_at_ms
    head = due.SerializeToString()
    with Wire(url) as wire:
        wire.produce(TOPIC)
        wire.send(send_frame(1, 0, checked(len(head).to_bytes(4, "big") + head)))
        assert wire.receive().type == BaseCommand.SEND_RECEIPT


def test_a_transaction_is_refused(url: str) -> None:
    with Wire(url) as wire:
        wire.produce(TOPIC)
        command = BaseCommand(type=BaseCommand.SEND)
        command.send.producer_id = 1
        command.send.sequence_id = 0
        command.send.txnid_most_bits = 1
        body = command.SerializeToString()
        payload = message(b"x")
        head = (4 + len(body) + len(payload)).to_bytes(4, "big") + len(body).to_bytes(4, "big")
        wire.send(head + body + payload)
        assert wire.receive().type == BaseCommand.CLOSE_PRODUCER
        refused_for_good(wire, "transactions are not served")
        meet = BaseCommand(type=BaseCommand.TC_CLIENT_CONNECT_REQUEST)
        meet.tcClientConnectRequest.request_id, meet.tcClientConnectRequest.tc_id = 8, 0
        met = wire.ask(meet).tcClientConnectResponse
        assert (met.request_id, met.error) == (8, ServerError.NOT_ALLOWED)
        assert "not served" in met.message
        begin = BaseCommand(type=BaseCommand.NEW_TXN)
        begin.newTxn.request_id = 9
        answer = wire.ask(begin)
        assert answer.newTxnResponse.request_id == 9
        assert answer.newTxnResponse.error == ServerError.NOT_ALLOWED


# -- names and numbers that are kept or trusted ---------------------------------------------------


LONG = "x" * 5000


def test_names_too_long_to_be_kept_are_refused(url: str) -> None:
    with Wire(url) as wire:
        produce = BaseCommand(type=BaseCommand.PRODUCER)
        produce.producer.topic, produce.producer.producer_id = TOPIC, 1
        produce.producer.request_id = 1
        subscribe = BaseCommand(type=BaseCommand.SUBSCRIBE)
        subscribe.subscribe.topic, subscribe.subscribe.subscription = TOPIC, "s"
        subscribe.subscribe.consumer_id, subscribe.subscribe.request_id = 1, 1
        subscribe.subscribe.subType = subscribe.subscribe.Shared
        for command, body, field in (
            (produce, "producer", "producer_name"),
            (produce, "producer", "initial_subscription_name"),
            (subscribe, "subscribe", "consumer_name"),
            (subscribe, "subscribe", "subscription"),
        ):
            bad = BaseCommand()
            bad.CopyFrom(command)
            setattr(getattr(bad, body), field, LONG)
            answer = wire.ask(bad)
            assert (field, answer.error.error) == (field, ServerError.NOT_ALLOWED)
        for number in range(20):
            subscribe.subscribe.subscription_properties.add(key=str(number), value=LONG)
        assert wire.ask(subscribe).error.error == ServerError.NOT_ALLOWED


@pytest.mark.parametrize("name", [".", "..", "a/b", "a b", "\x01", "é", "%2e"])
def test_any_name_of_a_subscription_can_be_kept(url: str, name: str) -> None:
    with Wire(url) as wire:
        assert wire.subscribe(f"{TOPIC}-names", name).type == BaseCommand.SUCCESS
        leave = BaseCommand(type=BaseCommand.UNSUBSCRIBE)
        leave.unsubscribe.consumer_id, leave.unsubscribe.request_id = 1, 3
        assert wire.ask(leave).type == BaseCommand.SUCCESS


@pytest.mark.parametrize(
    ("ledger_id", "entry_id"),
    [(0, 0), (1, 2**62), (2, 2**63 - 1), (2**62, 0), (2**63 - 1, 0), (2**63, 5), (3, 2**64 - 1)],
)
def test_readers_and_seeks_from_anywhere_go_on(url: str, ledger_id: int, entry_id: int) -> None:
    """Ids of nothing: between ledgers, past the end, before the beginning."""
    topic = f"{TOPIC}-anywhere"
    with Wire(url) as wire:
        wire.produce(topic)
        for number in range(16):
            wire.send(send_frame(1, number, message(b"x", number)))
            assert wire.receive().type == BaseCommand.SEND_RECEIPT
        subscribe = BaseCommand(type=BaseCommand.SUBSCRIBE)
        request = subscribe.subscribe
        request.topic, request.subscription = topic, f"r-{ledger_id}-{entry_id}"
        request.consumer_id, request.request_id = 1, 1
        request.subType, request.durable = request.Exclusive, False
        request.start_message_id.ledgerId = ledger_id
        request.start_message_id.entryId = entry_id
        assert wire.ask(subscribe).type == BaseCommand.SUCCESS
        seek = BaseCommand(type=BaseCommand.SEEK)
        seek.seek.consumer_id, seek.seek.request_id = 1, 2
        seek.seek.message_id.CopyFrom(request.start_message_id)
        assert wire.ask(seek).type == BaseCommand.CLOSE_CONSUMER
        assert wire.receive().type == BaseCommand.SUCCESS
        assert wire.ask(subscribe).type == BaseCommand.SUCCESS
        for permits in (2**32 - 1, 0, 1):
            flow = BaseCommand(type=BaseCommand.FLOW)
            flow.flow.consumer_id, flow.flow.messagePermits = 1, permits
            wire.tell(flow)
        wire.send(send_frame(1, 99, message(b"new", 99)))
        kinds = []
        while "SEND_RECEIPT" not in kinds or "MESSAGE" not in kinds:
            kinds.append(wire.next_kind())


# -- commands about nothing -----------------------------------------------------------------------


def test_commands_of_the_unknown_are_ignored(url: str) -> None:
    with Wire(url) as wire:
        wire.send(send_frame(77, 0, message(b"nobody's")))
        flow = BaseCommand(type=BaseCommand.FLOW)
        flow.flow.consumer_id = 77
        flow.flow.messagePermits = 2**32 - 1
        wire.tell(flow)
        ack = BaseCommand(type=BaseCommand.ACK)
        ack.ack.consumer_id = 77
        ack.ack.ack_type = ack.ack.Individual
        ack.ack.message_id.add(ledgerId=1, entryId=0)
        wire.tell(ack)
        again = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        again.redeliverUnacknowledgedMessages.consumer_id = 77
        wire.tell(again)
        assert wire.ask(BaseCommand(type=BaseCommand.PING)).type == BaseCommand.PONG
        ack.ack.request_id = 5
        answer = wire.ask(ack)
        assert answer.ackResponse.request_id == 5
        assert answer.ackResponse.error == ServerError.CONSUMER_NOT_FOUND


def test_requests_about_unknown_consumers_are_refused(url: str) -> None:
    with Wire(url) as wire:
        seek = BaseCommand(type=BaseCommand.SEEK)
        seek.seek.consumer_id, seek.seek.request_id = 77, 1
        last = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
        last.getLastMessageId.consumer_id, last.getLastMessageId.request_id = 77, 2
        leave = BaseCommand(type=BaseCommand.UNSUBSCRIBE)
        leave.unsubscribe.consumer_id, leave.unsubscribe.request_id = 77, 3
        for number, command in enumerate((seek, last, leave), 1):
            answer = wire.ask(command)
            assert answer.error.request_id == number
            assert answer.error.error == ServerError.CONSUMER_NOT_FOUND
        close = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        close.close_consumer.consumer_id, close.close_consumer.request_id = 77, 4
        assert wire.ask(close).success.request_id == 4


def test_acknowledgements_of_what_is_not_there_change_nothing(url: str) -> None:
    topic = f"{TOPIC}-acks"
    with Wire(url) as wire:
        wire.subscribe(topic)
        wire.produce(topic)
        ack = BaseCommand(type=BaseCommand.ACK)
        ack.ack.consumer_id = 1
        ack.ack.ack_type = ack.ack.Individual
        for ledger_id, entry_id in ((1, 0), (1, 10**9), (2**64 - 1, 0), (2**62, 2**63)):
            ack.ack.message_id.add(ledgerId=ledger_id, entryId=entry_id, ack_set=[0])
            ack.ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        ack.ack.request_id = 6
        assert not wire.ask(ack).ackResponse.HasField("error")
        wire.send(send_frame(1, 0, message(b"x")))
        assert wire.receive().type == BaseCommand.SEND_RECEIPT
        flow = BaseCommand(type=BaseCommand.FLOW)
        flow.flow.consumer_id, flow.flow.messagePermits = 1, 1
        assert wire.ask(flow).message.message_id.entryId == 0


def test_lookups_are_refused_in_their_own_way(url: str) -> None:
    cases = {
        "persistent://nobody/nowhere/t": ServerError.TOPIC_NOT_FOUND,
        "persistent://public/default": ServerError.NOT_ALLOWED,
        "persistent://a/b/c/d": ServerError.NOT_ALLOWED,
        "persistent://public/default/": ServerError.NOT_ALLOWED,
        "persistent://public/de fault/t": ServerError.NOT_ALLOWED,
        "persistent://public/../t": ServerError.NOT_ALLOWED,
        "ftp://public/default/t": ServerError.NOT_ALLOWED,
        "x" * 5000: ServerError.NOT_ALLOWED,
        "non-persistent://public/default/t": ServerError.NOT_ALLOWED,
        "persistent://public/default/.": ServerError.NOT_ALLOWED,
        "persistent://public/default/a\x01b": ServerError.NOT_ALLOWED,
        "persistent://pulsar/system/transaction_coordinator_assign": ServerError.NOT_ALLOWED,
        "persistent://pulsar/system/transaction_coordinator_assign-partition-3": (
            ServerError.NOT_ALLOWED
        ),
        "persistent://pulsar/system/other": ServerError.TOPIC_NOT_FOUND,
    }
    with Wire(url) as wire:
        for number, (name, code) in enumerate(cases.items()):
            lookup = BaseCommand(type=BaseCommand.LOOKUP)
            lookup.lookupTopic.topic, lookup.lookupTopic.request_id = name, number
            answer = wire.ask(lookup)
            assert answer.type == BaseCommand.LOOKUP_RESPONSE
            assert answer.lookupTopicResponse.request_id == number
            assert (name, answer.lookupTopicResponse.error) == (name, code)
            parts = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
            parts.partitionMetadata.topic, parts.partitionMetadata.request_id = name, number
            answer = wire.ask(parts)
            assert answer.type == BaseCommand.PARTITIONED_METADATA_RESPONSE
            assert answer.partitionMetadataResponse.error == code


@pytest.mark.parametrize(
    "name", [".", "..", "x" * 1100, "a\x01b", "é" * 600], ids=["1", "2", "long", "control", "wide"]
)
def test_names_that_cannot_be_are_told_at_once(url: str, name: str) -> None:
    """The official client tries again on some codes, until its time-out of 30 s."""
    topic = f"persistent://public/default/{name}"
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for use in (
        client.create_producer,
        lambda topic: client.subscribe(topic, "s"),
        lambda topic: client.create_reader(topic, pulsar.MessageId.earliest),
    ):
        begun = time.monotonic()
        with pytest.raises((pulsar.InvalidTopicName, pulsar.NotAllowedError)):
            use(topic)
        assert time.monotonic() - begun < 5
    client.close()


def test_listeners_that_are_not_there(url: str) -> None:
    with Wire(url) as wire:
        lookup = BaseCommand(type=BaseCommand.LOOKUP)
        lookup.lookupTopic.topic, lookup.lookupTopic.request_id = TOPIC, 1
        lookup.lookupTopic.advertised_listener_name = "test"
        answer = wire.ask(lookup).lookupTopicResponse
        assert answer.error == ServerError.SERVICE_NOT_READY
        assert "the broker do not have test listener" in answer.message


def test_what_is_not_served_is_refused_clearly(url: str) -> None:
    with Wire(url) as wire:
        watch = BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST)
        watch.watchTopicList.request_id = 1
        watch.watchTopicList.watcher_id = 1
        watch.watchTopicList.namespace = "public/default"
        watch.watchTopicList.topics_pattern = "(?!a).*"
        answer = wire.ask(watch)
        assert answer.error.error == ServerError.NOT_ALLOWED
        assert "RE2" in answer.error.message
        subscribe = BaseCommand(type=BaseCommand.SUBSCRIBE)
        subscribe.subscribe.topic = TOPIC
        subscribe.subscribe.subscription = "s"
        subscribe.subscribe.keySharedMeta.keySharedMode = 1
        subscribe.subscribe.keySharedMeta.hashRanges.add(start=0, end=9)
        subscribe.subscribe.subType = subscribe.subscribe.Exclusive
        subscribe.subscribe.consumer_id, subscribe.subscribe.request_id = 5, 2
        answer = wire.ask(subscribe)
        assert answer.error.request_id == 2
        assert answer.error.error == ServerError.NOT_ALLOWED
        assert "ranges are for Key_Shared subscriptions and for readers" in answer.error.message
        assert wire.subscribe(TOPIC, name="").error.error == ServerError.NOT_ALLOWED


def test_one_who_asks_and_never_listens_is_not_served_without_end(url: str, strict: Served) -> None:
    """Answers pile up to a bound; then nothing more is read from that client."""
    service, _ = strict
    with Wire(url) as wire:
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.socket.settimeout(0.3)
        pings = encode_command(BaseCommand(type=BaseCommand.PING)) * 10_000
        with pytest.raises((TimeoutError, ConnectionError)):
            drip(wire, pings, 0.0, step=len(pings), times=2000)
        assert service.run(unsent_of(service)) < 32 << 20


async def unsent_of(service: MemoryService) -> int:
    return service.broker.pulsar.unsent_bytes
