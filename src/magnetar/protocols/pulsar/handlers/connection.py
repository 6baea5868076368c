"""CONNECT, PING, PONG and AUTH_RESPONSE."""

from __future__ import annotations

from magnetar import __version__
from magnetar.protocols.pulsar.bounds import kept_version
from magnetar.protocols.pulsar.clients import fails_one_send, follows_assigned_url
from magnetar.protocols.pulsar.handlers.authentication import respond
from magnetar.protocols.pulsar.session import Session
from magnetar.wire.pulsar.commands import (
    PONG_FRAME,
    PROTOCOL_VERSION,
    command_bounds,
    decode_command,
)
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand


def connect(session: Session, command: BaseCommand) -> None:
    """Accept the client, and say only what is implemented: a flag that is set invites its use.

    Where nobody is asked who he is, whatever authentication a client brings passes.
    """
    request = command.connect
    session.client_version = kept_version(request.client_version)
    session.fails_one_send = fails_one_send(request.client_version)
    session.follows_assigned_url = follows_assigned_url(request.client_version)
    session.protocol_version = min(request.protocol_version, PROTOCOL_VERSION)
    session.ready = True
    reply = BaseCommand(type=BaseCommand.CONNECTED)
    reply.connected.server_version = f"Magnetar {__version__}"
    reply.connected.protocol_version = session.protocol_version
    reply.connected.max_message_size = session.services.config.message_bytes_max
    flags = reply.connected.feature_flags
    flags.supports_get_partitioned_metadata_without_auto_creation = True
    lists = session.services.name_lists
    if lists is not None and lists.served:
        flags.supports_topic_watchers = True
    if session.services.staged_writes is not None:
        flags.supports_staged_writes = True
    if session.services.bindings is not None:
        flags.supports_bound_cursors = True
    session.send_command(reply)


def ping(session: Session, view: memoryview, start: int, end: int) -> None:
    command_bounds(view, start, end)
    session.write(PONG_FRAME)


def pong(session: Session, view: memoryview, start: int, end: int) -> None:
    """That bytes came is what counts."""
    command_bounds(view, start, end)


def auth_response(session: Session, view: memoryview, start: int, end: int) -> None:
    respond(session, decode_command(view, start, end))
