"""Messages in chunks: a row each, where it first became whole, however often producers send chunks
again and wherever a log is cut into ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.pipeline.brokers.topic_reader import StoredEntry
from magnetar.pipeline.columns import chunked_messages
from magnetar.pipeline.columns.entry_decoder import EntryDecoder
from magnetar.pipeline.loss_reports import LossReports
from magnetar.pipeline.places import Place
from magnetar.pipeline.reading import earlier_chunks
from magnetar.pipeline.reading.earlier_chunks import EarlierEntries
from tests.unit.pipeline.entry_building import TOPIC, Message, chunks, stored

COUNTS = {"a": 2, "b": 3, "c": 4}
Stored = tuple[str, int, int]
"""A chunk in a log: of which name, which of its chunks, and of which of the messages that had this
name one after the other."""


def log_of(chunks_: Sequence[Stored]) -> list[StoredEntry]:
    payloads = []
    for name, number, life in chunks_:
        value = b"".join(part(name, n, life) for n in range(COUNTS[name]))
        payloads.append(chunks(Message(value), COUNTS[name], name)[number])
    return stored(payloads)


def part(name: str, number: int, life: int) -> bytes:
    return b"%s%d%d" % (name.encode(), number, life)


def read(log: Sequence[StoredEntry], first: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """The rows of a range: at which entry, and the value."""

    def read_from(place: Place) -> Iterator[StoredEntry]:
        return iter(log[place.entry_id :])

    reports = LossReports(fatal=False)
    earlier = EarlierEntries(TOPIC, read_from, lambda: [5], reports)
    columns = "message_id", "value"
    decoder = EntryDecoder(columns, TOPIC, Place(5, first, 0), Place(5, stop, 0), earlier.chunks)
    for entry in log[first:stop]:
        for found in decoder.decode([entry], [-1]):
            for row in found.to_pylist():
                yield row["message_id"]["entry_id"], row["value"]


def whole(chunks_: Sequence[Stored]) -> Iterator[tuple[int, bytes]]:
    """By the rule: a message begins with its first chunk, goes on with the next one, and is whole
    with its last; what comes otherwise counts for nothing, and after a gap there is none."""
    held: dict[str, list[Stored]] = {}
    for at, chunk in enumerate(chunks_):
        name, number, _ = chunk
        if number == 0:
            held[name] = []
        parts = held.get(name)
        if parts is None or number < len(parts):
            continue
        if number > len(parts):
            del held[name]
            continue
        parts.append(chunk)
        if len(parts) == COUNTS[name]:
            yield at, b"".join(part(*each) for each in parts)
            del held[name]


def test_a_last_chunk_that_is_stored_twice_makes_one_row() -> None:
    once = [("b", 0, 0), ("b", 1, 0), ("b", 2, 0)]
    for again in ([2], [1, 2], [2, 2]):
        log = log_of([*once, *(("b", n, 0) for n in again)])
        assert list(read(log, 0, len(log))) == [(2, b"b00b10b20")]
        for cut in range(1, len(log)):
            rows = [*read(log, 0, cut), *read(log, cut, len(log))]
            assert rows == [(2, b"b00b10b20")], f"cut before entry {cut}"


def test_the_chunks_before_a_range_are_those_of_its_own_message() -> None:
    """A producer with a name of its own that is restarted begins with the same sequence ids, by
    which chunks are told from those of other messages."""
    lives = [("b", n, life) for life in range(3) for n in range(3)]
    rows = list(read(log_of(lives), 8, 9))
    assert rows == [(8, b"b02b12b22")]


def test_a_message_that_its_producer_left_unfinished_is_no_part_of_the_next() -> None:
    log = log_of([("b", 0, 0), ("b", 1, 0), ("b", 0, 1), ("b", 1, 1), ("b", 2, 1)])
    for first in range(5):
        assert list(read(log, first, 5)) == [(4, b"b01b11b21")]


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8])
def test_chunks_in_ledgers_of_their_own_are_found(count: int) -> None:
    """Of ledgers before the range only two were looked into: a message in more of them was a loss,
    though all of it was there."""
    payloads = chunks(Message(b"x" * 100), count, "m")
    log = [
        entry._replace(ledger_id=3 * number, entry_id=0)
        for number, entry in enumerate(stored(payloads))
    ]
    looks: list[Place] = []

    def read_from(place: Place) -> Iterator[StoredEntry]:
        looks.append(place)
        return iter([each for each in log if each[:2] >= place[:2]])

    reports = LossReports(fatal=True)
    ids = [each.ledger_id for each in log]
    earlier = EarlierEntries(TOPIC, read_from, lambda: ids, reports)
    last = log[-1].ledger_id
    decoder = EntryDecoder(("value",), TOPIC, Place(last, 0, 0), Place(last, 1, 0), earlier.chunks)
    (batch,) = decoder.decode(log[-1:], [-1])
    assert batch["value"].to_pylist() == [b"x" * 100]
    assert len(looks) <= 5
    del log[0], ids[0]  # by retention
    earlier = EarlierEntries(TOPIC, read_from, lambda: ids, LossReports(fatal=False))
    decoder = EntryDecoder(("value",), TOPIC, Place(last, 0, 0), Place(last, 1, 0), earlier.chunks)
    assert not list(decoder.decode(log[-1:], [-1]))


def test_what_is_known_of_messages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_messages, "KNOWN_MAX", 1)
    names = [(name, n, 0) for n in range(4) for name in COUNTS if n < COUNTS[name]]
    assert sorted(read(log_of(names), 0, len(names))) == sorted(whole(names))


stored_chunks = st.sampled_from(
    [(name, n, life) for name, count in COUNTS.items() for n in range(count) for life in range(2)]
)
runs = st.builds(
    lambda name, first, life: [(name, n, life) for n in range(first, COUNTS[name])],
    st.sampled_from(sorted(COUNTS)),
    st.integers(0, 2),
    st.integers(0, 1),
)
logs = st.lists(runs | stored_chunks.map(lambda one: [one]), max_size=10).map(
    lambda groups: [chunk for group in groups for chunk in group]
)


@settings(max_examples=300, deadline=None)
@given(logs, st.data())
def test_the_same_rows_wherever_the_log_is_cut(them: list[Stored], data: Any) -> None:
    log = log_of(them)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(log)), max_size=4)) | {0, len(log)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(earlier_chunks, "FIRST_LOOK", data.draw(st.sampled_from([1, 4])))
        patch.setattr(earlier_chunks, "LOOKS", (1, 2))
        patch.setattr(chunked_messages, "KNOWN_MAX", data.draw(st.sampled_from([1, 100])))
        rows = [row for first, stop in pairwise(cuts) for row in read(log, first, stop)]
    assert rows == list(whole(them))
