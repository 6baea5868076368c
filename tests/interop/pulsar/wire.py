"""A client of raw frames: says what no well-behaved client would, and sees exactly what comes."""

from __future__ import annotations

import socket
from types import TracebackType
from urllib.parse import urlsplit

from magnetar.wire.checksum import crc32c
from magnetar.wire.pulsar.commands import (
    COMMAND_NAMES,
    decode_command,
    encode_command,
    encode_payload_command,
)
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, MessageMetadata

TIMEOUT_S = 60.0


class ClosedError(Exception):
    """The server closed the connection."""


def message(body: bytes, sequence_id: int = 0, flip: bool = False) -> bytes:
    """A stored payload; ``flip`` spoils its checksum."""
    metadata = MessageMetadata(producer_name="wire", sequence_id=sequence_id, publish_time=1)
    head = metadata.SerializeToString()
    rest = len(head).to_bytes(4, "big") + head + body
    return checked(rest, flip)


def checked(rest: bytes, flip: bool = False) -> bytes:
    """``rest`` (metadata size, metadata, data) with magic and checksum in front."""
    return b"\x0e\x01" + (crc32c(rest) ^ flip).to_bytes(4, "big") + rest


def send_frame(producer_id: int, sequence_id: int, payload: bytes, messages: int = 1) -> bytes:
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id = producer_id
    command.send.sequence_id = sequence_id
    command.send.num_messages = messages
    return encode_payload_command(command, payload)


def frame(body: bytes) -> bytes:
    """A frame around a serialized command, whatever it is."""
    return (len(body) + 4).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body


class Wire:
    """A blocking connection."""

    def __init__(self, url: str, hello: bool = True, client_version: str = "wire") -> None:
        place = urlsplit(url)
        self.socket = socket.create_connection((place.hostname, place.port), TIMEOUT_S)
        self._buffer = b""
        if hello:
            command = BaseCommand(type=BaseCommand.CONNECT)
            command.connect.client_version = client_version
            command.connect.protocol_version = 20
            assert self.ask(command).type == BaseCommand.CONNECTED

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def tell(self, command: BaseCommand) -> None:
        self.send(encode_command(command))

    def ask(self, command: BaseCommand) -> BaseCommand:
        self.tell(command)
        return self.receive()

    def receive(self) -> BaseCommand:
        """The next command that is no PING. Raises ``ClosedError``."""
        while True:
            size = int.from_bytes(self._take(4), "big")
            body = self._take(size)
            command = decode_command(memoryview(body), 0, size)
            if command.type != BaseCommand.PING:
                return command

    def next_kind(self) -> str:
        """The name of the next command, PINGs included."""
        size = int.from_bytes(self._take(4), "big")
        return COMMAND_NAMES[int(decode_command(memoryview(self._take(size)), 0, size).type)]

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            try:
                chunk = self.socket.recv(65536)
            except ConnectionError as error:
                raise ClosedError(str(error)) from error
            if not chunk:
                raise ClosedError("end of stream")
            self._buffer += chunk
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def wait_closed(self) -> list[str]:
        """The kinds of the commands that came before the server closed the connection."""
        kinds = []
        try:
            while True:
                kinds.append(self.next_kind())
        except ClosedError:
            return kinds

    # -- well-behaved preludes ----------------------------------------------------------------

    def produce(self, topic: str, producer_id: int = 1, epoch: int = 0) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.PRODUCER)
        command.producer.topic = topic
        command.producer.producer_id = producer_id
        command.producer.request_id = 100 + producer_id
        command.producer.producer_name = f"wire-{producer_id}"
        command.producer.epoch = epoch
        return self.ask(command)

    def subscribe(self, topic: str, name: str = "wire", consumer_id: int = 1) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        command.subscribe.topic = topic
        command.subscribe.subscription = name
        command.subscribe.subType = command.subscribe.Shared
        command.subscribe.consumer_id = consumer_id
        command.subscribe.request_id = 200 + consumer_id
        return self.ask(command)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
