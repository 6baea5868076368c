"""What a broker writes per message: SEND_RECEIPT frames and the headers of MESSAGE.

Runs of them are ``magnetar.speedups``' (``encode_receipts``, ``join_messages``); here is one at a
time, with all that a header may say.
"""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.speedups import encode_receipts
from magnetar.speedups.pure.messages import around_message
from magnetar.wire.pulsar.commands import encode_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from magnetar.wire.varint import BYTES


class ReceiptEncoder:
    """Encodes one producer's receipts: whole frames.

    ``partition`` is the topic's partition index, -1 for a topic without partitions.
    """

    __slots__ = ("partition", "producer_id")

    def __init__(self, producer_id: int, partition: int = -1) -> None:
        self.producer_id = producer_id
        self.partition = partition

    def encode(
        self, sequence_id: int, ledger_id: int, entry_id: int, highest_sequence_id: int = 0
    ) -> bytes:
        """The receipt of the SEND with ``sequence_id`` (and its highest one, when it had one).

        (-1, -1) as ledger and entry says that the message is a duplicate and was not stored.
        """
        sends = ((sequence_id, highest_sequence_id),)
        return encode_receipts(self.producer_id, self.partition, sends, ledger_id, entry_id)

    def encode_run(
        self, sends: Sequence[tuple[int, int]], ledger_id: int, first_entry_id: int
    ) -> bytes:
        """The receipts of SENDs with these sequence ids and highest ones, which lie one behind
        the other."""
        return encode_receipts(self.producer_id, self.partition, sends, ledger_id, first_entry_id)


class MessageHeaderEncoder:
    """Encodes the headers of one consumer's MESSAGE frames of one topic partition.

    The stored payload, as it is, follows a header on the wire.
    """

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
        ack_set: Sequence[int] | None = None,
        epoch: int = -1,
    ) -> bytes:
        """Total size, command size and command of a frame with ``payload_bytes`` of payload.

        ``entry_id`` is 0 or greater. ``ack_set``, for a batch of which the consumer is to see a
        part: signed 64-bit words, the lowest indexes first, bit 1 = not acknowledged. ``epoch``: of
        the consumer, below 0: none.
        """
        if ack_set:
            return self._encode_any(
                ledger_id, entry_id, payload_bytes, redelivery_count, ack_set, epoch
            )
        before, flag, after, command_bytes = around_message(
            self.consumer_id, self.partition, ledger_id, entry_id >> 7, redelivery_count, epoch
        )
        return b"".join((
            (command_bytes + payload_bytes).to_bytes(4, "big"),
            before,
            BYTES[entry_id & 127 | flag],
            after,
        ))  # fmt: skip

    def _encode_any(
        self,
        ledger_id: int,
        entry_id: int,
        payload_bytes: int,
        redelivery_count: int,
        ack_set: Sequence[int],
        epoch: int,
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
        if epoch >= 0:
            message.consumer_epoch = epoch
        frame = encode_command(command)
        return (len(frame) - 4 + payload_bytes).to_bytes(4, "big") + frame[4:]
