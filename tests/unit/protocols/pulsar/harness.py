"""A broker without sockets: sessions whose transport records what they write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from magnetar.app.broker import Broker
from magnetar.cluster.security.authenticator import Authenticator
from magnetar.cluster.topic_name import parse_topic
from magnetar.config import BrokerConfig
from magnetar.protocols.pulsar.handlers.table import make_table
from magnetar.protocols.pulsar.session import Session
from magnetar.topics.topic import Topic
from magnetar.wire.pulsar.commands import (
    COMMAND_NAMES,
    PING_FRAME,
    decode_command,
    encode_command,
)
from magnetar.wire.pulsar.plausible import SINGLE_BYTES_MIN
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandSubscribe, MessageMetadata
from magnetar_sim.world.virtual_time import run_virtual
from tests.doubles.admin import topic_service
from tests.doubles.memory_log import MemoryLog, MemoryLogStore
from tests.doubles.memory_metadata import MemoryMetadata
from tests.doubles.memory_values import MemoryValues
from tests.interop.pulsar.wire import checked, message, send_frame

TOPIC = "persistent://public/default/t"
SHARED = CommandSubscribe.Shared
EXCLUSIVE = CommandSubscribe.Exclusive
FAILOVER = CommandSubscribe.Failover
ANNOUNCEMENTS = (BaseCommand.ACTIVE_CONSUMER_CHANGE, BaseCommand.PING)


class FakeTransport(asyncio.Transport):
    """Records; ``buffered`` is what it claims to hold back; a PING calls ``on_ping``."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()
        self.buffered = 0
        self.reading = True
        self.closed = False
        self.on_ping: Callable[[], None] | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("peer", 1) if name == "peername" else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data
        if self.on_ping is not None and PING_FRAME in bytes(data):
            asyncio.get_running_loop().call_soon(self.on_ping)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for part in list_of_data:
            self.data += part

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


class World:
    """A broker that listens nowhere, and its doubles."""

    def __init__(
        self,
        ledger_entries: int = 5,
        shares: bool = False,
        authenticator: Authenticator | None = None,
        **settings: Any,
    ) -> None:
        self.store = MemoryLogStore(ledger_entries)
        self.metadata = MemoryMetadata()
        self.values = MemoryValues()
        self.now_s = 1e9
        """Of the wall clock."""
        self.broker = Broker(
            replace(BrokerConfig(port=0), **settings),
            self.store,
            self.metadata,
            self.values,
            clock=lambda: self.now_s,
            shares=shares,
            authenticator=authenticator,
        )
        self.services = self.broker.pulsar.services

    async def start(self) -> World:
        await self.broker.start()
        self.admin = topic_service(self.broker)
        return self

    def peer(self, hello: bool = True, version: str = "peer") -> Peer:
        return Peer(self, hello, version)

    def log(self, topic: str = TOPIC) -> MemoryLog:
        return self.store.logs[parse_topic(topic).log_name]

    def topic(self, topic: str = TOPIC) -> Topic:
        found = self.services.topics.find(parse_topic(topic))
        assert found is not None
        return found


