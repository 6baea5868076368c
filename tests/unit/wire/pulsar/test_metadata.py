"""What stored entries say of themselves."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from magnetar.model.errors import ImplausibleMessageError, ProtocolError
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.metadata import (
    batch_size,
    dispatch_facts,
    entry_metadata,
    metadata_bounds,
    publish_time_ms,
)
from magnetar.wire.pulsar.plausible import SINGLE_BYTES_MIN, implausible
from magnetar.wire.pulsar.pulsar_pb2 import BrokerEntryMetadata, MessageMetadata
from tests.unit.wire.pulsar.strategies import filled

BATCH_OF_3 = bytes(3 * SINGLE_BYTES_MIN)


def stored(meta: MessageMetadata, data: bytes = b"", magic: bool = True) -> bytes:
    encoded = meta.SerializePartialToString()
    head = b"\x0e\x01....".ljust(6, b".") if magic else b""
    return head + len(encoded).to_bytes(4, "big") + encoded + data


def plain(**fields: object) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=1, publish_time=5, **fields)  # type: ignore[arg-type]


@given(filled(MessageMetadata()))
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_whatever_a_producer_sets(meta: MessageMetadata) -> None:
    payload = stored(meta, b"data")
    found = entry_metadata(payload)
    assert found.producer_name == meta.producer_name
    assert found.sequence_id == meta.sequence_id
    assert found.publish_time_ms == publish_time_ms(payload) == meta.publish_time
    assert found.properties == {item.key: item.value for item in meta.properties}
    assert found.batched == meta.HasField("num_messages_in_batch")
    assert found.num_messages == batch_size(payload) == max(1, meta.num_messages_in_batch)
    if implausible(meta, len(b"data")) is None:
        chunk = found.num_chunks > 1 and found.num_messages == 1
        assert dispatch_facts(payload)[0] == (0 if chunk else found.num_messages)
    else:
        with pytest.raises(ImplausibleMessageError):
            dispatch_facts(payload)
    assert found.compression == meta.compression
    assert payload[found.data_start :] == b"data"


@pytest.mark.parametrize("magic", [True, False])
def test_with_and_without_checksum(magic: bool) -> None:
    payload = stored(plain(num_messages_in_batch=9), b"data", magic)
    assert batch_size(payload) == batch_size(memoryview(payload)) == 9
    assert payload[entry_metadata(payload).data_start :] == b"data"


def test_what_a_broker_put_in_front_is_skipped() -> None:
    extra = BrokerEntryMetadata(index=41).SerializeToString()
    payload = b"\x0e\x02" + len(extra).to_bytes(4, "big") + extra + stored(plain(), b"data")
    assert publish_time_ms(payload) == 5
    assert payload[entry_metadata(payload).data_start :] == b"data"


def test_absent_fields_are_none_or_zero() -> None:
    found = entry_metadata(stored(plain()))
    assert (found.partition_key, found.ordering_key, found.marker_type) == (None, None, None)
    assert (found.event_time_ms, found.num_chunks, found.compression) == (0, 1, Compression.NONE)
    assert not found.encrypted


@pytest.mark.parametrize("count", [0, -1])
def test_a_batch_of_none_counts_as_one(count: int) -> None:
    assert batch_size(stored(plain(num_messages_in_batch=count))) == 1


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", "has no metadata"),
        (b"\x00\x00", "has no metadata"),
        (b"\x00\x00\x00\x09x", "truncated entry"),
        (b"\x0e\x01\x00\x00\x00\x00\x7f\xff\xff\xff", "truncated entry"),
        (b"\x0e\x02\x7f\xff\xff\xff\x00", "7 are left"),
        (b"\x00\x00\x00\x02\xff\xff", "undecodable metadata"),
        (b"\x00\x00\x00\x00", "without producer name"),
    ],
)
def test_no_metadata(payload: bytes, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        entry_metadata(payload)


def test_a_string_that_is_not_text() -> None:
    payload = stored(plain(partition_key="abcde")).replace(b"abcde", b"ab\xffde")
    with pytest.raises(ProtocolError, match="not UTF-8"):
        entry_metadata(payload)


def test_bounds_are_of_the_metadata_alone() -> None:
    meta = plain()
    first, stop = metadata_bounds(stored(meta, b"data"))
    assert stop - first == meta.ByteSize()


@pytest.mark.parametrize("missing", ["producer_name", "sequence_id", "publish_time"])
def test_what_clients_cannot_read_is_not_dispatched(missing: str) -> None:
    meta = plain(num_messages_in_batch=3)
    meta.ClearField(missing)  # type: ignore[arg-type]
    with pytest.raises(ProtocolError):
        dispatch_facts(stored(meta, BATCH_OF_3))
    setattr(meta, missing, "" if missing == "producer_name" else 0)
    assert dispatch_facts(stored(meta, BATCH_OF_3))[0] == 3


@pytest.mark.parametrize("left_out", range(1, 14))
def test_metadata_that_is_cut_off(left_out: int) -> None:
    payload = stored(plain())
    with pytest.raises(ProtocolError):
        metadata_bounds(payload[:-left_out])
