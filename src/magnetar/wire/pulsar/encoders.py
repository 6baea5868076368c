"""What a broker writes per message, by hand: SEND_RECEIPT frames and the headers of MESSAGE.

An id's low seven bits are one byte of its varint, and everything around it changes only every 128
ids. An encoder keeps those surroundings, so that a frame costs one join of a few parts. Bytes are
those that protobuf would write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from magnetar.wire.pulsar.commands import encode_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from magnetar.wire.varint import BYTES, U64, varint

_JOIN: Final = b"".join
_UNSET: Final = (-1, -1, -1)


def _high_part(value: int) -> tuple[int, bytes]:
    """What goes with a varint's low seven bits: the flag to set on them, and what follows."""
    high = value >> 7
    return (128, varint(high)) if high else (0, b"")


class ReceiptEncoder:
    """Encodes one producer's receipts: ``encode`` gives whole frames.

    ``partition`` is the topic's partition index, -1 for a topic without partitions.
    """

    __slots__ = (
        "_after", "_before", "_between", "_entry_flag", "_head", "_key", "_sequence_flag", "_tail",
        "partition", "producer_id",
    )  # fmt: skip

    def __init__(self, producer_id: int, partition: int = -1) -> None:
        self.producer_id = producer_id
        self.partition = partition
        self._head = b"\x08" + varint(producer_id) + b"\x10"
        self._tail = b"\x18" + varint(partition)
        self._key = _UNSET
        self._before = self._between = self._after = b""
        self._sequence_flag = self._entry_flag = 0

    def encode(
        self, sequence_id: int, ledger_id: int, entry_id: int, highest_sequence_id: int = 0
    ) -> bytes:
        """The receipt of the SEND with ``sequence_id`` (and its highest one, when it had one).

        (-1, -1) as ledger and entry says that the message is a duplicate and was not stored.
        """
        if highest_sequence_id or entry_id < 0:
            return self._encode_any(sequence_id, ledger_id, entry_id, highest_sequence_id)
        if self._key != (sequence_id >> 7, ledger_id, entry_id >> 7):
            self._prepare(sequence_id, ledger_id, entry_id)
        return _JOIN((
            self._before,
            BYTES[sequence_id & 127 | self._sequence_flag],
            self._between,
            BYTES[entry_id & 127 | self._entry_flag],
            self._after,
        ))  # fmt: skip

    def encode_run(
        self, sends: Sequence[tuple[int, int]], ledger_id: int, first_entry_id: int
    ) -> bytes:
        """The receipts of SENDs with these sequence ids and highest ones, which lie one behind
        the other. As ``encode`` for each, by a third cheaper."""
        low, entry_id = BYTES, first_entry_id
        parts: list[bytes] = []
        sequence_block = entry_block = -1
        for sequence_id, highest in sends:
            if highest or entry_id < 0:
                parts.append(self._encode_any(sequence_id, ledger_id, entry_id, highest))
            else:
                if sequence_id >> 7 != sequence_block or entry_id >> 7 != entry_block:
                    sequence_block, entry_block = sequence_id >> 7, entry_id >> 7
                    if self._key != (sequence_block, ledger_id, entry_block):
                        self._prepare(sequence_id, ledger_id, entry_id)
                    before, between, after = self._before, self._between, self._after
                    sequence_flag, entry_flag = self._sequence_flag, self._entry_flag
                parts += (
                    before,
                    low[sequence_id & 127 | sequence_flag],
                    between,
                    low[entry_id & 127 | entry_flag],
                    after,
                )
            entry_id += 1
        return _JOIN(parts)

    def _prepare(self, sequence_id: int, ledger_id: int, entry_id: int) -> None:
        """Build what surrounds the low bytes of the two ids."""
        self._sequence_flag, sequence_high = _high_part(sequence_id)
        self._entry_flag, entry_high = _high_part(entry_id)
        id_head = b"\x08" + varint(ledger_id) + b"\x10"
        id_tail = entry_high + self._tail
        id_size = len(id_head) + 1 + len(id_tail)
        receipt_head = self._head
        between = sequence_high + b"\x1a" + varint(id_size) + id_head
        body_size = len(receipt_head) + 1 + len(between) + 1 + len(id_tail)
        command_head = b"\x08\x07\x3a" + varint(body_size)
        size = len(command_head) + body_size
        sizes = (size + 4).to_bytes(4, "big") + size.to_bytes(4, "big")
        self._before = sizes + command_head + receipt_head
        self._between, self._after = between, id_tail
        self._key = (sequence_id >> 7, ledger_id, entry_id >> 7)

    def _encode_any(self, sequence: int, ledger_id: int, entry_id: int, highest: int) -> bytes:
        command = BaseCommand(type=BaseCommand.SEND_RECEIPT)
        receipt = command.send_receipt
        receipt.producer_id = self.producer_id
        receipt.sequence_id = sequence
        receipt.message_id.ledgerId = ledger_id & U64
        receipt.message_id.entryId = entry_id & U64
        receipt.message_id.partition = self.partition
        if highest:
            receipt.highest_sequence_id = highest
        return encode_command(command)


