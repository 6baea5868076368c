"""Pulsar's entries, as compaction asks about them (``topics.compacting.CompactFormat``)."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from magnetar.model.errors import ProtocolError
from magnetar.model.keyed import KeyedEntry
from magnetar.wire.kafka.batches import is_batch
from magnetar.wire.pulsar.broker_metadata import header_bytes
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.compacting import keyed_entry, without_others
from magnetar.wire.pulsar.metadata import entry_metadata

MESSAGES_LARGE: Final = 2000
BYTES_LARGE: Final = 4 << 20
"""Which may be more messages than a batch says that it has."""


class PulsarCompactFormat:
    """Record batches of Kafka's clients are refused: their keys are not those of messages."""

    def is_large(self, payload: memoryview) -> bool:
        if is_batch(payload) or len(payload) == header_bytes(payload):
            return False
        try:
            meta = entry_metadata(payload)
        except ProtocolError:
            return False  # as whoever reads it finds out at once
        plain = meta.compression is Compression.NONE
        unpacked = len(payload) if plain else max(len(payload), meta.uncompressed_size)
        return meta.num_messages > MESSAGES_LARGE or (meta.batched and unpacked > BYTES_LARGE)

    def keyed(self, payload: memoryview) -> KeyedEntry:
        if is_batch(payload):
            raise ProtocolError("it is a record batch of a client of Kafka's")
        return keyed_entry(payload)

    def without_others(self, payload: memoryview, kept: Container[int]) -> bytes:
        return without_others(payload, kept)
