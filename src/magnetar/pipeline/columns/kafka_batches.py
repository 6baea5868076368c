"""Record batches of Kafka's producers, as entries of Pulsar's: decoded like these from there on.

The rules are those by which Pulsar's consumers get them (``wire.crossing.kafka_to_pulsar``).
"""

from __future__ import annotations

from magnetar.model.errors import ProtocolError
from magnetar.wire.crossing.kafka_to_pulsar import pulsar_entry
from magnetar.wire.kafka.batches import CONTROL, TRANSACTIONAL, is_batch, read_batch_header
from magnetar.wire.pulsar.broker_metadata import header_bytes


def holds_batch(payload: memoryview) -> bool:
    """Whether a stored payload, broker's header and all, is a record batch."""
    return is_batch(payload[header_bytes(payload) :])


def in_transaction(payload: memoryview) -> bool:
    """Whether a stored payload, broker's header and all, is part of a transaction."""
    batch = payload[header_bytes(payload) :]
    if not is_batch(batch):
        return False
    return bool(read_batch_header(batch).attributes & (TRANSACTIONAL | CONTROL))


def as_pulsar(payload: memoryview, *, compressed: bool = True) -> memoryview:
    """A stored payload, broker's header and all; a record batch in it is replaced. Raises
    ``ProtocolError``, also for what is part of a transaction: whether it counts is said by a marker
    that may lie anywhere behind it. ``ConfigError`` if a codec's library is not installed."""
    at = header_bytes(payload)
    batch = payload[at:]
    if not is_batch(batch):
        return payload
    if read_batch_header(batch).attributes & (TRANSACTIONAL | CONTROL):
        raise ProtocolError(
            "it is part of a transaction of a Kafka producer, of which it is not known here "
            "whether it was committed; read the topic with a consumer, or from behind it"
        )
    entry = pulsar_entry(batch, compressed=compressed, every_header=True)
    return memoryview(bytes(payload[:at]) + entry)
