"""A broker without sockets, and the client's side of Kafka sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from magnetar.app.broker import Broker
from magnetar.cluster.security.authenticator import Authenticator
from magnetar.cluster.topic_name import parse_topic
from magnetar.config import BrokerConfig, KafkaConfig
from magnetar.log.policy import PieceRule
from magnetar.protocols.kafka.handlers.table import RequestTable
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.wire.kafka.apis import APIS, ApiKey, encode_request, read_response
from magnetar.wire.kafka.batches import BATCH_HEADER_BYTES, build_batch, read_batch_header
from magnetar.wire.kafka.primitives import FieldReader
from magnetar.wire.kafka.records import KafkaRecord, batch_of
from magnetar_sim.world.virtual_time import run_virtual
from tests.doubles.memory_log import MemoryLog, MemoryLogStore
from tests.doubles.memory_metadata import MemoryMetadata
from tests.doubles.memory_values import MemoryValues
from tests.unit.protocols.pulsar.harness import FakeTransport

TOPIC = "t"


def batch(count: int = 1, first: int = 0, **fields: Any) -> bytes:
    """Records whose values are numbers from ``first`` on."""
    records = [KafkaRecord(n, n, None, b"%d" % (first + n), []) for n in range(count)]
    made = batch_of(records, 1_000)
    return rebuilt(made, **fields) if fields else made


def rebuilt(made: bytes, **fields: Any) -> bytes:
    """With other fields in the header, and a checksum that is right."""
    header = read_batch_header(made)
    kept = {
        "last_offset_delta": header.last_offset_delta,
        "attributes": header.attributes,
        "base_timestamp_ms": header.base_timestamp_ms,
        "max_timestamp_ms": header.max_timestamp_ms,
    }
    return build_batch(made[BATCH_HEADER_BYTES:], count=header.record_count, **{**kept, **fields})


BY_NAMES: Final = {int(ApiKey.FETCH): 12}
"""The last versions with names of topics, where later ones have ids."""


class KafkaWorld:
    """A broker that listens nowhere, and its doubles; one topic with one partition is there."""

    def __init__(
        self,
        ledger_entries: int = 5,
        authenticator: Authenticator | None = None,
        **settings: Any,
    ) -> None:
        self.ahead_s = 0.0
        """How far somebody has set the clock ahead."""
        self.store, self.metadata = MemoryLogStore(ledger_entries), MemoryMetadata()
        self.broker = Broker(
            BrokerConfig(port=0),
            self.store,
            self.metadata,
            MemoryValues(),
            clock=lambda: 1e6 + self.ahead_s + asyncio.get_running_loop().time(),
            kafka=KafkaConfig(port=0, **settings),
            authenticator=authenticator,
        )
        assert self.broker.kafka is not None
        self.server = self.broker.kafka
        self.services = self.server.services
        self.services.on_thread = self._on_thread
        self.on_threads: list[str] = []
        """What was done so."""

    async def _on_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        self.on_threads.append(getattr(work, "func", work).__name__)
        await asyncio.sleep(0)
        return work(*arguments)

    async def start(self) -> KafkaWorld:
        await self.broker.start()
        await self.services.control.partitioned.create(parse_topic(TOPIC), 1)
        return self

    def peer(self) -> KafkaPeer:
        return KafkaPeer(self)

    def log(self, topic: str = f"{TOPIC}-partition-0") -> MemoryLog:
        return self.store.logs[parse_topic(topic).log_name]

    def stored(self, topic: str = f"{TOPIC}-partition-0") -> list[memoryview]:
        return [entry.payload for entry in self.log(topic)._entries]


class KeptPartitions:
    """A directory of partitions, as far as it is asked when topics are made."""

    pieces = PieceRule()


class KafkaPeer:
    """The client's side of a session."""

    client_id = "me"

    def __init__(self, world: KafkaWorld) -> None:
        self.world = world
        self.transport = FakeTransport()
        self.session = KafkaSession(
            world.services,
            RequestTable(
                world.server.coordinator, world.server.transactions, world.server.coordinated_groups
            ),
        )
        self.session.connection_made(self.transport)
        self._sent: list[tuple[int, int]] = []

    def feed(self, data: bytes) -> None:
        while data and not self.session.closed:
            room = self.session.get_buffer(-1)
            size = min(len(room), len(data))
            room[:size] = data[:size]
            self.session.buffer_updated(size)
            data = data[size:]

    def frame(self, key: int, request: Any, version: int | None = None) -> bytes:
        version = BY_NAMES.get(key, APIS[key].most) if version is None else version
        self._sent.append((key, version))
        return encode_request(key, version, len(self._sent), self.client_id, request)

    def tell(self, key: int, request: Any, version: int | None = None) -> None:
        self.feed(self.frame(key, request, version))

    async def ask(self, key: int, request: Any, version: int | None = None) -> Any:
        self.tell(key, request, version)
        return (await self.next())[1]

    async def next(self) -> tuple[int, Any]:
        """The next answer, and to which request (counted from 1)."""
        for turn in range(2_000):
            self.session._flush()
            data = self.transport.data
            if data:
                size = int.from_bytes(data[:4], "big")
                frame = bytes(data[4 : 4 + size])
                del data[: 4 + size]
                number = int.from_bytes(frame[:4], "big")
                found = read_response(*self._sent[number - 1], FieldReader(memoryview(frame)))
                assert isinstance(found, tuple)
                return found
            await asyncio.sleep(0 if turn < 200 else 0.005)
        raise AssertionError("no answer")

    async def quiet(self) -> bool:
        """Nothing has come, after some turns of the loop."""
        for _ in range(50):
            await asyncio.sleep(0)
        self.session._flush()
        return not self.transport.data


def run(scenario: Callable[[KafkaWorld], Awaitable[None]], **settings: Any) -> None:
    """Run ``scenario`` in a world of its own, on virtual time and with a deadline."""
    run_in(lambda: KafkaWorld(**settings), scenario)


W = TypeVar("W", bound=KafkaWorld)


def run_in(make: Callable[[], W], scenario: Callable[[W], Awaitable[None]]) -> None:
    async def main() -> None:
        world = make()
        await world.start()
        try:
            await asyncio.wait_for(scenario(world), 100_000)
        finally:
            await world.broker.close()

    run_virtual(main())
