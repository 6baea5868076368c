"""A broker of one process and no storage, to hear what real clients say.

It answers every request with success, gives entries ids in the order they come, and delivers them
on FLOW. It records each frame as it came, before decoding. It is for capturing golden frames and
for trying our encoders on real clients; it is not a broker.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from magnetar.wire.pulsar import replies
from magnetar.wire.pulsar.commands import COMMAND_NAMES, decode_command, encode_command
from magnetar.wire.pulsar.hot import (
    MessageHeaderEncoder,
    ReceiptEncoder,
    decode_ack,
    decode_flow,
    decode_send,
    verify_checksum,
)
from magnetar.wire.pulsar.metadata import batch_size
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandLookupTopicResponse

LEDGER_ID = 7


class Consumer:
    """A consumer's queue: entries not sent yet, permits left."""

    def __init__(self, consumer_id: int, topic: str) -> None:
        self.topic = topic
        self.header = MessageHeaderEncoder(consumer_id)
        self.permits = 0
        self.next_entry = 0


class StubBroker:
    """State shared by the connections; guarded by one lock, as speed does not matter here."""

    def __init__(self, port: int, max_message_size: int) -> None:
        self.port = port
        self.max_message_size = max_message_size
        self.lock = threading.Lock()
        self.frames: list[tuple[str, bytes]] = []
        self.topics: dict[str, list[bytes]] = {}
        self.marked: dict[str, int] = {}

    def record(self, frame: bytes) -> BaseCommand:
        command = decode_command(memoryview(frame), 4, len(frame))
        self.frames.append((COMMAND_NAMES[command.type], frame))
        return command