class MessageHeaderEncoder:
    """Encodes the headers of one consumer's MESSAGE frames of one topic partition.

    The stored payload, as it is, follows a header on the wire.
    """

    __slots__ = (
        "_after", "_before", "_command_bytes", "_flag", "_key", "_tail", "consumer_id",
        "partition",
    )  # fmt: skip

    def __init__(self, consumer_id: int, partition: int = -1) -> None:
        self.consumer_id = consumer_id
        self.partition = partition
        self._tail = b"\x18" + varint(partition)
        self._key = _UNSET
        self._before = self._after = b""
        self._command_bytes = self._flag = 0

    def encode(
        self,
        ledger_id: int,
        entry_id: int,
        payload_bytes: int,
        redelivery_count: int = 0,
        ack_set: Sequence[int] | None = None,
    ) -> bytes:
        """Total size, command size and command of a frame with ``payload_bytes`` of payload.

        ``entry_id`` is 0 or greater. ``ack_set``, for a batch of which the consumer is to see a
        part: signed 64-bit words, the lowest indexes first, bit 1 = not acknowledged.
        """
        if ack_set:
            return self._encode_any(ledger_id, entry_id, payload_bytes, redelivery_count, ack_set)
        if self._key != (ledger_id, entry_id >> 7, redelivery_count):
            self._prepare(ledger_id, entry_id, redelivery_count)
        return _JOIN((
            (self._command_bytes + payload_bytes).to_bytes(4, "big"),
            self._before,
            BYTES[entry_id & 127 | self._flag],
            self._after,
        ))  # fmt: skip

    def _prepare(self, ledger_id: int, entry_id: int, redelivery_count: int) -> None:
        """Build what surrounds the entry id's low byte."""
        self._flag, entry_high = _high_part(entry_id)
        id_head = b"\x08" + varint(ledger_id) + b"\x10"
        id_tail = entry_high + self._tail
        id_size = len(id_head) + 1 + len(id_tail)
        head = b"\x08" + varint(self.consumer_id) + b"\x12" + varint(id_size) + id_head
        after = id_tail + (b"\x18" + varint(redelivery_count) if redelivery_count else b"")
        body_size = len(head) + 1 + len(after)
        command_head = b"\x08\x09\x4a" + varint(body_size)
        size = len(command_head) + body_size
        self._before = size.to_bytes(4, "big") + command_head + head
        self._after = after
        self._command_bytes = size + 4
        self._key = (ledger_id, entry_id >> 7, redelivery_count)

    def _encode_any(
        self,
        ledger_id: int,
        entry_id: int,
        payload_bytes: int,
        redelivery_count: int,
        ack_set: Sequence[int],
    ) -> bytes:
        command = BaseCommand(type=BaseCommand.MESSAGE)
        message = command.message
        message.consumer_id = self.consumer_id
        message.message_id.ledgerId = ledger_id
        message.message_id.entryId = entry_id
        message.message_id.partition = self.partition
        if redelivery_count:
            message.redelivery_count = redelivery_count
        message.ack_set.extend(ack_set)
        frame = encode_command(command)
        return (len(frame) - 4 + payload_bytes).to_bytes(4, "big") + frame[4:]
