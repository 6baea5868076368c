"""The hand-written codec says what protobuf says."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.model.errors import ChecksumError, ProtocolError
from magnetar.wire.checksum import crc32c
from magnetar.wire.pulsar import hot
from magnetar.wire.pulsar.commands import encode_command, encode_payload_command
from magnetar.wire.pulsar.hot import (
    AckCommand,
    AckId,
    SendCommand,
    TxnId,
    decode_ack,
    decode_flow,
    decode_long_ack,
    decode_send,
    signed64,
    unsigned64,
    verify_checksum,
)
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from magnetar.wire.varint import varint
from tests.unit.wire.pulsar.strategies import I64, U64, commands

RELAXED = settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)


def txn_of(body: object) -> TxnId | None:
    if body.HasField("txnid_most_bits") or body.HasField("txnid_least_bits"):  # type: ignore[attr-defined]
        return TxnId(body.txnid_most_bits, body.txnid_least_bits)  # type: ignore[attr-defined]
    return None


@given(commands(BaseCommand.SEND), st.binary(max_size=40), st.integers(0, 3))
@RELAXED
def test_send_is_what_protobuf_reads(command: BaseCommand, payload: bytes, pad: int) -> None:
    data = bytes(pad) + encode_payload_command(command, payload) + b"next frame"
    end = len(data) - len(b"next frame")
    found = decode_send(memoryview(data), pad + 4, end)
    send = command.send
    assert found == SendCommand(
        send.producer_id,
        send.sequence_id,
        send.highest_sequence_id,
        send.num_messages,
        end - len(payload),
        end,
        send.is_chunk,
        txn_of(send),
    )
    assert isinstance(found, SendCommand)


@given(commands(BaseCommand.ACK))
@RELAXED
def test_ack_is_what_protobuf_reads(command: BaseCommand) -> None:
    data = encode_command(command)
    ack = command.ack
    assert decode_ack(memoryview(data), 4, len(data)) == AckCommand(
        ack.consumer_id,
        ack.ack_type == 1,
        tuple(
            AckId(
                signed64(item.ledgerId),
                signed64(item.entryId),
                tuple(item.ack_set),
                item.batch_index,
                item.batch_size,
            )
            for item in ack.message_id
        ),
        ack.request_id if ack.HasField("request_id") else None,
        txn_of(ack),
    )


LEDGERS = st.sampled_from([5, 300, 2**40]) | U64
IDS = st.lists(
    st.tuples(LEDGERS, U64, st.none() | I64, st.just([]) | st.lists(I64, max_size=3)), max_size=40
)


@given(st.integers(0, 300), st.booleans(), IDS)
@RELAXED
def test_acks_as_clients_send_them(
    consumer_id: int, cumulative: bool, ids: list[tuple[int, int, int | None, list[int]]]
) -> None:
    """Ledger and entry, often nothing else; now and then a partition or an ack set."""
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id = consumer_id
    command.ack.ack_type = int(cumulative)  # type: ignore[assignment]
    for ledger_id, entry_id, partition, ack_set in ids:
        item = command.ack.message_id.add(ledgerId=ledger_id, entryId=entry_id, ack_set=ack_set)
        if partition is not None:
            item.partition = partition % 100
    data = encode_command(command)
    found = decode_ack(memoryview(data), 4, len(data))
    assert (found.consumer_id, found.cumulative) == (consumer_id, cumulative)
    assert [(i.ledger_id, i.entry_id, i.ack_set) for i in found.ids] == [
        (signed64(ledger_id), signed64(entry_id), tuple(ack_set))
        for ledger_id, entry_id, _, ack_set in ids
    ]


@pytest.mark.parametrize("count", [1, 9, 10, 11, 12, 13, 200, 3000])
def test_long_lists_of_acks(count: int) -> None:
    """Command sizes of one, two and three bytes; entry ids across every length of a varint."""
    ids = [(300 if i % 50 else 301, i * i * i * 77) for i in range(count)]
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id = 1
    command.ack.ack_type = 0  # type: ignore[assignment]
    for ledger_id, entry_id in ids:
        command.ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
    data = b"...." + encode_command(command) + b"\x1a\x04\x08\x01\x10\x01"
    found = decode_ack(memoryview(data), 8, len(data) - 6)
    assert [(item.ledger_id, item.entry_id) for item in found.ids] == ids
    with pytest.raises(ProtocolError):
        decode_ack(memoryview(data), 8, len(data) - 7)


@pytest.mark.parametrize("count", [1, 20, 200, 3000, 300_000])
def test_long_lists_of_plain_ids_need_no_protobuf(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes four times as long: 2 s for 250 000 ids, in which nobody else is served."""

    def slow(*_: object) -> AckCommand:
        raise AssertionError("the slow way")

    monkeypatch.setattr(hot, "_decode_any_ack", slow)
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id = 1
    command.ack.ack_type = 0  # type: ignore[assignment]
    for number in range(count):
        command.ack.message_id.add(ledgerId=3, entryId=number)
    data = encode_command(command)
    ids = decode_ack(memoryview(data), 4, len(data)).ids
    assert [item.entry_id for item in ids] == list(range(count))


