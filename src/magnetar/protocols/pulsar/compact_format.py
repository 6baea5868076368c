"""Pulsar's entries, as compaction asks about them (``topics.compacting.CompactFormat``)."""

from __future__ import annotations

from collections.abc import Container

from magnetar.model.errors import ProtocolError
from magnetar.model.keyed import KeyedEntry
from magnetar.protocols.entry_work import KEYS, entry_work
from magnetar.wire.kafka.batches import is_batch
from magnetar.wire.pulsar.broker_metadata import header_bytes
from magnetar.wire.pulsar.compacting import keyed_entry, without_others
from magnetar.wire.pulsar.metadata import entry_metadata


class PulsarCompactFormat:
    """Record batches of Kafka's clients are refused: their keys are not those of messages."""

    def is_large(self, payload: memoryview) -> bool:
        if is_batch(payload) or len(payload) == header_bytes(payload):
            return False
        try:
            meta = entry_metadata(payload)
        except ProtocolError:
            return False  # as whoever reads it finds out at once
        # The key of a message that is no batch stands in its metadata: nothing is unpacked.
        return meta.batched and not entry_work(payload, meta).fits_turn(KEYS)

    def keyed(self, payload: memoryview) -> KeyedEntry:
        if is_batch(payload):
            raise ProtocolError("it is a record batch of a client of Kafka's")
        return keyed_entry(payload)

    def without_others(self, payload: memoryview, kept: Container[int]) -> bytes:
        return without_others(payload, kept)
