"""One Kafka client's connection: requests in, answers out, in order.

A request is answered before the next one is begun, with one exception: produce requests that can be
appended at once (their topics are open, their producers known) do not wait for one another, so a
client that keeps five under way has them in one journal write. Answers leave in the order of the
requests: each request has a slot, and a slot's answer is held until those before it have left.

While a request is under way that the next one has to wait for, the connection is not read: what
came with it in one chunk is kept by ``env.network.framed``. Such a request owns a copy of its
frame.

Bounds: bytes that are appended and not confirmed, slots under way, unsent bytes; each stops
reading from the connection. So does a topic's limited rate that is used up (``hold_back``).

Errors: bytes that are no request end the connection (``ProtocolError``); what a handler raises is a
fault of ours and ends it too, so that no client waits for an answer that does not come. A request
that is not served ends it as well, but for ApiVersions in an unknown version, which is answered
with error 35 in the oldest form, and so tells what is served.

Where clients must show who they are, each request passes ``gate`` first, and those of a client
that is not known are small and few: its frames have ``FIRST_FRAME_BYTES_MAX``, and it has
``broker.frame_timeout_ms`` to become known (``server``). ``gate`` is None where nobody must: that
is all it costs there. A client that chose its mechanism by version 0 of SaslHandshake sends frames
that are nothing but the mechanism's messages, and gets such answers, until it is known
(``TokenSlot``).

Why: docs/adr/0106-kafka-protocol-over-logs.md, docs/adr/0157-kafkas-clients-show-who-they-are.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from enum import IntFlag
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import structlog

from magnetar.cluster.security.access import Access
from magnetar.cluster.security.authenticator import Authenticator
from magnetar.cluster.security.principals import Principal
from magnetar.env.loop_turns import THINGS_AT_ONCE, LoopTurns
from magnetar.env.network.certificates import peer_name
from magnetar.env.network.framed import FREE_REASON, LENGTH_BYTES, FramedConnection
from magnetar.env.network.hung_up import hung_up
from magnetar.env.tasks import fails
from magnetar.model.errors import (
    AuthenticationError,
    ClientGoneError,
    MagnetarError,
    ProtocolError,
)
from magnetar.protocols.kafka.partitions.first_refused import FirstRefused
from magnetar.protocols.kafka.security.grants import Grants
from magnetar.protocols.kafka.security.sasl_exchange import SaslExchange, exchange_of
from magnetar.protocols.kafka.security.sasl_gate import SaslGate
from magnetar.protocols.kafka.services import KafkaServices
from magnetar.wire.kafka.apis import (
    APIS,
    ApiKey,
    RequestHead,
    encode_response,
    read_head,
    read_request,
    versions_response,
)
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.primitives import Buffer, FieldReader, LongMessageError
from magnetar.wire.kafka.sasl_messages import SaslAuthenticateRequest

log = structlog.get_logger(__name__)

FRAME_SLACK_BYTES: Final = 1 << 20
"""What surrounds the largest message in a request, however small ``kafka.request_bytes_max`` is."""
FIRST_FRAME_BYTES_MAX: Final = 64 << 10
"""Of a client that is not known: a token has 16 KiB at most."""
ELEMENTS_AT_ONCE: Final = 3000
"""A request with more in its lists is read on a thread, an answer with more is made there: 100 000,
which a frame of half a megabyte has, take half a second of the loop."""
HOLD_S_MAX: Final = 3600.0
FRAMES_PER_TURN: Final = 100
"""Of one connection: those that are answered without a wait take some 10 ms. (Producers that want
no answers have nothing else that stops them.)"""
SLOTS_MAX: Final = 256
WRITE_BYTES_HIGH: Final = 1 << 20
WRITE_BYTES_LOW: Final = 256 << 10


class KafkaPaused(IntFlag):
    """Why a connection is not read (``FramedConnection.pause``; its own come first)."""

    REQUEST = FREE_REASON
    PUBLISHES = FREE_REASON << 1
    UNSENT = FREE_REASON << 2
    SLOTS = FREE_REASON << 3
    RATE = FREE_REASON << 4


class Slot:
    """A request's place among the answers. ``response`` None with ``done``: there is none."""

    __slots__ = ("done", "head", "made", "response")

    def __init__(self, head: RequestHead) -> None:
        self.head = head
        self.response: Any = None
        self.done = False
        self.made: tuple[Sequence[Buffer], int] | None = None
        """What ``encoded`` gave, if it was made already."""

    def encoded(self, elements_max: int | None = None) -> tuple[Sequence[Buffer], int]:
        """The frame of the answer in parts, and its size. Raises ``LongMessageError``."""
        head = self.head
        return encode_response(
            head.api_key, head.version, head.correlation_id, self.response, elements_max
        )


