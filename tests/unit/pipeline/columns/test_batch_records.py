"""Where messages may begin in a batch's bytes."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from magnetar.pipeline.columns import batch_records
from magnetar.pipeline.columns.batch_records import candidates
from magnetar.pipeline.columns.protobuf_columns import SLACK, Bytes

TAGS = (0x0A, 0x12, 0x18)


@given(
    data=st.lists(st.sampled_from([0, 0, 0, 1, *TAGS, 0xFF]), max_size=60).map(bytes),
    bounds=st.tuples(st.integers(0, 60), st.integers(0, 60)),
    at_once=st.sampled_from([2, 8, 1 << 17]),
)
def test_candidates_are_three_zeros_and_a_size_before_a_tag(
    data: bytes, bounds: tuple[int, int], at_once: int
) -> None:
    begin, end = sorted(min(bound, len(data)) for bound in bounds)
    padded = data + SLACK
    expected = [
        at
        for at in range(begin, end)
        if padded[at : at + 3] == bytes(3) and padded[at + 3] and padded[at + 4] in TAGS
    ]
    with patch.object(batch_records, "SCAN_BYTES", at_once):
        assert candidates(Bytes(padded), begin, end).tolist() == expected
