"""Commands in general: round trips, and what is wrong with broken ones."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from magnetar.model.errors import ProtocolError
from magnetar.wire.pulsar.commands import (
    COMMAND_NAMES,
    command_type,
    decode_command,
    encode_command,
    encode_payload_command,
)
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.unit.wire.pulsar.strategies import commands


@given(commands())
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_every_command_comes_back(command: BaseCommand) -> None:
    data = encode_command(command)
    view = memoryview(b"before" + data + b"after")
    assert decode_command(view, 10, 6 + len(data)) == command
    # Two bytes of a type are more than is looked at: those commands are rare.
    assert command_type(view, 10) == (command.type if command.type < 128 else 0)


def test_all_types_that_clients_of_today_use_are_known() -> None:
    known = set(COMMAND_NAMES)
    assert known >= set(range(2, 41)) | set(range(50, 69))
    fields = {field.number for field in BaseCommand.DESCRIPTOR.fields}
    assert known <= fields


def frame_of(command: bytes) -> memoryview:
    return memoryview(len(command).to_bytes(4, "big") + command)


def refused(view: memoryview) -> str:
    with pytest.raises(ProtocolError) as caught:
        decode_command(view, 0, len(view))
    return str(caught.value)


def test_a_frame_without_room_for_its_size() -> None:
    assert "no room for its command size" in refused(memoryview(b"\x00\x00"))


def test_a_truncated_command() -> None:
    data = frame_of(bytes.fromhex("08041a00"))
    assert "truncated frame" in refused(data[:-2])


def test_garbage() -> None:
    assert "undecodable command of 4 bytes" in refused(frame_of(b"\xff\xff\xff\xff"))


def test_an_unknown_type() -> None:
    assert "unknown type" in refused(frame_of(b"\x08\x46"))
    assert "unknown type" in refused(frame_of(b"\x08\xc8\x01"))
    assert "unknown type" in refused(frame_of(b""))


def test_a_type_without_its_body() -> None:
    text = refused(frame_of(b"\x08\x04"))
    assert "SUBSCRIBE command without its body" in text


def test_a_missing_required_field_is_named() -> None:
    command = BaseCommand(type=BaseCommand.PRODUCER)
    command.producer.topic = "t"
    text = refused(frame_of(command.SerializePartialToString()))
    assert "PRODUCER without" in text
    assert "producer.producer_id" in text
    assert "topic" not in text


def test_a_string_that_is_not_text_is_named() -> None:
    command = BaseCommand(type=BaseCommand.PRODUCER)
    command.producer.topic = "topic"
    command.producer.producer_id = command.producer.request_id = 1
    command.producer.metadata.add(key="key", value="value")
    data = command.SerializeToString()
    assert "field producer.topic is not UTF-8" in refused(
        frame_of(data.replace(b"topic", b"to\xffic"))
    )
    assert "producer.metadata.value" in refused(frame_of(data.replace(b"value", b"va\xffue")))


def test_ping_needs_no_body() -> None:
    view = frame_of(b"\x08\x12")
    assert decode_command(view, 0, len(view)).type == BaseCommand.PING


def test_the_type_is_not_guessed() -> None:
    assert command_type(frame_of(b"\x12\x00\x08\x02"), 0) == 0  # the type comes second
    assert command_type(memoryview(b"\x00\x00"), 0) == 0


def test_a_payload_follows_its_command() -> None:
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id = command.send.sequence_id = 1
    data = encode_payload_command(command, b"payload")
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert data.endswith(b"payload")
    assert decode_command(memoryview(data), 4, len(data)) == command