def test_of_a_list_that_is_too_long_only_the_head_is_read() -> None:
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id, command.ack.request_id = 300, 7
    command.ack.ack_type = 0  # type: ignore[assignment]
    command.ack.message_id.add(ledgerId=3, entryId=4)
    data = encode_command(command)
    view, end = memoryview(data), len(data)
    assert decode_long_ack(view, 4, end, 0) == (AckCommand(300, False, (), 7, None), 1)
    assert decode_long_ack(view, 4, end, 1) == (decode_ack(view, 4, end), 1)


@given(commands(BaseCommand.FLOW))
def test_flow_is_what_protobuf_reads(command: BaseCommand) -> None:
    data = encode_command(command)
    found = decode_flow(memoryview(data), 4, len(data))
    assert found == (command.flow.consumer_id, command.flow.messagePermits)


def send_frame(body: bytes, payload: bytes = b"") -> memoryview:
    command = b"\x08\x06\x32" + varint(len(body)) + body
    return memoryview(len(command).to_bytes(4, "big") + command + payload)


FIELDS = st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 11, 15]), U64), max_size=9)


@given(FIELDS, st.booleans())
@RELAXED
def test_fields_in_any_order_and_again(fields: list[tuple[int, int]], whole: bool) -> None:
    """The last value of a field wins, whichever of the two decoders reads it."""
    given_fields = [*fields, (1, 5), (2, 6)] if whole else fields
    body = b"".join(varint(number << 3) + varint(value) for number, value in given_fields)
    assert_as_protobuf(send_frame(body))


def assert_as_protobuf(view: memoryview) -> None:
    """``decode_send`` reads the frame as protobuf does, or refuses it as incomplete."""
    parsed = BaseCommand.FromString(bytes(view[4:]))
    if not parsed.IsInitialized():
        with pytest.raises(ProtocolError, match="SEND without"):
            decode_send(view, 0, len(view))
        return
    found = decode_send(view, 0, len(view))
    send = parsed.send
    assert found[:4] == (
        send.producer_id, send.sequence_id, send.highest_sequence_id, send.num_messages,
    )  # fmt: skip
    assert (found.is_chunk, found.txn) == (send.is_chunk, txn_of(send))


@pytest.mark.parametrize(
    "body",
    [
        b"\x08\x01\x10\x02\x18\x81\x80\x80\x80\x10",  # a count past 32 bits
        b"\x08\x01\x10\x02\x18" + b"\xff" * 9 + b"\x01",  # a negative one
        b"\x08\x01\x10" + b"\xff" * 9 + b"\x7f",  # a sequence id past 64 bits
        b"\x08\x01\x10\x02\x20\x07",  # half a transaction id
        b"\x08\x01\x10\x02\x4a\x04\x08\x01\x10\x02",  # a message id of its own
        b"\x08\x01\x10\x02\x98\x06\x05",  # a field that nobody knows yet
    ],
)
def test_unusual_sends(body: bytes) -> None:
    assert_as_protobuf(send_frame(body))


def test_what_follows_the_body_in_a_command_counts() -> None:
    """protobuf merges a second body into the first."""
    command = b"\x08\x06\x32\x04\x08\x01\x10\x02\x32\x02\x10\x09"
    view = memoryview(len(command).to_bytes(4, "big") + command)
    assert_as_protobuf(view)
    assert decode_send(view, 0, len(view))[:2] == (1, 9)
    command = b"\x08\x0a\x52\x0a\x08\x01\x10\x00\x1a\x04\x08\x05\x10\x06\x52\x02\x10\x01"
    view = memoryview(len(command).to_bytes(4, "big") + command)
    assert decode_ack(view, 0, len(view)).cumulative


def test_a_body_that_says_more_than_there_is() -> None:
    for command in (b"\x08\x06\x32\x10\x08\x01\x10\x02", b"\x08\x0a\x52\x10\x08\x01\x10\x00"):
        view = memoryview(len(command).to_bytes(4, "big") + command)
        decode = decode_send if command[1] == 6 else decode_ack
        with pytest.raises(ProtocolError, match="undecodable"):
            decode(view, 0, len(view))


