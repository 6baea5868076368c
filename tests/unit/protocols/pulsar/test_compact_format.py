"""Which entries compaction takes apart on a thread."""

from __future__ import annotations

import pytest

from magnetar.protocols.entry_work import KEYS
from magnetar.protocols.pulsar.compact_format import PulsarCompactFormat
from magnetar.wire.pulsar.pulsar_pb2 import CompressionType, MessageMetadata
from tests.interop.pulsar.wire import checked


@pytest.mark.parametrize(
    ("messages", "unpacked_bytes", "large"),
    [
        (0, 0, False),
        (1000, 100_000, False),
        (KEYS.at_once + 1, 100_000, True),
        (1, (4 << 20) + 1, True),
    ],
)
def test_a_batch_is_large_by_what_it_says(messages: int, unpacked_bytes: int, large: bool) -> None:
    meta = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    if messages:
        meta.num_messages_in_batch = messages
        meta.uncompressed_size = unpacked_bytes
        meta.compression = CompressionType.ZLIB
    head = meta.SerializeToString()
    payload = memoryview(checked(len(head).to_bytes(4, "big") + head + b"x"))
    assert PulsarCompactFormat().is_large(payload) is large


def test_what_is_no_entry_is_not_large() -> None:
    assert not PulsarCompactFormat().is_large(memoryview(b"\xff" * 40))
