"""How long a topic's producers take to come back, all at once, over the wire.

Starts a standalone of its own: 1 000 producers on 50 connections put 20 entries each into one topic
(20 000 entries). Then the connections break, or the process is killed and started again, and every
producer comes back and sends its last five messages again, as clients do whose receipts were lost.
The time runs from the first PRODUCER to the last receipt. Each receipt must name the place that the
message had before: nothing is stored twice.

Run: ``python bench/reconnecting_producers.py [producers] [entries each]``
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from magnetar.wire.pulsar.commands import decode_command, encode_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, MessageMetadata
from tests.interop.pulsar.wire import checked, send_frame
from tests.standalone import Standalone

TOPIC = "persistent://public/default/reconnecting"
CONNECTIONS = 50
AGAIN = 5
"""Messages that each producer sends again."""

Place = tuple[int, int]


class Connection:
    """Raw frames; producers are numbered over all connections."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        made = cls(*await asyncio.open_connection("127.0.0.1", port))
        hello = BaseCommand(type=BaseCommand.CONNECT)
        hello.connect.client_version, hello.connect.protocol_version = "bench", 20
        made._writer.write(encode_command(hello))
        await made.receive(BaseCommand.CONNECTED)
        return made

    async def receive(self, kind: int) -> BaseCommand:
        """The next command that is no PING, which must be of that kind."""
        while True:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            body = await self._reader.readexactly(size)
            command = decode_command(memoryview(body), 0, size)
            if command.type == BaseCommand.PING:
                pong = BaseCommand(type=BaseCommand.PONG)
                pong.pong.SetInParent()
                self._writer.write(encode_command(pong))
                continue
            assert command.type == kind, str(command)
            return command

    async def open_producers(self, numbers: range, epoch: int) -> None:
        for number in numbers:
            command = BaseCommand(type=BaseCommand.PRODUCER)
            request = command.producer
            request.topic, request.producer_id = TOPIC, number
            request.request_id, request.epoch = number, epoch
            request.producer_name = f"producer-{number}"
            self._writer.write(encode_command(command))
        for _ in numbers:
            await self.receive(BaseCommand.PRODUCER_SUCCESS)

    async def send(self, numbers: range, first: int, stop: int) -> dict[Place, Place]:
        """Send messages ``first`` to ``stop`` of each producer: (producer, message) -> place."""
        for sequence_id in range(first, stop):
            for number in numbers:
                payload = stored_message(number, sequence_id)
                self._writer.write(send_frame(number, sequence_id, payload))
            await self._writer.drain()
        places: dict[Place, Place] = {}
        for _ in range(len(numbers) * (stop - first)):
            receipt = (await self.receive(BaseCommand.SEND_RECEIPT)).send_receipt
            place = (receipt.message_id.ledgerId, receipt.message_id.entryId)
            places[receipt.producer_id, receipt.sequence_id] = place
        return places

    def close(self) -> None:
        self._writer.transport.abort()


def stored_message(number: int, sequence_id: int) -> bytes:
    meta = MessageMetadata(
        producer_name=f"producer-{number}", sequence_id=sequence_id, publish_time=1
    )
    head = meta.SerializeToString()
    return checked(len(head).to_bytes(4, "big") + head + bytes(100))


async def open_all(port: int) -> list[Connection]:
    return [await Connection.open(port) for _ in range(CONNECTIONS)]


async def come_back(
    port: int, parts: list[range], each: int, epoch: int
) -> tuple[float, float, dict[Place, Place]]:
    """All producers come back and send their last messages again: seconds until all are
    connected, until all receipts are there, and the places."""
    connections = await open_all(port)
    begun = time.perf_counter()

    async def one(connection: Connection, numbers: range) -> tuple[float, dict[Place, Place]]:
        await connection.open_producers(numbers, epoch)
        connected = time.perf_counter() - begun
        return connected, await connection.send(numbers, each - AGAIN, each)

    found = await asyncio.gather(*map(one, connections, parts))
    seconds = time.perf_counter() - begun
    places: dict[Place, Place] = {}
    for _, some in found:
        places |= some
    for connection in connections:
        connection.close()
    return max(connected for connected, _ in found), seconds, places


def measure(directory: Path, producers: int = 1000, each: int = 20) -> dict[str, object]:
    """See the module's text. Raises ``AssertionError`` when anything is stored twice."""
    size = producers // CONNECTIONS
    parts = [range(start, start + size) for start in range(0, size * CONNECTIONS, size)]

    async def fill(port: int) -> dict[Place, Place]:
        connections = await open_all(port)
        places: dict[Place, Place] = {}
        for connection, numbers in zip(connections, parts, strict=True):
            await connection.open_producers(numbers, 0)
        for first in range(0, each, AGAIN):  # in step, so that the last of each are among the last
            sends = (
                connection.send(numbers, first, min(first + AGAIN, each))
                for connection, numbers in zip(connections, parts, strict=True)
            )
            for some in await asyncio.gather(*sends):
                places |= some
        for connection in connections:
            connection.close()
        return places

    with Standalone(directory / "data") as standalone:
        before = asyncio.run(fill(standalone.broker_port))
        assert len(set(before.values())) == len(before)
        figures: dict[str, object] = {"producers": producers, "entries": len(before)}
        for epoch, case in enumerate(("connections broke", "killed"), 1):
            if case == "killed":
                standalone.kill()
                standalone.start()
            connected, seconds, places = asyncio.run(
                come_back(standalone.broker_port, parts, each, epoch)
            )
            assert len(places) == AGAIN * len(parts) * size
            twice = [key for key, place in places.items() if before[key] != place]
            assert not twice, f"{case}: {len(twice)} messages are stored twice"
            figures[case] = {"connected_s": round(connected, 2), "answered_s": round(seconds, 2)}
    return figures


def main() -> None:
    numbers = [int(argument) for argument in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(measure(Path(directory), *numbers), indent=1))


if __name__ == "__main__":
    main()
