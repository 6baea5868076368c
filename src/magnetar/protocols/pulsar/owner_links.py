"""How a read-only broker asks the owners of topics: BOUND_CURSOR over Pulsar's own port.

Owns one connection per owner that is asked for something, made when it is needed, and who is to
hear of which subscription. Implements ``topics.following.remote_acks.CursorOwners``.

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
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import structlog

from magnetar import __version__
from magnetar.cluster.brokers.tls_addresses import TlsAddresses
from magnetar.cluster.ownership import At, Ownership
from magnetar.cluster.security.own import OwnAccess
from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.env.network.connections import Connections
from magnetar.env.tasks import TaskScope
from magnetar.log.ack_images import decode_image, encode_in_parts
from magnetar.log.acknowledgements import AckImage
from magnetar.model.errors import (
    MagnetarError,
    ProtocolError,
    ServiceNotReadyError,
)
from magnetar.model.ids import Position
from magnetar.protocols.pulsar.merging import IMAGE_BYTES_MAX, Merging
from magnetar.protocols.pulsar.owner_line import (
    GREETING,
    OwnerLine,
    answer,
    check_greeting,
    encode,
    refusal,
)
from magnetar.topics.consuming.bound import SeatsTaken
from magnetar.topics.following.remote_acks import Borrowed, LentCursor, NewsKind, OwnerNews
from magnetar.wire.pulsar.commands import PING_FRAME, PROTOCOL_VERSION, encode_command
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandBindingNews,
    CommandBoundCursor,
    CommandBoundCursorResponse,
    LentImage,
)

log = structlog.get_logger(__name__)

CONNECT_S: Final = 5.0
PING_S: Final = 5.0
SILENCE_S: Final = 15.0

Asked: TypeAlias = tuple[TopicName, str | None]
"""Topic and subscription; without one: the end of its log."""

NEWS: Final = {
    CommandBindingNews.ENDED: NewsKind.ENDED,
    CommandBindingNews.MOVED: NewsKind.MOVED,
    CommandBindingNews.CLOSED: NewsKind.SAY_AGAIN,
    CommandBindingNews.WANTED: NewsKind.WANTED,
    CommandBindingNews.ASKED: NewsKind.ASKED,
    CommandBindingNews.GREW: NewsKind.GREW,
}


class _BindingListener(NamedTuple):
    """Who hears of a subscription, and the connection by which it was spoken of last."""

    told: Callable[[OwnerNews], None]
    line: OwnerLine | None


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
        self.own = OwnAccess()
        """What is shown to owners; set before the first is asked."""
        self.tls_addresses: TlsAddresses | None = None
        self._ownership = ownership
        self._connections = connections
        self._lines: dict[str, OwnerLine] = {}
        self._connecting: dict[str, asyncio.Lock] = {}
        self._listeners: dict[Asked, _BindingListener] = {}
        self._request_ids = itertools.count(GREETING + 1)
        self._merging = Merging(self._merge_request, scope)
        self._closed = False

    # -- what is asked ------------------------------------------------------------------------

    async def open_topic(self, topic: TopicName, create: bool) -> Position:
        request = self._request(CommandBoundCursor.OPEN, topic)
        request.create = create
        reply = await self._ask(topic, request, "")
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
            reply = await self._ask(topic, request, subscription)
            image = decode_image(reply.image)
        except BaseException:
            self.forget(topic, subscription)
            raise
        kept = {each.key: each.value for each in reply.properties}
        return Borrowed(LentCursor(topic, subscription, reply.epoch), image, reply.term, kept)

    async def merge(self, cursor: LentCursor, image: AckImage, stored: bool) -> int:
        terms = set()
        for part in encode_in_parts(image, IMAGE_BYTES_MAX):
            line = await self._line_to(cursor.topic, cursor.subscription)
            terms.add(await self._merging.send(line, _lent(cursor, part), stored))
        if len(terms) > 1:
            raise ServiceNotReadyError(f"topic {cursor.topic} has another owner now; say all again")
        return terms.pop()

    async def follow(self, topic: TopicName, told: Callable[[OwnerNews], None]) -> Position:
        self._listeners[topic, None] = _BindingListener(told, None)
        try:
            reply = await self._ask(topic, self._request(CommandBoundCursor.FOLLOW, topic), None)
        except BaseException:
            self._listeners.pop((topic, None), None)
            raise
        return Position(reply.last_ledger_id, reply.last_entry_id)

    def unfollow(self, topic: TopicName) -> None:
        listener = self._listeners.pop((topic, None), None)
        if listener is not None and listener.line is not None and not listener.line.why:
            self._unfollow(listener.line, topic)

    def _unfollow(self, line: OwnerLine, topic: TopicName) -> None:
        """Nobody waits for the answer: an owner that tells on is asked again."""
        line.write(encode(self._request(CommandBoundCursor.UNFOLLOW, topic)))

    async def release(self, cursor: LentCursor) -> None:
        await self._ask_of(CommandBoundCursor.RELEASE, cursor)

    async def delete(self, cursor: LentCursor) -> None:
        await self._ask_of(CommandBoundCursor.DELETE, cursor)

    async def keep(self, cursor: LentCursor, seats: SeatsTaken | None) -> None:
        request = self._of(CommandBoundCursor.KEEP, cursor)
        if seats is not None:
            told = request.seats
            told.type, told.consumers, told.taken_by = seats  # type: ignore[assignment]
        await self._ask(cursor.topic, request, cursor.subscription)

    def forget(self, topic: TopicName, subscription: str) -> None:
        self._listeners.pop((topic, subscription), None)

    def _merge_request(self) -> CommandBoundCursor:
        request = CommandBoundCursor(request_id=next(self._request_ids))
        request.action, request.topic = CommandBoundCursor.MERGE, ""
        self._sign(request)
        return request

    def _sign(self, request: CommandBoundCursor) -> None:
        if self.me is not None:
            request.broker_id, request.start = self.me.broker_id, self.me.start

    def _request(
        self, action: CommandBoundCursor.Action.ValueType, topic: TopicName, subscription: str = ""
    ) -> CommandBoundCursor:
        request = CommandBoundCursor(request_id=next(self._request_ids), action=action)
        request.topic, request.subscription = str(topic), subscription
        self._sign(request)
        return request

    def _of(
        self, action: CommandBoundCursor.Action.ValueType, cursor: LentCursor
    ) -> CommandBoundCursor:
        request = self._request(action, cursor.topic, cursor.subscription)
        request.epoch = cursor.epoch
        return request

    async def _ask_of(
        self, action: CommandBoundCursor.Action.ValueType, cursor: LentCursor
    ) -> None:
        await self._ask(cursor.topic, self._of(action, cursor), cursor.subscription)

    # -- asking -------------------------------------------------------------------------------

    async def _ask(
        self, topic: TopicName, request: CommandBoundCursor, about: str | None
    ) -> CommandBoundCursorResponse:
        """Raises ``BindingEndedError``, ``TopicNotFoundError``, ``NotAllowedError``; when asking
        again may help ``ServiceNotReadyError``, ``MetadataError`` and what else the owner says."""
        line = await self._line_to(topic, about)
        reply = await answer(line, request)
        if reply.HasField("error"):
            raise refusal(line, reply)
        return reply

    async def _line_to(self, topic: TopicName, about: str | None) -> OwnerLine:
        """To the topic's owner; that subscription, or the end of the log, is spoken of by it from
        now on."""
        owner = await self._ownership.locate(topic)
        if not isinstance(owner, At):
            raise ServiceNotReadyError(f"topic {topic} has no owner now; try again")
        line = await self._connected(owner.service_url)
        listener = self._listeners.get((topic, about))
        if listener is not None and listener.line is not line:
            # Before the answer: it may break before that comes.
            self._listeners[topic, about] = listener._replace(line=line)
        return line

    async def _connected(self, service_url: str) -> OwnerLine:
        lock = self._connecting.setdefault(service_url, asyncio.Lock())
        async with lock:
            line = self._lines.get(service_url)
            if line is None or line.why:
                line = self._lines[service_url] = await self._connect(service_url)
            return line

    async def _connect(self, service_url: str) -> OwnerLine:
        if self._closed:
            raise ServiceNotReadyError("this broker is closing")
        context, url = None, service_url
        if self.own.tls is not None and self.tls_addresses is not None:
            context, url = self.own.tls.context(), await self.tls_addresses.of(service_url)
            if not url:
                raise ServiceNotReadyError(
                    f"the owner at {service_url} has no TLS (broker.tls_port), and brokers are to "
                    "be asked by it (tls.between_brokers)"
                )
        parts = urlsplit(url)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, line = await loop.create_connection(
                    lambda: OwnerLine(self._connections, self._told, self._broke),
                    parts.hostname or "",
                    parts.port or 0,
                    ssl=context,
                )
        except (OSError, TimeoutError) as error:
            why = str(error) or "no answer"
            raise ServiceNotReadyError(
                f"no connection to the owner, {service_url}: {why}"
            ) from error
        command = BaseCommand(type=BaseCommand.CONNECT)
        command.connect.client_version = f"Magnetar read-only {__version__}"
        command.connect.protocol_version = PROTOCOL_VERSION
        if self.own.token is not None:
            command.connect.auth_method_name = "token"
            command.connect.auth_data = self.own.token().encode()
        try:
            check_greeting(
                await line.ask(encode_command(command), GREETING, CONNECT_S), service_url
            )
        except BaseException:
            line.end("the greeting failed")
            raise
        return line

    # -- what is told -------------------------------------------------------------------------

    def _told(self, line: OwnerLine, news: CommandBindingNews) -> None:
        try:
            topic = parse_topic(news.topic)
        except MagnetarError as error:
            raise ProtocolError(f"news of {news.topic!r}: {error}") from error
        listener = self._listeners.get((topic, news.subscription or None))
        if listener is None:
            # It was given back, and the owner had not heard yet; or it does not know that we have
            # never heard of the binding.
            if news.what == CommandBindingNews.ASKED:
                self._disown(LentCursor(topic, news.subscription, news.epoch))
            elif news.what == CommandBindingNews.GREW:
                self._unfollow(line, topic)
            return
        moved = news.HasField("mark_ledger_id")
        mark = Position(news.mark_ledger_id, news.mark_entry_id) if moved else None
        reset_epoch = news.reset_epoch if news.HasField("reset_epoch") else None
        listener.told(OwnerNews(NEWS[news.what], news.epoch, mark, reset_epoch))

    def _disown(self, cursor: LentCursor) -> None:
        async def release() -> None:
            try:
                await self.release(cursor)
            except MagnetarError as error:  # we are asked again
                log.info("binding not disowned", topic=str(cursor.topic), error=str(error))

        self._scope.spawn(release(), f"disown {cursor.subscription}")

    def _broke(self, line: OwnerLine) -> None:
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


def _lent(cursor: LentCursor, image: bytes) -> LentImage:
    return LentImage(
        topic=str(cursor.topic), subscription=cursor.subscription, epoch=cursor.epoch, image=image
    )