class Connection:
    """One client connection, served by a thread."""

    def __init__(self, broker: StubBroker, sock: socket.socket) -> None:
        self.broker = broker
        self.sock = sock
        self.producers: dict[int, tuple[str, ReceiptEncoder]] = {}
        self.consumers: dict[int, Consumer] = {}
        self.handlers: dict[int, Callable[[BaseCommand, bytes], None]] = {
            BaseCommand.CONNECT: self.connect,
            BaseCommand.PARTITIONED_METADATA: self.partitions,
            BaseCommand.LOOKUP: self.lookup,
            BaseCommand.PRODUCER: self.producer,
            BaseCommand.SEND: self.send,
            BaseCommand.SUBSCRIBE: self.subscribe,
            BaseCommand.FLOW: self.flow,
            BaseCommand.ACK: self.ack,
            BaseCommand.SEEK: self.seek,
            BaseCommand.UNSUBSCRIBE: lambda c, _: self.success(c.unsubscribe.request_id),
            BaseCommand.CLOSE_PRODUCER: lambda c, _: self.success(c.close_producer.request_id),
            BaseCommand.CLOSE_CONSUMER: self.close_consumer,
            BaseCommand.GET_LAST_MESSAGE_ID: self.last_message_id,
            BaseCommand.GET_TOPICS_OF_NAMESPACE: self.topics_of_namespace,
            BaseCommand.GET_SCHEMA: self.get_schema,
            BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: self.redeliver,
            BaseCommand.PING: lambda c, _: self.write(encode_command(_pong())),
        }

    def serve(self) -> None:
        reader = self.sock.makefile("rb")
        try:
            while True:
                prefix = reader.read(4)
                if len(prefix) < 4:
                    return
                frame = prefix + reader.read(int.from_bytes(prefix, "big"))
                with self.broker.lock:
                    command = self.broker.record(frame)
                    handler = self.handlers.get(command.type)
                    if handler is not None:
                        handler(command, frame)
        except OSError:
            return
        finally:
            self.sock.close()

    def write(self, data: bytes) -> None:
        self.sock.sendall(data)

    def success(self, request_id: int) -> None:
        self.write(replies.success(request_id))

    def connect(self, command: BaseCommand, frame: bytes) -> None:
        reply = BaseCommand(type=BaseCommand.CONNECTED)
        reply.connected.server_version = "stub"
        reply.connected.protocol_version = command.connect.protocol_version
        reply.connected.max_message_size = self.broker.max_message_size
        self.write(encode_command(reply))

    def partitions(self, command: BaseCommand, frame: bytes) -> None:
        reply = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
        reply.partitionMetadataResponse.partitions = 0
        reply.partitionMetadataResponse.request_id = command.partitionMetadata.request_id
        reply.partitionMetadataResponse.response = 0
        self.write(encode_command(reply))

    def lookup(self, command: BaseCommand, frame: bytes) -> None:
        request = command.lookupTopic
        if "missing" in request.topic:
            self.write(replies.lookup_error(request.request_id, 11, "no such topic"))
            return
        reply = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
        reply.lookupTopicResponse.brokerServiceUrl = f"pulsar://127.0.0.1:{self.broker.port}"
        reply.lookupTopicResponse.response = CommandLookupTopicResponse.Connect
        reply.lookupTopicResponse.request_id = request.request_id
        reply.lookupTopicResponse.authoritative = True
        self.write(encode_command(reply))

    def producer(self, command: BaseCommand, frame: bytes) -> None:
        request = command.producer
        self.producers[request.producer_id] = (request.topic, ReceiptEncoder(request.producer_id))
        self.broker.topics.setdefault(request.topic, [])
        reply = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
        reply.producer_success.request_id = request.request_id
        reply.producer_success.producer_name = request.producer_name or "stub-1"
        reply.producer_success.last_sequence_id = -1
        reply.producer_success.schema_version = b""
        self.write(encode_command(reply))

    def send(self, command: BaseCommand, frame: bytes) -> None:
        view = memoryview(frame)
        send = decode_send(view, 4, len(frame))
        verify_checksum(view, send.payload_start, send.payload_end)
        topic, receipt = self.producers[send.producer_id]
        entries = self.broker.topics[topic]
        entries.append(frame[send.payload_start : send.payload_end])
        self.write(receipt.encode(send.sequence_id, LEDGER_ID, len(entries) - 1))
        for consumer in self.consumers.values():
            self.deliver(consumer)

    def subscribe(self, command: BaseCommand, frame: bytes) -> None:
        request = command.subscribe
        consumer = Consumer(request.consumer_id, request.topic)
        consumer.next_entry = self.broker.marked.get(request.topic, 0)
        self.consumers[request.consumer_id] = consumer
        self.broker.topics.setdefault(request.topic, [])
        self.success(request.request_id)

    def flow(self, command: BaseCommand, frame: bytes) -> None:
        flow = decode_flow(memoryview(frame), 4, len(frame))
        consumer = self.consumers.get(flow.consumer_id)
        if consumer is not None:
            consumer.permits += flow.permits
            self.deliver(consumer)

    def deliver(self, consumer: Consumer) -> None:
        entries = self.broker.topics[consumer.topic]
        while consumer.permits > 0 and consumer.next_entry < len(entries):
            payload = entries[consumer.next_entry]
            header = consumer.header.encode(LEDGER_ID, consumer.next_entry, len(payload))
            self.write(header + payload)
            consumer.permits -= batch_size(payload)
            consumer.next_entry += 1

    def ack(self, command: BaseCommand, frame: bytes) -> None:
        ack = decode_ack(memoryview(frame), 4, len(frame))
        if ack.request_id is not None:
            self.write(replies.ack_response(ack.consumer_id, ack.request_id))

    def seek(self, command: BaseCommand, frame: bytes) -> None:
        consumer = self.consumers.pop(command.seek.consumer_id, None)
        if consumer is not None:  # a second seek may come before the client subscribes again
            self.broker.marked[consumer.topic] = 0
        self.success(command.seek.request_id)
        close = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        close.close_consumer.consumer_id = command.seek.consumer_id
        close.close_consumer.request_id = replies.NO_REQUEST_ID
        self.write(encode_command(close))

    def close_consumer(self, command: BaseCommand, frame: bytes) -> None:
        self.consumers.pop(command.close_consumer.consumer_id, None)
        self.success(command.close_consumer.request_id)

    def redeliver(self, command: BaseCommand, frame: bytes) -> None:
        request = command.redeliverUnacknowledgedMessages
        consumer = self.consumers[request.consumer_id]
        entries = self.broker.topics[consumer.topic]
        for item in request.message_ids:
            payload = entries[item.entryId]
            header = consumer.header.encode(LEDGER_ID, item.entryId, len(payload), 1)
            self.write(header + payload)

    def last_message_id(self, command: BaseCommand, frame: bytes) -> None:
        request = command.getLastMessageId
        reply = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
        entries = self.broker.topics[self.consumers[request.consumer_id].topic]
        reply.getLastMessageIdResponse.request_id = request.request_id
        reply.getLastMessageIdResponse.last_message_id.ledgerId = LEDGER_ID
        reply.getLastMessageIdResponse.last_message_id.entryId = len(entries) - 1
        self.write(encode_command(reply))

    def topics_of_namespace(self, command: BaseCommand, frame: bytes) -> None:
        reply = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        reply.getTopicsOfNamespaceResponse.request_id = command.getTopicsOfNamespace.request_id
        reply.getTopicsOfNamespaceResponse.topics.extend(self.broker.topics)
        self.write(encode_command(reply))

    def get_schema(self, command: BaseCommand, frame: bytes) -> None:
        reply = replies.error_reply(command, 11, "no schema")
        assert reply is not None
        self.write(reply)


def _pong() -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PONG)
    command.pong.SetInParent()
    return command


@contextmanager
def stub_broker(max_message_size: int = 5 * 1024 * 1024) -> Iterator[StubBroker]:
    """A stub on a free port of loopback, for the length of a ``with``."""
    listener = socket.create_server(("127.0.0.1", 0))
    broker = StubBroker(listener.getsockname()[1], max_message_size)
    socks: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            socks.append(sock)
            threading.Thread(target=Connection(broker, sock).serve, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield broker
    finally:
        listener.close()
        for sock in socks:
            sock.close()
