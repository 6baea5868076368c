"""A Pulsar client of the simulator: one connection to a broker at a time, as the official clients
hold them.

``Client.link`` looks a topic up, at one host of the service URL after the other, follows redirects,
and connects to the broker that it is sent to. A connection that says nothing for ``SILENCE_S`` is
broken; so is one on which a request is not answered in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from magnetar.model.errors import MagnetarError
from magnetar.wire.checksum import crc32c
from magnetar.wire.pulsar.commands import encode_command, encode_payload_command
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    CommandPing,
    CommandPong,
    MessageMetadata,
    SingleMessageMetadata,
)
from magnetar_sim.brokers.brokers import BROKER_PORT
from magnetar_sim.brokers.watched_connection import Frames
from magnetar_sim.cluster.cluster import Cluster
from magnetar_sim.world.loop import SimProcess

SILENCE_S = 2.5
PING_S = 0.8
REQUEST_S = 2.0
RETRY_S = 0.15
REDIRECTS_MAX = 6
BUFFER_BYTES = 1 << 16
PROTOCOL_VERSION = 20


class LinkError(Exception):
    """The connection is gone, or could not be had."""


class RefusedError(Exception):
    """The broker's answer to a request is an error. ``code`` is the protocol's."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Link(asyncio.BufferedProtocol):
    """One connection. ``on`` are handlers of what the broker says unasked, by command and id of
    producer or consumer; ``lost`` are called when it is gone."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.gone = False
        self.on: dict[tuple[int, int], Callable[[BaseCommand, memoryview], None]] = {}
        self.lost: dict[object, Callable[[], None]] = {}
        self._loop = loop
        self._buffer = bytearray(BUFFER_BYTES)
        self._frames = Frames()
        self._waiting: dict[int, asyncio.Future[BaseCommand]] = {}
        self._heard_s = loop.time()
        self._requests = 0

    # -- asyncio's side -----------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_s = self._loop.time()
        for command, payload in self._frames.feed(bytes(self._buffer[:nbytes])):
            self._handle(command, payload)

    def eof_received(self) -> None:
        """The transport closes by itself."""

    def pause_writing(self) -> None:
        """What a client has pending is bounded by itself."""

    def resume_writing(self) -> None:
        """See ``pause_writing``."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(LinkError("the connection is gone"))
        for lost in list(self.lost.values()):
            lost()

    # -- commands -----------------------------------------------------------------------------

    def _handle(self, command: BaseCommand, payload: memoryview) -> None:
        kind = int(command.type)
        if kind == BaseCommand.PING:
            self.send(BaseCommand(type=BaseCommand.PONG, pong=CommandPong()))
            return
        body = _body(command)
        target = getattr(body, "producer_id", None)
        if target is None:
            target = getattr(body, "consumer_id", None)
        handler = None if target is None else self.on.get((kind, target))
        if handler is not None:
            handler(command, payload)
            return
        request_id = getattr(body, "request_id", None)
        if kind == BaseCommand.CONNECTED:
            request_id = 0
        if kind == BaseCommand.PRODUCER_SUCCESS and not command.producer_success.producer_ready:
            return  # it waits for its turn
        answer = None if request_id is None else self._waiting.pop(request_id, None)
        if answer is not None and not answer.done():
            answer.set_result(command)

    def send(self, command: BaseCommand) -> None:
        self.write(encode_command(command))

    def write(self, frame: bytes) -> None:
        if not self.gone and self.transport is not None:
            self.transport.write(frame)

    def next_request(self) -> int:
        self._requests += 1
        return self._requests

    async def ask(self, command: BaseCommand, wait_s: float = REQUEST_S) -> BaseCommand:
        """Raises ``RefusedError``; ``LinkError`` when there is no answer: the connection is broken
        then."""
        request_id = 0 if command.type == BaseCommand.CONNECT else _body(command).request_id
        if self.gone:
            raise LinkError("the connection is gone")
        answer: asyncio.Future[BaseCommand] = self._loop.create_future()
        self._waiting[request_id] = answer
        self.send(command)
        try:
            async with asyncio.timeout(wait_s):
                found = await answer
        except TimeoutError:
            self.abort()
            raise LinkError(f"no answer to {command.type}") from None
        if found.type == BaseCommand.ERROR:
            raise RefusedError(found.error.error, found.error.message)
        return found

    async def watch(self) -> None:
        """Break the connection when the broker is silent."""
        while not self.gone:
            await asyncio.sleep(PING_S)
            if self._loop.time() - self._heard_s > SILENCE_S:
                self.abort()
            self.send(BaseCommand(type=BaseCommand.PING, ping=CommandPing()))

    def abort(self) -> None:
        if self.transport is not None and not self.gone:
            self.transport.abort()


def _body(command: BaseCommand) -> Any:
    for field, value in command.ListFields():
        if field.number != 1:
            return value
    return None


