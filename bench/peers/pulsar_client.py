"""Pulsar's protocol as a lane of ``magnetar.proving`` needs it; Pulsar's own client to read with.

What acks=all means to a producer of Kafka's, a name and a broker that deduplicates mean to one of
Pulsar's: without them a message that is sent again may be stored again, acks=1 or not. Brokers do
not know of ``acks``: they answer when the ack quorum of bookies has answered.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from bench import wire_client
from bench.wire_client import CLIENT_ID, REDIRECTS_MAX, ClosedError, Connection
from magnetar.model.errors import MagnetarError
from magnetar.proving.network import CLIENT_HOST
from magnetar.proving.speaking import (
    ALL,
    CONNECT_S,
    Address,
    PartitionView,
    Protocol,
    ReadMessage,
    RefusedError,
    Speaker,
    TopicLine,
)
from magnetar.wire.pulsar.commands import encode_payload_command
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    MessageIdData,
    MessageMetadata,
    ServerError,
)

NAMESPACE: Final = "prove/lanes"
LOOK_S: Final = 5.0
"""A lookup may have to find an owner first."""
BEGIN_S: Final = 10.0
"""A topic may have to be loaded first."""
READ_S: Final = 20
REFUSALS: Final = (BaseCommand.ERROR, BaseCommand.SEND_ERROR)


def full_name(topic: str) -> str:
    return f"persistent://{NAMESPACE}/{topic}"


def place(message_id: MessageIdData) -> int:
    """Ascending as messages do: the ledger's id, then the entry's; -1 of a message that was not
    stored again."""
    if message_id.entryId >= 1 << 32:
        return -1
    return int(message_id.ledgerId) << 32 | int(message_id.entryId)


@contextlib.contextmanager
def _as_answers() -> Iterator[None]:
    """What the connection raises is ``OSError`` if it is over, else ``RefusedError``."""
    try:
        yield
    except ClosedError as error:
        raise ConnectionResetError(str(error)) from error
    except wire_client.RefusedError as error:
        raise RefusedError(str(error)) from error


def _connect(address: Address) -> Connection:
    with _as_answers():
        return Connection(*address, CONNECT_S, (CLIENT_HOST, 0))


class PulsarLine(TopicLine):
    """Of a ``PulsarSpeaker``."""

    def __init__(self, topic: str, name: str | None, address: Address) -> None:
        self._topic = topic
        self._name = name
        self._line = _connect(address)

    def begin(self) -> None:
        command = wire_client.new_producer(full_name(self._topic))
        if self._name is not None:
            command.producer.producer_name = self._name
        self._line.sock.settimeout(BEGIN_S)
        with _as_answers():
            told = self._line.ask(command, BaseCommand.PRODUCER_SUCCESS).producer_success
        self._name = told.producer_name

    def send(self, number: int, within_s: float) -> int:
        assert self._name is not None, "it has not begun"
        meta = MessageMetadata(
            producer_name=self._name, sequence_id=number, publish_time=int(time.time() * 1000)
        )
        command = BaseCommand(type=BaseCommand.SEND)
        command.send.producer_id = CLIENT_ID
        command.send.sequence_id = number
        payload = wire_client.checked_payload(meta, b"%d" % number)
        self._line.sock.settimeout(within_s)
        self._line.sock.sendall(encode_payload_command(command, payload))
        return number

    def answer(self, sent: int, within_s: float) -> int:
        self._line.sock.settimeout(within_s)
        with _as_answers():
            told = self._line.receive()
        if told.type == BaseCommand.SEND_RECEIPT:
            assert told.send_receipt.sequence_id == sent, "receipts come in the order of messages"
            return place(told.send_receipt.message_id)
        if told.type in REFUSALS:
            said = told.send_error if told.type == BaseCommand.SEND_ERROR else told.error
            raise RefusedError(f"{ServerError.Name(said.error)} {said.message}")
        # CLOSE_PRODUCER: the topic is another's, or was fenced; what was sent has no answer
        raise ConnectionResetError(f"the broker has ended the producer: {str(told).strip()}")

    def close(self) -> None:
        self._line.sock.close()


class PulsarSpeaker(Speaker):
    """See ``Speaker``. It reads with Pulsar's own client."""

    def __init__(self, topic: str, acks: int) -> None:
        self._topic = topic
        self._numbered = acks == ALL
        self._name: str | None = None
        self.begin_anew()

    def connect(self, address: Address) -> TopicLine:
        return PulsarLine(self._topic, self._name, address)

    def begin_anew(self) -> None:
        self._name = f"prove-{uuid.uuid4().hex}" if self._numbered else None

    def read(self, address: Address, offset: int = 0) -> tuple[list[ReadMessage], int]:
        import pulsar

        try:
            found = read_all(address, self._topic)
        except pulsar.PulsarException as error:
            raise MagnetarError(f"{self._topic} is not read: {error}") from error
        end = max((each.offset + 1 for each in found), default=0)
        return [each for each in found if each.offset >= offset], end


def read_all(address: Address, topic: str) -> list[ReadMessage]:
    """Raises ``pulsar.PulsarException``."""
    import pulsar

    host, port = address
    client = pulsar.Client(
        f"pulsar://{host}:{port}",
        operation_timeout_seconds=READ_S,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    found: list[ReadMessage] = []
    try:
        reader = client.create_reader(full_name(topic), pulsar.MessageId.earliest)
        while reader.has_message_available():
            message = reader.read_next(READ_S * 1000)
            at = message.message_id()
            offset = at.ledger_id() << 32 | at.entry_id()
            found.append(ReadMessage(int(message.data()), offset, at.ledger_id()))
    finally:
        client.close()
    return found


class PulsarProtocol(Protocol):
    """``addresses``: of brokers, as they tell them; the first is broker 1."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses

    def look(self, address: Address, topic: str) -> PartitionView:
        authoritative = False
        for _ in range(REDIRECTS_MAX):
            told = self._asked(address, wire_client.lookup(full_name(topic), authoritative))
            if told.response == CommandLookupTopicResponse.Failed:
                raise RefusedError(f"{ServerError.Name(told.error)} {told.message}")
            url = urlsplit(told.brokerServiceUrl)
            address, authoritative = (url.hostname or "", url.port or 0), told.authoritative
            if told.response == CommandLookupTopicResponse.Connect:
                owner = self._addresses.index(address) + 1
                return PartitionView(owner, 0, (), (), {owner: address})
        raise RefusedError(f"a lookup of {topic} was sent on more than {REDIRECTS_MAX} times")

    def _asked(self, address: Address, command: BaseCommand) -> CommandLookupTopicResponse:
        line = _connect(address)
        try:
            line.sock.settimeout(LOOK_S)
            with _as_answers():
                return line.ask(command, BaseCommand.LOOKUP_RESPONSE).lookupTopicResponse
        finally:
            line.sock.close()

    def create_topic(
        self, address: Address, topic: str, replicas: int, configs: Mapping[str, str]
    ) -> None:
        """Brokers make it when its first producer comes."""

    def speaker(self, topic: str, acks: int) -> Speaker:
        return PulsarSpeaker(topic, acks)