class TokenSlot(Slot):
    """Of a mechanism's message that came without a header. Its answer has none either, and no place
    for an error: the end of the connection says it, as Kafka does."""

    __slots__ = ()

    def encoded(self, elements_max: int | None = None) -> tuple[Sequence[Buffer], int]:
        if self.response.error_code:
            return (), 0
        token: bytes = self.response.auth_bytes
        return (len(token).to_bytes(LENGTH_BYTES, "big"), token), LENGTH_BYTES + len(token)


Handler: TypeAlias = "Callable[[KafkaSession, RequestHead, Any], Awaitable[Any]]"


class KafkaHandlers(Protocol):
    """What a session knows of those who answer its requests (``handlers``)."""

    @property
    def table(self) -> Mapping[int, Handler]: ...

    def produce_now(
        self, session: KafkaSession, head: RequestHead, request: Any, answer: Callable[[Any], None]
    ) -> bool:
        """Append what is to be produced, if that can be done without waiting; else False, and
        nothing was done. ``answer`` is called once, now or later."""
        ...


def request_bytes_max(services: KafkaServices) -> int:
    """A request has batches of many partitions, of ``message_bytes_max`` each. Who sends more in
    one is told, which cannot be before the request is read: whose connection ends instead sends
    the same again."""
    least = services.broker.message_bytes_max + FRAME_SLACK_BYTES
    return max(least, services.config.request_bytes_max)


