"""How deep JSON may be nested: the same with every Python."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.model.json_bounded import TooDeepError, load_bounded

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab[]{}"\\,:\u5b22'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


def levels(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(levels, value), default=0) if isinstance(value, list) else 0


@given(VALUES, st.integers(0, 6), st.sampled_from(["utf-8", "utf-16", "utf-32-be"]))
def test_levels_are_counted_and_no_brackets_in_texts(value: Any, most: int, encoding: str) -> None:
    data = json.dumps(value, ensure_ascii=False).encode(encoding)
    if levels(value) > most:
        with pytest.raises(TooDeepError, match=f"nested deeper than {most} levels"):
            load_bounded(data, most)
    else:
        assert load_bounded(data, most) == value


@pytest.mark.parametrize("depth", [11, 900, 5000, 1_000_000])
def test_the_interpreter_has_no_say(depth: int) -> None:
    for data in (b"[" * depth + b"]" * depth, b"[" * depth, b'{"a":' * depth):
        with pytest.raises(TooDeepError):
            load_bounded(data, 10)


def test_texts_without_an_end_cost_one_look() -> None:
    """Each of these would be begun anew at every quote, and go back from every end: hours."""
    for data in (
        b"[" * 5 + b'"' + b'\\"' * 500_000,
        b"[[]]" * 3 + b'"' + b"\\\\a" * 500_000 + b"\\",
    ):
        with pytest.raises(ValueError):
            load_bounded(data, 4)


def test_numbers_are_read_as_asked() -> None:
    assert load_bounded(b"[1.10]", 1, parse_float=Decimal) == [Decimal("1.10")]
