"""All clients of a broker that dies come to the others at once.

    python -m bench.reconnection_storm [--topics 1000] [--clients 100] [--brokers 3] [--orderly]

ZooKeeper, three bookies and the brokers are processes. The first broker has all topics: two
producers and three consumers each, on connections of many clients. It is killed (SIGKILL), or with
``--orderly`` stopped (SIGTERM), and each producer and consumer comes back as official clients do:
it looks its topic up, follows redirects, asks, and when it is refused or loses its connection tries
again, later each time. A producer is back when a message of it is acknowledged.

Beside it an official client (Python's) sends a message every 20 ms to a topic of another broker, to
which it was connected before: what its latency is while nothing happens, and while all others come.

Told: when the first, the median and the last of them was back, from the kill on (in which a session
has to end first); how long single requests took, and how many of them longer than the 30 s that
official clients wait; the witness's latencies; CPU and memory of the brokers that took them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as PipeConnection
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
import pulsar

from bench.many_topics import (
    Connection,
    LostError,
    Owner,
    latency_of,
    message,
    requests_of,
    resident_bytes,
)
from bench.measure import cpu_seconds, machine
from bench.server import Server, Store, broker, ledger_store
from magnetar.wire.pulsar.commands import encode_command, encode_payload_command
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    CommandSubscribe,
)
from tests.scenarios.publisher import connect

PRODUCERS: Final = 2
CONSUMERS: Final = 3
OPERATION_TIMEOUT_S: Final = 30.0
"""Of official clients."""
BACKOFF_S: Final = (0.1, 30.0)
QUIET_S: Final = 10.0
WITNESS_S: Final = 0.02
GIVE_UP_S: Final = 300.0
OPENING_AT_ONCE: Final = 200
"""At first, before anything is measured."""


@dataclass
class Figures:
    """Of one storm."""

    back_s: list[float] = field(default_factory=list)
    away_s: list[float] = field(default_factory=list)
    """From the moment in which each hears that it is alone."""
    requests_s: list[float] = field(default_factory=list)
    refused: int = 0
    timed_out: int = 0


class Client:
    """One process's connections, one to each broker."""

    def __init__(self, brokers: Sequence[Owner], rng: random.Random, figures: Figures) -> None:
        self.random = rng
        self.figures = figures
        self.brokers = brokers
        self._connections: dict[Owner, asyncio.Task[Connection]] = {}

    async def connection(self, owner: Owner) -> Connection:
        making = self._connections.get(owner)
        if making is not None and making.done():
            failed = making.cancelled() or making.exception() is not None
            if failed or making.result().broken:
                making = None
        if making is None:
            making = self._connections[owner] = asyncio.create_task(Connection.open(owner))
        return await asyncio.shield(making)

    async def ask(self, owner: Owner, make: Callable[[Connection, int], bytes]) -> BaseCommand:
        """Raises ``LostError``, ``OSError``."""
        connection = await self.connection(owner)
        number = connection.next_number()
        begun_s = time.monotonic()
        try:
            async with asyncio.timeout(OPERATION_TIMEOUT_S):
                answer = await connection.ask(number, make(connection, number))
        except TimeoutError:
            self.figures.timed_out += 1
            raise LostError("timed out") from None
        self.figures.requests_s.append(time.monotonic() - begun_s)
        if answer.type in (BaseCommand.ERROR, BaseCommand.SEND_ERROR):
            self.figures.refused += 1
            raise LostError(str(answer))
        return answer

    async def find(self, topic: str) -> Owner:
        """By any broker that is there."""
        owner, authoritative = self.random.choice(self.brokers), False
        for _ in range(5):

            def lookup(_: Connection, number: int, authoritative: bool = authoritative) -> bytes:
                command = BaseCommand(type=BaseCommand.LOOKUP)
                request = command.lookupTopic
                request.topic, request.request_id = topic, number
                request.authoritative = authoritative
                return encode_command(command)

            answer = (await self.ask(owner, lookup)).lookupTopicResponse
            if answer.response == CommandLookupTopicResponse.Failed:
                self.figures.refused += 1
                raise LostError(answer.message)
            url = urlsplit(answer.brokerServiceUrl)
            assert url.hostname is not None
            assert url.port is not None
            owner, authoritative = (url.hostname, url.port), answer.authoritative
            if answer.response == CommandLookupTopicResponse.Connect:
                return owner
        raise LostError("too many redirects")

    async def close(self) -> None:
        made = await asyncio.gather(*self._connections.values(), return_exceptions=True)
        for each in made:
            if isinstance(each, Connection):
                await each.close()


