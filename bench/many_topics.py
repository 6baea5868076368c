"""What many topics cost on two brokers that share them, and how long one's death is felt.

    python -m bench.many_topics [--topics 1000 10000] [--session-ms 6000]

For each number a cluster of its own: ZooKeeper, three bookies and two brokers are processes. Every
topic gets a producer and one acknowledged message, then a lookup at its owner and at the other
broker, again and again. Then one broker is killed (SIGKILL), and for each of its topics somebody
asks the other one until a message is acknowledged.

What is counted: memory per open topic; the metadata store's requests per warm lookup, less those of
an equal time in which nothing is asked (sessions say that they live); CPU per lookup; the time from
the kill until the first and the last of the dead broker's topics has an acknowledgement.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bench import results
from bench.measure import cpu_seconds, machine
from bench.server import Server, Store, broker, ledger_store
from magnetar.wire.checksum import crc32c
from magnetar.wire.pulsar.commands import (
    decode_command,
    encode_command,
    encode_payload_command,
)
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    MessageMetadata,
)

AT_ONCE = 200
"""Requests under way. Clients of many topics have some thousand, of many processes."""
LOOKUP_ROUNDS = 3
AGAIN_S = 0.1
"""Until who was refused asks again, as clients do at first."""
GIVE_UP_S = 600.0

Owner = tuple[str, int]


class LostError(Exception):
    """The connection is gone."""


class Connection:
    """Requests by number, answers in any order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[BaseCommand]] = {}
        self._gone: dict[int, asyncio.Event] = {}
        self._number = 0
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, owner: Owner) -> Connection:
        made = cls(*await asyncio.open_connection(*owner))
        hello = BaseCommand(type=BaseCommand.CONNECT)
        hello.connect.client_version, hello.connect.protocol_version = "bench", 20
        made._writer.write(encode_command(hello))
        await made._receive()
        made._task = asyncio.create_task(made._answers())
        return made

    async def lookup(self, topic: str, authoritative: bool) -> CommandLookupTopicResponse:
        command = BaseCommand(type=BaseCommand.LOOKUP)
        command.lookupTopic.topic = topic
        command.lookupTopic.authoritative = authoritative
        number = command.lookupTopic.request_id = self.next_number()
        return (await self.ask(number, encode_command(command))).lookupTopicResponse

    async def produce(self, topic: str) -> None:
        """A producer, and one message that is acknowledged. Raises ``LostError`` when refused."""
        command = BaseCommand(type=BaseCommand.PRODUCER)
        number = self.next_number()
        request = command.producer
        request.topic, request.producer_id, request.request_id = topic, number, number
        answer = await self.ask(number, encode_command(command))
        if answer.type != BaseCommand.PRODUCER_SUCCESS:
            raise LostError(str(answer))
        send = BaseCommand(type=BaseCommand.SEND)
        send.send.producer_id, send.send.sequence_id = number, 0
        name = answer.producer_success.producer_name
        frame = encode_payload_command(send, message(name))
        answer = await self.ask(number, frame)
        if answer.type != BaseCommand.SEND_RECEIPT:
            raise LostError(str(answer))

    def write(self, frame: bytes) -> None:
        self._writer.write(frame)

    async def wait_gone(self, number: int) -> None:
        """Until the producer or consumer of that number is told to go, or the connection breaks."""
        gone = self._gone.setdefault(number, asyncio.Event())
        if not self.broken:
            await gone.wait()
        del self._gone[number]

    @property
    def broken(self) -> bool:
        return self._task is None or self._task.done()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._writer.transport.abort()

    def next_number(self) -> int:
        self._number += 1
        return self._number

    async def ask(self, number: int, frame: bytes) -> BaseCommand:
        if self.broken:
            raise LostError
        answer: asyncio.Future[BaseCommand] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._writer.write(frame)
        try:
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def _answers(self) -> None:
        try:
            while True:
                command = await self._receive()
                kind = command.type
                if kind == BaseCommand.PING:
                    pong = BaseCommand(type=BaseCommand.PONG)
                    pong.pong.SetInParent()
                    self._writer.write(encode_command(pong))
                    continue
                if kind in (BaseCommand.CLOSE_PRODUCER, BaseCommand.CLOSE_CONSUMER):
                    self._tell_gone(command)
                    continue
                waiting = self._waiting.get(_number_of(command))
                if waiting is not None and not waiting.done():
                    waiting.set_result(command)
        except (OSError, asyncio.IncompleteReadError):
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(LostError())
            for gone in self._gone.values():
                gone.set()

    def _tell_gone(self, command: BaseCommand) -> None:
        closed = command.close_producer.producer_id or command.close_consumer.consumer_id
        if closed in self._gone:
            self._gone[closed].set()

    async def _receive(self) -> BaseCommand:
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        body = await self._reader.readexactly(size)
        return decode_command(memoryview(body), 0, size)


