"""Columns of a newer schema come into a table where those that are there can stay."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from magnetar.model.schema import SchemaType, TopicSchema
from magnetar.pipeline.tables.topic_table import TopicTable
from magnetar.pipeline.typed.inference import ReaderSchema
from magnetar.tables.layout import VALUE, TablePlace

TOPIC = "persistent://public/default/flights"
FORMER, NEWER = (
    ReaderSchema(TOPIC, version, TopicSchema(SchemaType.STRING, b"")).to_text()
    for version in (0, 1)
)


def table_of(folder: Path, value: pa.DataType) -> TopicTable:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}",
    }
    table = TopicTable(TablePlace("magnetar", properties, "public_default.flights"), TOPIC)
    table.make(value, FORMER, "none")
    return table


def of(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


TEXT, BYTES = pa.string(), pa.binary()


@pytest.mark.parametrize(
    ("there", "new"),
    [
        (of(a=TEXT), of(a=BYTES)),
        (of(a=of(b=TEXT)), of(c=TEXT, a=of(b=BYTES))),
        (of(a=pa.list_(TEXT)), of(a=pa.list_(BYTES))),
        (of(a=pa.map_(TEXT, TEXT)), of(a=pa.map_(TEXT, BYTES))),
        (TEXT, BYTES),
        (of(a=pa.int64()), of(a=TEXT)),
        (of(a=TEXT), of(a=of(b=TEXT))),
    ],
    ids=str,
)
def test_what_cannot_go_into_the_columns_leaves_them(
    tmp_path: Path, there: pa.DataType, new: pa.DataType
) -> None:
    """Bytes that are no text went nowhere: Iceberg lets a column of text be one of bytes, and so
    each round failed at the first ledger with such a value."""
    table = table_of(tmp_path, there)
    before = table.main.schema()
    assert not table.widen(new, NEWER)
    assert (table.main.schema(), table.reader_text) == (before, FORMER)


@pytest.mark.parametrize(
    ("there", "new"),
    [
        (of(a=BYTES), of(a=TEXT)),
        (of(a=pa.int32(), b=TEXT), of(b=TEXT, c=of(d=BYTES), a=pa.int64())),
        (of(a=pa.list_(of(b=TEXT))), of(a=pa.list_(of(c=BYTES, b=TEXT)))),
        (of(a=TEXT, gone=TEXT), of(a=TEXT)),
        (of(a=pa.float32()), of(a=pa.float64())),
    ],
    ids=str,
)
def test_what_can_go_into_them_widens_them(
    tmp_path: Path, there: pa.DataType, new: pa.DataType
) -> None:
    table = table_of(tmp_path, there)
    assert table.widen(new, NEWER)
    assert table.reader_text == NEWER
    assert {VALUE} <= set(table.main.schema().column_names)
    assert table_of(tmp_path, there).reader_text == NEWER, "it is made once"
