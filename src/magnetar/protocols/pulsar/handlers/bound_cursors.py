"""BOUND_CURSOR: what read-only brokers ask a topic's owner about subscriptions that they serve.

A broker that is asked for a topic that nobody owns takes it, as for PRODUCER and SUBSCRIBE. MERGE,
which has images of many subscriptions, is an exception: those of topics that are not open here are
refused, so that the others do not wait; who asks has them opened first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from magnetar.cluster.topic_name import parse_topic
from magnetar.log.ack_images import decode_image, encode_image
from magnetar.log.seam import Binding, Cursor
from magnetar.model.errors import (
    BindingEndedError,
    MagnetarError,
    NotAllowedError,
    ProtocolError,
    ServiceNotReadyError,
)
from magnetar.model.ids import Position
from magnetar.protocols.pulsar.bounds import check_subscription
from magnetar.protocols.pulsar.session import Session
from magnetar.topics.bindings import OwnerBindings
from magnetar.topics.consuming.bound import SeatsTaken
from magnetar.topics.topic import Topic
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.errors import server_error
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandBindingNews,
    CommandBoundCursor,
    CommandBoundCursorResponse,
    LentImage,
    LentImageResult,
)


class SessionBroker:
    """The read-only broker on a session, for one subscription (a ``BoundBroker``), or,
    without one, as it follows the log of ``followed`` (``topics.followers.Follower``)."""

    __slots__ = ("_followed", "_session", "_subscription", "_topic")

    def __init__(
        self, session: Session, topic: str, subscription: str, followed: Topic | None = None
    ) -> None:
        self._session = session
        self._topic = topic
        self._subscription = subscription
        self._followed = followed

    @property
    def connected(self) -> bool:
        return not self._session.closed

    def tell_ended(self, binding: Binding) -> None:
        self._tell(CommandBindingNews.ENDED, binding.epoch)

    def tell_wanted(self, binding: Binding) -> None:
        self._tell(CommandBindingNews.WANTED, binding.epoch)

    def tell_asked(self, binding: Binding) -> None:
        self._tell(CommandBindingNews.ASKED, binding.epoch)

    def tell_moved(self, binding: Binding, mark_delete: Position, reset_epoch: int) -> None:
        self._tell(CommandBindingNews.MOVED, binding.epoch, mark_delete, reset_epoch)

    def tell_closed(self, service_url: str = "") -> None:
        # Its next owner may be asked by another connection, and nothing is said by this one then.
        followed, following = self._followed, self._session.following
        if followed is not None and following.get(followed.name) is followed:
            del following[followed.name]
        self._tell(CommandBindingNews.CLOSED, 0)

    @property
    def writable(self) -> bool:
        return self._session.writable

    def tell_grew(self, last: Position) -> None:
        self._tell(CommandBindingNews.GREW, 0, last)

    def _tell(
        self,
        what: CommandBindingNews.What.ValueType,
        epoch: int,
        mark_delete: Position | None = None,
        reset_epoch: int | None = None,
    ) -> None:
        command = BaseCommand(type=BaseCommand.BINDING_NEWS)
        news = command.binding_news
        news.what, news.epoch = what, epoch
        news.topic, news.subscription = self._topic, self._subscription
        if mark_delete is not None:
            news.mark_ledger_id, news.mark_entry_id = mark_delete
        if reset_epoch is not None:
            news.reset_epoch = reset_epoch
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
    if bindings is None:
        raise NotAllowedError("this broker owns no topics, and lends no cursors")
    answer = BaseCommand(type=BaseCommand.BOUND_CURSOR_RESPONSE)
    reply = answer.bound_cursor_response
    reply.request_id = request.request_id
    if request.action == CommandBoundCursor.MERGE:
        await _merge_all(bindings, session, request, reply)
    elif request.action == CommandBoundCursor.UNFOLLOW:
        _unfollow(session, request)
    else:
        await _of_topic(bindings, session, request, reply)
    session.send_command(answer)


async def _of_topic(
    bindings: OwnerBindings,
    session: Session,
    request: CommandBoundCursor,
    reply: CommandBoundCursorResponse,
) -> None:
    action = ACTIONS.get(request.action)
    if action is None:
        raise NotAllowedError("this broker does not serve what is asked of bound cursors")
    creates = request.action == CommandBoundCursor.OPEN and request.create
    topic = await session.services.topics.get(parse_topic(request.topic), create=creates)
    try:
        with topic.held():
            await action(BoundQuestion(bindings, session, topic, request, reply))
    except BindingEndedError as error:
        reply.error = ServerError.SERVICE_NOT_READY  # type: ignore[assignment]
        reply.message, reply.ended = str(error), True


async def _open(asked: BoundQuestion) -> None:
    """The topic is open by now."""
    reply = asked.reply
    reply.last_ledger_id, reply.last_entry_id = asked.topic.readable.positions.readable


async def _bind(asked: BoundQuestion) -> None:
    request, reply = asked.request, asked.reply
    properties = check_subscription(request.subscription, request.properties)
    # The broker that asked was told that it failed, if the connection broke while the topic was
    # opened here, and its client may go elsewhere.
    asked.session.check_open(f"subscription {request.subscription}")
    lent = await asked.bindings.bind(
        asked.topic,
        request.subscription,
        Position(request.first_ledger_id, request.first_entry_id),
        properties,
        asked.claimed,
        asked.client(),
    )
    reply.epoch, reply.image = lent.binding.epoch, encode_image(lent.image)
    reply.term = lent.term
    for key, value in sorted(lent.properties.items()):
        reply.properties.add(key=key, value=value)


async def _merge_all(
    bindings: OwnerBindings,
    session: Session,
    request: CommandBoundCursor,
    reply: CommandBoundCursorResponse,
) -> None:
    """Each image for itself: one that is refused keeps none of the others back. All are taken in
    this turn of the loop, so that what is stored of them goes to the bookies together."""
    taken: list[tuple[LentImageResult, Cursor]] = []
    for lent in request.images:
        result = reply.results.add()
        try:
            cursor = _merge(bindings, session, request, lent)
        except MagnetarError as error:
            _refuse(result, error)
        else:
            assert cursor.lending is not None
            result.term = cursor.lending.term
            taken.append((result, cursor))
    if request.stored:
        stored = (cursor.wait_stored() for _, cursor in taken)
        outcomes = await asyncio.gather(*stored, return_exceptions=True)
        for (result, _), outcome in zip(taken, outcomes, strict=True):
            if isinstance(outcome, MagnetarError):
                result.ClearField("term")
                _refuse(result, outcome)
            elif outcome is not None:
                raise outcome


def _merge(
    bindings: OwnerBindings, session: Session, request: CommandBoundCursor, lent: LentImage
) -> Cursor:
    topic = session.services.topics.find(parse_topic(lent.topic))
    if topic is None:
        raise ServiceNotReadyError(f"topic {lent.topic} is not open here; open it, and try again")
    try:
        image = decode_image(lent.image)
    except ProtocolError as error:
        raise NotAllowedError(str(error)) from error
    claimed = Binding(lent.epoch, request.broker_id, request.start)
    client = SessionBroker(session, lent.topic, lent.subscription)
    return bindings.merge(topic, lent.subscription, claimed, image, client)


def _refuse(result: LentImageResult, error: MagnetarError) -> None:
    result.error = server_error(error)  # type: ignore[assignment]
    result.message = str(error)
    result.ended = isinstance(error, BindingEndedError)


async def _follow(asked: BoundQuestion) -> None:
    session, topic, reply = asked.session, asked.topic, asked.reply
    if session.closed:
        return  # nobody would end it
    last = topic.follow(session, SessionBroker(session, asked.request.topic, "", topic))
    session.following[topic.name] = topic  # unless that was refused: it closes, and tells nobody
    reply.last_ledger_id, reply.last_entry_id = last


def _unfollow(session: Session, request: CommandBoundCursor) -> None:
    """Without a topic that is open: it is not to be taken for that."""
    found = session.following.pop(parse_topic(request.topic), None)
    if found is not None:
        found.unfollow(session)


async def _keep(asked: BoundQuestion) -> None:
    request, seats = asked.request, None
    if request.HasField("seats"):
        told = request.seats
        seats = SeatsTaken(int(told.type), told.consumers, told.taken_by)
    name, client = request.subscription, asked.client()
    asked.bindings.keep(asked.topic, name, asked.claimed, client, seats)


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
        CommandBoundCursor.RELEASE: _release,
        CommandBoundCursor.DELETE: _delete,
        CommandBoundCursor.KEEP: _keep,
        CommandBoundCursor.FOLLOW: _follow,
    }
)
