"""Ledgers read back from tables in the warehouse: the seams behind which the product has Iceberg.
Implements ``magnetar.log.managed.history.ProcessHistory``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from magnetar.log.managed.chain import LedgerInfo
from magnetar.model.entry import Entry
from magnetar.tables.layout import TablePlace, check_tables
from magnetar.tables.ledger_reader import TabledLedger, TableLedgerReader, open_ledger
from magnetar.tables.parts import FilePart, IdSpan, part_of_ledger, window
from magnetar_sim.tabled.warehouse import Groups, Row, Warehouse, entries_of
from magnetar_sim.world.loop import SimLoop

Parts: TypeAlias = Sequence[FilePart]


class WarehouseHistory:
    """Of one process. Implements ``magnetar.tables.ledger_reader.TableFiles``, too."""

    def __init__(self, warehouse: Warehouse, loop: SimLoop) -> None:
        self._warehouse = warehouse
        self._loop = loop

    async def open(self, log: str, where: str, ledger: LedgerInfo) -> TableLedgerReader[Parts]:
        """See ``History``."""
        return await open_ledger(self, log, where, ledger, self._loop.time)

    async def find(self, log: str, place: TablePlace, ledger: TabledLedger) -> Parts:
        """See ``TableFiles``."""
        warehouse, ledger_id = self._warehouse, ledger.ledger_id
        main = await warehouse.table(place.table)
        side = None if main is None else await warehouse.table(place.side)
        properties = None if main is None else main.properties
        check_tables(log, place, properties, side is not None, ledger_id)
        found: list[FilePart] = []
        for state in (main, side):
            for file in () if state is None else state.files:
                if file.of_ledgers.least <= ledger_id <= file.of_ledgers.greatest:
                    found += _parts(file.path, await warehouse.get(file.path), ledger)
        return found

    async def load(
        self, log: str, place: TablePlace, ledger: TabledLedger, found: Parts, first: int
    ) -> list[Entry]:
        """See ``TableFiles``."""
        ledger_id = ledger.ledger_id
        chosen, stop = window(found, first, ledger.entries)
        rows: list[Row] = []
        for path in dict.fromkeys(part.path for part in chosen):
            groups = await self._warehouse.get(path)
            for part in chosen:
                if part.path == path:
                    rows += [row for row in groups[part.group] if row.ledger_id == ledger_id]
        data = entries_of(rows)
        return [Entry(ledger_id, number, data.get(number, b""), 0) for number in range(first, stop)]

    async def close(self) -> None:
        """Nothing was begun."""


def _parts(path: str, groups: Groups, ledger: TabledLedger) -> list[FilePart]:
    found = []
    for number, group in enumerate(groups):
        ledgers = [row.ledger_id for row in group]
        ids = [row.entry_id for row in group]
        part = part_of_ledger(
            path,
            number,
            len(group),
            IdSpan(min(ledgers), max(ledgers)),
            IdSpan(min(ids), max(ids)),
            ledger.ledger_id,
            ledger.entries,
        )
        if part is not None:
            found.append(part)
    return found
