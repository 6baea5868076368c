"""The commands that a message costs, by hand: SEND, ACK, FLOW in; receipts and headers out.

Decoders read the shape that clients really send (fields with one-byte tags, varints) in one pass
over the command's few bytes, and leave everything else to protobuf, so both give the same values
for every input that protobuf accepts. Encoders keep the bytes that stay the same from message to
message: an id's low seven bits are one byte of its varint, and the rest of a frame changes only
every 128 ids. Figures are in bench/codec.py.

A SEND frame is ``[command size u32][BaseCommand][payload]``. Its payload, the bytes from the magic
0x0e01 (or, of very old clients, from the metadata size) to the frame's end, is the entry as it is
stored, and as it follows the header of a MESSAGE.

Errors: ``ProtocolError``, or ``ChecksumError`` from ``verify_checksum``, on any bytes whatever.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from magnetar.model.errors import ChecksumError, ProtocolError
from magnetar.wire.checksum import crc32c
from magnetar.wire.pulsar.commands import decode_command, encode_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, MessageIdData

MAGIC_CRC32C: Final = 0x0E01
"""Opens a payload that has a checksum: ``[magic u16][crc32c u32][metadata size u32]...``."""


class TxnId(NamedTuple):
    """A transaction's id, as its two halves."""

    most_bits: int
    least_bits: int


class SendCommand(NamedTuple):
    """A SEND. ``view[payload_start:payload_end]`` is the entry to store, unmodified.

    ``highest_sequence_id`` is 0 when the client gave none (then it is ``sequence_id``).
    """

    producer_id: int
    sequence_id: int
    highest_sequence_id: int
    num_messages: int
    payload_start: int
    payload_end: int
    is_chunk: bool
    txn: TxnId | None


class AckId(NamedTuple):
    """One acknowledged message id; ids are signed, as (-1, -1) is the earliest.

    ``ack_set`` is empty for a whole entry; else 64-bit words (signed), bit 1 = not acknowledged.
    ``batch_index`` is -1 and ``batch_size`` 0 where the client gave none.
    """

    ledger_id: int
    entry_id: int
    ack_set: tuple[int, ...]
    batch_index: int
    batch_size: int


class AckCommand(NamedTuple):
    """An ACK of one or several ids. With ``request_id`` the client waits for an ACK_RESPONSE."""

    consumer_id: int
    cumulative: bool
    ids: tuple[AckId, ...]
    request_id: int | None
    txn: TxnId | None


class FlowCommand(NamedTuple):
    """A FLOW: ``permits`` more messages (not entries) may be sent to the consumer."""

    consumer_id: int
    permits: int


def signed64(value: int) -> int:
    """A uint64 off the wire as the signed number that clients mean (2^64 - 1 is -1)."""
    return value - 0x1_0000_0000_0000_0000 if value >= 0x8000_0000_0000_0000 else value


def unsigned64(value: int) -> int:
    """The reverse of ``signed64``: what protobuf's uint64 fields take."""
    return value & 0xFFFF_FFFF_FFFF_FFFF


# -- SEND -------------------------------------------------------------------------------------


def decode_send(view: memoryview, start: int, end: int) -> SendCommand:
    """Decode the SEND frame ``view[start:end]``. Does not look into the payload."""
    command = decode_command(view, start, end)
    if command.type != BaseCommand.SEND:
        raise ProtocolError("not a SEND")
    send = command.send
    txn = None
    if send.HasField("txnid_most_bits") or send.HasField("txnid_least_bits"):
        txn = TxnId(send.txnid_most_bits, send.txnid_least_bits)
    stop = start + 4 + int.from_bytes(view[start : start + 4], "big")
    return SendCommand(
        send.producer_id,
        send.sequence_id,
        send.highest_sequence_id,
        send.num_messages,
        stop,
        end,
        send.is_chunk,
        txn,
    )


