"""What real clients sent, and were answered: read whole, and written again byte for byte."""

from __future__ import annotations

import pytest

from magnetar.wire.kafka.apis import (
    ApiKey,
    encode_request,
    encode_response,
    read_head,
    read_request,
    read_response,
)
from magnetar.wire.kafka.primitives import FieldReader
from tests.golden.kafka import Exchange, exchanges

FOUND = exchanges()


def test_all_three_clients_are_there() -> None:
    assert {each.client.rpartition("-")[0] for each in FOUND} == {
        "aiokafka",
        "confluent-kafka",
        "kafka-python",
    }
    assert len({each.api_key for each in FOUND}) > 15


@pytest.mark.parametrize(
    "seen", FOUND, ids=lambda seen: f"{seen.client}-{ApiKey(seen.api_key).name}-{seen.version}"
)
def test_an_exchange(seen: Exchange) -> None:
    reader = FieldReader(memoryview(seen.request))
    head = read_head(reader)
    request = read_request(head, reader)
    written = encode_request(
        head.api_key, head.version, head.correlation_id, head.client_id, request
    )[4:]
    # librdkafka asks for all topics with three bytes too many
    assert seen.request[: len(written)] == written
    assert len(seen.request) - len(written) in (0, 3)
    if seen.response:
        number, response = read_response(
            seen.api_key, seen.version, FieldReader(memoryview(seen.response))
        )
        assert number == head.correlation_id
        parts, _ = encode_response(seen.api_key, seen.version, number, response)
        assert b"".join(parts)[4:] == seen.response