def _number_of(command: BaseCommand) -> int:
    """Of the request, or of the producer, which has the same."""
    kinds = BaseCommand
    if command.type == kinds.SUCCESS:
        return command.success.request_id
    if command.type == kinds.LOOKUP_RESPONSE:
        return command.lookupTopicResponse.request_id
    if command.type == kinds.PRODUCER_SUCCESS:
        return command.producer_success.request_id
    if command.type == kinds.SEND_RECEIPT:
        return command.send_receipt.producer_id
    if command.type == kinds.SEND_ERROR:
        return command.send_error.producer_id
    return command.error.request_id if command.type == kinds.ERROR else -1


def message(producer: str, sequence_id: int = 0) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    head = MessageMetadata(
        producer_name=producer, sequence_id=sequence_id, publish_time=now_ms
    ).SerializeToString()
    data = len(head).to_bytes(4, "big") + head + bytes(100)
    return b"\x0e\x01" + crc32c(data).to_bytes(4, "big") + data


@dataclass(frozen=True)
class Place:
    """A broker of the two."""

    server: Server

    @property
    def owner(self) -> Owner:
        return "127.0.0.1", self.server.broker_port


async def each(topics: Sequence[str], one: Callable[[str], Awaitable[None]]) -> None:
    """For all topics, ``AT_ONCE`` at a time."""
    left = iter(topics)

    async def some() -> None:
        for topic in left:
            await one(topic)

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


class Clients:
    """One connection to each broker, and who owns which topic."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = places
        self.owner_of: dict[str, Owner] = {}
        self._connections: dict[Owner, asyncio.Task[Connection]] = {}

    async def connection(self, owner: Owner) -> Connection:
        """The one to ``owner``, made anew when making it failed."""
        making = self._connections.get(owner)
        if making is None or (making.done() and making.exception() is not None):
            making = self._connections[owner] = asyncio.create_task(Connection.open(owner))
        return await asyncio.shield(making)

    async def find(self, topic: str) -> Owner:
        """As clients look a topic up, from the first broker on."""
        owner, authoritative = self.places[0].owner, False
        for _ in range(5):
            answer = await (await self.connection(owner)).lookup(topic, authoritative)
            if answer.response == CommandLookupTopicResponse.Failed:
                raise LostError(answer.message)
            url = urlsplit(answer.brokerServiceUrl)
            assert url.hostname is not None
            assert url.port is not None
            owner, authoritative = (url.hostname, url.port), answer.authoritative
            if answer.response == CommandLookupTopicResponse.Connect:
                return owner
        raise LostError("too many redirects")

    async def use(self, topic: str) -> None:
        owner = self.owner_of[topic] = await self.find(topic)
        await (await self.connection(owner)).produce(topic)

    async def look(self, topic: str) -> None:
        """At the owner and at the other broker."""
        for place in self.places:
            await (await self.connection(place.owner)).lookup(topic, False)

    async def close(self) -> None:
        made = await asyncio.gather(*self._connections.values(), return_exceptions=True)
        for connection in made:
            if isinstance(connection, Connection):
                await connection.close()


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def ask_store(metadata_url: str, words: bytes) -> str:
    """What the metadata store says to an operator's four letters."""
    host, port = urlsplit(metadata_url).netloc.split(":")
    with socket.create_connection((host, int(port)), 10) as asked:
        asked.sendall(words)
        return b"".join(iter(lambda: asked.recv(4096), b"")).decode()


def requests_of(metadata_url: str) -> int:
    """What the metadata store has received since it started."""
    text = ask_store(metadata_url, b"srvr")
    found = re.search(r"^Received: (\d+)", text, re.MULTILINE)
    assert found is not None, text
    return int(found[1])


