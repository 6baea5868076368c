"""What a stored entry of Pulsar's says of itself."""

from __future__ import annotations

import pytest

from magnetar.protocols.pulsar import entry_format
from magnetar.protocols.pulsar.entry_format import LOOKED_AT_MAX, PulsarEntryFormat
from magnetar.wire.pulsar.batches import EntryMessages, split_entry
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.metadata import EntryMetadata
from tests.unit.protocols.pulsar.test_deduplication import batch_of, entry


@pytest.mark.parametrize(
    ("payload", "last", "looks"),
    [
        (batch_of("p", 7, 8, 9), 9, 1),
        (batch_of("p", *range(7, 7 + LOOKED_AT_MAX)), 6 + LOOKED_AT_MAX, 1),
        (batch_of("p", *range(7, 8 + LOOKED_AT_MAX)), 7, 0),
        (
            entry(
                "p", 7, b"x" * 9, num_messages_in_batch=3, highest_sequence_id=70,
                compression=int(Compression.ZLIB), uncompressed_size=250 << 20,
            ),
            7, 0,
        ),
    ],
    ids=["few", "as many as are looked at", "more", "little that unpacks to much"],
)  # fmt: skip
def test_a_batch_that_takes_long_to_read_counts_as_its_first_message(
    payload: bytes, last: int, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read in the turn of the loop in which it was sent: 2.8 s for a frame of 6 KB."""
    looked = []

    def noted(data: memoryview, meta: EntryMetadata) -> EntryMessages:
        looked.append(meta)
        return split_entry(data, meta)

    monkeypatch.setattr(entry_format, "split_entry", noted)
    told = PulsarEntryFormat().numbered(memoryview(payload))
    assert (told.first, told.last, len(looked)) == (7, last, looks)
