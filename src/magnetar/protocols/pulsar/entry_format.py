"""Pulsar's entries, as topics ask about them (``topics.entry_format``).

A stored entry is what its producer sent: metadata, then one message, a batch, or a chunk of a
message that is larger than an entry.
"""

from __future__ import annotations

from typing import Final

from magnetar.model.entry import Chunk, Description
from magnetar.model.errors import ConfigError, ProtocolError
from magnetar.model.key_hash import key_hash
from magnetar.speedups import whole_messages
from magnetar.topics.entry_format import Fingerprint, Numbered, Published
from magnetar.wire.pulsar.batches import split_entry
from magnetar.wire.pulsar.metadata import (
    MAGIC_CRC32C,
    dispatch_facts,
    entry_metadata,
    parse_metadata,
)
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata
from magnetar.wire.pulsar.sent import check_sent
from magnetar.wire.pulsar.sticky_key import sticky_key

_MAGIC: Final = MAGIC_CRC32C.to_bytes(2, "big")

LOOKED_AT_MAX: Final = 5000
"""Messages of a batch, which take some 5 us each, in the turn of the loop in which it is sent."""
LOOKED_AT_BYTES_MAX: Final = 2 << 20
"""Of a batch that is compressed, as it says: a small one may unpack to 256 MiB."""

_WHOLE: Final = tuple(Description(messages) for messages in range(1025))
"""Descriptions of entries that hold whole messages: most entries share one, and it costs none."""


class PulsarEntryFormat:
    """``topics.entry_format.EntryFormat`` of entries that Pulsar's clients sent."""

    def describe(self, payload: memoryview) -> Description:
        messages = whole_messages(payload)
        if messages and messages < len(_WHOLE):
            return _WHOLE[messages]
        messages, deliver_at_ms = dispatch_facts(payload)
        if messages:
            if messages < len(_WHOLE) and not deliver_at_ms:
                return _WHOLE[messages]
            return Description(messages, None, deliver_at_ms)
        meta = parse_metadata(payload)[0]
        last = meta.chunk_id >= meta.num_chunks_from_msg - 1
        return Description(1, Chunk(hash(meta.uuid), last), deliver_at_ms)

    def key_hash(self, payload: memoryview) -> int:
        return key_hash(sticky_key(payload))

    def published(self, payload: memoryview) -> Published:
        messages, time_ms, _ = check_sent(payload, 0, len(payload))
        return Published(*self.sent(payload), messages, time_ms)

    def sent(self, payload: memoryview) -> tuple[str, int]:
        meta = parse_metadata(payload)[0]
        return meta.producer_name, meta.sequence_id

    def last_index(self, payload: memoryview) -> int:
        told = entry_metadata(payload)
        return told.num_messages - 1 if told.batched else -1

    def numbered(self, payload: memoryview) -> Numbered:
        meta = parse_metadata(payload)[0]
        if not meta.IsInitialized():
            raise ProtocolError("an entry that does not say who sent it")
        first, last, ends = _ids(meta, meta.sequence_id, meta.highest_sequence_id, payload)
        return Numbered(meta.producer_name, first, last, ends)

    def last_of(
        self, sequence_id: int, highest_sequence_id: int, payload: memoryview
    ) -> tuple[int, int, bool]:
        if not highest_sequence_id and whole_messages(payload) == 1:
            first = _signed(sequence_id)
            return first, first, True
        try:
            meta = parse_metadata(payload)[0]
        except ProtocolError:
            meta = MessageMetadata()
        highest = max(highest_sequence_id, meta.highest_sequence_id)
        return _ids(meta, sequence_id, highest, payload)

    def fingerprint(self, sequence_id: int, payload: memoryview) -> Fingerprint | None:
        """The checksum covers the metadata, publish time included. A send without one (of very
        old clients) is never taken for a repeat."""
        head = bytes(payload[:6])
        return (sequence_id, len(payload), head) if head[:2] == _MAGIC else None

    def sender(self, payload: memoryview) -> tuple[str, Fingerprint] | None:
        meta = parse_metadata(payload)[0]
        key = self.fingerprint(meta.sequence_id, payload)
        return None if key is None else (meta.producer_name, key)


def _ids(
    meta: MessageMetadata, sequence_id: int, highest: int, payload: memoryview
) -> tuple[int, int, bool]:
    """First and last id of the entry's messages, and whether those are whole with it."""
    first, last = _signed(sequence_id), _signed(highest)
    if meta.num_chunks_from_msg > 1:  # all chunks of a message bear its id
        return first, first, meta.chunk_id >= meta.num_chunks_from_msg - 1
    count = meta.num_messages_in_batch
    if count > 1 and last - first != count - 1:
        last = _last_in_batch(payload, first, last if highest else first)
    return first, max(first, last), True


def _last_in_batch(payload: memoryview, first: int, highest: int) -> int:
    """The last id in a batch that says ``highest`` (``first``: it does not say). Too low a number
    may have a message stored twice, too high a one would lose one:

    * Messages that are numbered in a row, from the batch's number on, end the doubt. Those in C++
      and Python are, whose batches do not say it.
    * Batches by key hold ids between each other's.
    * Where nothing is said the next batch may have the next number: of Go's clients, and of jobs on
      Spark, batches are numbered and not messages.
    * What cannot be read (it is encrypted) is believed.
    * What takes long to read is not read, and counts as its first message: a batch is sent again as
      a whole. Clients have a thousand messages and 128 KiB in one unless they are told otherwise.
    """
    try:
        told = entry_metadata(payload)
        if told.num_messages > LOOKED_AT_MAX or told.uncompressed_size > LOOKED_AT_BYTES_MAX:
            return first
        singles = split_entry(payload, told).singles or []
    except (ProtocolError, ConfigError):
        return highest
    ids = [_signed(each.sequence_id) for each in singles if each.HasField("sequence_id")]
    if ids and ids == list(range(first, first + len(singles))):
        return ids[-1]
    keys = {(each.partition_key, each.ordering_key) for each in singles}
    by_key = len(keys) == 1 and keys != {("", b"")}
    return first if by_key else highest


def _signed(number: int) -> int:
    """A 64-bit number that the wire has without a sign."""
    return number - (1 << 64) if number >> 63 else number