def verify_checksum(view: memoryview, payload_start: int, payload_end: int) -> None:
    """Check a payload's CRC-32C, which covers everything after it; no copy is made.

    Raises ``ChecksumError`` if it does not match, ``ProtocolError`` if there is no room for
    metadata. A payload without magic has no checksum and passes.
    """
    if payload_end - payload_start < 4:
        raise ProtocolError(f"payload of {payload_end - payload_start} bytes has no metadata")
    if view[payload_start] != 0x0E or view[payload_start + 1] != 0x01:
        return
    if payload_end - payload_start < 10:
        raise ProtocolError(f"payload of {payload_end - payload_start} bytes has no metadata")
    stored = _U32(view, payload_start + 2)[0]
    found = crc32c(view[payload_start + 6 : payload_end])
    if stored != found:
        raise ChecksumError(
            f"message of {payload_end - payload_start} bytes is corrupt: its checksum is "
            f"{stored:#010x}, its bytes give {found:#010x}"
        )


_U32 = struct.Struct(">I").unpack_from


# -- ACK and FLOW -----------------------------------------------------------------------------


def decode_ack(view: memoryview, start: int, end: int) -> AckCommand:
    """Decode the ACK frame ``view[start:end]``."""
    command = decode_command(view, start, end)
    if command.type != BaseCommand.ACK:
        raise ProtocolError("not an ACK")
    ack = command.ack
    txn = None
    if ack.HasField("txnid_most_bits") or ack.HasField("txnid_least_bits"):
        txn = TxnId(ack.txnid_most_bits, ack.txnid_least_bits)
    return AckCommand(
        ack.consumer_id,
        ack.ack_type == 1,
        tuple(ack_id(item) for item in ack.message_id),
        ack.request_id if ack.HasField("request_id") else None,
        txn,
    )


def ack_id(data: MessageIdData) -> AckId:
    """A protobuf message id as the value of this module."""
    return AckId(
        signed64(data.ledgerId),
        signed64(data.entryId),
        tuple(data.ack_set),
        data.batch_index,
        data.batch_size,
    )


def decode_flow(view: memoryview, start: int, end: int) -> FlowCommand:
    """Decode the FLOW frame ``view[start:end]``."""
    command = decode_command(view, start, end)
    if command.type != BaseCommand.FLOW:
        raise ProtocolError("not a FLOW")
    return FlowCommand(command.flow.consumer_id, command.flow.messagePermits)


# -- SEND_RECEIPT -----------------------------------------------------------------------------


class ReceiptEncoder:
    """Encodes one producer's receipts."""

    __slots__ = ("partition", "producer_id")

    def __init__(self, producer_id: int, partition: int = -1) -> None:
        self.producer_id = producer_id
        self.partition = partition

    def encode(
        self, sequence_id: int, ledger_id: int, entry_id: int, highest_sequence_id: int = 0
    ) -> bytes:
        """A whole frame. (-1, -1) says that the message is a duplicate and was not stored."""
        command = BaseCommand(type=BaseCommand.SEND_RECEIPT)
        receipt = command.send_receipt
        receipt.producer_id = self.producer_id
        receipt.sequence_id = sequence_id
        receipt.message_id.ledgerId = unsigned64(ledger_id)
        receipt.message_id.entryId = unsigned64(entry_id)
        receipt.message_id.partition = self.partition
        if highest_sequence_id:
            receipt.highest_sequence_id = highest_sequence_id
        return encode_command(command)


# -- MESSAGE ----------------------------------------------------------------------------------


class MessageHeaderEncoder:
    """Encodes the headers of the MESSAGE frames of one consumer of one topic partition."""

    __slots__ = ("consumer_id", "partition")

    def __init__(self, consumer_id: int, partition: int = -1) -> None:
        self.consumer_id = consumer_id
        self.partition = partition

    def encode(
        self,
        ledger_id: int,
        entry_id: int,
        payload_bytes: int,
        redelivery_count: int = 0,
        ack_set: tuple[int, ...] | list[int] = (),
    ) -> bytes:
        """Total size, command size and command; followed by the stored payload it is the frame.

        ``payload_bytes`` is the stored payload's length. ``ack_set``: signed 64-bit words, bit 1 =
        not acknowledged; given for a batch of which the consumer is to see a part.
        """
        command = BaseCommand(type=BaseCommand.MESSAGE)
        message = command.message
        message.consumer_id = self.consumer_id
        message.message_id.ledgerId = ledger_id
        message.message_id.entryId = entry_id
        message.message_id.partition = self.partition
        if redelivery_count:
            message.redelivery_count = redelivery_count
        message.ack_set.extend(ack_set)
        body = command.SerializeToString()
        size = len(body)
        return (4 + size + payload_bytes).to_bytes(4, "big") + size.to_bytes(4, "big") + body
