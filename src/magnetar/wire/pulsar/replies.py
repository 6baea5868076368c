"""Refusals: each kind of request has its own way to be told "no".

Clients that get the wrong one wait until their timeout: an ERROR for a LOOKUP is ignored, because
lookups count their request ids apart from other requests.

ServiceNotReady means "try again" to clients where they do that by themselves. Where they do not,
they hand it to the application, whose bindings (C++'s -1) take it for success: a seek that was
never done. Those requests are refused with UnknownError instead.
"""

from __future__ import annotations

from typing import Final

from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.commands import encode_command
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
)

NO_REQUEST_ID: Final = 2**64 - 1
"""The request id of an ERROR that answers CONNECT, or nothing in particular."""

_ERROR_CODE_RESPONSES: Final[dict[int, tuple[int, str, str]]] = {
    BaseCommand.GET_SCHEMA: (BaseCommand.GET_SCHEMA_RESPONSE, "getSchema", "getSchemaResponse"),
    BaseCommand.GET_OR_CREATE_SCHEMA: (
        BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE,
        "getOrCreateSchema",
        "getOrCreateSchemaResponse",
    ),
    BaseCommand.CONSUMER_STATS: (
        BaseCommand.CONSUMER_STATS_RESPONSE,
        "consumerStats",
        "consumerStatsResponse",
    ),
}
"""Request type -> response type, request field, response field; ``error_code`` inside."""

_ERROR_RESPONSES: Final[dict[int, tuple[int, str, str]]] = {
    BaseCommand.NEW_TXN: (BaseCommand.NEW_TXN_RESPONSE, "newTxn", "newTxnResponse"),
    BaseCommand.ADD_PARTITION_TO_TXN: (
        BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE,
        "addPartitionToTxn",
        "addPartitionToTxnResponse",
    ),
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN: (
        BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
        "addSubscriptionToTxn",
        "addSubscriptionToTxnResponse",
    ),
    BaseCommand.END_TXN: (BaseCommand.END_TXN_RESPONSE, "endTxn", "endTxnResponse"),
    BaseCommand.TC_CLIENT_CONNECT_REQUEST: (
        BaseCommand.TC_CLIENT_CONNECT_RESPONSE,
        "tcClientConnectRequest",
        "tcClientConnectResponse",
    ),
    BaseCommand.STAGED_WRITE: (
        BaseCommand.STAGED_WRITE_RESPONSE,
        "staged_write",
        "staged_write_response",
    ),
    BaseCommand.BOUND_CURSOR: (
        BaseCommand.BOUND_CURSOR_RESPONSE,
        "bound_cursor",
        "bound_cursor_response",
    ),
}
"""As above, with ``error`` inside."""

_PLAIN_REQUESTS: Final[dict[int, str]] = {
    BaseCommand.SUBSCRIBE: "subscribe",
    BaseCommand.PRODUCER: "producer",
    BaseCommand.UNSUBSCRIBE: "unsubscribe",
    BaseCommand.CLOSE_PRODUCER: "close_producer",
    BaseCommand.CLOSE_CONSUMER: "close_consumer",
    BaseCommand.SEEK: "seek",
    BaseCommand.GET_LAST_MESSAGE_ID: "getLastMessageId",
    BaseCommand.GET_TOPICS_OF_NAMESPACE: "getTopicsOfNamespace",
    BaseCommand.WATCH_TOPIC_LIST: "watchTopicList",
    BaseCommand.WATCH_TOPIC_LIST_CLOSE: "watchTopicListClose",
}
"""Requests that ERROR answers -> their field, which has a ``request_id``."""


_NOT_RETRIED: Final = frozenset(
    (BaseCommand.UNSUBSCRIBE, BaseCommand.SEEK, BaseCommand.GET_LAST_MESSAGE_ID)
)
"""Requests whose refusal clients hand to the application (and ACK)."""


def _final(code: int) -> int:
    """``code`` for a request that clients do not retry."""
    return ServerError.UNKNOWN if code == ServerError.SERVICE_NOT_READY else code


