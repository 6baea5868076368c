"""``staging.marks``: how far a query was taken in, and what is left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.model.errors import StagedWriteError
from magnetar.staging.marks import NOTHING, Left, Mark, QueryMarks, sender, sent_by
from magnetar.staging.records import Commit, Source

A, B = Source(0, 7, 3, 3), Source(2, 8, 2, 2)
COMMIT = Commit(5, 1, {"t": (A, B)}, (7, 8))


def test_all_is_left_at_first_and_nothing_when_it_is_finished() -> None:
    marks = QueryMarks()
    assert list(marks.left("q", COMMIT, "t")) == [Left(A, 0), Left(B, 0)]
    marks.finish("q", 5)
    assert list(marks.left("q", COMMIT, "t")) == []
    assert list(marks.left("q", COMMIT, "other topic")) == []


@pytest.mark.parametrize(
    ("mark", "left"),
    [
        (Mark(5, 0, 0), [Left(A, 1), Left(B, 0)]),
        (Mark(5, 0, 2), [Left(B, 0)]),
        (Mark(5, 2, 0), [Left(B, 1)]),
        (Mark(5, 2, 1), []),
        (Mark(4, 9, 9), [Left(A, 0), Left(B, 0)]),
        (Mark(6, 0, 0), []),
    ],
)
def test_what_is_left_after_a_mark(mark: Mark, left: list[Left]) -> None:
    marks = QueryMarks([("q", mark)])
    assert list(marks.left("q", COMMIT, "t")) == left


def test_a_mark_never_goes_back() -> None:
    marks = QueryMarks()
    marks.reach("q", Mark(5, 1, 1))
    marks.reach("q", Mark(5, 0, 9))
    assert marks.of("q") == Mark(5, 1, 1)


def test_entries_say_whose_they_are() -> None:
    marks = QueryMarks()
    assert marks.found(sender("q@r", 5, 2), 1)
    assert marks.of("q@r") == Mark(5, 2, 1)
    for other in ("p", "staged:q@r:5", "staged:q@r:x:1", "staged::1:1"):
        assert not marks.found(other, 3)
        assert sent_by(other) is None


def test_a_query_made_anew_is_another() -> None:
    marks = QueryMarks([("q@old", Mark(9, 0, 0)), ("qq@old", Mark(1, 0, 0))])
    assert marks.of("q@new") == NOTHING
    marks.forget("q", "q@new")
    assert (marks.of("q@old"), marks.of("qq@old")) == (NOTHING, Mark(1, 0, 0))


def test_state_that_is_none_is_refused() -> None:
    with pytest.raises(StagedWriteError, match="checkpoint of log l holds"):
        QueryMarks.decode("l", b"[]")


@given(st.dictionaries(st.text(), st.tuples(*[st.integers(0, 1 << 62)] * 3)))
def test_marks_are_read_as_they_were_written(found: dict[str, tuple[int, int, int]]) -> None:
    marks = QueryMarks((query, Mark(*mark)) for query, mark in found.items())
    again = QueryMarks.decode("l", marks.encode())
    assert all(again.of(query) == marks.of(query) for query in found)
    assert len(again) == len(found)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 16))
def test_what_was_appended_and_what_is_left_are_the_whole(sizes: list[int], cut: int) -> None:
    """A new owner finds the first ``cut`` entries in the log, and appends the rest."""
    sources = tuple(Source(part, part, size, size) for part, size in enumerate(sizes))
    commit = Commit(0, 1, {"t": sources}, ())
    order = [(part, number) for part, size in enumerate(sizes) for number in range(size)]
    marks = QueryMarks()
    for part, number in order[:cut]:
        marks.found(sender("q@r", 0, part), number)
    left = [
        (source.part, number)
        for source, first in marks.left("q@r", commit, "t")
        for number in range(first, source.entries)
    ]
    assert order[:cut] + left == order