class Handle:
    """A producer or a consumer of a client."""

    def __init__(self, client: Client, topic: str, name: str) -> None:
        self.client = client
        self.topic = topic
        self.name = name
        self.number = 0
        self.connection: Connection | None = None

    async def open(self) -> None:
        """Until it is there, as often as it takes."""
        backoff_s = BACKOFF_S[0]
        while True:
            try:
                owner = await self.client.find(self.topic)
                await self.begin(owner)
            except (LostError, OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(backoff_s * self.client.random.uniform(0.8, 1.0))
                backoff_s = min(2 * backoff_s, BACKOFF_S[1])
            else:
                self.connection = await self.client.connection(owner)
                return

    async def begin(self, owner: Owner) -> None:
        raise NotImplementedError

    async def wait_gone(self) -> None:
        assert self.connection is not None
        await self.connection.wait_gone(self.number)


class Producer(Handle):
    epoch = -1
    sent = 0

    async def begin(self, owner: Owner) -> None:
        self.epoch += 1

        def ask(_: Connection, number: int) -> bytes:
            self.number = number
            command = BaseCommand(type=BaseCommand.PRODUCER)
            request = command.producer
            request.topic, request.producer_name, request.epoch = self.topic, self.name, self.epoch
            request.producer_id = request.request_id = number
            return encode_command(command)

        await self.client.ask(owner, ask)
        sequence_id = self.sent

        def send(connection: Connection, number: int) -> bytes:
            command = BaseCommand(type=BaseCommand.SEND)
            command.send.producer_id, command.send.sequence_id = self.number, sequence_id
            return encode_payload_command(command, message(self.name, sequence_id))

        await self._send(owner, self.number, send)
        self.sent += 1

    async def _send(
        self, owner: Owner, producer_id: int, make: Callable[[Connection, int], bytes]
    ) -> None:
        """A receipt names the producer, not a request."""
        connection = await self.client.connection(owner)
        begun_s = time.monotonic()
        try:
            async with asyncio.timeout(OPERATION_TIMEOUT_S):
                answer = await connection.ask(producer_id, make(connection, producer_id))
        except TimeoutError:
            self.client.figures.timed_out += 1
            raise LostError("no receipt") from None
        self.client.figures.requests_s.append(time.monotonic() - begun_s)
        if answer.type != BaseCommand.SEND_RECEIPT:
            self.client.figures.refused += 1
            raise LostError(str(answer))


class Consumer(Handle):
    async def begin(self, owner: Owner) -> None:
        def ask(_: Connection, number: int) -> bytes:
            self.number = number
            command = BaseCommand(type=BaseCommand.SUBSCRIBE)
            request = command.subscribe
            request.topic, request.subscription = self.topic, self.name
            request.subType = CommandSubscribe.Shared
            request.consumer_id = request.request_id = number
            return encode_command(command)

        await self.client.ask(owner, ask)
        flow = BaseCommand(type=BaseCommand.FLOW)
        flow.flow.consumer_id, flow.flow.messagePermits = self.number, 1000
        (await self.client.connection(owner)).write(encode_command(flow))


class Witness:
    """The official client in a process of its own, connected before: a message now and then, and
    how long each took."""

    def __init__(self, service_url: str, topic: str) -> None:
        self.latencies: list[tuple[float, float]] = []
        """When it was sent, and how long it took; known in the end."""
        self.failed = 0
        spawn = multiprocessing.get_context("spawn")
        self._ours, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_witness, args=(service_url, topic, theirs))
        self._process.start()
        assert self._ours.recv() == "connected"

    def between(self, since_s: float, until_s: float) -> dict[str, float]:
        """Milliseconds."""
        return told([took for at, took in self.latencies if since_s <= at < until_s])

    def end(self) -> None:
        self._ours.send("end")
        self.latencies, self.failed = self._ours.recv()
        self._process.join()


def _witness(service_url: str, topic: str, bench: PipeConnection) -> None:
    latencies: list[tuple[float, float]] = []
    failed: list[str] = []
    client = connect(service_url)
    producer = client.create_producer(
        topic, batching_enabled=False, send_timeout_millis=0, max_pending_messages=100_000
    )

    def answered(result: pulsar.Result, begun_s: float) -> None:
        if result == pulsar.Result.Ok:
            latencies.append((begun_s, time.monotonic() - begun_s))
        else:
            failed.append(str(result))

    bench.send("connected")
    while not bench.poll(WITNESS_S):
        begun_s = time.monotonic()
        producer.send_async(
            b"witness", lambda result, _id, begun_s=begun_s: answered(result, begun_s)
        )
    producer.flush()
    client.close()
    bench.send((latencies, len(failed)))


