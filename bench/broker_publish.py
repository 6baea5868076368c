"""CPU microseconds per SEND of the broker's session and topic alone: no socket, a log in memory.

Two shapes: pipelined (a received chunk holds many SENDs of one connection) and unpipelined (many
connections with one SEND each per loop turn). What is measured: the chunk's parse, checksums, the
append's copy, receipts and the write of them to a transport that drops them.

    .venv/bin/python -m bench.broker_publish
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import crc32c

from magnetar.app.broker import Broker
from magnetar.config import BrokerConfig
from magnetar.protocols.pulsar.handlers.table import make_table
from magnetar.protocols.pulsar.session import Session
from magnetar.wire.pulsar.commands import encode_command, encode_payload_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, MessageMetadata
from tests.doubles.memory_log import MemoryLogStore
from tests.doubles.memory_metadata import MemoryMetadata
from tests.doubles.memory_values import MemoryValues

MESSAGE_BYTES = 1024
CHUNK_SENDS = 200


class NullTransport(asyncio.Transport):
    """Counts what is written and drops it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("bench", 0) if name == "peername" else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += len(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.written += sum(len(part) for part in list_of_data)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


def send_frame(producer_id: int, sequence_id: int, data: bytes) -> bytes:
    """A SEND as the official client makes it."""
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id = producer_id
    command.send.sequence_id = sequence_id
    command.send.num_messages = 1
    metadata = MessageMetadata(producer_name="bench", sequence_id=sequence_id, publish_time=1)
    head = metadata.SerializeToString()
    rest = len(head).to_bytes(4, "big") + head + data
    checked = b"\x0e\x01" + crc32c.crc32c(rest).to_bytes(4, "big") + rest
    return encode_payload_command(command, checked)


def feed(session: Session, data: bytes) -> None:
    """Let ``session`` receive ``data`` as the event loop would."""
    while data:
        room = session.get_buffer(-1)
        size = min(len(room), len(data))
        room[:size] = data[:size]
        session.buffer_updated(size)
        data = data[size:]


async def connected(broker: Broker, topic: str) -> tuple[Session, NullTransport]:
    """A session with producer 1 on ``topic``."""
    session = Session(broker.pulsar.services, make_table())
    transport = NullTransport()
    session.connection_made(transport)
    hello = BaseCommand(type=BaseCommand.CONNECT)
    hello.connect.client_version = "bench"
    hello.connect.protocol_version = 20
    feed(session, encode_command(hello))
    ask = BaseCommand(type=BaseCommand.PRODUCER)
    ask.producer.topic = topic
    ask.producer.producer_id = 1
    ask.producer.request_id = 1
    feed(session, encode_command(ask))
    while 1 not in session.producers:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return session, transport


async def measure(connections: int, sends_per_chunk: int, rounds: int) -> float:
    """CPU microseconds per SEND."""
    broker = Broker(
        BrokerConfig(port=0), MemoryLogStore(1_000_000), MemoryMetadata(), MemoryValues()
    )
    await broker.start()
    pairs = [await connected(broker, f"bench-{i % 4}") for i in range(connections)]
    data = bytes(MESSAGE_BYTES)
    chunks = [
        b"".join(send_frame(1, r * sends_per_chunk + i, data) for i in range(sends_per_chunk))
        for r in range(min(rounds, 50))
    ]
    begun = time.process_time()
    for number in range(rounds):
        chunk = chunks[number % len(chunks)]
        for session, _ in pairs:
            feed(session, chunk)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    spent = time.process_time() - begun
    assert all(transport.written for _, transport in pairs)
    await broker.close()
    return spent * 1e6 / (rounds * connections * sends_per_chunk)


def main() -> None:
    print(f"pipelined, 4 connections: {asyncio.run(measure(4, CHUNK_SENDS, 100)):.2f} us a SEND")
    print(f"one each, 64 connections: {asyncio.run(measure(64, 1, 1000)):.2f} us a SEND")


if __name__ == "__main__":
    main()
