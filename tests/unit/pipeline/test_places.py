"""Places: the next message to read, and their form in a checkpoint."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.model.errors import ConfigError
from magnetar.pipeline.places import (
    START,
    Offset,
    Place,
    Point,
    after,
    after_entry,
    from_offset,
    parse_place,
    to_offset,
)

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


def test_after_an_entry_comes_the_next_one_after_none_the_start() -> None:
    assert after_entry(7, 3) == Place(7, 4, 0)
    assert after_entry(7, -1) == Place(7, 0, 0)
    assert after_entry(-1, -1) == START


@given(
    st.dictionaries(st.text(min_size=1), st.builds(Point, PLACES, st.integers(-1, 2**60))),
    st.integers(1, 2**50),
    st.dictionaries(st.text(min_size=1), st.integers(1, 2**40)),
    st.booleans(),
)
def test_offsets_survive_the_checkpoint(
    points: dict[str, Point], made_ms: int, lost: dict[str, int], initial: bool
) -> None:
    offset = Offset(points, dict.fromkeys(points, made_ms), lost, initial)
    assert from_offset(json.loads(json.dumps(to_offset(offset)))) == offset


def test_a_checkpoint_of_an_older_release_is_read() -> None:
    """It has no creation times."""
    text = '{"initial": true, "places": {"a": "1:2:3", "b": "-1:-1:0"}}'
    assert from_offset(json.loads(text)) == Offset(
        {"a": Point(Place(1, 2, 3)), "b": Point(START)}, initial=True
    )


def test_offsets_are_written_in_one_way() -> None:
    points = {"b": Point(START, 0), "a": Point(Place(1, 2, 3), 17)}
    one = Offset(points, {"b": 5, "a": 6, "gone": 7}, {"b": 2, "a": 0})
    other = Offset(dict(reversed(points.items())), {"a": 6, "b": 5}, {"b": 2})
    assert json.dumps(to_offset(one)) == json.dumps(to_offset(other))
    assert to_offset(one) == {
        "places": {"a": "1:2:3", "b": "-1:-1:0"},
        "offsets": {"a": 17, "b": 0},
        "created_ms": {"a": 6, "b": 5},
        "lost": {"b": 2},
    }
    assert to_offset(Offset({"a": Point(START)}, {"a": 0})) == {"places": {"a": "-1:-1:0"}}


@pytest.mark.parametrize("text", ["", "5", "1:2:3:4", "a:b", "1:2:x", "1;2"])
def test_a_bad_place_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not 'ledger:entry'"):
        parse_place(text)


def test_the_id_of_a_message_is_the_place_before_it() -> None:
    """That of one that is an entry of its own was a place before its entry: a read from the one
    before, by its number, to there had no rows."""
    assert parse_place("7:3:-1") == parse_place("7:3") == Place(7, 3, 0)
    assert parse_place("7:-1:-1") == Place(7, -1, 0)
    assert parse_place("-1:-1:0") == START


@pytest.mark.parametrize("text", ["7:-5:0", "-7:3:0", "7:3:-2", f"7:{2**63}:0", f"7:3:{2**31}"])
def test_a_place_that_no_message_has_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no message has such an id"):
        parse_place(text)


@pytest.mark.parametrize(
    "form",
    [
        {"partition-1": 5},
        {"in": {"0": 5}},
        {"places": {"a": "zzz"}},
        {"places": {"a": "1:2:3"}, "offsets": {"a": None}},
        {"places": ["a"]},
        {"places": {}, "lost": 5},
        [1, 2],
    ],
)
def test_a_foreign_offset_is_refused(form: object) -> None:
    with pytest.raises(ConfigError, match="not this source's"):
        from_offset(form)