def error_reply(request: BaseCommand, code: int, message: str) -> bytes | None:
    """The frame that refuses ``request`` with a ``ServerError``; None if it has no answer.

    FLOW, REDELIVER_UNACKNOWLEDGED_MESSAGES, PING and an ACK without request id have none.
    """
    kind = int(request.type)
    if kind == BaseCommand.LOOKUP:
        return lookup_error(request.lookupTopic.request_id, code, message)
    if kind == BaseCommand.PARTITIONED_METADATA:
        return partition_metadata_error(request.partitionMetadata.request_id, code, message)
    if kind == BaseCommand.SEND:
        return send_error(request.send.producer_id, request.send.sequence_id, code, message)
    if kind == BaseCommand.ACK:
        return _ack_error(request, code, message)
    if kind in _ERROR_CODE_RESPONSES:
        return _own_response(request, _ERROR_CODE_RESPONSES[kind], code, message, True)
    if kind in _ERROR_RESPONSES:
        return _own_response(request, _ERROR_RESPONSES[kind], code, message, False)
    if kind in _NOT_RETRIED:
        code = _final(code)
    if kind in _PLAIN_REQUESTS:
        return error(getattr(request, _PLAIN_REQUESTS[kind]).request_id, code, message)
    if kind in (BaseCommand.CONNECT, BaseCommand.AUTH_RESPONSE):
        return error(NO_REQUEST_ID, code, message)
    return None


def error(request_id: int, code: int, message: str) -> bytes:
    """An ERROR frame."""
    command = BaseCommand(type=BaseCommand.ERROR)
    command.error.request_id = request_id
    command.error.error = code  # type: ignore[assignment]
    command.error.message = message
    return encode_command(command)


def success(request_id: int) -> bytes:
    """A SUCCESS frame."""
    command = BaseCommand(type=BaseCommand.SUCCESS)
    command.success.request_id = request_id
    return encode_command(command)


def send_error(producer_id: int, sequence_id: int, code: int, message: str) -> bytes:
    """A SEND_ERROR frame. Clients close the connection on every code but CHECKSUM."""
    command = BaseCommand(type=BaseCommand.SEND_ERROR)
    command.send_error.producer_id = producer_id
    command.send_error.sequence_id = sequence_id
    command.send_error.error = code  # type: ignore[assignment]
    command.send_error.message = message
    return encode_command(command)


def lookup_error(request_id: int, code: int, message: str) -> bytes:
    """A LOOKUP_RESPONSE frame that says no."""
    command = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
    reply = command.lookupTopicResponse
    reply.response = CommandLookupTopicResponse.Failed
    reply.request_id = request_id
    reply.error = code  # type: ignore[assignment]
    reply.message = message
    return encode_command(command)


def partition_metadata_error(request_id: int, code: int, message: str) -> bytes:
    """A PARTITIONED_METADATA_RESPONSE frame that says no."""
    command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
    reply = command.partitionMetadataResponse
    reply.response = CommandPartitionedTopicMetadataResponse.Failed
    reply.request_id = request_id
    reply.error = code  # type: ignore[assignment]
    reply.message = message
    return encode_command(command)


def ack_response(
    consumer_id: int, request_id: int, code: int | None = None, message: str = ""
) -> bytes:
    """An ACK_RESPONSE frame; ``code`` None says that the acknowledgement holds."""
    command = BaseCommand(type=BaseCommand.ACK_RESPONSE)
    command.ackResponse.consumer_id = consumer_id
    command.ackResponse.request_id = request_id
    if code is not None:
        command.ackResponse.error = _final(code)  # type: ignore[assignment]
        command.ackResponse.message = message
    return encode_command(command)


def _ack_error(request: BaseCommand, code: int, message: str) -> bytes | None:
    if not request.ack.HasField("request_id"):
        return None
    return ack_response(request.ack.consumer_id, request.ack.request_id, code, message)


def _own_response(
    request: BaseCommand, shape: tuple[int, str, str], code: int, message: str, long_names: bool
) -> bytes:
    """Refuse in the request's own response type; ``long_names``: error_code, error_message."""
    kind, request_field, reply_field = shape
    command = BaseCommand(type=kind)  # type: ignore[arg-type]
    reply = getattr(command, reply_field)
    reply.request_id = getattr(request, request_field).request_id
    setattr(reply, "error_code" if long_names else "error", code)
    setattr(reply, "error_message" if long_names else "message", message)
    return encode_command(command)
