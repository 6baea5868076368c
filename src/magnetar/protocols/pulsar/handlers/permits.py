"""What a client's role must be permitted for its requests, where clients must show who they are.

Asked once per request that opens something, or asks about it. What is about a producer or consumer
of the connection was permitted when that was opened. Every request has its entry here (``table``).

Why: docs/adr/0155-permissions-are-asked-when-something-is-opened.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from magnetar.cluster.security.access import Access
from magnetar.cluster.security.permissions import Action
from magnetar.cluster.topic_name import TopicName, parse_namespace, parse_topic
from magnetar.model.errors import AuthorizationError, IncompatibleSchemaError, TopicNotFoundError
from magnetar.protocols.pulsar.session import Session
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandPartitionedTopicMetadata,
)

Permit: TypeAlias = Callable[[Session, Access, BaseCommand], Awaitable[None]]
"""Raises ``AuthorizationError``, and what ``Access.check`` raises."""


async def _check(session: Session, access: Access, action: Action, of: TopicName | str) -> None:
    assert session.identity is not None, "a session that is ready has one"
    await access.check(session.identity.principal, action, of)


def _check_for_itself(request: CommandLookupTopic | CommandPartitionedTopicMetadata) -> None:
    """What a proxy asks for its client would be answered by what the proxy may do."""
    if request.original_principal or request.original_auth_data:
        raise AuthorizationError("a request for another client: proxies are not served")


async def _look_up(session: Session, access: Access, command: BaseCommand) -> None:
    _check_for_itself(command.lookupTopic)
    await _check(session, access, Action.LOOKUP, parse_topic(command.lookupTopic.topic))


async def _partitions(session: Session, access: Access, command: BaseCommand) -> None:
    _check_for_itself(command.partitionMetadata)
    await _check(session, access, Action.LOOKUP, parse_topic(command.partitionMetadata.topic))


async def _names(session: Session, access: Access, command: BaseCommand) -> None:
    request = command.getTopicsOfNamespace
    try:
        await _check(session, access, Action.LOOKUP, parse_namespace(request.namespace))
    except TopicNotFoundError:
        # Everybody is told that it is not there, in the way of `topics_of_namespace`, which looks
        # again: were it made meanwhile, it would have no topics yet.
        if request.mode != CommandGetTopicsOfNamespace.PERSISTENT:
            raise


async def _watched_names(session: Session, access: Access, command: BaseCommand) -> None:
    name = parse_namespace(command.watchTopicList.namespace)
    await _check(session, access, Action.LOOKUP, name)


async def _schema(session: Session, access: Access, command: BaseCommand) -> None:
    await _check(session, access, Action.LOOKUP, parse_topic(command.getSchema.topic))


async def _new_schema(session: Session, access: Access, command: BaseCommand) -> None:
    """Told as the one refusal on which Java's client does not ask again at once."""
    try:
        name = parse_topic(command.getOrCreateSchema.topic)
        await _check(session, access, Action.PRODUCE, name)
    except AuthorizationError as error:
        raise IncompatibleSchemaError(str(error)) from error


async def _produce(session: Session, access: Access, command: BaseCommand) -> None:
    request = command.producer
    name = parse_topic(request.topic)
    await _check(session, access, Action.PRODUCE, name)
    if request.initial_subscription_name:
        await _check(session, access, Action.CONSUME, name)


async def _subscribe(session: Session, access: Access, command: BaseCommand) -> None:
    await _check(session, access, Action.CONSUME, parse_topic(command.subscribe.topic))


async def _last_message_id(session: Session, access: Access, command: BaseCommand) -> None:
    """What a job tells of a topic's table, and of compaction, has ledgers deleted."""
    request, number = command.getLastMessageId, command.getLastMessageId.consumer_id
    question = request.log_question
    # One that is on its way to another broker is answered, too.
    found = session.leaving.get(number) or session.consumers.get(number)
    if found is not None and (question.HasField("table") or question.HasField("compaction")):
        await _check(session, access, Action.ADMIN, found.topic.name)


async def _super_user(session: Session, access: Access, command: BaseCommand) -> None:
    assert session.identity is not None
    what = "ask what brokers ask of each other, or write staged ledgers"
    access.check_super_user(session.identity.principal, what)


async def _opened(_session: Session, _access: Access, _command: BaseCommand) -> None:
    """About what was permitted when it was opened."""


PERMITS: Final[Mapping[int, Permit]] = MappingProxyType(
    {
        BaseCommand.LOOKUP: _look_up,
        BaseCommand.PARTITIONED_METADATA: _partitions,
        BaseCommand.GET_TOPICS_OF_NAMESPACE: _names,
        BaseCommand.WATCH_TOPIC_LIST: _watched_names,
        BaseCommand.GET_SCHEMA: _schema,
        BaseCommand.GET_OR_CREATE_SCHEMA: _new_schema,
        BaseCommand.PRODUCER: _produce,
        BaseCommand.SUBSCRIBE: _subscribe,
        BaseCommand.GET_LAST_MESSAGE_ID: _last_message_id,
        BaseCommand.STAGED_WRITE: _super_user,
        BaseCommand.BOUND_CURSOR: _super_user,
        BaseCommand.CLOSE_PRODUCER: _opened,
        BaseCommand.CLOSE_CONSUMER: _opened,
        BaseCommand.UNSUBSCRIBE: _opened,
        BaseCommand.SEEK: _opened,
        BaseCommand.CONSUMER_STATS: _opened,
        BaseCommand.WATCH_TOPIC_LIST_CLOSE: _opened,
    }
)
