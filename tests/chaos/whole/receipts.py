"""A process of consumers with receipts: ``python -m tests.chaos.whole.receipts NAME URL HISTORY``.

Python's official client cannot ask for receipts of acknowledgements, so these speak the protocol
themselves, as much of it as they need: plain messages of shared subscriptions. They go where they
are sent, as official clients do, and forget what they hold when a connection ends: an
acknowledgement goes to the connection that delivered.

What comes is acknowledged at once, or, some of it, seconds later and out of order, so that
cursors have holes when something breaks. *Since* when a connection is subscribed is noted with
every delivery.
"""

from __future__ import annotations

import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from magnetar.model.errors import MagnetarError
from magnetar.wire.pulsar.commands import PROTOCOL_VERSION, decode_command, encode_command
from magnetar.wire.pulsar.metadata import entry_metadata
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandLookupTopicResponse,
    CommandMessage,
    CommandSubscribe,
    MessageIdData,
)
from tests.chaos.whole.history import ACKED, GOT, NOTE, STORED, HistoryWriter
from tests.chaos.whole.modes import Duty, duties, parse

CONNECT_S: Final = 3.0
ANSWER_S: Final = 30.0
SILENT_S: Final = 20.0
"""A connection on which nothing came for so long, with a ping in the middle, is given up."""
AGAIN_S: Final = 0.5
REDIRECTS_MAX: Final = 10
PERMITS: Final = 50
HELD: Final = 0.15
HELD_S: Final = (0.5, 4.0)
POLL_S: Final = 0.2
VERSION: Final = "Pulsar-CPP-v4.0.0"
"""Brokers send on whom they know to follow."""


class LostError(Exception):
    """The connection is of no use any more."""


class Connection:
    """Frames of one connection, each a command and what follows it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.url = url
        self._socket = socket.create_connection((parts.hostname, parts.port), CONNECT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read = bytearray()
        self._heard_s = time.monotonic()
        self._pinged = False
        command = BaseCommand(type=BaseCommand.CONNECT)
        command.connect.client_version = VERSION
        command.connect.protocol_version = PROTOCOL_VERSION
        self.ask(command, BaseCommand.CONNECTED)

    def send(self, command: BaseCommand) -> None:
        self._socket.settimeout(ANSWER_S)
        self._socket.sendall(encode_command(command))

    def ask(self, command: BaseCommand, wanted: int) -> BaseCommand:
        """Raises ``LostError`` for any other answer, and for none in time."""
        self.send(command)
        deadline_s = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline_s:
            found = self.receive()
            if found is None:
                continue
            if found[0].type == wanted:
                return found[0]
            raise LostError(str(found[0]))
        raise LostError("no answer in time")

    def receive(self) -> tuple[BaseCommand, bytes] | None:
        """The next frame; None after ``POLL_S`` without. Raises ``LostError``, ``OSError``."""
        while True:
            found = self._whole_frame()
            if found is None:
                if not self._hear():
                    return None
                continue
            if found[0].type == BaseCommand.PING:
                self.send(_bare(BaseCommand.PONG))
            elif found[0].type != BaseCommand.PONG:
                return found

    def _whole_frame(self) -> tuple[BaseCommand, bytes] | None:
        size = int.from_bytes(self._read[:4], "big")
        if len(self._read) < 8 or len(self._read) < 4 + size:
            return None
        frame = bytes(self._read[4 : 4 + size])
        del self._read[: 4 + size]
        after = 4 + int.from_bytes(frame[:4], "big")
        return decode_command(memoryview(frame), 0, size), frame[after:]

    def _hear(self) -> bool:
        self._socket.settimeout(POLL_S)
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            self._check_silence()
            return False
        if not data:
            raise LostError("closed")
        self._heard_s, self._pinged = time.monotonic(), False
        self._read += data
        return True

    def _check_silence(self) -> None:
        silent_s = time.monotonic() - self._heard_s
        if silent_s > SILENT_S:
            raise LostError("silent")
        if silent_s > SILENT_S / 2 and not self._pinged:
            self._pinged = True
            self.send(_bare(BaseCommand.PING))

    def close(self) -> None:
        self._socket.close()


def _bare(kind: BaseCommand.Type) -> BaseCommand:
    command = BaseCommand(type=kind)
    (command.ping if kind == BaseCommand.PING else command.pong).SetInParent()
    return command


def look_up(urls: Sequence[str], topic: str, first: int) -> str:
    """The owner's address. Raises ``LostError``, ``OSError``."""
    url, authoritative = urls[first % len(urls)], False
    for _ in range(REDIRECTS_MAX):
        connection = Connection(url)
        try:
            command = BaseCommand(type=BaseCommand.LOOKUP)
            command.lookupTopic.topic = topic
            command.lookupTopic.request_id = 1
            command.lookupTopic.authoritative = authoritative
            reply = connection.ask(command, BaseCommand.LOOKUP_RESPONSE).lookupTopicResponse
        finally:
            connection.close()
        if reply.response == CommandLookupTopicResponse.Failed:
            raise LostError(reply.message)
        url, authoritative = reply.brokerServiceUrl, reply.authoritative
        if reply.response == CommandLookupTopicResponse.Connect:
            return url
    raise LostError("too many redirects")