class PulsarClient:
    """A process with clients of topics. ``hosts`` is its service URL."""

    def __init__(self, cluster: Cluster, name: str, hosts: Sequence[str]) -> None:
        self.name = name
        self.cluster = cluster
        self.process: SimProcess = cluster.loop.new_process(name)
        self.current: Link | None = None
        """The connection that was used last."""
        self.quiet_until_s = 0.0
        self.version = "simulated"
        """What it names itself in CONNECT."""
        self._hosts = list(hosts)
        self._next = 0
        self._links: dict[str, Link] = {}
        self._moved: dict[str, str] = {}
        """Topic -> host that the broker which closed it has named."""
        self._connecting = asyncio.Lock()
        self._ids = 0

    def new_id(self) -> int:
        """Of a producer or consumer."""
        self._ids += 1
        return self._ids

    async def link(self, topic: str) -> Link:
        """A connection to the broker that serves ``topic``; as often as it takes."""
        async with self._connecting:
            while True:
                quiet_s = self.quiet_until_s - asyncio.get_running_loop().time()
                if quiet_s > 0:
                    await asyncio.sleep(quiet_s)
                try:
                    self.current = await self._connect(topic)
                    return self.current
                except (LinkError, RefusedError, MagnetarError, OSError) as error:
                    self.cluster.trace.note(self.name, f"cannot connect yet: {error}")
                    self._next += 1
                    await asyncio.sleep(RETRY_S)

    async def link_at(self, host: str) -> Link:
        """A connection to that broker, without a lookup. Raises ``LinkError``, ``RefusedError``,
        ``MagnetarError``, ``OSError``."""
        async with self._connecting:
            self.current = await self._link_to(host)
            return self.current

    def moved(self, topic: str, service_url: str) -> None:
        """The broker that closed a producer or consumer says where it is served now."""
        if service_url:
            self._moved[topic] = host_of(service_url)

    async def _connect(self, topic: str) -> Link:
        moved = self._moved.pop(topic, None)
        if moved is not None:
            return await self._link_to(moved)
        host, authoritative = self._hosts[self._next % len(self._hosts)], False
        for _ in range(REDIRECTS_MAX):
            link = await self._link_to(host)
            lookup = BaseCommand(type=BaseCommand.LOOKUP)
            lookup.lookupTopic.topic = topic
            lookup.lookupTopic.request_id = link.next_request()
            lookup.lookupTopic.authoritative = authoritative
            answer = (await link.ask(lookup)).lookupTopicResponse
            if answer.response == CommandLookupTopicResponse.Failed:
                raise LinkError(f"the lookup of {topic} failed: {answer.message}")
            host = host_of(answer.brokerServiceUrl)
            if answer.response == CommandLookupTopicResponse.Connect:
                return await self._link_to(host)
            authoritative = answer.authoritative
            self.cluster.count("lookups that were sent on")
        raise LinkError(f"the lookup of {topic} is sent from broker to broker")

    async def _link_to(self, host: str) -> Link:
        found = self._links.get(host)
        if found is None or found.gone:
            found = self._links[host] = await self._greet(host)
        return found

    async def _greet(self, host: str) -> Link:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(REQUEST_S):
            _, link = await loop.create_connection(Link, host, BROKER_PORT)
        connect = BaseCommand(type=BaseCommand.CONNECT)
        connect.connect.client_version = self.version
        connect.connect.protocol_version = PROTOCOL_VERSION
        await link.ask(connect)
        self.process.spawn(link.watch(), "pings")
        return link

    def leave(self, until_s: float) -> None:
        """Close every connection, and come back at that time."""
        self.quiet_until_s = until_s
        for link in self.links:
            link.abort()

    @property
    def links(self) -> list[Link]:
        """Those that it has, or had."""
        return list(self._links.values())

    def kill(self, silently: bool = False) -> None:
        """As ``kill -9``; ``silently``: its host loses power, and nobody is told."""
        if self.process.alive:
            self.cluster.trace.note(self.name, "loses power" if silently else "is killed")
            self.process.kill()
            self.cluster.network.process_ended(self.process, silently)


def host_of(service_url: str) -> str:
    """Of a broker."""
    return service_url.removeprefix("pulsar://").rsplit(":", 1)[0]


class Chunk(NamedTuple):
    """Which part of a message that is too large for one entry."""

    message: str
    chunk_id: int
    chunks: int
    total_bytes: int


def encode_send(
    producer_id: int,
    producer: str,
    sequence_id: int,
    time_ms: int,
    texts: Sequence[bytes],
    chunk: Chunk | None = None,
    deliver_at_ms: int = 0,
    key: str = "",
) -> bytes:
    """A SEND frame: of one message, of a batch, or of a chunk of a message."""
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id = producer_id
    command.send.sequence_id = sequence_id
    command.send.num_messages = len(texts)
    payload = encode_payload(producer, sequence_id, time_ms, texts, chunk, deliver_at_ms, key)
    return encode_payload_command(command, payload)


def encode_payload(
    producer: str,
    sequence_id: int,
    time_ms: int,
    texts: Sequence[bytes],
    chunk: Chunk | None = None,
    deliver_at_ms: int = 0,
    key: str = "",
) -> bytes:
    """An entry, as its producer sends it."""
    metadata = MessageMetadata(
        producer_name=producer, sequence_id=sequence_id, publish_time=time_ms
    )
    if deliver_at_ms:
        metadata.deliver_at_time = deliver_at_ms
    if key:
        metadata.partition_key = key
    data = texts[0]
    if chunk is not None:
        metadata.uuid, metadata.chunk_id = chunk.message, chunk.chunk_id
        metadata.num_chunks_from_msg = chunk.chunks
        metadata.total_chunk_msg_size = chunk.total_bytes
    if len(texts) > 1:
        metadata.num_messages_in_batch = len(texts)
        data = b"".join(_single(text) for text in texts)
    header = metadata.SerializeToString()
    rest = len(header).to_bytes(4, "big") + header + data
    return b"\x0e\x01" + crc32c(rest).to_bytes(4, "big") + rest


def _single(text: bytes) -> bytes:
    single = SingleMessageMetadata(payload_size=len(text)).SerializeToString()
    return len(single).to_bytes(4, "big") + single + text