class KafkaSession(FramedConnection):
    """The server's side of a client connection. ``tls``: it came by the listener with TLS."""

    def __init__(self, services: KafkaServices, handlers: KafkaHandlers, tls: bool = False) -> None:
        super().__init__(request_bytes_max(services), services.connections)
        self.services = services
        self.handlers = handlers
        self.tls = tls
        self.gate: SaslGate | None = None
        """None: nobody must show who it is."""
        self.exchange: SaslExchange | None = None
        self._bare_tokens = False
        self._grants: Grants | None = None
        self._ends = False
        self.client_id = ""
        self.frames = 0
        self.first_refused = FirstRefused()
        self._slots: deque[Slot] = deque()
        self._at_end: dict[Hashable, Callable[[], None]] = {}
        self._held_until_s = 0.0
        self._hold: asyncio.TimerHandle | None = None
        self._unconfirmed_bytes = 0
        self._unconfirmed_bytes_max = services.broker.pending_publish_bytes_per_connection

    # -- the connection -----------------------------------------------------------------------

    def connected(self) -> None:
        services = self.services
        most, setting = services.broker.connections_max, "broker.connections_max"
        if not self.admitted(len(services.sessions), most, setting, services.closing):
            return
        self.set_write_limits(WRITE_BYTES_HIGH, WRITE_BYTES_LOW)
        services.sessions[self] = None
        if services.access is not None:
            mechanisms = services.access.authenticator.mechanisms
            lifetime_s = services.config.session_lifetime_ms / 1000
            without = self._without_sasl(services.access.authenticator)
            self.gate = SaslGate(mechanisms, without, lifetime_s)
            self._frame_bytes_max = FIRST_FRAME_BYTES_MAX

    def disconnected(self, error: Exception | None) -> None:
        self.services.sessions.pop(self, None)
        self._slots.clear()
        if self._hold is not None:
            self._hold.cancel()
        for end in self._at_end.values():
            end()
        self._at_end.clear()

    def at_end(self, who: Hashable, end: Callable[[], None]) -> None:
        """Call ``end`` when the connection is over, once for each ``who``."""
        self._at_end[who] = end

    def writable_changed(self) -> None:
        if self.writable:
            self.resume(KafkaPaused.UNSENT)
        else:
            self.pause(KafkaPaused.UNSENT)

    def is_gone(self) -> bool:
        """Also of a client that has hung up while its request is under way and nothing is read."""
        return self.closed or (self.descriptor >= 0 and bool(hung_up([self.descriptor])))

    def turns(self, at_once: int = THINGS_AT_ONCE) -> LoopTurns:
        """Of a request that names ``at_once`` things and more."""
        return LoopTurns(self._connections.line, self, at_once)

    @property
    def waits(self) -> bool:
        """A request of it is under way."""
        return bool(self._slots)

    @property
    def descriptor(self) -> int:
        """Of its socket; -1: there is none."""
        found = None if self.transport is None else self.transport.get_extra_info("socket")
        return -1 if found is None else int(found.fileno())

    # -- who the client is --------------------------------------------------------------------

    def _without_sasl(self, authenticator: Authenticator) -> Principal | None:
        """Who the client is if it shows nothing more than its certificate, if it has one."""
        assert self.transport is not None
        name = peer_name(self.transport)
        try:
            return authenticator.anonymous() if name is None else authenticator.by_certificate(name)
        except AuthenticationError:
            return None

    @property
    def is_known(self) -> bool:
        """It has shown who it is, or need not."""
        return self.gate is None or self.gate.principal is not None

    @property
    def grants(self) -> Grants:
        """What the client may do. Only where it must show who it is, and once it is known."""
        found = self._grants
        if found is None:
            access = self.services.access
            assert access is not None
            assert self.gate is not None
            assert self.gate.principal is not None
            found = self._grants = Grants(access, self.gate.principal, self._loop.time)
        return found

    def begin_exchange(self, access: Access, *, bare_tokens: bool) -> None:
        """``bare_tokens``: the mechanism's messages come without headers."""
        assert self.gate is not None
        self._bare_tokens = bare_tokens
        self.exchange = exchange_of(self.gate.mechanism, access, self.services.sasl_secret)

    def known(self) -> None:
        """From now on its requests may be large."""
        self.exchange = None
        self._bare_tokens = False
        self._frame_bytes_max = request_bytes_max(self.services)

    def refused(self) -> None:
        """The connection ends with the answer to the request that is under way."""
        self._ends = True

    def _pass_gate(self, gate: SaslGate, head: RequestHead) -> None:
        """Raises ``ProtocolError``."""
        was_known = gate.principal is not None
        try:
            gate.check(head.api_key, self.services.clock())
        except ProtocolError:
            self.services.traffic.refused += 1
            raise
        if not was_known and gate.principal is not None:
            self.known()

    # -- requests -----------------------------------------------------------------------------

    def frames_received(self, view: memoryview, bounds: Sequence[tuple[int, int]]) -> None:
        for number, (start, end) in enumerate(bounds, 1):
            self.frames += 1
            self._request(view[start:end])
            if self.closed:
                return
            if number == FRAMES_PER_TURN:
                self.give_way()
            if self.paused:
                self.stop_after(bounds, end)
                return

    def _request(self, frame: memoryview) -> None:
        if self._bare_tokens:
            self._token(bytes(frame))
            return
        reader = FieldReader(frame)
        head = read_head(reader)
        if self.gate is not None:
            self._pass_gate(self.gate, head)
        if head.api is None:
            self._not_served(head)
            return
        self.client_id = head.client_id
        self.services.traffic.requests[head.api.key] += 1
        slot = Slot(head)
        if head.api_key == ApiKey.PRODUCE:
            if self._produce(slot, reader):
                return
            self._slots.pop()
        # It outlives this call: its bytes are its own from here on.
        reader = FieldReader(memoryview(bytes(frame)))
        head, all_left, at = read_head(reader), reader.left, reader.at
        reader.left = ELEMENTS_AT_ONCE
        try:
            request = read_request(head, reader)
        except LongMessageError:
            reader.left, reader.at = all_left, at
            request = partial(read_request, head, reader)
        self._begin(slot, request)

    def _token(self, token: bytes) -> None:
        """A frame within an exchange that version 0 of SaslHandshake began."""
        key = ApiKey.SASL_AUTHENTICATE
        head = RequestHead(key, 0, 0, self.client_id, APIS[key])
        assert self.gate is not None
        self._pass_gate(self.gate, head)
        self.services.traffic.requests[key] += 1
        self._begin(TokenSlot(head), SaslAuthenticateRequest(token))

    def _begin(self, slot: Slot, request: Any) -> None:
        """Nothing is read until the request is answered. A long one is a ``partial`` that reads
        it."""
        if self.services.scope.closed:
            self.close()  # the broker ends; what waited behind a request that it gave up comes now
            return
        self._slots.append(slot)
        self.pause(KafkaPaused.REQUEST)
        task = self._answer(slot, request)
        name = f"{self.peer} {ApiKey(slot.head.api_key).name}"
        self.services.scope.spawn(task, name, fails(self._failed))

    def _produce(self, slot: Slot, reader: FieldReader) -> bool:
        request = read_request(slot.head, reader)
        self._slots.append(slot)  # before: it may be answered at once

        def answer(response: Any) -> None:
            self._fill(slot, response)

        if not self.handlers.produce_now(self, slot.head, request, answer):
            return False
        if len(self._slots) >= SLOTS_MAX:
            self.pause(KafkaPaused.SLOTS)
        return True

    def _not_served(self, head: RequestHead) -> None:
        if head.api_key != ApiKey.API_VERSIONS:
            self.services.traffic.refused += 1
            raise ProtocolError(
                f"request {head.api_key} version {head.version} is not served here; ApiVersions "
                "says what is"
            )
        slot = Slot(head._replace(version=0))
        self._slots.append(slot)
        self._fill(slot, versions_response(ErrorCode.UNSUPPORTED_VERSION))

    async def _answer(self, slot: Slot, request: Any) -> None:
        handler = self.handlers.table[slot.head.api_key]
        try:
            if isinstance(request, partial):
                request = await self._on_thread(request)
            slot.response = response = await handler(self, slot.head, request)
            if response is not None:
                slot.made = await self._made(slot)
        except ClientGoneError as gone:
            log.info("request given up", peer=self.peer, reason=str(gone))
            self.abort()
            return
        except MagnetarError as error:
            # A handler answers what it can; what it cannot say in its answer ends the connection,
            # and the client asks again.
            refusals = self.services.connections.refusals
            refusals.say("request failed", self.peer, error=str(error))
            self.services.traffic.refused += 1
            self.close()
            return
        self._fill(slot, response)
        if self._ends:
            self.close()
            return
        self.resume(KafkaPaused.REQUEST)

    async def _made(self, slot: Slot) -> tuple[Sequence[Buffer], int]:
        """Of how many elements an answer is does not follow from its request: 12 bytes ask for all
        topics, or for all groups."""
        try:
            return slot.encoded(ELEMENTS_AT_ONCE)
        except LongMessageError:
            made: tuple[Sequence[Buffer], int] = await self._on_thread(slot.encoded)
            return made

    async def _on_thread(self, work: Callable[..., Any]) -> Any:
        """Of a client that still waits when its turn has come. Raises ``ClientGoneError``."""
        async with self.services.long_messages:
            if self.is_gone():
                raise ClientGoneError("the client has gone before its turn")
            return await self.services.on_thread(work)

    def _failed(self, task: str, error: BaseException) -> None:
        self.close()

    # -- answers ------------------------------------------------------------------------------

    def _fill(self, slot: Slot, response: Any) -> None:
        """The request's answer is there; None: it gets none."""
        slot.response, slot.done = response, True
        slots = self._slots
        while slots and slots[0].done:
            first = slots.popleft()
            if first.response is not None:
                parts, size = first.made or first.encoded()
                self.write_parts(parts, size)
        if self.paused and len(slots) <= SLOTS_MAX // 2:
            self.resume(KafkaPaused.SLOTS)

    def hold_back(self, wait_s: float) -> int:
        """Nothing is read for so long; returns what its client is told of it, in milliseconds.
        Clients that know this wait by themselves (KIP-219), and others by it."""
        wait_s = min(wait_s, HOLD_S_MAX)
        until_s = self._loop.time() + wait_s
        if until_s > self._held_until_s:
            self._held_until_s = until_s
            self.pause(KafkaPaused.RATE)
            if self._hold is not None:
                self._hold.cancel()
            self._hold = self._loop.call_later(wait_s, self._end_hold)
        return max(1, int(wait_s * 1000))

    def _end_hold(self) -> None:
        self._hold = None
        self.resume(KafkaPaused.RATE)

    def publish_begun(self, byte_count: int) -> None:
        self._unconfirmed_bytes += byte_count
        if self._unconfirmed_bytes > self._unconfirmed_bytes_max:
            self.pause(KafkaPaused.PUBLISHES)

    def publish_ended(self, byte_count: int) -> None:
        self._unconfirmed_bytes -= byte_count
        if self.paused and self._unconfirmed_bytes <= self._unconfirmed_bytes_max // 2:
            self.resume(KafkaPaused.PUBLISHES)
