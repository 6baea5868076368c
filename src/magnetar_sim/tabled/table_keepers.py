"""What else is done with tables while they are filled and read: small files become one, former
snapshots go with their files, and messages are erased (``pipeline.tables.upkeep``, ``erasing``).

What a keeper decides by is modelled here, but for the product's rule of small files: its own code
stands on Parquet. Like the product's it reads a table, writes files, and commits on what it has
read.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.model.errors import MagnetarError
from magnetar.model.ids import Position
from magnetar.pipeline.tables.small_files import SizedFile, SmallFilesRule
from magnetar.wire.pulsar.broker_metadata import header_bytes
from magnetar.wire.pulsar.pulsar_pb2 import LogQuestion, LogTable
from magnetar_sim.tabled.table_jobs import TableJob, grouped, place_of
from magnetar_sim.tabled.warehouse import FileRef, Groups, Row, Warehouse

SMALL_FILES: Final = SmallFilesRule(small_bytes=200, files_min=3, rewrite_bytes=400)
"""Bytes are rows here."""
RETRY_S: Final = 0.3


class TableKeeper:
    """Of all tables. ``mixes``: files that it rewrites have several ledgers in a row group, as
    other engines leave them."""

    def __init__(self, job: TableJob, topics: Sequence[str], every_s: float, mixes: bool) -> None:
        self._job = job
        self._places = dict.fromkeys(place_of(topic).table for topic in topics)
        self._sides = dict.fromkeys(place_of(topic).side for topic in topics)
        self._every_s = every_s
        self._mixes = mixes

    async def run(self) -> None:
        """Again and again."""
        warehouse = self._job.warehouse
        while True:
            await asyncio.sleep(self._every_s * self._job.random.random())
            for name in (*self._places, *self._sides):
                try:
                    await self._compact(name)
                    await warehouse.expire(name)
                except MagnetarError as error:
                    self._job.note(f"upkeep of {name}: {error}")

    async def _compact(self, name: str) -> None:
        warehouse = self._job.warehouse
        state = await warehouse.table(name)
        if state is None:
            return
        files = [SizedFile(n, "", each.rows) for n, each in enumerate(state.files)]
        for group in SMALL_FILES.groups(files):
            old = [state.files[each.number] for each in group]
            rows: list[Row] = []
            for file in old:
                rows += await _read(warehouse, file)
            new = await warehouse.put(self._groups(sorted(rows)))
            await warehouse.commit(name, state, {}, [new], old)
            self._job.cluster.count("small files that became one")
            return  # the table is another one now

    def _groups(self, rows: Sequence[Row]) -> Groups:
        if not self._mixes:
            return grouped(rows, self._job.plan.group_rows)
        middle = rows[len(rows) // 2]
        cut = next(n for n, row in enumerate(rows) if row[:2] == middle[:2])
        return tuple(tuple(part) for part in (rows[:cut], rows[cut:]) if part)


async def _read(warehouse: Warehouse, file: FileRef) -> list[Row]:
    return [row for group in await warehouse.get(file.path) for row in group]


class Eraser:
    """Erases whole entries from tables, one after the other: tables first, then their former
    snapshots; then owners are told, again and again until one has heard it.

    ``choose`` names a topic and an entry that its table has; ``erased`` is told when its rows are
    gone from the table, ``told`` when the topic's owner has heard that, too."""

    def __init__(
        self,
        job: TableJob,
        choose: Callable[[random.Random], tuple[str, Position] | None],
        erasing: Callable[[str, Position], None],
        told: Callable[[str, Position], None],
    ) -> None:
        self._job = job
        self._choose = choose
        self._erasing = erasing
        self._told = told
        self.busy = False
        self.over = False
        """It erases nothing more."""

    async def run(self, count: int, every_s: float) -> None:
        rng = self._job.random
        for _ in range(count):
            await asyncio.sleep(every_s * rng.random())
            chosen = None if self.over else self._choose(rng)
            if chosen is not None:
                self.busy = True
                await self._erase(*chosen)
                self.busy = False

    async def _erase(self, topic: str, position: Position) -> None:
        job, place = self._job, place_of(topic)
        self._erasing(topic, position)
        while True:
            try:
                for name in (place.table, place.side):
                    await self._rewrite(name, position)
                    await job.warehouse.expire(name)
                told = LogTable(where=place.to_text(), rewritten=True)
                await job.asker.ask(topic, LogQuestion(table=told))
            except MagnetarError as error:
                job.note(f"{topic} {position} is not erased yet: {error}")
                await asyncio.sleep(RETRY_S)
                continue
            job.note(f"has erased {topic} {position}")
            job.cluster.count("entries that were erased")
            self._told(topic, position)
            return

    async def _rewrite(self, name: str, position: Position) -> None:
        warehouse = self._job.warehouse
        state = await warehouse.table(name)
        for file in () if state is None else state.files:
            if not file.of_ledgers.least <= position.ledger_id <= file.of_ledgers.greatest:
                continue
            groups = await warehouse.get(file.path)
            without = tuple(tuple(_blank(row, position) for row in group) for group in groups)
            if without != groups:
                assert state is not None
                new = await warehouse.put(without)
                await warehouse.commit(name, state, {}, [new], [file])
                state = await warehouse.table(name)


def _blank(row: Row, position: Position) -> Row:
    """Of an entry that is erased its header is left, which says its place in the log."""
    if row[:2] != position or not row.data:
        return row
    first = row.at <= 0
    return row._replace(data=row.data[: header_bytes(row.data)] if first else b"")
