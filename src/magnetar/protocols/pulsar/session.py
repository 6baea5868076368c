"""One client's connection: frames in, frames out, and what belongs to it.

States: new -> ready (CONNECT accepted) -> closed. In *new* only CONNECT is taken; anything else
ends the connection, as the official clients do on their side.

A received chunk is handled in one pass. SENDs are checked and queued at their producers, ACKs of
one entry each are collected for their consumers; whatever comes between them flushes those first,
so that a producer's or a consumer's commands keep their order. Other ACKs, FLOW, PING and PONG are
handled on the spot; requests that wait for something run in turn by subject (``requests``).

Bounds: unconfirmed bytes, requests under way and unsent bytes each stop reading from the
connection, and the commands of the chunk at hand, until they are below their limit again; so a
client is slowed down and nobody else. So does the first SEND of a producer that has come back,
until it is known what its earlier incarnation has stored (``topics.publishing.resend``), and a SEND
to a topic whose publish rate is used up, until it may pass (``rate_hold``).

Errors: a ``ProtocolError`` ends the connection. Any other error of ours is told to the client in
the shape that its request asks for. A request that fails by a fault of this program ends the
connection too: the client must not wait for an answer that will not come.

Why: docs/adr/0061-sessions.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from enum import IntFlag
from typing import Final, Protocol, TypeAlias

from magnetar.cluster.security.principals import REFUSED
from magnetar.cluster.steering import Sent
from magnetar.cluster.topic_name import TopicName
from magnetar.env.network.certificates import peer_name
from magnetar.env.network.framed import FREE_REASON, FramedConnection
from magnetar.env.tasks import fails
from magnetar.model.errors import (
    ChecksumError,
    ImplausibleMessageError,
    MagnetarError,
    MessageTooLargeError,
    NotAllowedError,
    ProtocolError,
    ServiceNotReadyError,
)
from magnetar.protocols.pulsar.attached import Attached
from magnetar.protocols.pulsar.entry_format import PulsarEntryFormat
from magnetar.protocols.pulsar.identity import Identity
from magnetar.protocols.pulsar.leaving import Leaving
from magnetar.protocols.pulsar.liveness import is_alive
from magnetar.protocols.pulsar.rate_hold import HeldBack, RateHold
from magnetar.protocols.pulsar.requests import Requests, Subject
from magnetar.protocols.pulsar.services import Services
from magnetar.protocols.pulsar.topic_list_watch import TopicListWatch
from magnetar.speedups import read_sends
from magnetar.topics.publishing.producer import (
    METADATA_BYTES_MAX,
    Producer,
    SearchFirst,
    SendLimits,
    Sequences,
)
from magnetar.topics.subscribable import Subscribed
from magnetar.topics.topic import Topic
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.commands import (
    COMMAND_NAMES,
    command_type,
    decode_command,
    encode_command,
)
from magnetar.wire.pulsar.errors import server_error
from magnetar.wire.pulsar.hot import decode_send
from magnetar.wire.pulsar.plain_acks import PlainAcks
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from magnetar.wire.pulsar.replies import NO_REQUEST_ID, error_reply
from magnetar.wire.pulsar.replies import error as error_frame
from magnetar.wire.pulsar.sent import ReadSend, check_sent, read_send

FRAME_SLACK_BYTES: Final = 256 << 10
"""Room above the largest message, so that one that is too large gets an answer, not a hang-up."""

WRITE_BYTES_HIGH: Final = 1 << 20
WRITE_BYTES_LOW: Final = 256 << 10
"""A connection with more unsent bytes than the first gets no more until it is at the second: low
enough to bound memory, high enough that the socket never runs dry."""

SEND_REFUSALS: Final = (
    ChecksumError,
    ImplausibleMessageError,
    MessageTooLargeError,
    NotAllowedError,
)
"""Faults of one message, which its producer is told; a ``ProtocolError`` is the connection's."""

ENTRIES: Final = PulsarEntryFormat()
SEND: Final = int(BaseCommand.SEND)
ACK: Final = int(BaseCommand.ACK)
NO_VERSION: Final = 0
COMMANDS_PER_TURN: Final = 300
"""Of one connection, but for usual SENDs and ACKs: some 5 to 20 ms."""


class Paused(IntFlag):
    """Why a connection is not read (``FramedConnection.pause``; its own come first)."""

    PUBLISHES = FREE_REASON
    REQUESTS = FREE_REASON << 1
    UNSENT = FREE_REASON << 2
    RESENDS = FREE_REASON << 3
    AUTHENTICATION = FREE_REASON << 4
    RATE = FREE_REASON << 5


