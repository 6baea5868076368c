"""The blocking half of the load generator's connections: from TCP to a ready producer or consumer.

Everything that happens once per connection is here, with the project's own codec; what happens
per message is in ``publishing`` and ``consuming``.
"""

from __future__ import annotations

import random
import socket
import time
from urllib.parse import urlsplit

from magnetar.wire.checksum import crc32c
from magnetar.wire.pulsar.commands import decode_command, encode_command, encode_payload_command
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    CommandSubscribe,
    MessageMetadata,
    SingleMessageMetadata,
)

CONNECT_TIMEOUT_S = 30.0
REDIRECTS_MAX = 5
CLIENT_ID = 1  # every connection has one producer or consumer
FIRST_SEQUENCE_ID = 1 << 21
"""From here to 2^28 a sequence id is a varint of four bytes, so that frames keep their size."""


class RefusedError(Exception):
    """The broker said no, or something that was not asked for."""


class ClosedError(RefusedError):
    """The broker closed the connection."""


class Connection:
    """A connected socket that asks and waits. ``source``: the address that it comes from;
    ``timeout_s``: until it is connected, and from then on for what is waited for."""

    def __init__(
        self,
        host: str,
        port: int,
        timeout_s: float = CONNECT_TIMEOUT_S,
        source: tuple[str, int] | None = None,
    ) -> None:
        self.sock = socket.create_connection((host, port), timeout_s, source)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer = (host, port)
        command = BaseCommand(type=BaseCommand.CONNECT)
        command.connect.client_version = "magnetar-loadgen"
        command.connect.protocol_version = 20
        try:
            self.ask(command, BaseCommand.CONNECTED)
        except BaseException:
            self.sock.close()
            raise

    def ask(self, command: BaseCommand, wanted: int) -> BaseCommand:
        """Send and wait for the answer of type ``wanted``; raises ``RefusedError``."""
        self.sock.sendall(encode_command(command))
        reply = self.receive()
        if reply.type == wanted:
            return reply
        raise RefusedError(f"broker {self.peer}: {str(reply).strip()}")

    def receive(self) -> BaseCommand:
        """The next command, if it is no PING, which is answered. Raises ``ClosedError``."""
        while True:
            size = int.from_bytes(self._read(4), "big")
            reply = decode_command(memoryview(self._read(size)), 0, size)
            if reply.type != BaseCommand.PING:
                return reply
            pong = BaseCommand(type=BaseCommand.PONG)
            pong.pong.SetInParent()
            self.sock.sendall(encode_command(pong))

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            part = self.sock.recv(size)
            if not part:
                raise ClosedError(f"broker {self.peer} closed the connection")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def lookup(topic: str, authoritative: bool = False) -> BaseCommand:
    """To be answered by LOOKUP_RESPONSE."""
    command = BaseCommand(type=BaseCommand.LOOKUP)
    command.lookupTopic.topic = topic
    command.lookupTopic.request_id = 1
    command.lookupTopic.authoritative = authoritative
    return command


def new_producer(topic: str) -> BaseCommand:
    """To be answered by PRODUCER_SUCCESS."""
    command = BaseCommand(type=BaseCommand.PRODUCER)
    command.producer.topic = topic
    command.producer.producer_id = CLIENT_ID
    command.producer.request_id = 2
    return command


def checked_payload(meta: MessageMetadata, data: bytes) -> bytes:
    """Of a SEND or MESSAGE."""
    encoded = meta.SerializeToString()
    checked = len(encoded).to_bytes(4, "big") + encoded + data
    return b"\x0e\x01" + crc32c(checked).to_bytes(4, "big") + checked


def connect_to_owner(host: str, port: int, topic: str) -> Connection:
    """A connection to the broker that serves ``topic``, found by LOOKUP."""
    authoritative = False
    for _ in range(REDIRECTS_MAX):
        connection = Connection(host, port)
        asked = lookup(topic, authoritative)
        reply = connection.ask(asked, BaseCommand.LOOKUP_RESPONSE).lookupTopicResponse
        if reply.response == CommandLookupTopicResponse.Failed:
            raise RefusedError(f"lookup of {topic}: {reply.message}")
        url = urlsplit(reply.brokerServiceUrl)
        owner = (url.hostname or host, url.port or port)
        if reply.response == CommandLookupTopicResponse.Connect and owner == (host, port):
            return connection
        connection.sock.close()
        if reply.response == CommandLookupTopicResponse.Connect:
            return Connection(*owner)
        host, port = owner
        authoritative = reply.authoritative
    raise RefusedError(f"lookup of {topic}: more than {REDIRECTS_MAX} redirects")


def open_producer(host: str, port: int, topic: str) -> socket.socket:
    """A socket on which SENDs of producer ``CLIENT_ID`` may follow."""
    connection = connect_to_owner(host, port, topic)
    connection.ask(new_producer(topic), BaseCommand.PRODUCER_SUCCESS)
    return connection.sock


def open_consumer(
    host: str, port: int, topic: str, subscription: str, shared: bool = False, lookup: bool = True
) -> socket.socket:
    """A socket on which MESSAGEs follow once FLOW is sent; reads from the topic's start. Without
    ``lookup`` at that very broker."""
    connection = connect_to_owner(host, port, topic) if lookup else Connection(host, port)
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    command.subscribe.topic = topic
    command.subscribe.subscription = subscription
    kind = CommandSubscribe.Shared if shared else CommandSubscribe.Exclusive
    command.subscribe.subType = kind
    command.subscribe.consumer_id = CLIENT_ID
    command.subscribe.request_id = 2
    command.subscribe.initialPosition = CommandSubscribe.Earliest
    connection.ask(command, BaseCommand.SUCCESS)
    return connection.sock


def send_frame(message_bytes: int, batch: int) -> tuple[bytes, int]:
    """A SEND frame, and where in it the four bytes of its sequence id are.

    ``batch`` 0 is a plain message; else an uncompressed batch of that many of ``message_bytes``.
    Only the command's sequence id changes from entry to entry: the one in the metadata, which
    the checksum covers, stays.
    """
    rng = random.Random(0)
    meta = MessageMetadata(
        producer_name="loadgen", sequence_id=0, publish_time=time.time_ns() // 1_000_000
    )
    if batch:
        meta.num_messages_in_batch = batch
        single = SingleMessageMetadata(payload_size=message_bytes).SerializeToString()
        head = len(single).to_bytes(4, "big") + single
        data = b"".join(head + rng.randbytes(message_bytes) for _ in range(batch))
    else:
        data = rng.randbytes(message_bytes)
    payload = checked_payload(meta, data)
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id = CLIENT_ID
    command.send.sequence_id = FIRST_SEQUENCE_ID
    if batch:
        command.send.num_messages = batch
    frame = encode_payload_command(command, payload)
    offset = 8 + 4 + 2 + 1  # sizes; type, body tag and size; producer id; the sequence id's tag
    assert frame[offset : offset + 4] == b"\x80\x80\x80\x01"
    return frame, offset
