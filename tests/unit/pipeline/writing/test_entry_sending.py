"""Entries go to brokers in order and are kept until they are acknowledged."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from magnetar.model.errors import BrokerError, NotAllowedError
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.writing import entry_sending
from magnetar.pipeline.writing.entry_sending import EntrySender
from magnetar.wire.pulsar.codes import Compression, ServerError
from magnetar.wire.pulsar.compression import find_compressor
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from magnetar.wire.pulsar.writing import Columns, EntryBuilder, Head
from tests.unit.pipeline.scripted_broker import (
    HangUpError,
    Incoming,
    ScriptedBroker,
    receipt,
    scripted_broker,
)

BUILDER = EntryBuilder(Compression.NONE, find_compressor(Compression.NONE))


def entry(number: int, messages: int = 1) -> bytes:
    return BUILDER.entry(Head("p", number, 1), Columns([b"%d" % number] * messages))


@contextmanager
def sender_to(broker: ScriptedBroker, patience_s: float = 30.0) -> Iterator[EntrySender]:
    client = BrokerClient(broker.url, 30.0)
    sender = EntrySender(client, patience_s)
    try:
        yield sender
    finally:
        sender.close()
        client.close()


def numbers(taken: list[Incoming], topic: str = "t") -> list[int]:
    return [each.sequence for each in taken if each.topic == topic]


def test_entries_of_several_topics() -> None:
    with scripted_broker() as broker, sender_to(broker) as sender:
        sender.send("t", [entry(0, 3), entry(1)])
        sender.send("u", [entry(0)])
        sender.send("t", [entry(2)])
        sender.finish()
        assert (sender.entries_of("t"), sender.entries_of("u"), sender.entries_of("v")) == (3, 1, 0)
        assert (numbers(broker.taken), numbers(broker.taken, "u")) == ([0, 1, 2], [0])
        assert [each.messages for each in broker.taken] == [3, 1, 1, 1]
        assert broker.taken[0].payload == entry(0, 3)
        assert len(broker.producers) == 2
        assert {each.connection for each in broker.taken} == {broker.taken[0].connection}


def test_not_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_sending, "ENTRIES_MAX", 3)
    held: list[Incoming] = []

    def every_third(_broker: ScriptedBroker, incoming: Incoming) -> BaseCommand | None:
        held.append(incoming)
        return receipt(incoming) if len(held) % 3 == 0 else None  # of all up to it

    with scripted_broker(every_third) as broker, sender_to(broker) as sender:
        for number in range(30):
            sender.send("t", [entry(number)])
            assert sender.entries_of("t") == number + 1
            assert len(sender._order) <= 4
        sender.finish()
    assert numbers(broker.taken) == list(range(30))


def test_what_has_no_receipt_is_sent_again_when_the_connection_breaks() -> None:
    def breaks_once(broker: ScriptedBroker, incoming: Incoming) -> BaseCommand | None:
        if len(broker.taken) == 6:
            raise HangUpError
        return receipt(incoming) if incoming.sequence < 2 or len(broker.taken) > 6 else None

    with scripted_broker(breaks_once) as broker, sender_to(broker) as sender:
        for number in range(10):
            sender.send("t", [entry(number)])
        sender.finish()
    first = [each.sequence for each in broker.taken[:6]]
    assert first == list(range(6))
    again = numbers(broker.taken)[6:]
    assert again == sorted(again)
    assert again[0] <= 2
    assert again[-1] == 9
    assert [each.producer.epoch for each in broker.producers] == [0, 1]
    assert len({each.producer.producer_name for each in broker.producers}) == 1


def test_a_topic_that_moves() -> None:
    def moves_once(broker: ScriptedBroker, incoming: Incoming) -> BaseCommand | None:
        if len(broker.taken) > 3 or incoming.sequence < 2:
            return receipt(incoming)
        command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
        command.close_producer.producer_id = incoming.producer_id
        command.close_producer.request_id = 0
        return command

    with scripted_broker(moves_once) as broker, sender_to(broker) as sender:
        for number in range(3):
            sender.send("t", [entry(number)])
        sender.finish()
        sender.send("t", [entry(3)])
        sender.finish()
    assert numbers(broker.taken) == [0, 1, 2, 2, 3]


def error_for(incoming: Incoming, code: ServerError) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SEND_ERROR)
    error = command.send_error
    error.producer_id, error.sequence_id = incoming.producer_id, incoming.sequence
    error.error, error.message = int(code), "as the test says"  # type: ignore[assignment]
    return command


def test_refused_entries() -> None:
    def refuses_once(broker: ScriptedBroker, incoming: Incoming) -> BaseCommand | None:
        if len(broker.taken) == 1:
            return error_for(incoming, ServerError.PERSISTENCE)
        return receipt(incoming)

    with scripted_broker(refuses_once) as broker, sender_to(broker) as sender:
        sender.send("t", [entry(0)])
        sender.finish()
    assert numbers(broker.taken) == [0, 0]

    def refuses(_broker: ScriptedBroker, incoming: Incoming) -> BaseCommand | None:
        return error_for(incoming, ServerError.NOT_ALLOWED)

    with scripted_broker(refuses) as broker, sender_to(broker) as sender:
        sender.send("t", [entry(0)])
        with pytest.raises(NotAllowedError, match="topic t: as the test says"):
            sender.finish()


def test_refused_producers() -> None:
    with scripted_broker() as broker, sender_to(broker) as sender:
        broker.refusals = [(ServerError.PRODUCER_BUSY, "not yet"), (ServerError.METADATA, "wait")]
        sender.send("t", [entry(0)])
        sender.finish()
        assert numbers(broker.taken) == [0]
        broker.refusals = [(ServerError.TOPIC_TERMINATED, "it takes no more")]
        with pytest.raises(NotAllowedError, match="topic u: it takes no more"):
            sender.send("u", [entry(0)])


def test_who_is_to_wait_for_subscriptions_that_are_behind_waits() -> None:
    with scripted_broker() as broker, sender_to(broker) as sender:
        broker.refusals = [(ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR, "too far")] * 2
        sender.send("t", [entry(0)])
        sender.finish()
        assert numbers(broker.taken) == [0]
        broker.refusals = [(ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION, "too far")]
        with pytest.raises(NotAllowedError, match="topic u: too far"):
            sender.send("u", [entry(0)])


def test_patience_ends() -> None:
    with (
        scripted_broker(lambda _broker, _incoming: None) as broker,
        sender_to(broker, patience_s=0.2) as sender,
    ):
        sender.send("t", [entry(0)])
        with pytest.raises(BrokerError, match="acknowledged nothing for 0 s"):
            sender.finish()


def test_another_address_is_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with scripted_broker() as broker:
        hosts = broker.url.removeprefix("pulsar://")
        client = BrokerClient(f"pulsar://127.0.0.1:{port},{hosts}", 30.0)
        assert client.owner("t") == ("127.0.0.1", int(hosts.rpartition(":")[2]))
        assert client.partitions("t") == ["t"]
        client.close()
        with pytest.raises(BrokerError, match=f"127.0.0.1:{port}.*is it running"):
            BrokerClient(f"pulsar://127.0.0.1:{port}", 1.0).owner("t")
