"""Kafka's entries, as topics ask about them (``topics.entry_format``).

A stored entry is one record batch. Topics use its header only: batches are not taken apart.
"""

from __future__ import annotations

from magnetar.model.entry import Description
from magnetar.model.errors import ProtocolError
from magnetar.topics.entry_format import Fingerprint, Published
from magnetar.wire.kafka.batches import check_produced, read_batch_header


class KafkaEntryFormat:
    """``topics.entry_format.EntryFormat`` of record batches."""

    def describe(self, payload: memoryview) -> Description:
        header = read_batch_header(payload)
        if header.last_offset_delta < 0:
            raise ProtocolError(f"a record batch of {header.last_offset_delta + 1} offsets")
        return Description(header.last_offset_delta + 1)

    def published(self, payload: memoryview) -> Published:
        header = check_produced(payload)
        name, sequence_id = self.sent(payload)
        return Published(name, sequence_id, header.record_count, max(0, header.max_timestamp_ms))

    def sent(self, payload: memoryview) -> tuple[str, int]:
        header = read_batch_header(payload)
        return f"kafka-{header.producer_id}", header.base_sequence

    def fingerprint(self, sequence_id: int, payload: memoryview) -> Fingerprint | None:
        """Repeats of Kafka's producers are found by their sequences (``producer_states``)."""
        return None

    def sender(self, payload: memoryview) -> tuple[str, Fingerprint] | None:
        return None
