"""Erasure by key in a table on disk: what it takes, and what of other keys it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from magnetar.log.seam import TakenLedger
from magnetar.pipeline.jobs.erase import EraseReport
from magnetar.pipeline.tables.erasing import erase
from magnetar.pipeline.tables.files import FileWriter
from magnetar.pipeline.tables.taking_rules import commit_of
from magnetar.pipeline.tables.topic_table import TopicTable
from magnetar.pipeline.tables.upkeep import keep_up
from magnetar.tables.layout import TablePlace
from magnetar.tables.rebuilding import COLUMNS, rebuilt
from magnetar.wire.kafka.batches import TRANSACTIONAL
from magnetar.wire.kafka.compression import Codec
from magnetar.wire.kafka.records import KafkaRecord, RecordHeader, read_batch
from magnetar.wire.pulsar.broker_metadata import header_bytes
from tests.unit.pipeline.entry_building import (
    TOPIC,
    Message,
    batch_data,
    framed,
)
from tests.unit.pipeline.tables.test_entry_rows import LEDGER, _of_two, kafka_entry, rows_of

BASE_TOPIC = "persistent://public/default/orders"


def table_of(folder: Path, payloads: Sequence[bytes]) -> TopicTable:
    """With these entries in it, as a job puts them there."""
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}",
    }
    table = TopicTable(TablePlace("magnetar", properties, "public_default.orders"), BASE_TOPIC)
    table.make(None, None, "day")
    rows = rows_of(payloads)
    main, side = FileWriter(table.main), FileWriter(table.make_side())
    main.write(pa.Table.from_batches(rows.main))
    side.write(pa.Table.from_batches(rows.side))
    taken = TakenLedger(LEDGER, len(payloads), rows.messages)
    for is_side, files in ((True, side.close()), (False, main.close())):
        unfit = () if is_side else (LEDGER,)
        commit = commit_of(TOPIC, table.taken(TOPIC, side=is_side), [taken], frozenset(), unfit)
        assert commit is not None
        table.commit(commit, {LEDGER: files}, side=is_side)
    return table


def back(table: TopicTable, count: int) -> list[bytes]:
    assert table.look()
    assert table.side is not None
    parts = [each.scan().to_arrow().select(COLUMNS) for each in (table.main, table.side)]
    whole = pa.concat_tables([part.cast(parts[0].schema) for part in parts])
    return [bytes(entry.payload) for entry in rebuilt(LEDGER, whole, 0, count)]


def keys(table: TopicTable) -> list[Any]:
    found: list[Any] = table.main.scan().to_arrow().sort_by("entry_id")["key"].to_pylist()
    return found


def test_an_entry_that_is_kept_whole_for_several_keys_is_left_as_it_is(tmp_path: Path) -> None:
    data = batch_data([Message(b"x", key="mine"), Message(b"y", key="other")])
    whole = framed(_of_two(), data + b"tail")
    table = table_of(tmp_path, [whole])
    done = erase(table, "mine")
    assert (done.messages, done.left) == (1, 1)
    assert back(table, 1) == [whole], "what consumers of the other key get"
    assert keys(table) == [None, "other"]


def test_a_record_of_kafkas_goes_and_offsets_stay(tmp_path: Path) -> None:
    payloads = [kafka_entry(Codec.LZ4, 10), kafka_entry(Codec.NONE, 13, TRANSACTIONAL)]
    table = table_of(tmp_path, payloads)
    assert erase(table, "k", dry_run=True).messages == 2
    assert back(table, 2) == payloads
    done = erase(table, "k")
    assert (done.messages, done.entries, done.left) == (2, 2, 0)
    assert keys(table) == [None, "gone", "/w=="]
    for found, stored in zip(back(table, 2), payloads, strict=True):
        at = header_bytes(stored)
        assert found[:at] == stored[:at]
        header, records = read_batch(memoryview(found)[at:])
        former, _ = read_batch(memoryview(stored)[at:])
        assert header._replace(crc=0, length=0) == former._replace(crc=0, length=0)
        assert records == [
            KafkaRecord(0, 0, None, None, []),
            KafkaRecord(1, 5, b"gone", None, []),
            KafkaRecord(2, 7, b"\xff", b"", []),
        ]
        assert RecordHeader("h", b"text") not in records[0].headers
    assert erase(table, "k").messages == 0


def test_a_snapshot_that_has_a_name_stays_until_it_is_dropped(tmp_path: Path) -> None:
    """Upkeep failed with each run once such a snapshot was old, and so did an erasure, behind what
    it had done: pyiceberg lets none of them expire."""
    table = table_of(tmp_path, [kafka_entry(Codec.NONE, 10)])
    snapshot = table.main.metadata.current_snapshot_id
    assert snapshot is not None
    table.main.manage_snapshots().create_tag(snapshot, "audit-2026").commit()
    done = erase(table, "k")
    assert (done.messages, done.named) == (1, ["public_default.orders: audit-2026"])
    assert "k" not in keys(table)
    assert "k" in table.main.scan(snapshot_id=snapshot).to_arrow()["key"].to_pylist()
    lines = list(EraseReport(topics={"t": done}).lines())
    assert any("tags or branches keep (public_default.orders: audit-2026)" in x for x in lines)
    assert not EraseReport(topics={"t": done}).ok
    assert keep_up(table, 2**60, 0).snapshots_expired == 0
    assert table.look()
    table.main.manage_snapshots().remove_tag("audit-2026").commit()
    assert table.look()
    again = erase(table, "k")
    assert (again.messages, again.named, again.kept.snapshots_expired) == (0, [], 1)
    assert EraseReport(topics={"t": again}).ok
    for path in tmp_path.rglob("*.parquet"):
        assert "k" not in pq.read_table(path, columns=["key"])["key"].to_pylist()
