"""Entries of both protocols: whose format an entry has is seen by its first bytes.

An entry of Pulsar's begins with its checksum's magic number, which in a record batch would be an
offset past 10^18; one of a very old producer begins with the size of its metadata, and is told
from a batch by the places of the batch's magic byte and length (``wire.kafka.batches.is_batch``).
"""

from __future__ import annotations

from magnetar.model.entry import Description
from magnetar.protocols.kafka.entry_format import KafkaEntryFormat
from magnetar.protocols.pulsar.entry_format import PulsarEntryFormat
from magnetar.topics.entry_format import EntryFormat, Fingerprint, Numbered, Published
from magnetar.wire.kafka.batches import is_batch


class EitherEntryFormat:
    """``topics.entry_format.EntryFormat`` of topics that clients of both protocols write."""

    def __init__(self) -> None:
        self._pulsar: EntryFormat = PulsarEntryFormat()
        self._kafka: EntryFormat = KafkaEntryFormat()
        self._describe_pulsar = self._pulsar.describe

    def _of(self, payload: memoryview) -> EntryFormat:
        return self._kafka if is_batch(payload) else self._pulsar

    def describe(self, payload: memoryview) -> Description:
        if payload and payload[0] == 0x0E:  # nearly all entries, once each
            return self._describe_pulsar(payload)
        return self._of(payload).describe(payload)

    def key_hash(self, payload: memoryview) -> int:
        return self._of(payload).key_hash(payload)

    def published(self, payload: memoryview) -> Published:
        return self._of(payload).published(payload)

    def sent(self, payload: memoryview) -> tuple[str, int]:
        return self._of(payload).sent(payload)

    def last_index(self, payload: memoryview) -> int:
        return self._of(payload).last_index(payload)

    def numbered(self, payload: memoryview) -> Numbered:
        return self._of(payload).numbered(payload)

    def last_of(
        self, sequence_id: int, highest_sequence_id: int, payload: memoryview
    ) -> tuple[int, int, bool]:
        """Of what a client of Pulsar's sends: nobody else is asked."""
        return self._pulsar.last_of(sequence_id, highest_sequence_id, payload)

    def fingerprint(self, sequence_id: int, payload: memoryview) -> Fingerprint | None:
        """Of what a client of Pulsar's sends: nobody else is asked for one."""
        return self._pulsar.fingerprint(sequence_id, payload)

    def sender(self, payload: memoryview) -> tuple[str, Fingerprint] | None:
        return self._of(payload).sender(payload)
