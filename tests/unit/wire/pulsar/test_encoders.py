"""What the broker writes is, byte for byte, what protobuf would write."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.wire.pulsar.commands import encode_command
from magnetar.wire.pulsar.encoders import MessageHeaderEncoder, ReceiptEncoder
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand

IDS = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))
PARTITIONS = st.integers(-1, 200)


def receipt(
    producer_id: int, partition: int, sequence: int, ledger: int, entry: int, highest: int = 0
) -> bytes:
    command = BaseCommand(type=BaseCommand.SEND_RECEIPT)
    command.send_receipt.producer_id = producer_id
    command.send_receipt.sequence_id = sequence
    command.send_receipt.message_id.ledgerId = ledger
    command.send_receipt.message_id.entryId = entry
    command.send_receipt.message_id.partition = partition
    if highest:
        command.send_receipt.highest_sequence_id = highest
    return encode_command(command)


@given(IDS, PARTITIONS, st.lists(st.tuples(IDS, IDS, IDS), max_size=8))
def test_receipts(producer_id: int, partition: int, ids: list[tuple[int, int, int]]) -> None:
    encoder = ReceiptEncoder(producer_id, partition)
    for sequence, ledger, entry in ids:
        expected = receipt(producer_id, partition, sequence, ledger, entry)
        assert encoder.encode(sequence, ledger, entry) == expected


def test_receipts_in_a_row_over_every_boundary() -> None:
    """What an encoder keeps between receipts is renewed where it must be."""
    encoder = ReceiptEncoder(3)
    for offset in range(300):
        sequence, entry = 16_200 + offset, offset
        assert encoder.encode(sequence, 5, entry) == receipt(3, -1, sequence, 5, entry)
    assert encoder.encode(16_500, 6, 299) == receipt(3, -1, 16_500, 6, 299)


@given(
    st.lists(st.tuples(IDS, st.sampled_from([0, 0, 0, 7])), max_size=300),
    IDS,
    st.integers(-1, 2**62),
)
def test_receipts_of_a_run(sends: list[tuple[int, int]], ledger: int, first: int) -> None:
    encoder, other = ReceiptEncoder(3), ReceiptEncoder(3)
    expected = [
        other.encode(sequence, ledger, entry, highest)
        for entry, (sequence, highest) in enumerate(sends, first)
    ]
    assert encoder.encode_run(sends, ledger, first) == b"".join(expected)


def test_receipts_of_a_run_over_every_boundary() -> None:
    encoder = ReceiptEncoder(3)
    sends = [(16_200 + offset, 0) for offset in range(300)]
    expected = [receipt(3, -1, sequence, 5, entry) for entry, (sequence, _) in enumerate(sends)]
    assert encoder.encode_run(sends, 5, 0) == b"".join(expected)
    assert encoder.encode_run(sends, 6, 0) == b"".join(
        receipt(3, -1, sequence, 6, entry) for entry, (sequence, _) in enumerate(sends)
    )


def test_receipt_of_a_batch_and_of_a_duplicate() -> None:
    encoder = ReceiptEncoder(3)
    assert encoder.encode(10, 5, 6, 19) == receipt(3, -1, 10, 5, 6, 19)
    assert encoder.encode(10, -1, -1) == receipt(3, -1, 10, 2**64 - 1, 2**64 - 1)


def header(
    consumer_id: int,
    partition: int,
    ids: tuple[int, int],
    payload_bytes: int,
    redelivery_count: int,
    ack_set: list[int],
    epoch: int = -1,
) -> bytes:
    command = BaseCommand(type=BaseCommand.MESSAGE)
    command.message.consumer_id = consumer_id
    command.message.message_id.ledgerId, command.message.message_id.entryId = ids
    command.message.message_id.partition = partition
    if redelivery_count:
        command.message.redelivery_count = redelivery_count
    command.message.ack_set.extend(ack_set)
    if epoch >= 0:
        command.message.consumer_epoch = epoch
    frame = encode_command(command)
    return (len(frame) - 4 + payload_bytes).to_bytes(4, "big") + frame[4:]


CALLS = st.lists(
    st.tuples(
        st.tuples(IDS, IDS),
        st.integers(0, 5_000_000),
        st.integers(0, 300),
        st.just([]) | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
        st.just(-1) | st.integers(0, 2**63 - 1),
    ),
    max_size=8,
)


@given(IDS, PARTITIONS, CALLS)
def test_message_headers(
    consumer_id: int, partition: int, calls: list[tuple[tuple[int, int], int, int, list[int], int]]
) -> None:
    encoder = MessageHeaderEncoder(consumer_id, partition)
    for ids, size, redelivery_count, ack_set, epoch in calls:
        expected = header(consumer_id, partition, ids, size, redelivery_count, ack_set, epoch)
        assert encoder.encode(*ids, size, redelivery_count, ack_set, epoch) == expected


def test_message_headers_in_a_row() -> None:
    encoder = MessageHeaderEncoder(300, 7)
    for entry in range(16_300, 16_500):
        assert encoder.encode(9, entry, 1024) == header(300, 7, (9, entry), 1024, 0, [])
