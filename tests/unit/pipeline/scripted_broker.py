"""A broker for one producer's connection at a time: takes entries, and does what a test says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from magnetar.wire.pulsar.commands import command_bounds, decode_command, encode_command
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
)

Script = Callable[["ScriptedBroker", "Incoming"], "BaseCommand | None"]


class Incoming:
    """A SEND: of which topic, with which sequence id and payload; the ``connection``-th one."""

    def __init__(self, topic: str, command: BaseCommand, payload: bytes, connection: int) -> None:
        self.topic = topic
        self.producer_id = command.send.producer_id
        self.sequence = command.send.sequence_id
        self.messages = command.send.num_messages
        self.payload = payload
        self.connection = connection


def receipt(incoming: Incoming) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SEND_RECEIPT)
    command.send_receipt.producer_id = incoming.producer_id
    command.send_receipt.sequence_id = incoming.sequence
    return command


class HangUpError(Exception):
    """Of a script: the connection breaks here."""


class ScriptedBroker:
    """``script`` answers a SEND, or breaks the connection (``HangUpError``). ``taken``: every SEND,
    in order. ``refusals``: errors for the next PRODUCERs, code and text."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or (lambda _broker, incoming: receipt(incoming))
        self.taken: list[Incoming] = []
        self.producers: list[BaseCommand] = []
        self.refusals: list[tuple[int, str]] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"pulsar://127.0.0.1:{self._server.getsockname()[1]}"
        self._connections = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self._connections += 1
                threading.Thread(
                    target=self._talk, args=(connection, self._connections), daemon=True
                ).start()

    def _talk(self, connection: socket.socket, number: int) -> None:
        topics: dict[int, str] = {}
        with connection, connection.makefile("rb") as stream, suppress(HangUpError, OSError):
            while len(head := stream.read(4)) == 4:
                body = stream.read(int.from_bytes(head, "big"))
                view = memoryview(head + body)
                command = decode_command(view, 4, len(view))
                payload = bytes(view[command_bounds(view, 4, len(view))[1] :])
                answer = self._answer(command, payload, topics, number)
                if answer is not None:
                    connection.sendall(encode_command(answer))

    def _answer(
        self, command: BaseCommand, payload: bytes, topics: dict[int, str], number: int
    ) -> BaseCommand | None:
        answer = BaseCommand()
        if command.type == BaseCommand.CONNECT:
            answer.type = BaseCommand.CONNECTED
            answer.connected.server_version = "scripted"
        elif command.type == BaseCommand.LOOKUP:
            answer.type = BaseCommand.LOOKUP_RESPONSE
            found = answer.lookupTopicResponse
            found.request_id = command.lookupTopic.request_id
            found.brokerServiceUrl = self.url
            found.response = CommandLookupTopicResponse.Connect
        elif command.type == BaseCommand.PARTITIONED_METADATA:
            answer.type = BaseCommand.PARTITIONED_METADATA_RESPONSE
            counted = answer.partitionMetadataResponse
            counted.request_id = command.partitionMetadata.request_id
            counted.partitions = 0
            counted.response = CommandPartitionedTopicMetadataResponse.Success
        elif command.type == BaseCommand.PRODUCER:
            return self._producer(command, topics)
        elif command.type == BaseCommand.SEND:
            topic = topics[command.send.producer_id]
            incoming = Incoming(topic, command, payload, number)
            self.taken.append(incoming)
            return self.script(self, incoming)
        return answer

    def _producer(self, command: BaseCommand, topics: dict[int, str]) -> BaseCommand:
        self.producers.append(command)
        answer = BaseCommand()
        if self.refusals:
            answer.type = BaseCommand.ERROR
            answer.error.request_id = command.producer.request_id
            code, answer.error.message = self.refusals.pop(0)
            answer.error.error = code  # type: ignore[assignment]
            return answer
        topics[command.producer.producer_id] = command.producer.topic
        answer.type = BaseCommand.PRODUCER_SUCCESS
        answer.producer_success.request_id = command.producer.request_id
        answer.producer_success.producer_name = command.producer.producer_name
        return answer

    def close(self) -> None:
        self._server.close()


@contextmanager
def scripted_broker(script: Script | None = None) -> Iterator[ScriptedBroker]:
    broker = ScriptedBroker(script)
    try:
        yield broker
    finally:
        broker.close()
