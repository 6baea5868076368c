"""A lane's line to a broker of Pulsar's, against one that answers as it is told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from bench.peers.pulsar_client import PulsarProtocol, PulsarSpeaker
from magnetar.proving.speaking import ALL, Address, RefusedError
from magnetar.wire.pulsar.commands import decode_command, encode_command
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    ServerError,
)

Broker = Callable[[Sequence[BaseCommand]], Address]


def connected() -> BaseCommand:
    command = BaseCommand(type=BaseCommand.CONNECTED)
    command.connected.server_version = "told"
    return command


def begun() -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
    command.producer_success.request_id = 2
    command.producer_success.producer_name = "p"
    return command


def receipt(number: int, ledger: int, entry: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SEND_RECEIPT)
    command.send_receipt.producer_id = 1
    command.send_receipt.sequence_id = number
    command.send_receipt.message_id.ledgerId = ledger
    command.send_receipt.message_id.entryId = entry
    return command


def send_error() -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SEND_ERROR)
    command.send_error.producer_id = 1
    command.send_error.sequence_id = 0
    command.send_error.error = ServerError.PersistenceError
    command.send_error.message = "fenced"
    return command


def close_producer() -> BaseCommand:
    command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
    command.close_producer.producer_id = 1
    command.close_producer.request_id = 7
    return command


def ping() -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PING)
    command.ping.SetInParent()
    return command


def found(kind: int, url: str) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
    command.lookupTopicResponse.request_id = 1
    command.lookupTopicResponse.response = kind  # type: ignore[assignment]
    command.lookupTopicResponse.brokerServiceUrl = url
    command.lookupTopicResponse.authoritative = True
    return command


@pytest.fixture
def heard() -> list[BaseCommand]:
    """What brokers were sent."""
    return []


@pytest.fixture
def broker(heard: list[BaseCommand]) -> Iterator[Broker]:
    """Answers each command with the next that it was given, PINGs without waiting."""
    listeners: list[socket.socket] = []

    def serve(listener: socket.socket, answers: Sequence[BaseCommand]) -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            for answer in answers:
                if answer.type == BaseCommand.PING:
                    connection.sendall(encode_command(answer))
                    continue
                size = int.from_bytes(stream.read(4), "big")
                heard.append(decode_command(memoryview(stream.read(size)), 0, size))
                if heard[-1].type == BaseCommand.PONG:
                    size = int.from_bytes(stream.read(4), "big")
                    heard.append(decode_command(memoryview(stream.read(size)), 0, size))
                connection.sendall(encode_command(answer))

    def make(answers: Sequence[BaseCommand]) -> Address:
        listeners.append(socket.create_server(("127.0.0.1", 0)))
        serving = threading.Thread(target=serve, args=(listeners[-1], answers), daemon=True)
        serving.start()
        host, port = listeners[-1].getsockname()
        return host, port

    yield make
    for listener in listeners:
        listener.close()


def test_messages_are_sent_by_a_name_and_answered_in_order(
    broker: Broker, heard: list[BaseCommand]
) -> None:
    stored_before = receipt(2, 2**64 - 1, 2**64 - 1)
    answers = [connected(), begun(), receipt(0, 5, 7), ping(), receipt(1, 6, 0), stored_before]
    speaker = PulsarSpeaker("t", ALL)
    line = speaker.connect(broker(answers))
    line.begin()
    places = [line.answer(line.send(number, 5.0), 5.0) for number in range(3)]
    line.close()
    assert places == [5 << 32 | 7, 6 << 32, -1]
    (producer,) = [each.producer for each in heard if each.type == BaseCommand.PRODUCER]
    assert producer.topic == "persistent://prove/lanes/t"
    assert producer.producer_name.startswith("prove-")
    assert [each.send.sequence_id for each in heard if each.type == BaseCommand.SEND] == [0, 1, 2]


def test_who_begins_anew_has_another_name(broker: Broker, heard: list[BaseCommand]) -> None:
    speaker = PulsarSpeaker("t", ALL)
    for _ in range(2):
        line = speaker.connect(broker([connected(), begun()]))
        line.begin()
        line.close()
    speaker.begin_anew()
    line = speaker.connect(broker([connected(), begun()]))
    line.begin()
    line.close()
    names = [each.producer.producer_name for each in heard if each.type == BaseCommand.PRODUCER]
    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize(
    ("answer", "error"),
    [(send_error(), RefusedError), (close_producer(), ConnectionResetError)],
)
def test_what_is_not_stored_is_said(
    broker: Broker, answer: BaseCommand, error: type[Exception]
) -> None:
    line = PulsarSpeaker("t", 1).connect(broker([connected(), begun(), answer]))
    line.begin()
    with pytest.raises(error):
        line.answer(line.send(0, 5.0), 5.0)
    line.close()


def test_a_broker_that_ends_has_answered_nothing(broker: Broker) -> None:
    line = PulsarSpeaker("t", 1).connect(broker([connected(), begun()]))
    line.begin()
    with pytest.raises(OSError):
        line.answer(line.send(0, 5.0), 5.0)
    line.close()


def test_a_lookup_is_followed_to_the_owner(broker: Broker, heard: list[BaseCommand]) -> None:
    owner = ("127.0.0.1", 4)
    second = broker(
        [connected(), found(CommandLookupTopicResponse.Connect, "pulsar://127.0.0.1:4")]
    )
    url = f"pulsar://{second[0]}:{second[1]}"
    first = broker([connected(), found(CommandLookupTopicResponse.Redirect, url)])
    view = PulsarProtocol([first, second, owner]).look(first, "t")
    assert (view.leader, view.nodes) == (3, {3: owner})
    asked = [each.lookupTopic for each in heard if each.type == BaseCommand.LOOKUP]
    assert [each.authoritative for each in asked] == [False, True]