Quick: TypeAlias = "Callable[[Session, memoryview, int, int], None]"
Request: TypeAlias = "Callable[[Session, BaseCommand], Awaitable[None]]"


class Handlers(Protocol):
    """What a session knows of those who answer its commands (``handlers.table``)."""

    @property
    def quick(self) -> Mapping[int, Quick]:
        """Commands that are handled as they are met, by their type."""
        ...

    def connect(self, session: Session, command: BaseCommand) -> None: ...

    def subject(self, command: BaseCommand) -> Subject | None:
        """The subject of a request (``requests``); None for what is not served."""
        ...

    def handle(self, session: Session, command: BaseCommand) -> Awaitable[None]: ...


class Session(FramedConnection):
    """The server's side of a client connection."""

    def __init__(self, services: Services, table: Handlers) -> None:
        frame_bytes_max = services.config.message_bytes_max + FRAME_SLACK_BYTES
        super().__init__(frame_bytes_max, services.connections)
        self.services = services
        self.table = table
        self.ready = False
        self.denied = False
        """It has not shown who it is, and hears so with each request (``clients``)."""
        self.identity: Identity | None = None
        """Who the client is, where it must show that; it has one when it is ready."""
        self.client_version = ""
        self.protocol_version = NO_VERSION
        self.fails_one_send = False
        """The client's producers go on after a SEND that was refused (``clients``)."""
        self.follows_assigned_url = False
        """Its consumers go to the broker that CLOSE_CONSUMER names (``clients``)."""
        self.producers: Attached[Producer] = Attached(services.attached)
        self.consumers: Attached[Subscribed] = Attached(services.attached)
        self.leaving: Attached[Leaving] = Attached(services.attached)
        """Consumers that another broker is to serve, and that have not been told yet."""
        self.watches: Attached[TopicListWatch] = Attached(services.attached)
        self.sent: dict[int, Sent] = {}
        """Where consumers were sent last."""
        self.following: dict[TopicName, Topic] = {}
        """Topics whose ends a read-only broker is told of."""
        self.frames = 0
        """Whole frames received; stands still while one is incomplete."""
        self._rate_hold: RateHold | None = None
        """From when it is first held back; it leads back here."""
        self._touched: list[Producer] = []
        self._acks = PlainAcks()
        self._unconfirmed_bytes = 0
        self._requests = Requests(services.scope)
        self._taken: asyncio.Event | None = None
        """Of those who wait until the client has read; None: nobody does."""
        self.payload_bytes_max = services.config.message_bytes_max + METADATA_BYTES_MAX
        """Of what it may publish, and of what it takes."""
        self._unconfirmed_bytes_max = services.config.pending_publish_bytes_per_connection

    # -- the connection -----------------------------------------------------------------------

    def connected(self) -> None:
        services = self.services
        most, setting = services.config.connections_max, "broker.connections_max"
        if not self.admitted(len(services.sessions), most, setting, services.closing):
            return
        self.set_write_limits(WRITE_BYTES_HIGH, WRITE_BYTES_LOW)
        services.sessions[self] = None
        services.metrics.broker_connections.set(len(services.sessions))

    def disconnected(self, error: Exception | None) -> None:
        services = self.services
        services.sessions.pop(self, None)
        services.metrics.broker_connections.set(len(services.sessions))
        self._requests.hang_up()
        self._tell_taken()
        if self._rate_hold is not None:
            self._rate_hold.end()
            self._rate_hold = None
        if self.identity is not None:
            self.identity.end()
        for producer in list(self.producers.values()):
            producer.topic.remove_producer(producer)
        self.producers.clear()
        for subscribed in list(self.consumers.values()):
            subscribed.leave()
        self.consumers.clear()
        for leaving in self.leaving.values():
            leaving.end()
        self.leaving.clear()
        for watch in self.watches.values():
            watch.end()
        self.watches.clear()
        for topic in self.following.values():
            topic.unfollow(self)
        self.following.clear()

    def writable_changed(self) -> None:
        for _, subscription, consumer in self.consumers.values():
            subscription.follow_connection(consumer)
        if self.writable:
            self._tell_taken()
            self.resume(Paused.UNSENT)
            self._catch_up()
        else:
            self.pause(Paused.UNSENT)

    def _catch_up(self) -> None:
        """Tell the watches what they have missed, each once the client has taken what is before it:
        a client has thousands of them, and each may have missed megabytes."""
        for watch in self.watches.values():
            if self.crowded:
                if self.writable and not self.closed:  # what was written leaves with this turn
                    self._loop.call_soon(self._catch_up)
                return
            watch.catch_up()

    @property
    def crowded(self) -> bool:
        """So much waits for the client to read that nothing large is added."""
        return not self.writable or self.unsent_bytes > WRITE_BYTES_HIGH

    @asynccontextmanager
    async def large_answer(self, one_at_a_time: asyncio.Lock) -> AsyncIterator[None]:
        """Make and write an answer that may be megabytes within it: once the client has taken what
        waits for it, and no two of a kind at a time in a broker. What is written is on its way, or
        counted among what clients do not read, before the next one is made, and others have their
        turns between. Raises ``ServiceNotReadyError`` if there is no memory for it."""
        connections = self.services.connections
        while True:
            await self.until_taken()
            async with one_at_a_time:
                if self.closed:
                    raise ServiceNotReadyError("the client has gone")
                if self.crowded:
                    continue  # by something else, while it waited for its turn
                if not connections.unsent_left:
                    raise ServiceNotReadyError(
                        "memory for what clients do not read is used up "
                        "(connections.unsent_bytes_max); ask again later"
                    )
                yield
                await asyncio.sleep(0)
                return

    async def until_taken(self) -> None:
        """Until the client has taken what waits for it, or is gone."""
        while self.crowded and not self.closed:
            await asyncio.sleep(0)  # what this turn has written leaves at its end
            if not self.writable and not self.closed:
                if self._taken is None:
                    self._taken = asyncio.Event()
                await self._taken.wait()

    def _tell_taken(self) -> None:
        taken, self._taken = self._taken, None
        if taken is not None:
            taken.set()

    # -- frames -------------------------------------------------------------------------------

    def run_received(self, view: memoryview, start: int, end: int) -> int:
        """What clients send per message, at the front of a chunk, many at a time: SENDs of the
        usual shape, and ACKs of one entry each. All else comes to ``frames_received``."""
        if self.producers:
            start = self._take_sends(view, start, end)
        if self.consumers:
            start = self._acks.take_run(view, start, end)
            if self._acks.collected:
                self.frames += 1  # of how many is not asked: only whether there were some
                self._flush_acks()
        return start

    def _take_sends(self, view: memoryview, start: int, end: int) -> int:
        producers = self.producers
        runs, stop = read_sends(view, start, end, self._frame_bytes_max, self.payload_bytes_max)
        for run in runs:
            producer = producers.get(run[0])
            if producer is None:
                continue
            if producer.resends is not None or producer.limits is not None:
                return start  # what it sends is looked at one by one
        for number, payloads, sequences, messages, times_ms, byte_count in runs:
            self.frames += len(payloads)
            producer = producers.get(number)  # None: sent before it heard that this is closed
            if producer is not None and producer.queue_run(
                payloads, sequences, messages, times_ms, byte_count
            ):
                self._touched.append(producer)
        if self._touched:
            self._flush_sends()
        return stop

    def frames_received(self, view: memoryview, bounds: Sequence[tuple[int, int]]) -> None:
        self.frames += len(bounds)
        ready, commands = self.ready, 0
        producers, most = self.producers, self.payload_bytes_max
        start = 0
        try:
            for start, end in bounds:
                # First of all, and for every frame: whoever publishes sends little else, and what
                # is unusual is mostly its metadata.
                if producers and (send := read_send(view, start, end)) is not None:
                    number, sequence_id, highest, at, messages, published_ms, due_ms = send
                    producer = producers.get(number)
                    if producer is None:
                        continue  # sent before the client heard that the producer is closed
                    if (due_ms or end - at > most) and self._refused(producer, send, end - at):
                        continue
                    limits = producer.limits
                    if limits is not None and not self._admitted(
                        producer, limits, send[1:3], view[at:end]
                    ):
                        continue
                    if producer.queue(sequence_id, highest, view[at:end], messages, published_ms):
                        self._touched.append(producer)
                    if limits is not None and limits.throttle is not None:
                        limits.throttle.take(messages, end - at)
                    continue
                kind = command_type(view, start)
                if kind == ACK and ready and self._acks.take(view, start, end):
                    continue
                if kind == SEND and ready:
                    self._send(view, start, end)
                else:
                    self._flush_collected()
                    self._command(kind, view, start, end)
                    if self.closed:
                        return
                    ready = self.ready
                commands += 1
                if commands == COMMANDS_PER_TURN:
                    self.give_way()
                if self.paused:  # else one chunk begins thousands of requests, whatever their bound
                    self.frames -= self.stop_after(bounds, end)
                    break
        except SearchFirst as first:
            self._search(first.producer, first.sequence_id)
            self.frames -= self.stop_after(bounds, start - 1)  # this one comes again, first
        except HeldBack:
            self.frames -= self.stop_after(bounds, start - 1)
        self._flush_collected()

    def _flush_collected(self) -> None:
        if self._touched:
            self._flush_sends()
        if self._acks.collected:
            self._flush_acks()

    def _search(self, producer: Producer, sequence_id: int) -> None:
        """Nothing more is taken from this client until it is known what its producer has stored."""
        self.pause(Paused.RESENDS)
        if self.services.closing:
            return  # it is about to be closed

        async def search() -> None:
            try:
                await producer.search(sequence_id)
            finally:
                self.resume(Paused.RESENDS)

        def failed(_task: str, _error: BaseException) -> None:
            self.close()

        self.services.scope.spawn(search(), f"resends of {producer.name}", fails(failed))

    def _admitted(
        self, producer: Producer, limits: SendLimits, send: Sequences, payload: memoryview
    ) -> bool:
        """Whether a sound SEND may pass what the topic's policy says; one that may not is refused.
        Raises ``HeldBack``."""
        if producer.closed:
            return False  # it is not taken, so nobody is to wait for what it would have used up
        most = limits.bytes_max
        if most and len(payload) > most and ENTRIES.describe(payload).chunk is None:
            error = MessageTooLargeError(
                f"message of {len(payload)} bytes with what its client adds; by the topic's policy "
                f"{most} are the most (maxMessageSize): send less, or in chunks"
            )
            self._refuse_send(producer, send, error)
            return False
        if limits.throttle is not None:
            if self._rate_hold is None:
                self._rate_hold = RateHold(self, Paused.RATE)
            self._rate_hold.check(limits.throttle)
        return True

    def _refused(self, producer: Producer, send: ReadSend, payload_bytes: int) -> bool:
        """Refuse a sound SEND if it is too large, or to be delivered too late."""
        try:
            self._check_send(payload_bytes, in_transaction=False)
            self._check_due(producer, send[-1])
        except SEND_REFUSALS as error:
            self._refuse_send(producer, send[1:3], error)
            return True
        return False

    def _send(self, view: memoryview, start: int, end: int) -> None:
        """A SEND that is unusual, or not sound."""
        producer_id, sequence_id, highest, _, payload_start, payload_end, _, txn = decode_send(
            view, start, end
        )
        producer = self.producers.get(producer_id)
        if producer is None:
            return
        payload = view[payload_start:payload_end]
        try:
            self._check_send(len(payload), txn is not None)
            messages, published_ms, due_ms = check_sent(view, payload_start, payload_end)
            self._check_due(producer, due_ms)
        except SEND_REFUSALS as error:
            self._refuse_send(producer, (sequence_id, highest), error)
            return
        limits = producer.limits
        if limits is not None and not self._admitted(
            producer, limits, (sequence_id, highest), payload
        ):
            return
        if producer.queue(sequence_id, highest, payload, messages, published_ms):
            self._touched.append(producer)
        if limits is not None and limits.throttle is not None:
            limits.throttle.take(messages, len(payload))

    def _refuse_send(self, producer: Producer, send: Sequences, error: MagnetarError) -> None:
        self._flush_sends()
        final = not (self.fails_one_send or isinstance(error, ChecksumError))
        producer.refuse(send, error, final)

    def _check_send(self, payload_bytes: int, in_transaction: bool) -> None:
        if payload_bytes > self.payload_bytes_max:
            raise MessageTooLargeError(
                f"message of {payload_bytes} bytes; the largest allowed is "
                f"{self.services.config.message_bytes_max}: send less, or in chunks"
            )
        if in_transaction:
            raise NotAllowedError("transactions are not served; send without one")

    def _check_due(self, producer: Producer, deliver_at_ms: int) -> None:
        delay_ms_max = producer.topic.delay_ms_max
        if delay_ms_max and deliver_at_ms - self.services.now_ms() > delay_ms_max:
            raise NotAllowedError(
                f"a message is to be delivered in {deliver_at_ms - self.services.now_ms()} ms; by "
                f"the topic's policy the longest delay is {delay_ms_max} ms: send it later, or "
                "with a shorter one"
            )

    def _flush_sends(self) -> None:
        touched, self._touched = self._touched, []
        flushed = 0
        for producer in touched:
            flushed += producer.flush()
        self._unconfirmed_bytes += flushed
        if self._unconfirmed_bytes > self._unconfirmed_bytes_max:
            self.pause(Paused.PUBLISHES)

    def publish_ended(self, byte_count: int) -> None:
        """An append of that many bytes has its outcome."""
        self._unconfirmed_bytes -= byte_count
        if self.paused and self._unconfirmed_bytes <= self._unconfirmed_bytes_max // 2:
            self.resume(Paused.PUBLISHES)

    def _flush_acks(self) -> None:
        """Acknowledge what was collected: one call for all of a consumer's in this chunk."""
        for consumer_id, positions in self._acks.taken().items():
            found = self.consumers.get(consumer_id)
            if found is not None:  # else it was closed, and its client has not heard yet
                found.subscription.acknowledge_whole(found.consumer, positions)

    # -- commands -----------------------------------------------------------------------------

    def _command(self, kind: int, view: memoryview, start: int, end: int) -> None:
        if self.ready and self._quick(kind, view, start, end):
            return
        command = decode_command(view, start, end)
        true_kind = int(command.type)
        if not self.ready:
            if true_kind != BaseCommand.CONNECT:
                raise ProtocolError(f"{COMMAND_NAMES[true_kind]} before CONNECT")
            self.table.connect(self, command)
        elif true_kind == SEND:
            self._send(view, start, end)
            self._flush_sends()
        elif kind == true_kind or not self._quick(true_kind, view, start, end):
            self._request(command, end - start)

    def _quick(self, kind: int, view: memoryview, start: int, end: int) -> bool:
        """Handle a command that is handled as it is met; False if ``kind`` is none."""
        quick = self.table.quick.get(kind)
        if quick is None:
            return False
        quick(self, view, start, end)
        return True

    def _request(self, command: BaseCommand, size: int) -> None:
        if self.denied:
            frame = error_reply(command, ServerError.AUTHENTICATION, REFUSED)
            if frame is not None:
                self.write(frame)
            return
        if self.services.closing:
            self.refuse(command, ServiceNotReadyError("the broker is closing; look up again"))
            return
        subject = self.table.subject(command)
        if subject is None:
            self._refuse(command)
        else:
            self._requests.begin(self, subject, command, size)

    def _refuse(self, command: BaseCommand) -> None:
        """A command that is not served: say so, or hang up if it cannot be answered."""
        name = COMMAND_NAMES[int(command.type)]
        frame = error_reply(command, ServerError.NOT_ALLOWED, f"{name} is not served here")
        if frame is None:
            raise ProtocolError(f"{name} is no command for a broker")
        self.write(frame)

    async def answer(self, command: BaseCommand) -> None:
        """Handle a request; an error of ours is its answer."""
        try:
            await self.table.handle(self, command)
        except MagnetarError as error:
            self.refuse(command, error)

    def refuse(self, command: BaseCommand, error: MagnetarError) -> None:
        """Tell the client why its request fails."""
        name = COMMAND_NAMES[int(command.type)]
        refusals = self.services.connections.refusals
        refusals.say("request refused", self.peer, command=name, error=str(error))
        frame = error_reply(command, server_error(error), str(error))
        if frame is not None:
            self.write(frame)

    def end_refused(self, why: str) -> None:
        """The client has not shown who it is: it is told so, no more, and disconnected."""
        if self.closed:
            return
        self.services.connections.say_refused(self.peer, f"authentication failed: {why}")
        self.write(error_frame(NO_REQUEST_ID, ServerError.AUTHENTICATION, REFUSED))
        self.close()

    def certificate_name(self) -> str | None:
        """The common name of the client's certificate, which TLS has verified; None: it has shown
        none, or the connection is plain."""
        return None if self.transport is None else peer_name(self.transport)

    # -- what others ask of the session -------------------------------------------------------

    def send_command(self, command: BaseCommand) -> None:
        self.write(encode_command(command))

    async def is_alive(self) -> bool:
        """Whether the peer says anything when it is asked to."""
        return await is_alive(self)

    def request_parked(self) -> AbstractContextManager[None]:
        """See ``Requests.parked``."""
        return self._requests.parked(self)

    def check_room(self) -> None:
        """Whether the client may have one more producer, consumer or watch. Raises
        ``TooManyConnectionsError``."""
        has = len(self.producers) + len(self.consumers) + len(self.leaving) + len(self.watches)
        self.services.attached.check_room(has)

    def check_open(self, what: str) -> None:
        """Before something is made for the client that stays when it has gone: who has gone
        meanwhile, while the topic was opened, may want it no more, or have had it deleted. Raises
        ``ServiceNotReadyError``."""
        if self.closed:
            raise ServiceNotReadyError(f"{what} is not made: who asked for it is gone")

    def requests_crowded(self, crowded: bool) -> None:
        """There are too many requests under way, or no longer."""
        if crowded:
            self.pause(Paused.REQUESTS)
        else:
            self.resume(Paused.REQUESTS)
