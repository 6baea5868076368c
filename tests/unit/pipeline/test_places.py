"""Places: the next message to read, and their form in a checkpoint."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.model.errors import ConfigError
from magnetar.pipeline.places import START, Place, after, from_offset, parse_place, to_offset

IDS = st.integers(min_value=0, max_value=2**40)
PLACES = st.builds(Place, IDS, IDS, st.integers(min_value=0, max_value=10_000))


def test_after_a_plain_message_comes_the_next_entry() -> None:
    assert after(7, 3, -1) == Place(7, 4, 0)


def test_after_a_batched_message_comes_its_neighbour() -> None:
    assert after(7, 3, 0) == Place(7, 3, 1)


@given(IDS, IDS, st.integers(min_value=0, max_value=1000))
def test_places_order_as_messages_do(ledger: int, entry: int, index: int) -> None:
    in_batch = [after(ledger, entry, index), after(ledger, entry, index + 1)]
    later = [after(ledger, entry + 1, -1), after(ledger + 1, 0, -1)]
    assert [START, *in_batch, *later] == sorted([*later, *in_batch, START])


@given(st.dictionaries(st.text(min_size=1), PLACES))
def test_offsets_survive_the_checkpoint(places: dict[str, Place]) -> None:
    text = json.dumps(to_offset(places))
    assert from_offset(json.loads(text)) == places


def test_offsets_are_written_in_one_way() -> None:
    one, other = {"b": START, "a": Place(1, 2, 3)}, {"a": Place(1, 2, 3), "b": START}
    assert json.dumps(to_offset(one)) == json.dumps(to_offset(other))


@pytest.mark.parametrize("text", ["", "5", "1:2:3:4", "a:b", "1:2:x", "1;2"])
def test_a_bad_place_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not 'ledger:entry'"):
        parse_place(text)


def test_a_foreign_offset_is_refused() -> None:
    with pytest.raises(ConfigError, match="not this source's"):
        from_offset({"partition-1": 5})
