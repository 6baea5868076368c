"""Reading a ledger of a table: what is kept, and when the catalog is asked again."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.log.managed.chain import LedgerInfo
from magnetar.model.entry import Entry
from magnetar.model.errors import TableError
from magnetar.tables.layout import TablePlace
from magnetar.tables.ledger_reader import KEPT_S, TabledLedger, TableLedgerReader, open_ledger

PLACE = TablePlace("test", {}, "public_default.flights")
LEDGER = LedgerInfo(7, 10, 100)


class Shelves:
    """Entries are two bytes: which state of the table they are of, and their number. A state's file
    has five of them."""

    def __init__(self) -> None:
        self.state = 0
        self.oldest = 0
        self.finds = 0
        self.loads = 0
        self.now_s = 0.0

    async def find(self, log: str, place: TablePlace, ledger: TabledLedger) -> int:
        assert place == PLACE
        self.finds += 1
        return self.state

    async def load(
        self, log: str, place: TablePlace, ledger: TabledLedger, found: int, first: int
    ) -> list[Entry]:
        self.loads += 1
        if found < self.oldest:
            raise TableError("the file is not there any more")
        stop = 5 if first < 5 else ledger.entries
        return [Entry(7, number, bytes((found, number)), 0) for number in range(first, stop)]

    async def open(self) -> TableLedgerReader[int]:
        return await open_ledger(self, "log", PLACE.to_text(), LEDGER, lambda: self.now_s)


def data(entries: list[Entry]) -> list[tuple[int, int]]:
    return [(entry.data[0], entry.data[1]) for entry in entries]


def test_parts_are_read_once_and_given_in_pieces() -> None:
    async def scenario() -> None:
        shelves = Shelves()
        reader = await shelves.open()
        assert (reader.last_add_confirmed, reader.length) == (9, 100)
        assert data(await reader.read(0, 2, 1000)) == [(0, 0), (0, 1)]
        assert data(await reader.read(2, 100, 4)) == [(0, 2), (0, 3)]
        assert data(await reader.read(4, 100, 0)) == [(0, 4)], "one at least"
        assert shelves.loads == 1
        assert data(await reader.read(5, 2, 1000)) == [(0, 5), (0, 6)]
        assert (shelves.finds, shelves.loads) == (1, 2)

    asyncio.run(scenario())


def test_a_file_that_is_gone_is_looked_for_again() -> None:
    async def scenario() -> None:
        shelves = Shelves()
        reader = await shelves.open()
        assert data(await reader.read(0, 1, 1000)) == [(0, 0)]
        shelves.state = shelves.oldest = 1
        assert data(await reader.read(1, 1, 1000)) == [(0, 1)], "that was read before"
        assert data(await reader.read(5, 1, 1000)) == [(1, 5)]
        shelves.oldest = 2
        with pytest.raises(TableError):
            await reader.read(0, 1, 1000)
        shelves.state = 2
        assert data(await reader.read(0, 1, 1000)) == [(2, 0)]

    asyncio.run(scenario())


def test_what_is_kept_is_kept_for_a_while() -> None:
    async def scenario() -> None:
        shelves = Shelves()
        reader = await shelves.open()
        assert data(await reader.read(0, 1, 1000)) == [(0, 0)]
        shelves.state = 1
        shelves.now_s = KEPT_S
        assert data(await reader.read(1, 1, 1000)) == [(0, 1)]
        shelves.now_s += 1
        assert data(await reader.read(1, 1, 1000)) == [(1, 1)]

    asyncio.run(scenario())


def test_a_record_that_names_no_table_is_refused() -> None:
    async def scenario() -> None:
        with pytest.raises(TableError, match="log log"):
            await open_ledger(Shelves(), "log", "nonsense", LEDGER, lambda: 0.0)

    asyncio.run(scenario())
