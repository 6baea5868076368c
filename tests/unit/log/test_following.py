"""What a follower makes of records and of entries."""

from __future__ import annotations

import pytest

from magnetar.log.managed.chain import Chain, LedgerInfo
from magnetar.log.managed.following import (
    TAKEN_ENTRIES_MAX,
    Known,
    News,
    end_offset_by,
    first_to_take,
    news,
)
from magnetar.log.managed.records import LogRecord
from magnetar.log.managed.stamping import LedgerStamps, behind_header
from magnetar.model.entry import Entry
from magnetar.model.errors import LogError
from magnetar.model.ids import EARLIEST, Position

OFFSET = 36


def known(version: int, created_ms: int = 7, deleted: bool = False) -> Known:
    return Known(LogRecord(created_ms=created_ms, deleted=deleted), version)


@pytest.mark.parametrize(
    ("before", "read", "told"),
    [
        (None, known(0), News.NEW),
        (None, known(4), News.NEW),
        (None, known(4, deleted=True), News.GONE),
        (known(4), known(5), News.NEW),
        (known(4), known(4), News.OLD),
        (known(4), known(3), News.OLD),
        (known(4), known(5, deleted=True), News.GONE),
        (known(4), known(5, created_ms=8), News.GONE),
        (known(4), known(0, created_ms=8), News.GONE),
    ],
)
def test_what_a_record_means(before: Known | None, read: Known, told: News) -> None:
    assert news(before, read) is told


def test_the_last_entry_is_taken_always_and_those_before_it_when_they_are_new_and_few() -> None:
    assert first_to_take(-1, 9, at_start=True) == 9
    assert first_to_take(-1, 9, at_start=False) == 0
    assert first_to_take(8, 9, at_start=False) == 9
    assert first_to_take(10, 10 + TAKEN_ENTRIES_MAX, at_start=False) == 11
    far = 11 + TAKEN_ENTRIES_MAX
    assert first_to_take(10, far, at_start=False) == far


def closed(ledger_id: int, entries: int, messages: int = 0) -> LedgerInfo:
    return LedgerInfo(ledger_id, entries, 10 * entries, 1, 2, messages=messages or entries)


def test_a_chain_follows_records_over_any_number_of_steps() -> None:
    chain = Chain()
    assert chain.follow([LedgerInfo(1, created_ms=1)], EARLIEST, 0) == []
    chain.confirm(2, 6)
    assert chain.follow([LedgerInfo(1, created_ms=1)], EARLIEST, 0) == []
    assert (chain.confirmed, chain.end_offset) == (Position(1, 2), 6), "what is known stays"
    # A roll, with entries that nobody had told us of.
    assert chain.follow([closed(1, 5, 9), LedgerInfo(4, created_ms=1)], EARLIEST, 0) == []
    assert (chain.confirmed, chain.end_offset) == (Position(1, 4), 9)
    assert chain.last_entry(4) == -1, "those of the former ledger are not of this one"
    chain.confirm(0, 11)
    # Two rolls and a trim at once.
    later = [closed(6, 2, 4), LedgerInfo(9, created_ms=1)]
    assert chain.follow(later, Position(4, 3), 20) == [1, 4]
    assert (chain.first, chain.confirmed) == (Position(6, 0), Position(6, 1))
    assert (chain.first_offset, chain.end_offset) == (20, 24)
    assert chain.open_ledger_id == 9
    # All trimmed; then the log goes on.
    assert chain.follow([], Position(9, 0), 30) == [6, 9]
    assert (chain.first, chain.confirmed) == (Position(9, 1), Position(9, 0))
    assert chain.open_ledger_id is None
    assert chain.follow([LedgerInfo(12, created_ms=1)], Position(9, 0), 30) == []
    assert (chain.end_offset, chain.entries) == (30, 0)


def entries_of(stamps: LedgerStamps | None, ledger_id: int, messages: list[int]) -> list[Entry]:
    headers = [b""] * len(messages)
    if stamps is not None:
        headers = stamps.headers(1, messages, [1] * len(messages))
    found = [
        Entry(ledger_id, i, bytes(OFFSET) + header + b"x", OFFSET)
        for i, header in enumerate(headers)
    ]
    behind_header(found)
    return found


def test_the_last_entry_says_where_the_next_message_is() -> None:
    chain = Chain()
    chain.follow([closed(1, 5, 9), LedgerInfo(2, created_ms=1)], EARLIEST, 0)
    found = entries_of(LedgerStamps(9), 2, [1, 4, 2])
    assert end_offset_by(chain, found, "here") == 16
    assert end_offset_by(chain, found[-1:], "here") == 16
    assert end_offset_by(chain, entries_of(None, 2, [1, 4, 2]), "here") == 12, "one each"


def test_a_header_that_cannot_be_true_is_refused() -> None:
    chain = Chain()
    chain.follow([closed(1, 5, 9), LedgerInfo(2, created_ms=1)], EARLIEST, 0)
    with pytest.raises(LogError, match="here: entry 2 ends with message 8"):
        end_offset_by(chain, entries_of(LedgerStamps(2), 2, [1, 4, 2]), "here")
