"""BOUND_CURSOR: what read-only brokers ask a topic's owner about subscriptions that they serve.

A broker that is asked for a topic that nobody owns takes it, as for PRODUCER and SUBSCRIBE.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from magnetar.cluster.topic_name import parse_topic
from magnetar.log.ack_images import decode_image, encode_image
from magnetar.log.seam import Binding
from magnetar.model.errors import BindingEndedError, NotAllowedError, ProtocolError
from magnetar.model.ids import Position
from magnetar.protocols.pulsar.bounds import check_subscription
from magnetar.protocols.pulsar.session import Session
from magnetar.topics.bindings import OwnerBindings
from magnetar.topics.topic import Topic
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandBindingNews,
    CommandBoundCursor,
    CommandBoundCursorResponse,
)


class SessionBroker:
    """The read-only broker on a session, for one subscription (``topics.bound.BoundBroker``)."""

    __slots__ = ("_session", "_subscription", "_topic")

    def __init__(self, session: Session, topic: str, subscription: str) -> None:
        self._session = session
        self._topic = topic
        self._subscription = subscription

    @property
    def connected(self) -> bool:
        return not self._session.closed

    def tell_ended(self, binding: Binding) -> None:
        self._tell(CommandBindingNews.ENDED, binding.epoch)

    def tell_wanted(self, binding: Binding) -> None:
        self._tell(CommandBindingNews.WANTED, binding.epoch)

    def tell_asked(self, binding: Binding) -> None:
        self._tell(CommandBindingNews.ASKED, binding.epoch)

    def tell_moved(self, binding: Binding, mark_delete: Position) -> None:
        self._tell(CommandBindingNews.MOVED, binding.epoch, mark_delete)

    def tell_closed(self, service_url: str = "") -> None:
        self._tell(CommandBindingNews.CLOSED, 0)

    def _tell(
        self,
        what: CommandBindingNews.What.ValueType,
        epoch: int,
        mark_delete: Position | None = None,
    ) -> None:
        command = BaseCommand(type=BaseCommand.BINDING_NEWS)
        news = command.binding_news
        news.what, news.epoch = what, epoch
        news.topic, news.subscription = self._topic, self._subscription
        if mark_delete is not None:
            news.mark_ledger_id, news.mark_entry_id = mark_delete
        self._session.send_command(command)


class BoundQuestion(NamedTuple):
    """A BOUND_CURSOR on its way: about which topic, and where its answer goes."""

    bindings: OwnerBindings
    session: Session
    topic: Topic
    request: CommandBoundCursor
    reply: CommandBoundCursorResponse

    @property
    def claimed(self) -> Binding:
        asked = self.request
        return Binding(asked.epoch, asked.broker_id, asked.start, asked.service_url)

    def client(self) -> SessionBroker:
        """Who asks; it is told of the subscription as long as the session lasts."""
        return SessionBroker(self.session, self.request.topic, self.request.subscription)


async def bound_cursor(session: Session, command: BaseCommand) -> None:
    request, bindings = command.bound_cursor, session.services.bindings
    action = ACTIONS.get(request.action)
    if bindings is None or action is None:
        raise NotAllowedError("this broker does not serve what is asked of bound cursors")
    answer = BaseCommand(type=BaseCommand.BOUND_CURSOR_RESPONSE)
    reply = answer.bound_cursor_response
    reply.request_id = request.request_id
    creates = request.action == CommandBoundCursor.OPEN and request.create
    topic = await session.services.topics.get(parse_topic(request.topic), create=creates)
    try:
        with topic.held():
            await action(BoundQuestion(bindings, session, topic, request, reply))
    except BindingEndedError as error:
        reply.error = ServerError.SERVICE_NOT_READY  # type: ignore[assignment]
        reply.message, reply.ended = str(error), True
    session.send_command(answer)


async def _open(asked: BoundQuestion) -> None:
    """The topic is open by now."""
    reply = asked.reply
    reply.last_ledger_id, reply.last_entry_id = asked.topic.readable.positions.readable


async def _bind(asked: BoundQuestion) -> None:
    request, reply = asked.request, asked.reply
    properties = check_subscription(request.subscription, request.properties)
    lent = await asked.bindings.bind(
        asked.topic,
        request.subscription,
        Position(request.first_ledger_id, request.first_entry_id),
        properties,
        asked.claimed,
        asked.client(),
    )
    reply.epoch, reply.image = lent.binding.epoch, encode_image(lent.image)
    for key, value in sorted(lent.properties.items()):
        reply.properties.add(key=key, value=value)


async def _merge(asked: BoundQuestion) -> None:
    request = asked.request
    try:
        image = decode_image(request.image)
    except ProtocolError as error:
        raise NotAllowedError(str(error)) from error
    await asked.bindings.merge(
        asked.topic, request.subscription, asked.claimed, image, asked.client()
    )


async def _keep(asked: BoundQuestion) -> None:
    asked.bindings.keep(asked.topic, asked.request.subscription, asked.claimed, asked.client())


async def _release(asked: BoundQuestion) -> None:
    name = asked.request.subscription
    await asked.bindings.release(asked.topic, name, asked.claimed, asked.client())


async def _delete(asked: BoundQuestion) -> None:
    name = asked.request.subscription
    await asked.bindings.delete(asked.topic, name, asked.claimed, asked.client())


Action: TypeAlias = Callable[[BoundQuestion], Awaitable[None]]

ACTIONS: Final[Mapping[int, Action]] = MappingProxyType(
    {
        CommandBoundCursor.OPEN: _open,
        CommandBoundCursor.BIND: _bind,
        CommandBoundCursor.MERGE: _merge,
        CommandBoundCursor.RELEASE: _release,
        CommandBoundCursor.DELETE: _delete,
        CommandBoundCursor.KEEP: _keep,
    }
)
