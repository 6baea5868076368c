"""How a read-only broker asks the owners of topics: BOUND_CURSOR over Pulsar's own port.

Owns one connection per owner that is asked for something, made when it is needed, and who is to
hear of which subscription. Implements ``topics.remote_acks.CursorOwners``.

Rules:

* Who owns the topic is asked for each request (``cluster.ownership``; from memory, once warm).
  A candidate is asked too: it takes the topic by that.
* A request is asked once. Whoever asks knows what to do when it fails.
* When a connection breaks, everybody who is bound to a subscription by it is told to say all again:
  the owner may be another one by then, and what was on its way may be lost.
* A connection that does not answer within ``ANSWER_S``, or is silent for ``SILENCE_S`` though it is
  asked whether it is there, is broken off: an owner that died without a word must be missed before
  the next one takes our bindings for abandoned.

Why: docs/adr/0094-read-only-brokers.md.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import structlog

from magnetar import __version__
from magnetar.cluster.ownership import At, Ownership
from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.env.asking import AskingConnection
from magnetar.env.connections import Connections
from magnetar.env.tasks import TaskScope
from magnetar.log.ack_images import decode_image, encode_in_parts
from magnetar.log.acknowledgements import AckImage
from magnetar.model.errors import (
    BindingEndedError,
    BrokerError,
    MagnetarError,
    NotAllowedError,
    ProtocolError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from magnetar.model.ids import Position
from magnetar.topics.remote_acks import Borrowed, LentCursor, NewsKind, OwnerNews
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.commands import (
    PING_FRAME,
    PONG_FRAME,
    PROTOCOL_VERSION,
    decode_command,
    encode_command,
)
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandBindingNews,
    CommandBoundCursor,
    CommandBoundCursorResponse,
)

log = structlog.get_logger(__name__)

FRAME_BYTES_MAX: Final = 64 << 20
IMAGE_BYTES_MAX: Final = 1 << 20
"""Of one request: below what any broker takes as a frame."""
CONNECT_S: Final = 5.0
ANSWER_S: Final = 15.0
PING_S: Final = 5.0
SILENCE_S: Final = 15.0
GREETING: Final = 0
"""The id of what CONNECTED answers; requests have others."""

Asked: TypeAlias = tuple[TopicName, str]
"""Topic and subscription."""

KINDS: Final[Mapping[int, type[MagnetarError]]] = {
    ServerError.TOPIC_NOT_FOUND: TopicNotFoundError,
    ServerError.NOT_ALLOWED: NotAllowedError,
}
NEWS: Final = {
    CommandBindingNews.ENDED: NewsKind.ENDED,
    CommandBindingNews.MOVED: NewsKind.MOVED,
    CommandBindingNews.CLOSED: NewsKind.SAY_AGAIN,
    CommandBindingNews.WANTED: NewsKind.WANTED,
    CommandBindingNews.ASKED: NewsKind.ASKED,
}


class _OwnerLine(AskingConnection[BaseCommand]):
    """A connection to an owner. ``told`` hears what it says unasked, ``broke`` that it is gone."""

    def __init__(
        self,
        connections: Connections,
        told: Callable[[CommandBindingNews], None],
        broke: Callable[[_OwnerLine], None],
    ) -> None:
        super().__init__(FRAME_BYTES_MAX, connections, "owner", ServiceNotReadyError)
        self.heard_s = self._loop.time()
        self._told = told
        self._broke = broke

    def frames_received(self, view: memoryview, bounds: Sequence[tuple[int, int]]) -> None:
        self.heard_s = self._loop.time()
        for start, end in bounds:
            command = decode_command(view, start, end)
            if command.type == BaseCommand.PING:
                self.write(PONG_FRAME)
            elif command.type == BaseCommand.BOUND_CURSOR_RESPONSE:
                self.answered(command.bound_cursor_response.request_id, command)
            elif command.type == BaseCommand.BINDING_NEWS:
                self._told(command.binding_news)
            elif command.type in (BaseCommand.CONNECTED, BaseCommand.ERROR):
                self.answered(GREETING, command)

    def fail(self, why: str) -> None:
        if self.why:
            return
        super().fail(f"{self.peer}: {why}")
        self._broke(self)


class _BindingListener(NamedTuple):
    """Who hears of a subscription, and the connection by which it was spoken of last."""

    told: Callable[[OwnerNews], None]
    line: _OwnerLine | None


class ReadOnlyBroker(NamedTuple):
    """This broker, as it is registered."""

    broker_id: str
    start: int
    service_url: str


class OwnerLinks:
    """See the module's text. ``me`` is known once the broker is registered."""

    def __init__(self, ownership: Ownership, connections: Connections, scope: TaskScope) -> None:
        self._scope = scope
        self.me: ReadOnlyBroker | None = None
        self._ownership = ownership
        self._connections = connections
        self._lines: dict[str, _OwnerLine] = {}
        self._connecting: dict[str, asyncio.Lock] = {}
        self._listeners: dict[Asked, _BindingListener] = {}
        self._request_ids = itertools.count(GREETING + 1)
        self._closed = False

    # -- what is asked ------------------------------------------------------------------------

    async def open_topic(self, topic: TopicName, create: bool) -> Position:
        request = self._request(CommandBoundCursor.OPEN, topic)
        request.create = create
        reply = await self._ask(topic, request)
        return Position(reply.last_ledger_id, reply.last_entry_id)

    async def bind(
        self,
        topic: TopicName,
        subscription: str,
        first: Position,
        properties: Mapping[str, str],
        told: Callable[[OwnerNews], None],
    ) -> Borrowed:
        me = self.me
        if me is None:
            raise ServiceNotReadyError("this broker is not registered yet; try again")
        request = self._request(CommandBoundCursor.BIND, topic, subscription)
        request.service_url = me.service_url
        request.first_ledger_id, request.first_entry_id = first
        for key, value in properties.items():
            request.properties.add(key=key, value=value)
        self._listeners[topic, subscription] = _BindingListener(told, None)
        try:
            reply = await self._ask(topic, request)
            image = decode_image(reply.image)
        except BaseException:
            self.forget(topic, subscription)
            raise
        kept = {each.key: each.value for each in reply.properties}
        return Borrowed(LentCursor(topic, subscription, reply.epoch), image, kept)

    async def merge(self, cursor: LentCursor, image: AckImage) -> None:
        for part in encode_in_parts(image, IMAGE_BYTES_MAX):
            request = self._of(CommandBoundCursor.MERGE, cursor)
            request.image = part
            await self._ask(cursor.topic, request)

    async def release(self, cursor: LentCursor) -> None:
        await self._ask(cursor.topic, self._of(CommandBoundCursor.RELEASE, cursor))

    async def delete(self, cursor: LentCursor) -> None:
        await self._ask(cursor.topic, self._of(CommandBoundCursor.DELETE, cursor))

    async def keep(self, cursor: LentCursor) -> None:
        await self._ask(cursor.topic, self._of(CommandBoundCursor.KEEP, cursor))

    def forget(self, topic: TopicName, subscription: str) -> None:
        self._listeners.pop((topic, subscription), None)

    def _request(
        self, action: CommandBoundCursor.Action.ValueType, topic: TopicName, subscription: str = ""
    ) -> CommandBoundCursor:
        request = CommandBoundCursor(request_id=next(self._request_ids), action=action)
        request.topic, request.subscription = str(topic), subscription
        if self.me is not None:
            request.broker_id, request.start = self.me.broker_id, self.me.start
        return request

    def _of(
        self, action: CommandBoundCursor.Action.ValueType, cursor: LentCursor
    ) -> CommandBoundCursor:
        request = self._request(action, cursor.topic, cursor.subscription)
        request.epoch = cursor.epoch
        return request

    # -- asking -------------------------------------------------------------------------------

    async def _ask(
        self, topic: TopicName, request: CommandBoundCursor
    ) -> CommandBoundCursorResponse:
        """Raises ``BindingEndedError``, ``TopicNotFoundError``, ``NotAllowedError``; when asking
        again may help ``ServiceNotReadyError``, ``MetadataError`` and what else the owner says."""
        owner = await self._ownership.locate(topic)
        if not isinstance(owner, At):
            raise ServiceNotReadyError(f"topic {topic} has no owner now; try again")
        line = await self._connected(owner.service_url)
        listener = self._listeners.get((topic, request.subscription))
        if listener is not None:
            # Before the answer: it may break before that comes.
            self._listeners[topic, request.subscription] = listener._replace(line=line)
        command = BaseCommand(type=BaseCommand.BOUND_CURSOR, bound_cursor=request)
        reply = (
            await line.ask(encode_command(command), request.request_id, ANSWER_S)
        ).bound_cursor_response
        if not reply.HasField("error"):
            return reply
        if reply.ended:
            raise BindingEndedError(reply.message)
        code = int(reply.error)
        if code == ServerError.SERVICE_NOT_READY:
            raise ServiceNotReadyError(f"the broker at {line.peer}: {reply.message}")
        kind = KINDS.get(code, BrokerError)
        raise kind(f"the broker at {line.peer} refuses: {reply.message}")

    async def _connected(self, service_url: str) -> _OwnerLine:
        lock = self._connecting.setdefault(service_url, asyncio.Lock())
        async with lock:
            line = self._lines.get(service_url)
            if line is None or line.why:
                line = self._lines[service_url] = await self._connect(service_url)
            return line

    async def _connect(self, service_url: str) -> _OwnerLine:
        if self._closed:
            raise ServiceNotReadyError("this broker is closing")
        parts = urlsplit(service_url)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, line = await loop.create_connection(
                    lambda: _OwnerLine(self._connections, self._told, self._broke),
                    parts.hostname or "",
                    parts.port or 0,
                )
        except (OSError, TimeoutError) as error:
            why = str(error) or "no answer"
            raise ServiceNotReadyError(
                f"no connection to the owner, {service_url}: {why}"
            ) from error
        command = BaseCommand(type=BaseCommand.CONNECT)
        command.connect.client_version = f"Magnetar read-only {__version__}"
        command.connect.protocol_version = PROTOCOL_VERSION
        try:
            check_greeting(
                await line.ask(encode_command(command), GREETING, CONNECT_S), service_url
            )
        except BaseException:
            line.end("the greeting failed")
            raise
        return line

    # -- what is told -------------------------------------------------------------------------

    def _told(self, news: CommandBindingNews) -> None:
        try:
            topic = parse_topic(news.topic)
        except MagnetarError as error:
            raise ProtocolError(f"news of {news.topic!r}: {error}") from error
        listener = self._listeners.get((topic, news.subscription))
        if listener is None:
            # It was given back, and the owner had not heard yet; or it does not know that we have
            # never heard of the binding.
            if news.what == CommandBindingNews.ASKED:
                self._disown(LentCursor(topic, news.subscription, news.epoch))
            return
        moved = news.HasField("mark_ledger_id")
        mark = Position(news.mark_ledger_id, news.mark_entry_id) if moved else None
        listener.told(OwnerNews(NEWS[news.what], news.epoch, mark))

    def _disown(self, cursor: LentCursor) -> None:
        async def release() -> None:
            try:
                await self.release(cursor)
            except MagnetarError as error:  # we are asked again
                log.info("binding not disowned", topic=str(cursor.topic), error=str(error))

        self._scope.spawn(release(), f"disown {cursor.subscription}")

    def _broke(self, line: _OwnerLine) -> None:
        for asked, listener in list(self._listeners.items()):
            if listener.line is line and self._listeners.get(asked) is listener:
                self._listeners[asked] = listener._replace(line=None)
                listener.told(OwnerNews(NewsKind.SAY_AGAIN))

    async def run(self) -> None:
        """Ask each connection whether it is there, until cancelled."""
        while True:
            await asyncio.sleep(PING_S)
            now_s = asyncio.get_running_loop().time()
            self._lines = {url: line for url, line in self._lines.items() if not line.why}
            for line in list(self._lines.values()):
                if now_s - line.heard_s > SILENCE_S:
                    line.end(f"silent for {SILENCE_S:.0f} s")
                else:
                    line.write(PING_FRAME)

    def close(self) -> None:
        """End the connections; nobody is told."""
        self._closed = True
        self._listeners.clear()
        for line in self._lines.values():
            line.end("this broker is closing")


def check_greeting(answer: BaseCommand, owner: str) -> None:
    """Raises ``ServiceNotReadyError`` unless the owner lends cursors."""
    if answer.type != BaseCommand.CONNECTED:
        raise ServiceNotReadyError(f"{owner} refused the connection: {answer.error.message}")
    connected = answer.connected
    if not connected.feature_flags.supports_bound_cursors:
        raise ServiceNotReadyError(
            f"the owner at {owner} ({connected.server_version}) does not lend subscriptions; it is "
            "of an older release"
        )
