"""Pulsar's entries, as topics ask about them (``topics.entry_format``).

A stored entry is what its producer sent: metadata, then one message, a batch, or a chunk of a
message that is larger than an entry.
"""

from __future__ import annotations

from typing import Final

from magnetar.model.entry import Chunk, Description
from magnetar.model.key_hash import key_hash
from magnetar.speedups import whole_messages
from magnetar.topics.entry_format import Fingerprint, Published
from magnetar.wire.pulsar.metadata import (
    MAGIC_CRC32C,
    dispatch_facts,
    parse_metadata,
)
from magnetar.wire.pulsar.sent import check_sent
from magnetar.wire.pulsar.sticky_key import sticky_key

_MAGIC: Final = MAGIC_CRC32C.to_bytes(2, "big")

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

    def fingerprint(self, sequence_id: int, payload: memoryview) -> Fingerprint | None:
        """The checksum covers the metadata, publish time included. A send without one (of very
        old clients) is never taken for a repeat."""
        head = bytes(payload[:6])
        return (sequence_id, len(payload), head) if head[:2] == _MAGIC else None

    def sender(self, payload: memoryview) -> tuple[str, Fingerprint] | None:
        meta = parse_metadata(payload)[0]
        key = self.fingerprint(meta.sequence_id, payload)
        return None if key is None else (meta.producer_name, key)