def told(values_s: Sequence[float]) -> dict[str, float]:
    """Milliseconds."""
    ordered = sorted(values_s)
    if not ordered:
        return {}
    at = {"p50": len(ordered) // 2, "p99": len(ordered) * 99 // 100, "worst": -1}
    return {name: round(ordered[index] * 1000, 1) for name, index in at.items()}


async def side_by_side(
    handles: Sequence[Handle], one: Callable[[Handle], Awaitable[None]], at_once: int
) -> None:
    left = iter(handles)

    async def some() -> None:
        for handle in left:
            await one(handle)

    await asyncio.gather(*(some() for _ in range(at_once)))


async def storm(
    first: Server, others: Sequence[Server], topics: int, clients: int, orderly: bool, seed: int
) -> dict[str, object]:
    figures, rng = Figures(), random.Random(seed)
    places: list[Owner] = [("127.0.0.1", each.broker_port) for each in (first, *others)]
    made = [Client(places, random.Random(rng.random()), figures) for _ in range(clients)]
    handles: list[Handle] = []
    for number in range(topics):
        topic = f"persistent://public/default/storm-{number}"
        handles += [Producer(rng.choice(made), topic, f"p{n}") for n in range(PRODUCERS)]
        handles += [Consumer(rng.choice(made), topic, f"s{n}") for n in range(CONSUMERS)]
    await side_by_side(handles, Handle.open, OPENING_AT_ONCE)
    witness_topic = "persistent://public/witness/t"
    url = f"pulsar://127.0.0.1:{others[0].broker_port}"
    witness = await asyncio.to_thread(Witness, url, witness_topic)
    quiet_s = time.monotonic()
    await asyncio.sleep(QUIET_S)
    figures.requests_s.clear()
    figures.refused = figures.timed_out = 0
    before = {each.pid: sum(cpu_seconds(each.pid)) for each in others}
    own_s = time.process_time()
    for client in made:  # who is told by a connection that breaks hears of it at once
        client.brokers = places[1:]
    begun_s = time.monotonic()
    os.kill(first.pid, signal.SIGTERM if orderly else signal.SIGKILL)

    async def back(handle: Handle) -> None:
        await handle.wait_gone()
        gone_s = time.monotonic()
        await handle.open()
        figures.away_s.append(time.monotonic() - gone_s)
        figures.back_s.append(time.monotonic() - begun_s)

    async with asyncio.timeout(GIVE_UP_S):
        await asyncio.gather(*map(back, handles))
    ended_s, own_s = time.monotonic(), time.process_time() - own_s
    cpu_s = {each.pid: sum(cpu_seconds(each.pid)) - before[each.pid] for each in others}
    await asyncio.to_thread(witness.end)
    for client in made:
        await client.close()
    ordered = sorted(figures.back_s)
    return {
        "handles": len(handles),
        "topics": topics,
        "first_back_s": round(ordered[0], 2),
        "half_back_s": round(ordered[len(ordered) // 2], 2),
        "all_back_s": round(ordered[-1], 2),
        "away_ms": told(figures.away_s),
        "request_ms": told(figures.requests_s),
        "longer_than_30_s": figures.timed_out,
        "refused": figures.refused,
        "witness_quiet_ms": witness.between(quiet_s, begun_s),
        "witness_storm_ms": witness.between(begun_s, ended_s),
        "witness_failed": witness.failed,
        "cpu_s": [round(each, 1) for each in cpu_s.values()],
        "generator_cpu_s": round(own_s, 1),
        "memory_mib": [resident_bytes(each.pid) >> 20 for each in others],
    }


def make_namespace(server: Server, name: str) -> None:
    answer = httpx.put(
        f"http://127.0.0.1:{server.http_port}/admin/v2/namespaces/{name}", timeout=60
    )
    assert answer.is_success, answer.text


def run(options: argparse.Namespace) -> dict[str, object]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = folder / "broker.toml"
        config.write_text(
            f"[metadata]\nsession_timeout_ms = {options.session_ms}\n"
            "[broker]\nbalance_interval_ms = 0\n"
        )
        store: Store = stack.enter_context(ledger_store(3))
        first = stack.enter_context(broker(store, "--config", str(config)))
        make_namespace(first, "public/witness")
        return asyncio.run(_with_others(stack, store, first, str(config), options))


async def _with_others(
    stack: ExitStack, store: Store, first: Server, config: str, options: argparse.Namespace
) -> dict[str, object]:
    # While there is one broker, each bundle of the namespace goes to it.
    figures, places = Figures(), [("127.0.0.1", first.broker_port)]
    client = Client(places, random.Random(1), figures)
    for number in range(64):
        await client.find(f"persistent://public/default/storm-{number}")
    await client.close()
    others = [
        stack.enter_context(broker(store, "--config", config)) for _ in range(options.brokers - 1)
    ]
    before = requests_of(store.metadata_url)
    found = await storm(
        first, others, options.topics, options.clients, options.orderly, options.seed
    )
    return {
        **found,
        "metadata_requests_in_all": requests_of(store.metadata_url) - before,
        "metadata_latency_ms": latency_of(store.metadata_url),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--session-ms", type=int, default=6000)
    parser.add_argument("--orderly", action="store_true")
    parser.add_argument("--seed", type=int, default=20261122)
    options = parser.parse_args()
    print(json.dumps({"machine": machine(), **vars(options)}, default=str))
    for name, value in run(options).items():
        print(f"{name}: {value}", flush=True)


if __name__ == "__main__":
    main()
