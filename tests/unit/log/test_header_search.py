"""Searches that end, whatever the ledgers look like."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.log.managed.chain import Chain, LedgerInfo
from magnetar.log.managed.header_search import HeaderSearch
from magnetar.model.entry import Entry
from magnetar.model.errors import LogError
from magnetar.model.ids import Position


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
