"""Kafka's entries, as topics ask about them (``topics.entry_format``).

A stored entry is one record batch. Topics use its header only: batches are not taken apart, but for
the one record of a marker.
"""

from __future__ import annotations

from magnetar.model.entry import Description, TransactionPart
from magnetar.model.errors import ProtocolError
from magnetar.model.key_hash import NONE_KEY, key_hash
from magnetar.topics.entry_format import Fingerprint, Numbered, Published
from magnetar.wire.kafka.batches import (
    CONTROL,
    TRANSACTIONAL,
    check_produced,
    read_batch_header,
)
from magnetar.wire.kafka.markers import read_marker


class KafkaEntryFormat:
    """``topics.entry_format.EntryFormat`` of record batches."""

    def describe(self, payload: memoryview) -> Description:
        header = read_batch_header(payload)
        if header.last_offset_delta < 0:
            raise ProtocolError(f"a record batch of {header.last_offset_delta + 1} offsets")
        part: TransactionPart | None = None
        if header.attributes & CONTROL:
            part = TransactionPart(header.producer_id, read_marker(payload)[0])
        elif header.attributes & TRANSACTIONAL:
            part = TransactionPart(header.producer_id)
        return Description(header.last_offset_delta + 1, transaction=part)

    def key_hash(self, payload: memoryview) -> int:
        """The same for all: a batch has records of many keys, and two batches may share some. So
        all of them go to one consumer, in order."""
        return key_hash(NONE_KEY)

    def published(self, payload: memoryview) -> Published:
        header = check_produced(payload)
        name, sequence_id = self.sent(payload)
        return Published(name, sequence_id, header.record_count, max(0, header.max_timestamp_ms))

    def sent(self, payload: memoryview) -> tuple[str, int]:
        header = read_batch_header(payload)
        return f"kafka-{header.producer_id}", header.base_sequence

    def last_index(self, payload: memoryview) -> int:
        return read_batch_header(payload).last_offset_delta

    def numbered(self, payload: memoryview) -> Numbered:
        raise ProtocolError("a record batch: its sequences are held by ``log.sequences``")

    def last_of(
        self, sequence_id: int, highest_sequence_id: int, payload: memoryview
    ) -> tuple[int, int, bool]:
        """As ``numbered`` says, nobody asks for it."""
        return sequence_id, sequence_id, True

    def fingerprint(self, sequence_id: int, payload: memoryview) -> Fingerprint | None:
        """Repeats of Kafka's producers are found by their sequences (``producer_states``)."""
        return None

    def sender(self, payload: memoryview) -> tuple[str, Fingerprint] | None:
        return None
