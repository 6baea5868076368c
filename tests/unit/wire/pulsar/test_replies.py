"""Each request is refused in its own way."""

from __future__ import annotations

import pytest

from magnetar.wire.pulsar import replies
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.commands import COMMAND_NAMES, decode_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandLookupTopicResponse
from magnetar.wire.pulsar.pulsar_pb2 import ServerError as WireServerError

T = BaseCommand
REQUEST_ID = 77


def request(kind: int) -> BaseCommand:
    """A request of that type, its ids set."""
    command = BaseCommand(type=kind)  # type: ignore[arg-type]
    body = getattr(command, T.DESCRIPTOR.fields_by_number[kind].name)
    for name in ("request_id", "consumer_id", "producer_id", "sequence_id"):
        if name in body.DESCRIPTOR.fields_by_name:
            setattr(body, name, REQUEST_ID)
    return command


def refuse(command: BaseCommand) -> BaseCommand | None:
    frame = replies.error_reply(command, ServerError.TOPIC_NOT_FOUND, "no such topic")
    return None if frame is None else decode_command(memoryview(frame), 4, len(frame))


OWN_RESPONSES = {
    T.LOOKUP: T.LOOKUP_RESPONSE,
    T.PARTITIONED_METADATA: T.PARTITIONED_METADATA_RESPONSE,
    T.GET_SCHEMA: T.GET_SCHEMA_RESPONSE,
    T.GET_OR_CREATE_SCHEMA: T.GET_OR_CREATE_SCHEMA_RESPONSE,
    T.CONSUMER_STATS: T.CONSUMER_STATS_RESPONSE,
    T.ACK: T.ACK_RESPONSE,
    T.NEW_TXN: T.NEW_TXN_RESPONSE,
    T.ADD_PARTITION_TO_TXN: T.ADD_PARTITION_TO_TXN_RESPONSE,
    T.ADD_SUBSCRIPTION_TO_TXN: T.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
    T.END_TXN: T.END_TXN_RESPONSE,
    T.TC_CLIENT_CONNECT_REQUEST: T.TC_CLIENT_CONNECT_RESPONSE,
}
PLAIN = [
    T.SUBSCRIBE, T.PRODUCER, T.UNSUBSCRIBE, T.CLOSE_PRODUCER, T.CLOSE_CONSUMER, T.SEEK,
    T.GET_LAST_MESSAGE_ID, T.GET_TOPICS_OF_NAMESPACE, T.WATCH_TOPIC_LIST, T.WATCH_TOPIC_LIST_CLOSE,
]  # fmt: skip


@pytest.mark.parametrize("kind", OWN_RESPONSES, ids=lambda kind: COMMAND_NAMES[kind])
def test_own_responses(kind: int) -> None:
    reply = refuse(request(kind))
    assert reply is not None
    assert reply.type == OWN_RESPONSES[kind]
    body = getattr(reply, T.DESCRIPTOR.fields_by_number[reply.type].name)
    assert body.request_id == REQUEST_ID
    long_names = "error_code" in body.DESCRIPTOR.fields_by_name
    assert (body.error_code if long_names else body.error) == ServerError.TOPIC_NOT_FOUND
    assert (body.error_message if long_names else body.message) == "no such topic"


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: COMMAND_NAMES[kind])
def test_plain_errors(kind: int) -> None:
    reply = refuse(request(kind))
    assert reply is not None
    assert reply.type == T.ERROR
    assert reply.error.request_id == REQUEST_ID
    assert (reply.error.error, reply.error.message) == (11, "no such topic")


def test_send_is_refused_by_producer_and_sequence() -> None:
    reply = refuse(request(T.SEND))
    assert reply is not None
    assert reply.type == T.SEND_ERROR
    assert (reply.send_error.producer_id, reply.send_error.sequence_id) == (77, 77)


def test_connect_has_no_request_id() -> None:
    reply = refuse(request(T.CONNECT))
    assert reply is not None
    assert reply.error.request_id == 2**64 - 1


@pytest.mark.parametrize("kind", [T.FLOW, T.PING, T.REDELIVER_UNACKNOWLEDGED_MESSAGES])
def test_what_has_no_answer(kind: int) -> None:
    assert refuse(request(kind)) is None


def test_an_ack_that_waits_for_nothing_has_no_answer() -> None:
    command = request(T.ACK)
    command.ack.ClearField("request_id")
    assert refuse(command) is None


def test_lookups_fail_as_lookups() -> None:
    reply = refuse(request(T.LOOKUP))
    assert reply is not None
    assert reply.lookupTopicResponse.response == CommandLookupTopicResponse.Failed


def test_success_and_ack_response() -> None:
    frame = replies.success(5)
    assert decode_command(memoryview(frame), 4, len(frame)).success.request_id == 5
    frame = replies.ack_response(1, 2)
    found = decode_command(memoryview(frame), 4, len(frame)).ackResponse
    assert (found.consumer_id, found.request_id, found.HasField("error")) == (1, 2, False)


def test_codes_are_those_of_the_wire() -> None:
    assert {code.value for code in ServerError} == set(WireServerError.values())


@pytest.mark.parametrize("kind", [*PLAIN, T.ACK], ids=lambda kind: COMMAND_NAMES[kind])
def test_not_ready_is_said_only_to_those_who_try_again(kind: int) -> None:
    frame = replies.error_reply(request(kind), ServerError.SERVICE_NOT_READY, "wait")
    assert frame is not None
    reply = decode_command(memoryview(frame), 4, len(frame))
    final = kind in (T.UNSUBSCRIBE, T.SEEK, T.GET_LAST_MESSAGE_ID, T.ACK)
    body = reply.ackResponse if kind == T.ACK else reply.error
    assert body.HasField("error")
    assert body.error == (ServerError.UNKNOWN if final else ServerError.SERVICE_NOT_READY)