def latency_of(metadata_url: str) -> str:
    """Least, mean and most milliseconds that a request took in the store."""
    text = ask_store(metadata_url, b"srvr")
    found = re.search(r"^Latency min/avg/max: (\S+)", text, re.MULTILINE)
    assert found is not None, text
    return found[1]


async def measure(
    count: int, store: Store, places: Sequence[Place], session_ms: int
) -> dict[str, object]:
    topics = [f"persistent://public/default/many-{number}" for number in range(count)]
    clients = Clients(places)
    pids = [place.server.pid for place in places]
    await each(topics[:AT_ONCE], clients.use)  # caches, code and connections are there
    begun, before = time.perf_counter(), sum(map(resident_bytes, pids))
    rest = topics[AT_ONCE:]
    await each(rest, clients.use)
    opened_s, grown = time.perf_counter() - begun, sum(map(resident_bytes, pids)) - before
    reads, cpu_us, looked_s = await warm_lookups(clients, topics, store, pids)
    survivor, dead = places
    orphans = [topic for topic, owner in clients.owner_of.items() if owner == dead.owner]
    asking = Clients([survivor])
    os.kill(dead.server.pid, signal.SIGKILL)
    first_s, last_s = await served_again(asking, orphans)
    await asking.close()
    await clients.close()
    return {
        "topics": count,
        "opened_per_s": round(len(rest) / opened_s),
        "kib_per_topic": round(grown / len(rest) / 1024, 1),
        "metadata_requests_per_lookup": round(reads, 4),
        "cpu_us_per_lookup": round(cpu_us, 1),
        "lookups_per_s": round(2 * count * LOOKUP_ROUNDS / looked_s),
        "session_s": session_ms / 1000,
        "orphans": len(orphans),
        "first_served_s": round(first_s, 2),
        "all_served_s": round(last_s, 2),
    }


async def warm_lookups(
    clients: Clients, topics: Sequence[str], store: Store, pids: Sequence[int]
) -> tuple[float, float, float]:
    """Metadata requests and CPU microseconds per lookup, and the seconds that all took."""
    await each(topics, clients.look)
    cpu_before = sum(sum(cpu_seconds(pid)) for pid in pids)
    before, begun = requests_of(store.metadata_url), time.perf_counter()
    for _ in range(LOOKUP_ROUNDS):
        await each(topics, clients.look)
    seconds, after = time.perf_counter() - begun, requests_of(store.metadata_url)
    cpu_s = sum(sum(cpu_seconds(pid)) for pid in pids) - cpu_before
    idle = requests_of(store.metadata_url)
    await asyncio.sleep(seconds)
    beside = requests_of(store.metadata_url) - idle
    lookups = 2 * LOOKUP_ROUNDS * len(topics)
    return max(0, after - before - beside) / lookups, cpu_s / lookups * 1e6, seconds


async def served_again(clients: Clients, topics: Sequence[str]) -> tuple[float, float]:
    """Seconds until the first and the last of them has an acknowledgement."""
    begun = time.perf_counter()
    served: list[float] = []

    async def until_served(topic: str) -> None:
        while time.perf_counter() - begun < GIVE_UP_S:
            try:
                await clients.use(topic)
            except (LostError, OSError):
                await asyncio.sleep(AGAIN_S)
                continue
            served.append(time.perf_counter() - begun)
            return
        raise SystemExit(f"{topic} is not served after {GIVE_UP_S:.0f} s")

    await each(topics, until_served)
    return (min(served), max(served)) if served else (0.0, 0.0)


def run(count: int, session_ms: int) -> dict[str, object]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = folder / "broker.toml"
        config.write_text(f"[metadata]\nsession_timeout_ms = {session_ms}\n")
        store = stack.enter_context(ledger_store(3))
        places = [
            Place(stack.enter_context(broker(store, "--config", str(config)))) for _ in range(2)
        ]
        return asyncio.run(measure(count, store, places, session_ms))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--session-ms", type=int, default=6000)
    options = parser.parse_args()
    where = machine()
    rows = [run(count, options.session_ms) for count in options.topics]
    print(json.dumps(rows))
    columns = list(rows[0])
    results.store(
        "many_topics",
        {"rows": rows},
        results.table(columns, [[row[name] for name in columns] for row in rows]),
        where,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
