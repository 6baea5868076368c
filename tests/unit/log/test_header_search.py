"""Searches that end, whatever the ledgers look like."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.log.managed.chain import Chain, LedgerInfo
from magnetar.log.managed.header_search import HeaderSearch
from magnetar.log.managed.stamping import LedgerStamps, behind_header
from magnetar.model.entry import Entry
from magnetar.model.errors import EntryDamagedError, LogError
from magnetar.model.ids import Position
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata


async def nothing(_start: Position, _max_entries: int, _max_bytes: int, /) -> list[Entry]:
    return []


def chain_of(*infos: LedgerInfo) -> Chain:
    chain = Chain(infos)
    chain.open_ledger(LedgerInfo(9, created_ms=1))
    return chain


def test_a_ledger_without_entries_behind_others_is_passed_over() -> None:
    """A ledger was just opened, and nothing is in it: the header of its entry -1 was looked for
    without end, and the process stood."""

    async def scenario() -> None:
        chain = chain_of(LedgerInfo(1, 5, 50, 1, 2, greatest_ms=100))
        search = HeaderSearch(chain, nothing)
        async with asyncio.timeout(30):
            assert await search.first_at(200) == chain.next_position(chain.confirmed)

    asyncio.run(scenario())


@pytest.mark.parametrize("greatest_ms", [100, 0], ids=["by headers", "entry by entry"])
def test_what_is_there_and_cannot_be_found_ends_the_search(greatest_ms: int) -> None:
    async def scenario() -> None:
        ledger = LedgerInfo(1, 5, 50, 1, 2, greatest_ms=greatest_ms)
        search = HeaderSearch(chain_of(ledger), nothing)
        with pytest.raises(LogError, match=r"misses an entry from .* and none was deleted"):
            await search.first_at(50)

    asyncio.run(scenario())


def test_what_comes_while_the_last_header_is_read_lies_behind_what_is_found() -> None:
    """All that was confirmed meanwhile was passed over, too: it expired with what was old."""

    async def scenario() -> None:
        chain = chain_of(LedgerInfo(1, 5, 50, 1, 2, greatest_ms=100))
        chain.confirm(0, chain.end_offset + 1)

        async def read(start: Position, _max_entries: int, _max_bytes: int, /) -> list[Entry]:
            chain.confirm(4, chain.end_offset + 4)
            data = LedgerStamps(0).header(1000, 1, 150) + b"data"
            entries = [Entry(9, start.entry_id, data, 0)]
            behind_header(entries)
            return entries

        assert await HeaderSearch(chain, read).first_at(200) == Position(9, 1)

    asyncio.run(scenario())


class DamagedLedger:
    """Ledger 1: ten entries of three messages, published at 100, 110, ...; some cannot be read."""

    def __init__(self, *lost: int) -> None:
        self.lost = lost
        stamps = LedgerStamps(0)
        metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=100)
        metadata.num_messages_in_batch = 3
        head = metadata.SerializeToString()
        payload = len(head).to_bytes(4, "big") + head + b"data"
        self.data = [stamps.header(1000, 3, 100 + 10 * at) + payload for at in range(10)]
        info = LedgerInfo(1, 10, 50, 1, 2, messages=30, greatest_ms=190)
        self.search = HeaderSearch(chain_of(info), self.read)

    async def read(self, start: Position, _max_entries: int, _max_bytes: int, /) -> list[Entry]:
        if start.entry_id in self.lost:
            raise EntryDamagedError(f"no replica has a sound copy of entry {start}")
        entries = [Entry(1, start.entry_id, self.data[start.entry_id], 0)]
        behind_header(entries)
        return entries


@pytest.mark.parametrize("lost", [(), (0,), (4,), (3, 4, 5), (9,), (8, 9), range(10)])
def test_what_lies_around_entries_that_are_lost_is_found(lost: tuple[int, ...]) -> None:
    """Whoever went on behind one met it again in each search, and was told so for ever."""

    async def scenario() -> None:
        search = DamagedLedger(*lost).search
        for entry in range(10):
            if entry in lost:
                continue
            for message in range(3):
                assert await search.position_of(3 * entry + message) == Position(1, entry)
            assert await search.offset_of(Position(1, entry)) == 3 * entry
            found = await search.first_at(100 + 10 * entry)
            assert found <= Position(1, entry)
            assert all(between in lost for between in range(found.entry_id, entry))

    asyncio.run(scenario())


def test_a_search_does_not_pass_over_lost_entries_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.log.managed.header_search.LOST_MAX", 3)

    async def scenario() -> None:
        with pytest.raises(EntryDamagedError, match="entries 1:4 to 1:6 are lost"):
            await DamagedLedger(4, 5, 6, 7, 8).search.position_of(29)

    asyncio.run(scenario())
