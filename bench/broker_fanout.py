"""CPU microseconds per delivered and acknowledged message, by how many get it. No socket.

100-byte messages, one an entry, are published 20 at a time over a managed log in memory; consumers
on connections of their own get them as they come, and acknowledge each in an ACK of its own, as
Java's client does when it does not group them. Shapes: one exclusive consumer, ten subscriptions of
one exclusive consumer each, one shared subscription of a hundred consumers. The work of the
broker is counted (publishing included), that of the clients is not.

    .venv/bin/python -m bench.broker_fanout
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from bench.broker_publish import NullTransport, connected, feed, send_frame
from magnetar.app.broker import Broker
from magnetar.config import BrokerConfig, LedgerConfig
from magnetar.protocols.pulsar.handlers.table import make_table
from magnetar.protocols.pulsar.session import Session
from magnetar.wire.pulsar.commands import decode_command, encode_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.doubles.memory_metadata import MemoryMetadata
from tests.doubles.memory_values import MemoryValues
from tests.unit.log.doubles import Process, World

MESSAGES = 10_000
CHUNK = 20
PERMITS = 1000
SHAPES = (
    ("exclusive", 1, 1, 0),
    ("fan-out to 10", 10, 1, 0),
    ("shared among 100", 1, 100, 1),
)


class KeepingTransport(NullTransport):
    """Keeps what is written until the client looks."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.parts.append(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.parts.append(b"".join(list_of_data))


class Client:
    """One consumer: acknowledges what came, and asks for more at half of its permits."""

    def __init__(self, broker: Broker, subscription: str, kind: int) -> None:
        self.session = Session(broker.pulsar.services, make_table())
        self.transport = KeepingTransport()
        self.session.connection_made(self.transport)
        hello = BaseCommand(type=BaseCommand.CONNECT)
        hello.connect.client_version = "bench"
        hello.connect.protocol_version = 20
        ask = BaseCommand(type=BaseCommand.SUBSCRIBE)
        request = ask.subscribe
        request.topic, request.subscription, request.subType = "bench", subscription, kind
        request.consumer_id = request.request_id = 1
        feed(self.session, encode_command(hello) + encode_command(ask) + self._flow(PERMITS))
        self.got = self._used = 0

    def _flow(self, permits: int) -> bytes:
        flow = BaseCommand(type=BaseCommand.FLOW)
        flow.flow.consumer_id, flow.flow.messagePermits = 1, permits
        return encode_command(flow)

    async def subscribed(self) -> None:
        while 1 not in self.session.consumers:  # noqa: ASYNC110
            await asyncio.sleep(0)
        feed(self.session, self._flow(PERMITS))
        await asyncio.sleep(0)
        self.transport.parts.clear()

    def answer(self) -> bytes:
        """What the client says to what came since the last look."""
        parts = self.transport.parts
        if not parts:
            return b""
        data = memoryview(b"".join(parts))
        parts.clear()
        out = []
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            command = decode_command(data, at + 4, at + 4 + size)
            at += 4 + size
            if command.type != BaseCommand.MESSAGE:
                continue
            ack = BaseCommand(type=BaseCommand.ACK)
            ack.ack.consumer_id, ack.ack.ack_type = 1, 0
            ack.ack.message_id.add().CopyFrom(command.message.message_id)
            ack.ack.message_id[0].ClearField("partition")
            out.append(encode_command(ack))
            self.got += 1
            self._used += 1
        if self._used >= PERMITS // 2:
            out.append(self._flow(self._used))
            self._used = 0
        return b"".join(out)


async def measure(subscriptions: int, consumers: int, kind: int) -> float:
    """CPU microseconds per delivered and acknowledged message."""
    store = Process(World()).store(LedgerConfig())
    broker = Broker(BrokerConfig(port=0), store, MemoryMetadata(), MemoryValues())
    await broker.start()
    producer, _ = await connected(broker, "bench")
    clients = [
        Client(broker, f"s{number}", kind)
        for number in range(subscriptions)
        for _ in range(consumers)
    ]
    for client in clients:
        await client.subscribed()
    data = bytes(100)
    chunks = [
        b"".join(send_frame(1, first + i, data) for i in range(CHUNK))
        for first in range(0, MESSAGES, CHUNK)
    ]
    begun = time.process_time()
    clients_s = 0.0
    for number, chunk in enumerate(chunks, 1):
        feed(producer, chunk)
        while sum(client.got for client in clients) < number * CHUNK * subscriptions:
            for _ in range(4):
                await asyncio.sleep(0)
            before = time.process_time()
            answers = [(client.session, client.answer()) for client in clients]
            clients_s += time.process_time() - before
            for session, answer in answers:
                if answer:
                    feed(session, answer)
    cpu_s = time.process_time() - begun - clients_s
    await broker.close()
    return cpu_s / (MESSAGES * subscriptions) * 1e6


def main() -> None:
    for name, subscriptions, consumers, kind in SHAPES:
        cpu_us = asyncio.run(measure(subscriptions, consumers, kind))
        print(f"{name}: {cpu_us:.2f} us a message")


if __name__ == "__main__":
    main()
