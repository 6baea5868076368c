"""Which function handles which command, and what is handled in order.

*Quick* commands are handled as they are met, in the pass over a chunk. The others are requests,
each in the subject of the producer or consumer that it is about (``requests``).

Why: docs/adr/0065-what-is-not-served.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.model.errors import ProtocolError
from magnetar.protocols.pulsar.handlers import (
    authentication,
    bound_cursors,
    connection,
    consumers,
    lookups,
    producers,
    schemas,
    staged_writes,
    topic_lists,
)
from magnetar.protocols.pulsar.handlers.permits import PERMITS
from magnetar.protocols.pulsar.requests import LARGE, SIDE_BY_SIDE, Subject
from magnetar.protocols.pulsar.session import Quick, Request, Session
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand

LARGE_ANSWERS: Final = frozenset((BaseCommand.GET_TOPICS_OF_NAMESPACE, BaseCommand.GET_SCHEMA))


@dataclass(frozen=True)
class Table:
    """The handlers of a session (``session.Handlers``); one table serves all sessions."""

    quick: dict[int, Quick]
    requests: dict[int, Request]
    subjects: dict[int, tuple[str, str, str]]
    """Command -> subject kind, body field, id field; commands without are side by side."""

    def connect(self, session: Session, command: BaseCommand) -> None:
        if session.services.access is None:
            connection.connect(session, command)
            return

        def accept() -> None:
            connection.connect(session, command)

        authentication.authenticate(session, command.connect, accept)

    def subject(self, command: BaseCommand) -> Subject | None:
        """The subject of a request; None if the command is not served."""
        kind = int(command.type)
        if kind == BaseCommand.CONNECT:
            raise ProtocolError("a second CONNECT")
        if kind not in self.requests:
            return None
        subject = self.subjects.get(kind)
        if subject is None:
            return LARGE if kind in LARGE_ANSWERS else SIDE_BY_SIDE
        name, body, field = subject
        return name, int(getattr(getattr(command, body), field))

    async def handle(self, session: Session, command: BaseCommand) -> None:
        kind, access = int(command.type), session.services.access
        if access is not None:
            await PERMITS[kind](session, access, command)
        await self.requests[kind](session, command)


def make_table() -> Table:
    """The table of everything that is served."""
    return Table(
        quick={
            BaseCommand.ACK: consumers.acknowledge,
            BaseCommand.FLOW: consumers.flow,
            BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: consumers.redeliver,
            BaseCommand.PING: connection.ping,
            BaseCommand.PONG: connection.pong,
            BaseCommand.AUTH_RESPONSE: connection.auth_response,
        },
        requests={
            BaseCommand.LOOKUP: lookups.lookup,
            BaseCommand.PARTITIONED_METADATA: lookups.partitioned_metadata,
            BaseCommand.GET_TOPICS_OF_NAMESPACE: topic_lists.topics_of_namespace,
            BaseCommand.WATCH_TOPIC_LIST: topic_lists.watch_topic_list,
            BaseCommand.WATCH_TOPIC_LIST_CLOSE: topic_lists.close_topic_list_watch,
            BaseCommand.GET_SCHEMA: schemas.get_schema,
            BaseCommand.GET_OR_CREATE_SCHEMA: schemas.get_or_create_schema,
            BaseCommand.STAGED_WRITE: staged_writes.staged_write,
            BaseCommand.BOUND_CURSOR: bound_cursors.bound_cursor,
            BaseCommand.PRODUCER: producers.open_producer,
            BaseCommand.CLOSE_PRODUCER: producers.close_producer,
            BaseCommand.SUBSCRIBE: consumers.subscribe,
            BaseCommand.CLOSE_CONSUMER: consumers.close_consumer,
            BaseCommand.UNSUBSCRIBE: consumers.unsubscribe,
            BaseCommand.SEEK: consumers.seek_consumer,
            BaseCommand.GET_LAST_MESSAGE_ID: consumers.last_message_id,
            BaseCommand.CONSUMER_STATS: consumers.consumer_stats,
        },
        subjects={
            BaseCommand.PRODUCER: ("producer", "producer", "producer_id"),
            BaseCommand.CLOSE_PRODUCER: ("producer", "close_producer", "producer_id"),
            BaseCommand.SUBSCRIBE: ("consumer", "subscribe", "consumer_id"),
            BaseCommand.CLOSE_CONSUMER: ("consumer", "close_consumer", "consumer_id"),
            BaseCommand.UNSUBSCRIBE: ("consumer", "unsubscribe", "consumer_id"),
            BaseCommand.SEEK: ("consumer", "seek", "consumer_id"),
            BaseCommand.GET_LAST_MESSAGE_ID: ("consumer", "getLastMessageId", "consumer_id"),
            BaseCommand.CONSUMER_STATS: ("consumer", "consumerStats", "consumer_id"),
            BaseCommand.WATCH_TOPIC_LIST: ("watch", "watchTopicList", "watcher_id"),
            BaseCommand.WATCH_TOPIC_LIST_CLOSE: ("watch", "watchTopicListClose", "watcher_id"),
        },
    )
