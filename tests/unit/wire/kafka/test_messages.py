"""Every request and response of every served version: written and read again; and broken bytes."""

from __future__ import annotations

import dataclasses
import random
import typing
import uuid
from typing import Any

import pytest

from magnetar.model.errors import ProtocolError
from magnetar.wire.kafka import schema
from magnetar.wire.kafka.apis import (
    APIS,
    Api,
    encode_request,
    encode_response,
    read_head,
    read_request,
    read_response,
)
from magnetar.wire.kafka.cluster_messages import ApiVersionsResponse, MetadataRequest
from magnetar.wire.kafka.fetch_messages import FetchResponse
from magnetar.wire.kafka.primitives import ELEMENTS_MAX, FieldReader

CASES = [
    pytest.param(api, version, id=f"{api.key.name}-{version}")
    for api in APIS.values()
    for version in range(api.least, api.most + 1)
]


def filled(cls: type[Any], version: int, source: random.Random, flexible: bool) -> Any:
    """A message in which every field that the version has says something."""
    made = cls()
    hints = typing.get_type_hints(cls)
    for each in dataclasses.fields(cls):
        spec = each.metadata[schema.SPEC]
        if not spec.there(version) or (spec.tag >= 0 and not flexible):
            continue
        if version >= spec.null and source.random() < 0.2:
            setattr(made, each.name, None)
        else:
            setattr(made, each.name, _value(hints[each.name], version, source, flexible))
    return made


def _value(hint: Any, version: int, source: random.Random, flexible: bool) -> Any:
    arguments = [each for each in typing.get_args(hint) if each is not type(None)]
    if typing.get_origin(hint) is list:
        return [_value(arguments[0], version, source, flexible) for _ in range(3)]
    if bytes in arguments or hint is bytes:
        return bytes(source.randrange(256) for _ in range(source.randint(1, 40)))
    if arguments:
        return _value(arguments[0], version, source, flexible)
    if hint is bool:
        return True
    if hint is float:
        return source.random()
    if hint is int:
        return source.randint(1, 100)
    if hint is str:
        return source.choice(("", "ä", "name", "x" * 300))
    if hint is uuid.UUID:
        return uuid.UUID(int=source.getrandbits(128))
    return filled(hint, version, source, flexible)


@pytest.mark.parametrize(("api", "version"), CASES)
def test_a_request_is_read_as_it_was_written(api: Api, version: int) -> None:
    flexible = schema.is_flexible(api.request, version)
    for seed in range(5):
        sent = filled(api.request, version, random.Random(seed), flexible)
        frame = encode_request(api.key, version, 7, "me", sent)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        reader = FieldReader(memoryview(frame)[4:])
        head = read_head(reader)
        assert (head.api_key, head.version, head.correlation_id) == (api.key, version, 7)
        assert head.client_id == "me"
        assert read_request(head, reader) == sent
        reader.done("the request")


@pytest.mark.parametrize(("api", "version"), CASES)
def test_a_response_is_read_as_it_was_written(api: Api, version: int) -> None:
    flexible = schema.is_flexible(api.response, version)
    for seed in range(5):
        sent = filled(api.response, version, random.Random(seed), flexible)
        parts, size = encode_response(api.key, version, 9, sent)
        frame = b"".join(parts)
        assert (len(frame), int.from_bytes(frame[:4], "big")) == (size, size - 4)
        number, found = read_response(api.key, version, FieldReader(memoryview(frame)[4:]))
        assert (number, found) == (9, sent)


@pytest.mark.parametrize(("api", "version"), CASES)
def test_broken_requests_are_protocol_errors_and_nothing_else(api: Api, version: int) -> None:
    flexible = schema.is_flexible(api.request, version)
    source = random.Random(version)
    whole = encode_request(
        api.key, version, 7, "me", filled(api.request, version, source, flexible)
    )[4:]
    for _ in range(60):
        broken = bytearray(whole[: source.randint(0, len(whole))])
        for _ in range(source.randint(0, 3)):
            if broken:
                broken[source.randrange(len(broken))] = source.randrange(256)
        reader = FieldReader(memoryview(bytes(broken)))
        try:
            head = read_head(reader)
            if head.api is not None:
                read_request(head, reader)
        except ProtocolError:
            continue


def test_an_array_is_held_against_the_bytes_that_are_left() -> None:
    frame = b"\x00\x03\x00\x01\x00\x00\x00\x01\xff\xff" + b"\x7f\xff\xff\xff"
    reader = FieldReader(memoryview(frame))
    head = read_head(reader)
    with pytest.raises(ProtocolError, match="2147483647 elements announced"):
        read_request(head, reader)


def test_all_arrays_together_are_bounded() -> None:
    reader = FieldReader(memoryview(b"\x00\x00\x00\x04" + bytes(12)))
    reader.left = 3
    with pytest.raises(ProtocolError, match=f"more than {ELEMENTS_MAX}"):
        reader.count(False, 1)


def test_an_answer_to_api_versions_has_the_oldest_header() -> None:
    parts, _ = encode_response(18, 3, 5, ApiVersionsResponse())
    # length, correlation id, error code: no tagged fields in between
    assert b"".join(parts)[4:10] == b"\x00\x00\x00\x05\x00\x00"


def test_a_request_that_is_not_served_has_a_head_only() -> None:
    head = read_head(FieldReader(memoryview(b"\x00\x12\x00\x63\x00\x00\x00\x05garbage")))
    assert (head.api_key, head.version, head.correlation_id, head.api) == (18, 99, 5, None)


def test_bytes_after_a_request_are_passed_over() -> None:
    """As librdkafka 2.16.1 asks for all topics."""
    sent = bytes.fromhex("0003000d00000003000772646b61666b610000000000010000")
    reader = FieldReader(memoryview(sent))
    asked = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    assert read_request(read_head(reader), reader) == asked


def test_unknown_tagged_fields_are_skipped() -> None:
    plain = encode_request(3, 12, 1, None, MetadataRequest(topics=None))
    tagged = plain[4:-1] + b"\x01\x63\x02xy"
    reader = FieldReader(memoryview(tagged))
    assert read_request(read_head(reader), reader) == MetadataRequest(topics=None)


def test_record_batches_are_not_copied_into_a_response() -> None:
    from magnetar.wire.kafka.fetch_messages import FetchedPartition, FetchedTopic

    stored = memoryview(bytes(100))
    answer = FetchResponse(
        topics=[FetchedTopic("t", partitions=[FetchedPartition(records=[stored, stored])])]
    )
    parts, size = encode_response(1, 11, 1, answer)
    assert [part is stored for part in parts].count(True) == 2
    assert size == sum(map(len, parts))
