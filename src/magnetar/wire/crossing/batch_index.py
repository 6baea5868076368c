"""Which batch index the last message of an entry has, whoever made it. Pure."""

from __future__ import annotations

from magnetar.model.entry import Entry
from magnetar.model.errors import ProtocolError
from magnetar.wire.kafka.batches import is_batch, read_batch_header
from magnetar.wire.pulsar.metadata import entry_metadata


def last_index(entry: Entry) -> int:
    """The batch index of the entry's last message, -1 if it is no batch. A record batch of a Kafka
    producer is one to Pulsar's consumers."""
    if entry.kept:
        return max(64 * at + word.bit_length() for at, word in enumerate(entry.kept) if word) - 1
    if is_batch(entry.payload):
        return read_batch_header(entry.payload).last_offset_delta
    try:
        metadata = entry_metadata(entry.payload)
    except ProtocolError:
        return -1
    return metadata.num_messages - 1 if metadata.batched else -1
