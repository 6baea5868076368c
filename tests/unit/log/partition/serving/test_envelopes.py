"""Entries that are no batches, in batches."""

from __future__ import annotations

import pytest

from magnetar.log.partition.batch_header import whole_batches
from magnetar.log.partition.serving.envelopes import ENVELOPE, enclosed, wrap
from magnetar.wire.kafka.records import read_batch


@pytest.mark.parametrize("size", [0, 1, 58, 59, 63, 64, 8_000, 8_192, 1 << 20])
def test_an_entry_comes_out_as_it_went_in(size: int) -> None:
    payload = bytes(i % 251 for i in range(size))
    batch = wrap(memoryview(payload), 7, 1_234)
    ((at, head),) = whole_batches(batch, checked=True)
    assert (at, head.last_offset_delta, head.record_count) == (0, 6, 1)
    assert head.attributes == ENVELOPE
    assert head.base_timestamp_ms == head.max_timestamp_ms == 1_234
    start, end = enclosed(batch)
    assert bytes(batch[start:end]) == payload


def test_kafkas_tools_read_it_as_one_record() -> None:
    header, records = read_batch(memoryview(bytes(wrap(b"entry", 3, 5))))
    assert header.next_offset == 3
    assert [(each.key, bytes(each.value or b""), each.headers) for each in records] == [
        (None, b"entry", [])
    ]
