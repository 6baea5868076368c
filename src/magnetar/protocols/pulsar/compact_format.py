"""Pulsar's entries, as compaction asks about them (``topics.compacting.CompactFormat``)."""

from __future__ import annotations

from collections.abc import Container

from magnetar.model.errors import ProtocolError
from magnetar.model.keyed import KeyedEntry
from magnetar.wire.kafka.batches import is_batch
from magnetar.wire.pulsar.compacting import keyed_entry, without_others


class PulsarCompactFormat:
    """Record batches of Kafka's clients are refused: their keys are not those of messages."""

    def keyed(self, payload: memoryview) -> KeyedEntry:
        if is_batch(payload):
            raise ProtocolError("it is a record batch of a client of Kafka's")
        return keyed_entry(payload)

    def without_others(self, payload: memoryview, kept: Container[int]) -> bytes:
        return without_others(payload, kept)