class Consuming(threading.Thread):
    """One consumer, on one connection after the other."""

    def __init__(self, duty: Duty, name: str, urls: Sequence[str], history: HistoryWriter) -> None:
        super().__init__(name=f"{duty.topic.name} {duty.subscription.name}", daemon=True)
        self._duty = duty
        self._name = name
        self._urls = urls
        self._history = history
        self._random = random.Random(f"{name} {self.name}")
        self._asked = 0
        self._waiting: dict[int, tuple[str, int]] = {}
        self._held: list[tuple[float, MessageIdData, tuple[str, int]]] = []

    def run(self) -> None:
        sent_to, turn = "", 0
        while True:
            turn += 1
            try:
                url = sent_to or look_up(self._urls, self._duty.topic.url, turn)
                sent_to = self._on(Connection(url))
            except (LostError, OSError, MagnetarError):
                sent_to = ""
                time.sleep(AGAIN_S)

    def _on(self, connection: Connection) -> str:
        """Consume until the connection or the consumer is closed; returns where it is sent."""
        self._waiting.clear()
        self._held.clear()
        try:
            self._subscribe(connection)
            since_s = time.monotonic()
            while True:
                self._let_go(connection)
                found = connection.receive()
                if found is None:
                    continue
                command, payload = found
                if command.type == BaseCommand.MESSAGE:
                    self._got(connection, command.message, payload, since_s)
                elif command.type == BaseCommand.ACK_RESPONSE:
                    self._answered(command)
                elif command.type == BaseCommand.CLOSE_CONSUMER:
                    return command.close_consumer.assignedBrokerServiceUrl
        finally:
            connection.close()

    def _subscribe(self, connection: Connection) -> None:
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        command.subscribe.topic = self._duty.topic.url
        command.subscribe.subscription = self._duty.subscription.name
        command.subscribe.subType = CommandSubscribe.Shared
        command.subscribe.consumer_id = 1
        command.subscribe.request_id = 2
        command.subscribe.initialPosition = CommandSubscribe.Earliest
        connection.ask(command, BaseCommand.SUCCESS)
        self._flow(connection, PERMITS)

    def _flow(self, connection: Connection, permits: int) -> None:
        command = BaseCommand(type=BaseCommand.FLOW)
        command.flow.consumer_id = 1
        command.flow.messagePermits = permits
        connection.send(command)

    def _got(
        self, connection: Connection, command: CommandMessage, payload: bytes, since_s: float
    ) -> None:
        producer, number, _due = parse(payload[entry_metadata(payload).data_start :])
        topic, subscription = self._duty.topic.name, self._duty.subscription.name
        self._history.write(
            GOT, topic, subscription, producer, number, command.redelivery_count, self._name,
            round(since_s, 6),
        )  # fmt: skip
        at = MessageIdData()
        at.CopyFrom(command.message_id)
        held_s = self._random.uniform(*HELD_S) if self._random.random() < HELD else 0.0
        self._held.append((time.monotonic() + held_s, at, (producer, number)))
        self._flow(connection, 1)

    def _let_go(self, connection: Connection) -> None:
        """Acknowledge what was held for long enough."""
        now_s = time.monotonic()
        ripe = [each for each in self._held if each[0] <= now_s]
        self._held = [each for each in self._held if each[0] > now_s]
        for _, at, message in ripe:
            self._asked += 1
            self._waiting[self._asked] = message
            topic, subscription = self._duty.topic.name, self._duty.subscription.name
            self._history.write(ACKED, topic, subscription, *message)
            command = BaseCommand(type=BaseCommand.ACK)
            command.ack.consumer_id = 1
            command.ack.ack_type = CommandAck.Individual
            command.ack.message_id.append(at)
            command.ack.request_id = self._asked
            connection.send(command)

    def _answered(self, command: BaseCommand) -> None:
        message = self._waiting.pop(command.ackResponse.request_id, None)
        if message is not None and not command.ackResponse.HasField("error"):
            topic, subscription = self._duty.topic.name, self._duty.subscription.name
            self._history.write(STORED, topic, subscription, *message)


def main() -> None:
    name, service_url, path = sys.argv[1:]
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: over.set())
    history = HistoryWriter(Path(path))
    urls = [f"pulsar://{each}" for each in service_url.removeprefix("pulsar://").split(",")]
    consuming = [
        Consuming(duty, f"{name}-{index}", urls, history)
        for index in (1, 2)
        for duty in duties(name.partition(".")[0])
    ]
    for each in consuming:
        each.start()
    history.write(NOTE, f"{len(consuming)} consumers are there")
    while not over.wait(1.0):
        if not all(each.is_alive() for each in consuming):
            sys.exit("a consumer has ended; its error is above")


if __name__ == "__main__":
    main()
