"""What pulsar-client 3.13.0 really sends, decoded."""

from __future__ import annotations

import pytest

from magnetar.wire.pulsar.batches import ChunkAssembler, iterate_messages
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.commands import (
    COMMAND_NAMES,
    command_type,
    decode_command,
    encode_command,
    encode_payload_command,
)
from magnetar.wire.pulsar.hot import (
    AckId,
    SendCommand,
    decode_ack,
    decode_flow,
    decode_send,
    verify_checksum,
)
from magnetar.wire.pulsar.metadata import batch_size, entry_metadata, publish_time_ms
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandSubscribe,
    KeySharedMode,
    ProducerAccessMode,
    Schema,
)
from tests.golden.pulsar import frame, names

CLIENT = "pulsar-client-3.13.0"
SENDS = [name for name in names() if "/send_" in name]


def command(name: str) -> BaseCommand:
    data = frame(f"{CLIENT}/{name}")
    return decode_command(memoryview(data), 4, len(data))


def send(name: str) -> tuple[SendCommand, bytes]:
    """A captured SEND and the payload that a broker would store."""
    data = frame(name if "/" in name else f"{CLIENT}/{name}")
    found = decode_send(memoryview(data), 4, len(data))
    return found, data[found.payload_start : found.payload_end]


def test_there_are_golden_frames() -> None:
    assert len(names()) >= 40
    assert len(SENDS) >= 14


@pytest.mark.parametrize("name", names())
def test_every_frame_decodes_and_encodes_to_itself(name: str) -> None:
    data = frame(name)
    view = memoryview(data)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    found = decode_command(view, 4, len(data))
    assert command_type(view, 4) == found.type
    if found.type == BaseCommand.SEND:
        stop = decode_send(view, 4, len(data)).payload_start
        assert encode_payload_command(found, data[stop:]) == data
    else:
        assert encode_command(found) == data


def test_the_kinds_of_commands_that_were_captured() -> None:
    kinds = {COMMAND_NAMES[command(name.split("/")[1]).type] for name in names()}
    assert kinds >= {
        "CONNECT", "PARTITIONED_METADATA", "LOOKUP", "PRODUCER", "SEND", "SUBSCRIBE", "FLOW",
        "ACK", "SEEK", "UNSUBSCRIBE", "CLOSE_PRODUCER", "CLOSE_CONSUMER", "GET_LAST_MESSAGE_ID",
        "GET_TOPICS_OF_NAMESPACE", "REDELIVER_UNACKNOWLEDGED_MESSAGES",
    }  # fmt: skip


def test_connect() -> None:
    connect = command("connect").connect
    assert connect.client_version.startswith("Pulsar-CPP-v4")
    assert connect.protocol_version == 20
    assert connect.feature_flags.supports_auth_refresh
    assert connect.feature_flags.supports_broker_entry_metadata
    assert not connect.feature_flags.supports_topic_watchers


def test_producers() -> None:
    plain = command("producer").producer
    assert (plain.topic, plain.producer_name) == ("persistent://public/default/plain", "golden")
    typed = command("producer_exclusive_json").producer
    assert typed.producer_access_mode == ProducerAccessMode.Exclusive
    assert typed.schema.type == Schema.Json
    assert b'"carrier"' in typed.schema.schema_data
    assert [(item.key, item.value) for item in typed.metadata] == [("team", "x")]


@pytest.mark.parametrize("name", SENDS)
def test_every_send_has_a_good_checksum(name: str) -> None:
    data = frame(name)
    found = decode_send(memoryview(data), 4, len(data))
    assert data[found.payload_start : found.payload_start + 2] == b"\x0e\x01"
    assert found.payload_end == len(data)
    verify_checksum(memoryview(data), found.payload_start, found.payload_end)


def test_plain_send() -> None:
    found, payload = send("send_plain")
    assert (found.sequence_id, found.num_messages, found.is_chunk, found.txn) == (0, 1, False, None)
    meta = entry_metadata(payload)
    assert (meta.batched, meta.num_messages, meta.producer_name) == (False, 1, "golden")
    assert batch_size(payload) == 1
    assert publish_time_ms(payload) == meta.publish_time_ms > 1_700_000_000_000
    [(info, value)] = iterate_messages(payload)
    assert (info.batch_index, info.key, bytes(value)) == (-1, None, b"hello")


def test_send_with_everything_set() -> None:
    found, payload = send("send_properties")
    assert found.sequence_id == 4_000_000_000
    [(info, value)] = iterate_messages(payload)
    assert bytes(value) == b"keyed"
    assert (info.key, info.ordering_key) == ("key-1", b"order-1")
    assert info.properties == {"a": "1", "ü": "ö"}
    assert info.event_time_ms == 1_700_000_000_123


