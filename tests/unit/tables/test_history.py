"""Whether a table is the one that took a log's ledgers: what is not in it counts as erased."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from magnetar.model.errors import TableError
from magnetar.pipeline.tables.taking_rules import TakenUpTo
from magnetar.pipeline.tables.topic_table import TopicTable
from magnetar.tables.history import Places, TableHistory
from magnetar.tables.layout import TAKEN, UNFIT, TablePlace
from magnetar.tables.warehouse import Catalogs

TOPIC = "persistent://public/default/flights"
LOG = f"{TOPIC}-partition-1"


class Ledger(NamedTuple):
    ledger_id: int
    entries: int = 1
    stored_bytes: int = 10


@pytest.fixture
def place(tmp_path: Path) -> TablePlace:
    where = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}"}
    return TablePlace("test", where, "public_default.flights")


@pytest.fixture
def table(place: TablePlace) -> TopicTable:
    made = TopicTable(place, TOPIC)
    made.make(None, None, "none")
    says(made, TAKEN + LOG, TakenUpTo(7).to_text())
    return made


def says(table: TopicTable, name: str, text: str) -> None:
    with table.main.transaction() as change:
        change.set_properties({name: text})


def places(place: TablePlace, ledger_id: int, log: str = LOG) -> Places:
    return TableHistory(Catalogs()).places(log, place, Ledger(ledger_id))


def test_a_ledger_of_which_the_table_has_nothing_was_erased(
    place: TablePlace, table: TopicTable
) -> None:
    assert [list(parts) for _, parts in places(place, 7).tables] == [[]]


def test_a_table_that_never_took_the_ledger_is_another_one(
    place: TablePlace, table: TopicTable
) -> None:
    with pytest.raises(TableError, match="never took ledger 8"):
        places(place, 8)
    with pytest.raises(TableError, match="never took ledger 7"):
        places(place, 7, f"{TOPIC}-partition-0")


def test_a_table_made_anew_under_the_name_serves_nothing(place: TablePlace) -> None:
    TopicTable(place, TOPIC).make(None, None, "none")
    with pytest.raises(TableError, match="made anew"):
        places(place, 3)


def test_a_side_table_that_is_gone_is_missed(place: TablePlace, table: TopicTable) -> None:
    says(table, UNFIT + LOG, TakenUpTo(5).to_text())
    with pytest.raises(TableError, match="flights__unfit"):
        places(place, 5)
    assert len(places(place, 6).tables) == 1
    table.make_side()
    assert len(places(place, 5).tables) == 2


@pytest.mark.parametrize("text", ["none", "[]", "{}", '{"ledger": null}'])
def test_a_property_that_cannot_be_read_is_an_error_of_the_table(
    place: TablePlace, table: TopicTable, text: str
) -> None:
    """Else it would be taken for a defect of whoever reads."""
    says(table, TAKEN + LOG, text)
    with pytest.raises(TableError, match="names no ledger"):
        places(place, 7)


def test_a_password_of_the_catalogs_address_comes_from_the_environment(
    place: TablePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was to stand in the place, which all who may read the topic see."""
    opened: list[dict[str, str]] = []
    monkeypatch.setattr(
        "pyiceberg.catalog.load_catalog", lambda _name, **told: opened.append(told) or object()
    )
    monkeypatch.setenv("PYICEBERG_CATALOG__TEST__URI", "postgresql://ann:pw@db/lake")
    for uri in ("postgresql://ann@db/lake", "postgresql://ann@other/lake"):
        Catalogs().get(TablePlace("test", {"type": "sql", "uri": uri}, place.table))
    assert [each["uri"] for each in opened] == [
        "postgresql://ann:pw@db/lake", "postgresql://ann@other/lake"
    ]  # fmt: skip


def test_what_a_catalog_says_goes_without_passwords() -> None:
    where = {"type": "sql", "uri": "nosuch://ann:s3cr3t@db/lake"}
    with pytest.raises(TableError) as raised:
        Catalogs().get(TablePlace("test", where, "public_default.flights"))
    assert "s3cr3t" not in str(raised.value)