def ack_frame(*ids: bytes) -> memoryview:
    body = b"\x08\x01\x10\x00" + b"".join(b"\x1a" + varint(len(item)) + item for item in ids)
    command = b"\x08\x0a\x52" + varint(len(body)) + body
    return memoryview(len(command).to_bytes(4, "big") + command)


def test_unusual_ids_behind_a_usual_one() -> None:
    usual = b"\x08\x05\x10\x06"
    for unusual, entry_id in (
        (b"\x08\x05\x10" + b"\xff" * 9 + b"\x01", -1),
        (b"\x08\x05\x10\x86\x80\x80\x80\x80\x80\x80\x80\x80\x00", 6),
        (b"\x08\x05\x10\x07\x10\x08", 8),
        (b"\x10\x07\x08\x05", 7),
    ):
        view = ack_frame(usual, unusual, usual)
        found = decode_ack(view, 0, len(view))
        assert [item[:2] for item in found.ids] == [(5, 6), (5, entry_id), (5, 6)]
    for broken in (b"\x08\x05\x10", b"\x08\x05\x10\x80", b"\x08\x05"):
        for frame in (ack_frame(usual, broken), ack_frame(usual, broken, usual)):
            with pytest.raises(ProtocolError):
                decode_ack(frame, 0, len(frame))


def test_a_long_body_that_says_more_than_there_is() -> None:
    good = bytes(ack_frame(*[b"\x08\x05\x10\x06"] * 100))
    view = memoryview(good.replace(b"\x52\xdc\x04", b"\x52\xdd\x04"))
    assert view != good
    with pytest.raises(ProtocolError, match="undecodable"):
        decode_ack(view, 0, len(view))


def test_half_an_id_is_no_acknowledgement() -> None:
    command = b"\x08\x0a\x52\x08\x08\x01\x10\x00\x1a\x02\x08\x05"
    view = memoryview(len(command).to_bytes(4, "big") + command)
    with pytest.raises(ProtocolError, match="entryId"):
        decode_ack(view, 0, len(view))


def test_varints_longer_than_they_need_be() -> None:
    view = send_frame(b"\x08\x81\x80\x00\x10\x82\x80\x80\x80\x80\x80\x80\x80\x80\x00")
    assert decode_send(view, 0, len(view))[:2] == (1, 2)


@pytest.mark.parametrize(
    "body",
    [
        b"\x08",
        b"\x08\x80",
        b"\x08\x01\x10",
        b"\x08\x01\x10\xff\xff",
        b"\x08\x01\x10" + b"\xff" * 11 + b"\x01",
        b"\x00\x01\x08\x01\x10\x01",
    ],
)
def test_sends_that_end_within_a_field_or_are_garbage(body: bytes) -> None:
    view = send_frame(body)
    with pytest.raises(ProtocolError):
        decode_send(view, 0, len(view))


def test_one_command_where_another_was_expected() -> None:
    data = encode_command(BaseCommand(type=BaseCommand.PING))
    for decode in (decode_send, decode_ack, decode_flow):
        with pytest.raises(ProtocolError, match="PING where"):
            decode(memoryview(data), 4, len(data))


def test_ids_are_signed() -> None:
    assert signed64(2**64 - 1) == -1
    assert signed64(2**63 - 1) == 2**63 - 1
    assert unsigned64(-1) == 2**64 - 1


# -- checksums --------------------------------------------------------------------------------


def checked_payload(rest: bytes) -> bytes:
    return b"\x0e\x01" + crc32c(rest).to_bytes(4, "big") + rest


@given(st.binary(min_size=4, max_size=200))
def test_a_good_checksum_passes_wherever_it_lies(rest: bytes) -> None:
    data = b"...." + checked_payload(rest) + b"...."
    verify_checksum(memoryview(data), 4, len(data) - 4)


@given(st.binary(min_size=4, max_size=200), st.data())
def test_any_flipped_bit_is_found(rest: bytes, data: st.DataObject) -> None:
    payload = bytearray(checked_payload(rest))
    bit = data.draw(st.integers(16, len(payload) * 8 - 1))
    payload[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ChecksumError, match="is corrupt"):
        verify_checksum(memoryview(payload), 0, len(payload))


def test_a_payload_without_magic_has_no_checksum() -> None:
    verify_checksum(memoryview(b"\x00\x00\x00\x02xxdata"), 0, 10)


@pytest.mark.parametrize("payload", [b"", b"\x0e", b"\x0e\x01\x00\x00\x00", b"\x0e\x01" + bytes(7)])
def test_a_payload_too_short_for_metadata(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="has no metadata"):
        verify_checksum(memoryview(payload), 0, len(payload))


def test_crc32c_is_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
