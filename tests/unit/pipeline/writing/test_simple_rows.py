"""``pipeline.writing.simple_rows``: by columns rows make the entries that they make one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.pipeline.writing import simple_rows
from magnetar.pipeline.writing.row_encoding import Encoded, Encoding, RowEncoder
from magnetar.pipeline.writing.simple_rows import SimpleRows

KEYS = st.text(st.characters(exclude_categories=("Cs",)), max_size=200)
VALUES = st.one_of(st.binary(max_size=20), st.integers(120, 140).map(bytes))
ROWS = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=60)


def encoded(partitions: int, batches: list[pa.RecordBatch], compression: str) -> list[Encoded]:
    """Of several batches: keys that were hashed and turns that were taken are kept."""
    names = [f"t-{i}" for i in range(partitions)]
    encoding = Encoding(compression, 10, 500, by_key=False)
    made = RowEncoder(encoding, "t", str, lambda name: names, lambda: 5, lambda name: b"\7")
    counts: dict[str, int] = {}
    found = []
    for batch in batches:
        for one in made.encode(batch, "staged:q@r:0:1", lambda name: counts.get(name, 0)):
            counts[one.topic] = counts.get(one.topic, 0) + len(one.entries)
            found.append(one)
    return found


@given(st.lists(ROWS, min_size=1, max_size=3), st.integers(1, 4), st.booleans(), st.booleans())
def test_entries_are_those_of_rows_one_by_one(
    rows: list[list[tuple[str, bytes]]], partitions: int, keyed: bool, sliced: bool
) -> None:
    batches = []
    for each in rows:
        columns: dict[str, Any] = {"value": pa.array([value for _, value in each], pa.binary())}
        if keyed:
            columns["key"] = pa.array([key for key, _ in each], pa.string())
        batch = pa.RecordBatch.from_pydict(columns)
        batches.append(batch.slice(len(each) // 2) if sliced else batch)
    for compression in ("none", "zlib"):
        fast = encoded(partitions, batches, compression)
        assert all(SimpleRows.of(batch) is not None for batch in batches)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SimpleRows, "of", lambda batch: None)
            assert encoded(partitions, batches, compression) == fast


@pytest.mark.parametrize(
    "more",
    [
        {"value": [None, b"b"]},
        {"key": ["a", None]},
        {"key": [b"a", b"b"]},
        {"topic": ["a", None]},
        {"key_is_base64": [False, False]},
        {"event_time": pa.array([None, 5], pa.timestamp("us", "UTC"))},
        {"properties": pa.array([[("a", "b")], None], pa.map_(pa.string(), pa.string()))},
        {"value": pa.array(["a", "b"], pa.large_string())},
    ],
)
def test_rows_with_more_than_a_key_and_a_value_are_not_simple(more: dict[str, Any]) -> None:
    batch = pa.RecordBatch.from_pydict({"key": ["a", "b"], "value": [b"a", b"b"]} | more)
    assert SimpleRows.of(batch) is None


def test_columns_without_anything_in_them_count_as_none() -> None:
    nothing = pa.array([None, None], pa.string())
    batch = pa.RecordBatch.from_pydict({"key": nothing, "topic": nothing, "value": ["a", "b"]})
    found = SimpleRows.of(batch)
    assert found is not None
    assert found.keys is None


def test_rows_of_more_bytes_than_offsets_reach_are_not_simple(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = pa.RecordBatch.from_pydict({"value": [b"a" * 100]})
    assert SimpleRows.of(batch) is not None
    monkeypatch.setattr(simple_rows, "JOINED_BYTES_MAX", 99)
    assert SimpleRows.of(batch) is None