def test_batch() -> None:
    found, payload = send("send_batch")
    assert found.num_messages == 5
    assert batch_size(payload) == 5
    assert entry_metadata(payload).batched
    messages = list(iterate_messages(payload))
    assert [bytes(value) for _, value in messages] == [b"message %d" % i for i in range(5)]
    assert [info.batch_index for info, _ in messages] == list(range(5))
    assert [info.key for info, _ in messages] == [f"key-{i}" for i in range(5)]
    assert [info.properties for info, _ in messages] == [{"i": str(i)} for i in range(5)]
    assert messages[4][0].event_time_ms == 1_700_000_000_004


def test_a_batch_of_one_is_a_batch() -> None:
    _, payload = send("send_batch_of_one")
    meta = entry_metadata(payload)
    assert (meta.batched, meta.num_messages) == (True, 1)
    [(info, value)] = iterate_messages(payload)
    assert (info.batch_index, bytes(value)) == (0, b"alone")


@pytest.mark.parametrize(
    "kind", [Compression.ZLIB, Compression.LZ4, Compression.ZSTD, Compression.SNAPPY]
)
def test_compressed(kind: Compression) -> None:
    if kind != Compression.ZLIB:
        pytest.importorskip("pyarrow")
    _, payload = send(f"send_{kind.name.lower()}")
    assert entry_metadata(payload).compression == kind
    assert [bytes(value) for _, value in iterate_messages(payload)] == [b"squeeze " * 64]
    _, payload = send(f"send_batch_{kind.name.lower()}")
    values = [bytes(value) for _, value in iterate_messages(payload)]
    assert values == [b"squeeze %d " % i * 16 for i in range(5)]


def test_chunks() -> None:
    assembler = ChunkAssembler()
    first, first_payload = send("send_chunk_0")
    second, second_payload = send("send_chunk_1")
    assert first.is_chunk
    assert second.is_chunk
    meta = entry_metadata(first_payload)
    assert (meta.chunk_id, meta.num_chunks, meta.chunked_message_bytes) == (0, 2, 6000)
    assert assembler.add(first_payload, meta) is None
    whole = assembler.add(second_payload, entry_metadata(second_payload))
    assert whole is not None
    assert len(whole[1]) == 6000


def ack(name: str) -> tuple[bool, list[AckId], int | None]:
    data = frame(f"{CLIENT}/{name}")
    found = decode_ack(memoryview(data), 4, len(data))
    return found.cumulative, list(found.ids), found.request_id


def test_acks() -> None:
    assert ack("ack_one") == (False, [AckId(7, 0, (), -1, 0)], None)
    assert ack("ack_list") == (False, [AckId(7, i, (), -1, 0) for i in (2, 4, 6)], None)
    assert ack("ack_cumulative") == (True, [AckId(7, 7, (), -1, 0)], None)


def test_ack_sets_have_a_bit_for_each_message_that_is_not_acknowledged() -> None:
    assert ack("ack_batch_index") == (False, [AckId(7, 0, (0b11110,), -1, 0)], None)
    assert ack("ack_cumulative_batch_index") == (True, [AckId(7, 0, (0b11000,), -1, 0)], None)


def test_flow() -> None:
    data = frame(f"{CLIENT}/flow")
    assert decode_flow(memoryview(data), 4, len(data)).permits == 100


def test_subscriptions() -> None:
    shared = command("subscribe_shared").subscribe
    assert shared.subType == CommandSubscribe.Shared
    assert shared.initialPosition == CommandSubscribe.Earliest
    assert command("subscribe_failover").subscribe.subType == CommandSubscribe.Failover
    keys = command("subscribe_key_shared_json").subscribe
    assert keys.keySharedMeta.keySharedMode == KeySharedMode.STICKY
    ranges = [(item.start, item.end) for item in keys.keySharedMeta.hashRanges]
    assert ranges == [(0, 100), (200, 65535)]
    reader = command("subscribe_reader").subscribe
    assert not reader.durable
    assert reader.start_message_id.ledgerId == 2**64 - 1


def test_seeks() -> None:
    assert command("seek_earliest").seek.message_id.entryId == 2**64 - 1
    assert command("seek_time").seek.message_publish_time == 1_700_000_000_000
    assert command("seek_id").seek.message_id.ledgerId == 7


def test_redelivery() -> None:
    [item] = command("redeliver").redeliverUnacknowledgedMessages.message_ids
    assert (item.ledgerId, item.entryId) == (7, 1)
    assert not command("redeliver_all").redeliverUnacknowledgedMessages.message_ids