class Peer:
    """The client's side of a session."""

    def __init__(self, world: World, hello: bool, version: str = "peer") -> None:
        self.world = world
        self.transport = FakeTransport()
        self.session = Session(world.services, make_table())
        self.session.connection_made(self.transport)
        self.transport.on_ping = self.pong
        if hello:
            command = BaseCommand(type=BaseCommand.CONNECT)
            command.connect.client_version = version
            command.connect.protocol_version = 20
            self.tell(command)

    def feed(self, data: bytes) -> None:
        """Let the session receive ``data``, as one chunk if it fits its buffer."""
        while data and not self.session.closed:
            room = self.session.get_buffer(-1)
            size = min(len(room), len(data))
            room[:size] = data[:size]
            self.session.buffer_updated(size)
            data = data[size:]

    def pong(self) -> None:
        self.tell(BaseCommand(type=BaseCommand.PONG))

    def play_dead(self) -> None:
        """Answer no PING from now on."""
        self.transport.on_ping = None

    def tell(self, command: BaseCommand) -> None:
        self.feed(encode_command(command))

    async def ask(self, command: BaseCommand) -> BaseCommand:
        """Tell, and give the next command that is no announcement."""
        self.tell(command)
        return await self.next()

    async def next(self) -> BaseCommand:
        for turn in range(1000):
            self.session._flush()
            found = self._pop()
            if found is not None and found.type not in ANNOUNCEMENTS:
                return found
            await asyncio.sleep(0 if turn < 100 else 0.005)
        raise AssertionError("no answer")

    def _pop(self) -> BaseCommand | None:
        data = self.transport.data
        if not data:
            return None
        size = int.from_bytes(data[:4], "big")
        frame = bytes(data[4 : 4 + size])
        del data[: 4 + size]
        return decode_command(memoryview(frame), 0, size)

    async def heard(self) -> list[BaseCommand]:
        """Everything that has come, after some loop turns."""
        for _ in range(20):
            await asyncio.sleep(0)
        self.session._flush()
        found = []
        while (command := self._pop()) is not None:
            found.append(command)
        return found

    async def kinds(self) -> list[str]:
        return [COMMAND_NAMES[int(command.type)] for command in await self.heard()]

    async def entries(self) -> list[int]:
        """The numbers of the entries that came as MESSAGEs, counted over ledgers."""
        size = self.world.store._size
        ids = [c.message.message_id for c in await self.heard() if c.type == BaseCommand.MESSAGE]
        return [(data.ledgerId - 1) * size + data.entryId for data in ids]

    def lose(self) -> None:
        """The connection is gone."""
        self.transport.on_ping = None  # else it and this would be a cycle
        self.session.connection_lost(None)

    # -- usual things -------------------------------------------------------------------------

    async def produce(
        self, topic: str = TOPIC, producer_id: int = 1, name: str = "", **fields: Any
    ) -> BaseCommand:
        await self.heard()
        return await self.ask(self.produce_command(topic, producer_id, name, **fields))

    def produce_command(
        self, topic: str = TOPIC, producer_id: int = 1, name: str = "", **fields: Any
    ) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.PRODUCER)
        command.producer.topic = topic
        command.producer.producer_id = producer_id
        command.producer.request_id = 1000 + producer_id
        if name:
            command.producer.producer_name = name
        for key, value in fields.items():
            setattr(command.producer, key, value)
        return command

    def publish(self, count: int, first: int = 0, producer_id: int = 1) -> None:
        """SENDs with sequence ids from ``first`` on, in one chunk."""
        frames = (
            send_frame(producer_id, n, message(str(n).encode(), n))
            for n in range(first, first + count)
        )
        self.feed(b"".join(frames))

    async def subscribe(
        self,
        name: str = "s",
        kind: CommandSubscribe.SubType = SHARED,
        consumer_id: int = 1,
        topic: str = TOPIC,
        earliest: bool = True,
        **fields: Any,
    ) -> BaseCommand:
        await self.heard()
        return await self.ask(
            self.subscribe_command(name, kind, consumer_id, topic, earliest, **fields)
        )

    def subscribe_command(
        self,
        name: str = "s",
        kind: CommandSubscribe.SubType = SHARED,
        consumer_id: int = 1,
        topic: str = TOPIC,
        earliest: bool = True,
        **fields: Any,
    ) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        request = command.subscribe
        request.topic, request.subscription, request.subType = topic, name, kind
        request.consumer_id, request.request_id = consumer_id, 2000 + consumer_id
        request.initialPosition = request.Earliest if earliest else request.Latest
        for key, value in fields.items():
            setattr(request, key, value)
        return command

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        command = BaseCommand(type=BaseCommand.FLOW)
        command.flow.consumer_id = consumer_id
        command.flow.messagePermits = permits
        self.tell(command)

    def acknowledge(
        self,
        *numbers: int,
        consumer_id: int = 1,
        cumulative: bool = False,
        request_id: int | None = None,
    ) -> None:
        """ACK entries by number."""
        command = BaseCommand(type=BaseCommand.ACK)
        command.ack.consumer_id = consumer_id
        command.ack.ack_type = command.ack.Cumulative if cumulative else command.ack.Individual
        size = self.world.store._size
        for number in numbers:
            command.ack.message_id.add(ledgerId=1 + number // size, entryId=number % size)
        if request_id is not None:
            command.ack.request_id = request_id
        self.tell(command)

    def redeliver(self, *numbers: int, consumer_id: int = 1) -> None:
        command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        command.redeliverUnacknowledgedMessages.consumer_id = consumer_id
        size = self.world.store._size
        for number in numbers:
            command.redeliverUnacknowledgedMessages.message_ids.add(
                ledgerId=1 + number // size, entryId=number % size
            )
        self.tell(command)


def batch(count: int, sequence_id: int = 0) -> bytes:
    """A stored payload that says it is a batch of ``count``."""
    metadata = MessageMetadata(
        producer_name="peer",
        sequence_id=sequence_id,
        publish_time=1,
        num_messages_in_batch=count,
    )
    head = metadata.SerializeToString()
    data = bytes(SINGLE_BYTES_MIN * count)
    return checked(len(head).to_bytes(4, "big") + head + data)


def run(scenario: Callable[[World], Any], **settings: Any) -> None:
    """Run ``scenario`` in a world of its own, on virtual time and with a deadline."""

    async def main() -> None:
        world = await World(**settings).start()
        try:
            await asyncio.wait_for(scenario(world), 300)
        finally:
            await world.broker.close()

    run_virtual(main())
