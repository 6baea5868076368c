"""Files of a table on disk: which are rewritten, how often, and how much of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import FileScanTask, Table

from magnetar.pipeline.tables import files as files_module
from magnetar.pipeline.tables import upkeep
from magnetar.pipeline.tables.files import FULL, FileWriter
from magnetar.pipeline.tables.small_files import SmallFilesRule
from magnetar.pipeline.tables.topic_table import TopicTable
from magnetar.pipeline.tables.upkeep import TableUpkeep, compact
from magnetar.tables.columns import main_schema
from magnetar.tables.layout import TablePlace

TOPIC = "persistent://public/default/orders"
ROWS = 500
ROW_BYTES = 200
RULE = SmallFilesRule(small_bytes=64 << 10, files_min=4, rewrite_bytes=128 << 10)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TopicTable:
    """Of which a ledger's rows are about as many bytes as a file takes, and some hundred bytes in
    it."""
    monkeypatch.setattr(files_module, "FILE_BYTES", ROWS * ROW_BYTES)
    monkeypatch.setattr(files_module, "GROUP_BYTES", ROWS * ROW_BYTES // 8)
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}",
    }
    made = TopicTable(TablePlace("magnetar", properties, "public_default.orders"), TOPIC)
    made.make(None, None, "none")
    return made


def add(table: Table, ledger_id: int, rows: int = ROWS, value: bytes = b"x") -> None:
    """A ledger whose entries are messages that compress well."""
    columns = {
        "partition": pa.array([-1] * rows, pa.int32()),
        "ledger_id": pa.array([ledger_id] * rows, pa.int64()),
        "entry_id": pa.array(range(rows), pa.int64()),
        "batch_index": pa.array([-1] * rows, pa.int32()),
        "payload": pa.array([value * ROW_BYTES] * rows, pa.binary()),
    }
    schema = main_schema(None)
    arrays = [columns.get(each.name, pa.nulls(rows, each.type)) for each in schema]
    writer = FileWriter(table)
    for first in range(0, rows, ROWS // 4):
        batch = pa.Table.from_arrays(arrays, schema=schema).slice(first, ROWS // 4)
        writer.write(batch)
    with table.transaction() as change, change.update_snapshot().fast_append() as append:
        for each in writer.close():
            append.append_data_file(each.data_file())


def passes(table: Table) -> list[int]:
    """How many files each pass of upkeep rewrites, until one has nothing to do."""
    found = []
    for _ in range(8):
        kept = TableUpkeep()
        compact(table, kept, RULE)
        if not kept.files_rewritten:
            return found
        found.append(kept.files_rewritten)
    raise AssertionError(f"there is always something to rewrite: {found}")


def places(table: Table) -> list[tuple[int, int]]:
    rows = table.scan().to_arrow()
    return sorted(zip(rows["ledger_id"].to_pylist(), rows["entry_id"].to_pylist(), strict=True))


def test_files_of_rows_that_compress_well_are_rewritten_once(table: TopicTable) -> None:
    """All of a table, in each round of its job: files are cut by the bytes of their rows, and were
    small as long as their own bytes were few."""
    for ledger_id in range(6):
        add(table.main, ledger_id, 2 * ROWS)
    whole = places(table.main)
    first = passes(table.main)
    assert sum(first) <= 40
    assert places(table.main) == whole
    names = [each.file.file_path for each in table.main.scan().plan_files()]
    assert sum(name.endswith(FULL) for name in names) >= len(names) - 3
    add(table.main, 6, 10)
    assert passes(table.main) == []
    for ledger_id in range(7, 10):
        add(table.main, ledger_id, 10)
    assert sum(passes(table.main)) <= 7, "those that came since, and what was left"


def test_what_is_rewritten_together_fits_into_memory(
    table: TopicTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files were put together by their own bytes, 128 MiB of them, whatever their rows are."""
    monkeypatch.setattr(upkeep, "ROW_BYTES_MAX", 3 * ROWS * ROW_BYTES)
    read, sizes = upkeep.read_files, list[int]()

    def measured(table_: Table, tasks: Sequence[FileScanTask]) -> pa.Table:
        rows = read(table_, tasks)
        sizes.append(rows.nbytes)
        return rows

    monkeypatch.setattr(upkeep, "read_files", measured)
    for ledger_id in range(16):
        add(table.main, ledger_id, ROWS // 2, b"%d" % (ledger_id % 10))
    whole = places(table.main)
    assert passes(table.main)
    assert max(sizes) <= 8 * ROWS * ROW_BYTES
    assert places(table.main) == whole
