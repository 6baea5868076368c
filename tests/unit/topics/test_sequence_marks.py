"""What is known of producers says of each send whether it is stored, and never too much."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.model.errors import ProtocolError
from magnetar.topics.publishing.sequence_marks import (
    NOTHING,
    SendVerdict,
    SequenceMark,
    SequenceMarks,
)

NEW, REPEAT = SendVerdict.NEW, SendVerdict.REPEAT
IN_DOUBT, TORN = SendVerdict.IN_DOUBT, SendVerdict.TORN


def mark(stored: int, pushed: int) -> SequenceMark:
    made = SequenceMark("p", stored)
    made.pushed = pushed
    return made


@pytest.mark.parametrize(
    ("first", "last", "verdict"),
    [
        (0, 0, REPEAT),
        (4, 5, REPEAT),
        (5, 6, IN_DOUBT),
        (6, 6, IN_DOUBT),
        (6, 8, IN_DOUBT),
        (5, 9, TORN),
        (8, 9, TORN),
        (9, 9, NEW),
        (9, 99, NEW),
        (100, 200, NEW),
    ],
)
def test_what_is_said_of_a_send(first: int, last: int, verdict: SendVerdict) -> None:
    assert mark(stored=5, pushed=8).judge(first, last) is verdict


@pytest.mark.parametrize("first", [0, -1, -(1 << 63) + 1])
def test_the_first_of_a_producer_is_new_whatever_its_id(first: int) -> None:
    assert SequenceMark("p").judge(first, first) is NEW


def test_who_stored_nothing_for_the_longest_time_gives_way() -> None:
    marks = SequenceMarks(producers_max=3)
    for time_ms, name in enumerate("abcad"):
        marks.found(name, 7, time_ms)
    assert len(marks) == 3
    assert {name: marks.of(name).stored for name in "abcd"} == {
        "a": 7, "b": NOTHING, "c": 7, "d": 7,
    }  # fmt: skip


def test_a_producer_that_gave_way_comes_back_in_with_its_next_message() -> None:
    marks = SequenceMarks(producers_max=1)
    connected = marks.of("a")
    connected.confirm(5)
    marks.used(connected, 1)
    marks.found("b", 1, 2)
    assert marks.of("a").stored == NOTHING
    connected.confirm(6)
    marks.used(connected, 3)
    assert marks.of("a") is connected


def test_the_inactive_are_forgotten_unless_they_are_connected() -> None:
    marks = SequenceMarks(inactive_ms=100)
    for time_ms, name in enumerate("abc"):
        marks.found(name, 1, time_ms)
    assert marks.forget(100, connected=()) == 1
    assert marks.forget(101, connected=("b",)) == 0
    assert marks.forget(102, connected=("b",)) == 1
    assert [marks.of(name).stored for name in "abc"] == [NOTHING, 1, NOTHING]


def test_who_is_read_of_a_note_has_its_time_from_then_on() -> None:
    """Whatever the clocks of this owner and of the one before say."""
    before, marks = SequenceMarks(), SequenceMarks(inactive_ms=100)
    before.found("a", 1, 7)
    marks.decode(before.encode(date_ms=1_700_000_000_000), 5000)
    assert marks.forget(5099, connected=()) == 0
    assert marks.forget(5100, connected=()) == 1


def test_who_only_connected_is_not_remembered() -> None:
    marks = SequenceMarks()
    marks.used(marks.of("a"), 1)
    assert len(marks) == 0


@given(
    st.lists(
        st.tuples(st.text(max_size=20), st.integers(-(2**63) + 1, 2**63 - 1)),
        max_size=20,
    )
)
def test_what_is_stored_is_read_back(found: list[tuple[str, int]]) -> None:
    marks, again = SequenceMarks(), SequenceMarks()
    for time_ms, (name, last) in enumerate(found):
        marks.found(name, last, time_ms)
    data = marks.encode(7)
    again.decode(data, 1)
    assert again.encode(7) == data
    for name, _ in found:
        assert again.of(name).stored == again.of(name).pushed == marks.of(name).stored


@pytest.mark.parametrize(
    "data", [b"\x02\0\0\0\0", b"\x01\0\0", b"\x01\0\0\0\x01", b"\x01\0\0\0\0x"]
)
def test_bytes_that_nobody_wrote_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        SequenceMarks().decode(data, 1)


def test_a_name_that_is_cut_off_is_refused() -> None:
    marks = SequenceMarks()
    marks.found("producer", 3, 1)
    with pytest.raises(ProtocolError):
        SequenceMarks().decode(marks.encode(7)[:-1], 1)


# -- a model: applications that send again, appends that fail, owners that end --------------------


class Sent(NamedTuple):
    name: str
    first: int
    last: int


SENDS = st.builds(
    lambda name, first, count: ("send", Sent(name, first, first + count - 1)),
    st.sampled_from("ab"),
    st.integers(0, 12),
    st.sampled_from([1, 1, 1, 2, 3]),
)
STEPS = st.one_of(
    SENDS,
    st.tuples(st.just("confirm"), st.integers(1, 4)),
    st.tuples(st.just("fail"), st.integers(0, 4)),
    st.tuples(st.just("snapshot"), st.just(0)),
    st.tuples(st.just("move"), st.integers(0, 4)),
)


class Model:
    """A topic: what its log holds, what is under way in the order of the appends, and the marks."""

    def __init__(self) -> None:
        self.log: list[Sent] = []
        self.under_way: list[Sent] = []
        self.note, self.noted = b"", 0
        self.open()

    def open(self) -> None:
        """An owner begins: the note, and the log behind it."""
        self.marks = SequenceMarks()
        self.marks.decode(self.note, 1)
        for sent in self.log[self.noted :]:
            self.marks.found(sent.name, sent.last, 1)
        self.connected = {name: self.marks.of(name) for name in "ab"}

    def confirm(self, count: int) -> None:
        for sent in self.under_way[:count]:
            self.log.append(sent)
            self.connected[sent.name].confirm(sent.last)
            self.marks.used(self.connected[sent.name], 1)
        del self.under_way[:count]

    def end(self, stored: int) -> None:
        """The owner ends; of what was under way a leading part is in the log."""
        self.log += self.under_way[:stored]
        self.under_way = []
        self.open()

    def ids(self, name: str) -> list[int]:
        return [
            n for each in self.log if each.name == name for n in range(each.first, each.last + 1)
        ]

    def send(self, sent: Sent) -> None:
        known = self.connected[sent.name]
        verdict = known.judge(sent.first, sent.last)
        pending = [
            n
            for each in self.under_way
            if each.name == sent.name
            for n in range(each.first, each.last + 1)
        ]
        highest = max([*self.ids(sent.name), *pending], default=-1)
        if verdict is NEW:
            assert sent.first > highest, "what was appended is not appended again"
            known.push(sent.last)
            self.under_way.append(sent)
        else:
            assert sent.first <= highest, "what is new is stored"
        if verdict is REPEAT:
            assert sent.last <= max(self.ids(sent.name)), "nobody is told so before it is"
        elif verdict is TORN:
            assert sent.last > highest
        elif verdict is IN_DOUBT:
            assert sent.last <= highest
            assert sent.last > max(self.ids(sent.name), default=-1)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_ids_rise_in_the_log_whatever_happens(steps: list[tuple[str, object]]) -> None:
    model = Model()
    for kind, value in steps:
        if kind == "send":
            assert isinstance(value, Sent)
            model.send(value)
        elif kind == "snapshot":
            model.note, model.noted = model.marks.encode(7), len(model.log)
        else:
            assert isinstance(value, int)
            if kind == "confirm":
                model.confirm(value)
            else:
                model.end(value)
        for name in "ab":
            ids = model.ids(name)
            assert ids == sorted(set(ids))
