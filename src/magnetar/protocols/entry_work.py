"""How much work an entry is to take apart, by what it says of itself, and how much of that the loop
has the time for. Pure.

A frame of a few kilobytes may hold a million messages, or unpack to a quarter of a gigabyte: taken
apart in one turn of the loop it stops all clients of the broker for seconds. So an entry is weighed
before that, in messages; so many of its bytes count as one message more, since properties cost time
as messages do, and a message may have any number. What is more than one turn has the time for is
done on a thread, or in turns that come.

An entry of Pulsar's producers unpacks to the bytes that it says, or is refused by who unpacks it. A
record batch says how many records it has, but not what it unpacks to.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from magnetar.wire.kafka.batches import CODEC_MASK, read_batch_header
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.metadata import EntryMetadata


class Scale(NamedTuple):
    """For one way to take entries apart: bytes that take as long as a message, and messages for
    which one turn of the loop has the time."""

    bytes_each: int
    at_once: int


TO_PULSAR: Final = Scale(64, 1000)
"""A record batch, converted (``wire.crossing.kafka_to_pulsar``): some 5 ms a turn."""
TO_KAFKA: Final = Scale(128, 1000)
"""An entry of Pulsar's, converted (``wire.crossing.pulsar_to_kafka``): some 5 ms a turn."""
TIMES: Final = Scale(128, 1000)
"""A record batch, of which each record's time is looked at: a few ms a turn."""
KEYS: Final = Scale(2048, 2000)
"""An entry of Pulsar's, of which each message's key is looked at, and what stays is put together
again: some 16 ms a turn, which compaction takes now and then. Values are passed over, so that bytes
cost little but where they are compressed."""


class EntryWork(NamedTuple):
    """What there is to take apart. ``certain``: it is not more than that. What a record batch that
    is compressed unpacks to it does not say: its bytes count as they lie, and are the least."""

    messages: int
    byte_count: int
    certain: bool = True

    def weight(self, scale: Scale) -> int:
        """In messages."""
        return self.messages + self.byte_count // scale.bytes_each

    def fits_turn(self, scale: Scale) -> bool:
        """One turn of the loop has the time for all of it, for certain."""
        return self.certain and self.weight(scale) <= scale.at_once


def entry_work(payload: memoryview, meta: EntryMetadata) -> EntryWork:
    """Of an entry of Pulsar's producers that says ``meta``."""
    plain = meta.compression is Compression.NONE
    byte_count = len(payload) if plain else max(len(payload), meta.uncompressed_size)
    return EntryWork(meta.num_messages, byte_count)


def batch_work(batch: memoryview) -> EntryWork:
    """Of a record batch. Raises ``ProtocolError`` for one without a header."""
    header = read_batch_header(batch)
    return EntryWork(header.record_count, len(batch), not header.attributes & CODEC_MASK)
