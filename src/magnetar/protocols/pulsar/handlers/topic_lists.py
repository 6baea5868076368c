"""GET_TOPICS_OF_NAMESPACE, WATCH_TOPIC_LIST and its end.

The list that is asked for has no hash and is not filtered. Java's client would ask with the hash of
a list from before its watch told it of others, and take "not changed" for those.

Why: docs/adr/0215-clients-are-told-of-new-topics.md.
"""

from __future__ import annotations

from typing import Final

from magnetar.cluster.topic_name import parse_namespace
from magnetar.cluster.topic_patterns import TopicPattern
from magnetar.model.errors import NotAllowedError, TopicNotFoundError
from magnetar.protocols.pulsar.clients import is_pipelines
from magnetar.protocols.pulsar.session import Session
from magnetar.protocols.pulsar.topic_list_watch import TopicListWatch
from magnetar.topics.name_lists import ChosenNames, NameLists
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandWatchTopicList,
)
from magnetar.wire.pulsar.replies import success
from magnetar.wire.pulsar.topic_lists import without_domain

WATCHES_MAX: Final = 4000
"""Of all clients of a broker."""
EXPRESSION_CHARS_MAX: Final = 1024
EXPRESSION_MEMORY_BYTES_MAX: Final = 64 << 10
"""Of one watch, beside the list of its namespace."""


async def topics_of_namespace(session: Session, command: BaseCommand) -> None:
    """All topics; clients filter by their pattern themselves (``filtered`` stays false).

    A namespace that is not there has no persistent topics, as with Pulsar's brokers: a consumer by
    pattern may come before its namespace, and looks again. Who asks for other topics, too, is
    refused, there as here.
    """
    request = command.getTopicsOfNamespace
    services = session.services
    namespace = parse_namespace(request.namespace)
    answer = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    reply = answer.getTopicsOfNamespaceResponse
    reply.request_id = request.request_id
    async with session.large_answer(services.listings):
        try:
            await services.control.namespaces.check_namespace(namespace)
        except TopicNotFoundError:
            if request.mode != CommandGetTopicsOfNamespace.PERSISTENT:
                raise
        else:
            if request.mode != CommandGetTopicsOfNamespace.NON_PERSISTENT:
                reply.topics.extend(str(name) for name in await services.topics.names(namespace))
        if not is_pipelines(session.client_version):
            _check_size(session, answer, f"{namespace} has {len(reply.topics)} topics")
        session.send_command(answer)


async def watch_topic_list(session: Session, command: BaseCommand) -> None:
    """Refused, its client asks for the whole list every minute instead (Java). A namespace that is
    not there has no topics yet, as in ``topics_of_namespace``."""
    request, services = command.watchTopicList, session.services
    lists = services.name_lists
    if lists is None or not lists.served:
        raise NotAllowedError("lists of topics are not watched here; ask for them")
    namespace = parse_namespace(request.namespace)
    text = without_domain(request.topics_pattern)
    pattern = TopicPattern(text, EXPRESSION_CHARS_MAX, EXPRESSION_MEMORY_BYTES_MAX)
    _end(session, request.watcher_id)  # asked for again: the client did not hear our answer
    _check_room(session, lists)
    async with session.large_answer(services.listings):
        choice = await lists.choose(namespace, text, pattern)
        if session.closed:
            return
        _check_room(session, lists)  # many may have waited for the list
        _begin_watch(session, request, text, choice)


def _begin_watch(
    session: Session, request: CommandWatchTopicList, text: str, choice: ChosenNames
) -> None:
    watch = TopicListWatch(session, request.watcher_id, text, choice)
    session.watches[request.watcher_id] = watch
    answer = BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST_SUCCESS)
    reply = answer.watchTopicListSuccess
    reply.request_id = request.request_id
    reply.watcher_id = request.watcher_id
    reply.topics_hash = choice.digest
    if reply.topics_hash != request.topics_hash:
        reply.topic.extend(watch.told)
    try:
        found = f"{len(watch.told)} topics of {request.namespace} match {text[:200]!r}"
        _check_size(session, answer, found)
    except NotAllowedError:
        _end(session, request.watcher_id)
        raise
    session.send_command(answer)


def _check_size(session: Session, answer: BaseCommand, found: str) -> None:
    """Clients drop the connection, with all that is on it, over a frame that is too large, and ask
    again on the next. Raises ``NotAllowedError``."""
    if answer.ByteSize() > session.services.config.message_bytes_max:
        raise NotAllowedError(
            f"{found}: their names are more than a frame may hold; use an expression that fewer "
            "match, where lists are watched, or namespaces with fewer topics"
        )


def _check_room(session: Session, lists: NameLists) -> None:
    session.check_room()
    if lists.listeners >= WATCHES_MAX:
        raise NotAllowedError(f"this broker has {WATCHES_MAX} watches of topic lists, the most")


async def close_topic_list_watch(session: Session, command: BaseCommand) -> None:
    request = command.watchTopicListClose
    _end(session, request.watcher_id)
    session.write(success(request.request_id))


def _end(session: Session, watcher_id: int) -> None:
    watch = session.watches.pop(watcher_id)
    if watch is not None:
        watch.end()
