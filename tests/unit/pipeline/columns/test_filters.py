"""Filters that a read decides itself: no row is lost, and none is kept, that Spark would decide
otherwise. Held against a reading of SQL's logic in plain Python."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from magnetar.model.errors import ConfigError
from magnetar.pipeline.brokers.topic_reader import LogAnswer, StoredEntry
from magnetar.pipeline.columns import batch_records
from magnetar.pipeline.columns.conditions import Conditions, may_hold
from magnetar.pipeline.columns.entry_decoder import EntryDecoder
from magnetar.pipeline.columns.presentation import constants_of
from magnetar.pipeline.losses import LedgerFacts, LogExtent
from magnetar.pipeline.options.filter_text import parse_filter
from magnetar.pipeline.places import START, Place
from magnetar.pipeline.planning.narrowing import PIECES_MAX, narrowed, question_of
from magnetar.pipeline.planning.splits import PlannedRange
from magnetar.wire.pulsar.broker_metadata import TIME_MS_MAX
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.metadata import entry_metadata
from tests.unit.pipeline.columns.test_entry_decoder import END, decoded, no_earlier, plain
from tests.unit.pipeline.entry_building import (
    ALL_COLUMNS,
    TOPIC,
    Layout,
    Message,
    batch,
    chunks,
    single,
    stored,
)

# -- what SQL says, in plain Python ---------------------------------------------------------------

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Comparison:
    """Of a column with constants; ``sign`` is one of ``COMPARED``, "in", "is null" or "<=>"."""

    column: str
    sign: str
    values: tuple[Any, ...] = ()
    negated: bool = False

    def __str__(self) -> str:
        shown = [_shown(value) for value in self.values]
        if self.sign in LIKE:
            text = f"{self.column} like '{LIKE[self.sign].format(self.values[0])}'"
        elif self.sign == "in":
            text = f"{self.column} in ({', '.join(shown)})"
        else:
            text = f"{self.column} {self.sign} {' '.join(shown)}"
        return f"not ({text})" if self.negated else text

    def truth(self, row: dict[str, Any]) -> bool | None:
        found = self._truth(self._of(row))
        return None if found is None else found != self.negated

    def _of(self, row: dict[str, Any]) -> Any:
        found: Any = row
        for name in self.column.split("."):
            found = found[name]
        if self.column.endswith("_time") and found is not None:
            return EPOCH + timedelta(microseconds=found)
        # As bytes, which is how Spark orders strings.
        return found.encode() if isinstance(found, str) else found

    def _truth(self, value: Any) -> bool | None:
        given_ = [one.encode() if isinstance(one, str) else one for one in self.values]
        if self.sign == "is null":
            return value is None
        if self.sign == "<=>":
            return bool(value == given_[0])
        if value is None:
            return None
        if self.sign == "in":
            return True if value in given_ else None if None in given_ else False
        return None if given_[0] is None else bool(COMPARED[self.sign](value, given_[0]))


LIKE = {"starts": "{}%", "ends": "%{}", "contains": "%{}%"}
COMPARED: dict[str, Any] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "starts": bytes.startswith,
    "ends": bytes.endswith,
    "contains": operator.contains,
}


def _shown(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, datetime):
        return f"timestamp'{value.isoformat(sep=' ')}'"
    return f"'{value}'" if isinstance(value, str) else str(value)


# -- random messages and filters ------------------------------------------------------------------

BASE_MS = 1_790_000_000_000
keys = st.none() | st.sampled_from(["", "a", "ab", "b", "\U0001f600", "\uffff", "ä"])
events = st.sampled_from([0, 1, BASE_MS, BASE_MS + 1])
messages = st.builds(
    Message, value=st.binary(max_size=4), key=keys, event_time_ms=events, null=st.booleans(),
    compacted_out=st.integers(0, 9).map(lambda n: n == 0),
)  # fmt: skip
published = st.sampled_from([0, 1, BASE_MS - 1, BASE_MS, BASE_MS + 1, TIME_MS_MAX + 5])
layouts = st.builds(
    Layout,
    compression=st.sampled_from([Compression.NONE, Compression.LZ4, Compression.ZSTD]),
    publish_time_ms=published,
)
groups = (
    st.builds(lambda m, how: [batch(m, how)], st.lists(messages, min_size=1, max_size=4), layouts)
    | st.builds(lambda m, how: [single(m, how)], messages, layouts)
    | st.builds(lambda m, n, how: chunks(m, 2, str(n), how), messages, st.uuids(), layouts)
)
ledgers = st.lists(groups, min_size=1, max_size=4).map(
    lambda them: [payload for group in them for payload in group]
)
logs = st.lists(ledgers, min_size=1, max_size=4)

zones = st.sampled_from([UTC, timezone(timedelta(hours=-7)), timezone(timedelta(minutes=345))])
micros = st.sampled_from([-1, 0, 1, 999, 1000, 1001])
instants = st.builds(
    lambda ms, us, zone: (
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms, microseconds=us)
    ).astimezone(zone),
    st.sampled_from([0, 1, BASE_MS - 1, BASE_MS, BASE_MS + 1, TIME_MS_MAX, TIME_MS_MAX + 6]),
    micros,
    zones,
)
texts = st.sampled_from(["", "a", "ab", "b", "\U0001f600", "\uffff", "ä", "none"])
numbers = st.integers(-2, 6)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.sampled_from([TOPIC, "other"]) | texts,
    "partition": st.integers(2, 4),
    "message_id.ledger_id": numbers,
    "message_id.entry_id": numbers,
    "message_id.batch_index": numbers,
    "publish_time": instants,
    "event_time": instants,
    "key": texts,
}
PLAIN_SIGNS = ("=", "<>", "<", "<=", ">", ">=", "<=>")


def comparisons(column: str) -> st.SearchStrategy[Comparison]:
    values = VALUES[column] | st.none()
    one = values.map(lambda value: (value,))
    some = st.lists(values, min_size=1, max_size=3).map(tuple)
    kinds = [
        st.builds(Comparison, st.just(column), st.sampled_from(PLAIN_SIGNS), one, st.booleans()),
        st.builds(Comparison, st.just(column), st.just("in"), some, st.booleans()),
        st.builds(Comparison, st.just(column), st.just("is null"), st.just(()), st.booleans()),
    ]
    if column in ("topic", "key"):
        text = texts.map(lambda value: (value,))
        kinds.append(
            st.builds(Comparison, st.just(column), st.sampled_from(list(LIKE)), text, st.booleans())
        )
    return st.one_of(kinds)


filters = st.lists(st.sampled_from(sorted(VALUES)).flatmap(comparisons), min_size=1, max_size=3)


def entries_of(log: Sequence[Sequence[bytes]]) -> list[StoredEntry]:
    return [entry for number, them in enumerate(log, 1) for entry in stored(them, number)]


def facts_of(
    log: Sequence[Sequence[bytes]], open_: bool, told: Sequence[bool]
) -> list[LedgerFacts]:
    """As a broker tells them: the last may be open; of some it does not know the least time."""
    found = []
    for number, payloads in enumerate(log, 1):
        times = [entry_metadata(payload).publish_time_ms for payload in payloads]
        least = min(min(times), TIME_MS_MAX) if told[number % len(told)] else 0
        greatest = min(max(1, *times), TIME_MS_MAX)
        closed = number < len(log) or not open_
        found.append(LedgerFacts(number, len(payloads), 100, closed, least, greatest))
    return found


def answer_to(
    part: PlannedRange, log: Sequence[Sequence[bytes]], conditions: Conditions, facts: Any
) -> LogAnswer:
    """As a broker answers."""
    question = question_of(part, conditions)
    extent = LogExtent(START, Place(1, 0, 0), part.end)
    if question is None:
        return LogAnswer(extent)
    since = []
    for time_ms in question.times_ms:
        later = (
            Place(entry.ledger_id, entry.entry_id, 0)
            for entry in entries_of(log)
            if min(entry_metadata(entry.payload).publish_time_ms, TIME_MS_MAX) >= time_ms
        )
        since.append(next(later, part.end))
    return LogAnswer(extent, tuple(facts), of_times=tuple(since))


@settings(max_examples=400, deadline=None)
@given(logs, filters, st.booleans(), st.lists(st.booleans(), min_size=1, max_size=3), st.data())
def test_a_filtered_read_is_the_filter_over_the_read(
    log: list[list[bytes]],
    given_: list[Comparison],
    open_: bool,
    told: list[bool],
    data: st.DataObject,
) -> None:
    entries = entries_of(log)
    places = [Place(e.ledger_id, e.entry_id, n) for e in entries for n in (0, 1)]
    start = data.draw(st.sampled_from([START, *places]))
    end = data.draw(st.sampled_from([Place(len(log), len(log[-1]), 0), *places]))
    assume(start < end)
    part = PlannedRange(TOPIC, start, end, start_offset=5, end_offset=99)
    wanted = [row for row in read(entries, part) if all(one.truth(row) for one in given_)]

    conditions = parse_filter(" AND ".join(map(str, given_)), "magnetar")
    found = []
    if may_hold(conditions, constants_of(TOPIC, "magnetar")):
        answer = answer_to(part, log, conditions, facts_of(log, open_, told))
        pieces = (
            narrowed(part, conditions, answer.extent, answer.ledgers, answer.of_times)
            if answer.ledgers
            else [part]
        )
        for piece in pieces:
            found += read(entries, piece, conditions)
    assert found == wanted


def read(
    entries: Sequence[StoredEntry], part: PlannedRange, conditions: Conditions = ()
) -> list[dict[str, Any]]:
    """The rows of a range; a block of entries at a time."""
    inside = [
        entry
        for entry in entries
        if part.start[:2] <= entry[:2] and Place(entry.ledger_id, entry.entry_id, 0) < part.end
    ]

    def earlier(entry: StoredEntry, _meta: Any) -> list[Any]:
        return [one.payload for one in entries if one[:2] < entry[:2]][-1:]

    decoder = EntryDecoder(ALL_COLUMNS, TOPIC, part.start, part.end, earlier, conditions)
    rows = []
    for first in range(0, len(inside), 3):
        block = inside[first : first + 3]
        for one in decoder.decode(block, [-1] * len(block)):
            rows += plain(one)
    return rows


# -- the language ---------------------------------------------------------------------------------

WHOLE = PlannedRange(TOPIC, START, Place(3, 5, 0), 77, 0, 30)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("value = 'x'", "'value' is none of the columns key, topic"),
        ("timestamp > 5", "none of the columns"),
        ("publish_time > timestamp'2026-01-01 00:00:00'", "with a zone"),
        ("publish_time > timestamp'2026-13-01 00:00:00Z'", "is no time"),
        ("publish_time > 5", "compared with a time"),
        ("partition = '3'", "compared with a number"),
        ("partition = 3.5", "not understood"),
        ("partition = 9223372036854775808", "too large"),
        ("key = 5", "compared with a text"),
        (r"key = 'a\'b'", "not understood"),
        ("key = 'a' or key = 'b'", "'or' stands where 'AND' should"),
        ("not (key between 'a' and 'b')", "NOT of several"),
        ("key not between 'a' and 'b'", "'between' stands"),
        ("key like 'a_%'", "no other wildcard"),
        ("partition like '3'", "compared with a number"),
        ("key in ()", "compared with a text"),
        ("key", "'the end' stands"),
        ("key = X'6'", "pairs of hexadecimal"),
        ("key = 'a' and", "'the end' is none"),
        ("(key = 'a'", "'the end' stands where ')'"),
        ("length(key) = 3", "none of the columns"),
    ],
)
def test_what_is_not_certain_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match="option 'filter'") as raised:
        parse_filter(text, "magnetar")
    assert why in str(raised.value), raised.value
    assert "filter with where()" in str(raised.value)


def test_the_same_said_otherwise() -> None:
    def same(*texts_: str) -> None:
        assert len({parse_filter(text, "magnetar") for text in texts_}) == 1, texts_

    same("key = 'a'", 'KEY == "a"', "(key='a')", "key like 'a'", "not key <> 'a'", "key = X'61'")
    same("key != 'a'", "not (key = 'a')", "key not like 'a'")
    same("partition between 1 and 3", "partition >= 1 AND partition <= 3")
    same("key is not null", "not key is null")
    same(
        "publish_time < timestamp'2026-01-01 00:00:00Z'",
        "publish_time < TIMESTAMP '2026-01-01T02:00:00.000+02:00'",
        "publish_time < timestamp'2025-12-31 19:00:00 -05:00'",
    )


def test_keys_of_kafka_are_compared_as_bytes() -> None:
    """Its column ``key`` has bytes, and a filter is to do what ``where()`` does."""
    them = [
        Message(b"1", key="/wA=", key_is_base64=True),
        Message(b"2", key="/wA="),
        Message(b"3", key="k"),
        Message(b"4"),
    ]
    plain_ = [single(them[0]), batch(them, Layout(fields={"compacted_batch_indexes": range(4)}))]
    for payloads, first in ([batch(them)], [b"1"]), (plain_, [b"1", b"1"]):
        for text, expected in (
            ("key = X'FF00'", first),
            ("key = '/wA='", [b"2"]),
            ("key > 'a'", [*first, b"3"]),
        ):
            conditions = parse_filter(text, "kafka")
            decoder = EntryDecoder(["value"], TOPIC, START, END, no_earlier, conditions)
            entries = stored(payloads)
            found = decoder.decode(entries, [-1] * len(entries))
            assert [row["value"] for each in found for row in plain(each)] == expected, text


def test_the_columns_of_kafka() -> None:
    text = (
        "topic = 'persistent://public/default/orders' and partition = 3 and key = X'6B' and "
        "timestamp > timestamp'2020-01-01 00:00:00Z'"
    )
    conditions = parse_filter(text, "kafka")
    assert may_hold(conditions, constants_of(TOPIC, "kafka"))
    assert not may_hold(conditions, constants_of(TOPIC, "magnetar"))
    part = PlannedRange(TOPIC, START, END)
    entries = stored([batch([Message(b"1", key="k"), Message(b"2")])])
    assert [row["value"] for row in read(entries, part, conditions)] == [b"1"]


# -- what is not read -----------------------------------------------------------------------------


def facts(*times: tuple[int, int]) -> tuple[LedgerFacts, ...]:
    return tuple(
        LedgerFacts(number, 10, 100, number < len(times), *them)
        for number, them in enumerate(times, 1)
    )


def pieces_of(text: str, ledgers_: tuple[LedgerFacts, ...], **more: Any) -> list[Any]:
    conditions = parse_filter(text, "magnetar")
    extent = LogExtent(START, Place(1, 0, 0), WHOLE.end, 77)._replace(**more)
    return narrowed(WHOLE, conditions, extent, ledgers_, ())


def at(seconds: int) -> str:
    return _shown(datetime.fromtimestamp(seconds, UTC))


def test_ledgers_that_cannot_match_are_not_read() -> None:
    told = facts((1000, 2000), (5000, 6000), (1500, 9000))
    second, third = Place(2, 0, 0), Place(3, 0, 0)
    assert pieces_of("publish_time < " + at(1), told) == []
    found = pieces_of("publish_time <= " + at(1), told)
    assert [(one.start, one.end) for one in found] == [(START, second)]
    assert (found[0].start_offset, found[0].end_offset) == (0, -1)
    found = pieces_of("publish_time < " + at(4), told)
    assert [(one.start, one.end) for one in found] == [(START, second), (third, WHOLE.end)]
    assert found[1].end_offset == 30
    assert pieces_of("publish_time < " + at(7), told) == [WHOLE]
    assert pieces_of("message_id.ledger_id = 9", told) == []
    found = pieces_of("message_id.entry_id in (2, 4)", told)
    assert [(one.start[:2], one.end[:2]) for one in found] == [
        ((1, 2), (1, 5)), ((2, 2), (2, 5)), ((3, 2), (3, 5)),
    ]  # fmt: skip


def test_of_a_ledger_whose_times_are_not_known_all_is_read() -> None:
    told = facts((0, 0), (0, 6000), (7000, TIME_MS_MAX))
    found = pieces_of("publish_time > " + at(6), told)
    assert [(one.start[:2], one.end[:2]) for one in found] == [((-1, -1), (2, 0)), ((3, 0), (3, 5))]
    found = pieces_of("publish_time < " + at(6), told)
    assert [(one.start[:2], one.end[:2]) for one in found] == [((-1, -1), (3, 0))]
    far = at(TIME_MS_MAX // 1000 + 1000)  # later than headers can say
    found = pieces_of("publish_time > " + far, told)
    assert (found[-1].start, found[-1].end) == (Place(3, 0, 0), WHOLE.end)


@pytest.mark.parametrize("more", [{"kept_from": Place(1, 10, 0)}, {"created_ms": 78}])
def test_a_log_that_is_not_as_it_was_planned_is_left_to_the_task(more: dict[str, Any]) -> None:
    told = facts((1000, 2000), (5000, 6000), (1500, 9000))
    assert pieces_of("message_id.ledger_id = 3", told, **more) == [WHOLE]


def test_a_range_is_cut_into_so_many_pieces_at_most() -> None:
    count = 3 * PIECES_MAX
    part = PlannedRange(TOPIC, START, Place(count, 10, 0))
    told = [
        LedgerFacts(n, 10, 1, True, 1000 * (n % 2), 1000 * (n % 2) + 1) for n in range(1, count)
    ]
    conditions = parse_filter("publish_time > " + at(1), "magnetar")
    extent = LogExtent(START, Place(1, 0, 0), part.end)
    found = narrowed(part, conditions, extent, told, ())
    assert len(found) == PIECES_MAX
    assert found[-1].end >= Place(count - 1, 10, 0)


def test_entries_that_do_not_match_are_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    late, early = Layout(publish_time_ms=9000), Layout(publish_time_ms=1000)
    entries = stored([batch([Message(b"%d" % n)], late if n % 3 else early) for n in range(9)])
    seen: list[int] = []
    found = batch_records.find_records

    def spy(bytes_: Any, batches: batch_records.Batches, table: Any) -> Any:
        seen.append(len(batches.at))
        return found(bytes_, batches, table)

    monkeypatch.setattr("magnetar.pipeline.columns.message_rows.find_records", spy)
    conditions = parse_filter("publish_time < " + at(2), "magnetar")
    rows = read(entries, PlannedRange(TOPIC, START, END), conditions)
    assert [row["value"] for row in rows] == [b"0", b"3", b"6"]
    assert sum(seen) == 3


@example(10)
@given(st.integers(1, 40))
@settings(max_examples=20, deadline=None)
def test_values_are_gathered_of_rows_that_match_only(count: int) -> None:
    entries = stored([batch([Message(b"v" * 50, key=str(n % 5)) for n in range(count)])])
    conditions = parse_filter("key = '0'", "magnetar")
    decoder = EntryDecoder(("value",), TOPIC, START, END, no_earlier, conditions)
    batches = list(decoder.decode(entries, [-1]))
    assert sum(one.num_rows for one in batches) == len(range(0, count, 5))
    assert decoder.messages_read == count
    assert decoded(entries, columns=("value",))[0] == {"value": b"v" * 50}
    assert np.isclose(sum(one.nbytes for one in batches), 50 * len(range(0, count, 5)), atol=400)


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        (">= timestamp'1970-01-01 00:00:05Z'", 5000),
        ("> timestamp'1970-01-01 00:00:05Z'", 5001),
        (">= timestamp'1970-01-01 00:00:05.000001Z'", 5001),
        ("> timestamp'1970-01-01 00:00:04.999999Z'", 5000),
        (">= timestamp'9999-01-01 00:00:00Z'", TIME_MS_MAX),
        ("<= timestamp'1970-01-01 00:00:05Z'", None),
    ],
)
def test_the_first_entry_that_may_match_is_asked_for(text: str, time_ms: int | None) -> None:
    question = question_of(WHOLE, parse_filter("publish_time " + text, "magnetar"))
    assert question is not None
    assert list(question.times_ms) == ([] if time_ms is None else [time_ms])
    since = Place(2, 3, 0)
    told = facts((0, 0), (0, 0), (0, 0))
    conditions = parse_filter("publish_time " + text, "magnetar")
    extent = LogExtent(START, Place(1, 0, 0), WHOLE.end, 77)
    (piece,) = narrowed(WHOLE, conditions, extent, told, (since,))
    assert (piece.start, piece.end, piece.start_offset) == (since, WHOLE.end, -1)
