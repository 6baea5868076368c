"""Rows of losses: what was passed over, as Spark and the jobs' reports get it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from magnetar.model.errors import ConfigError
from magnetar.pipeline.columns.lost_rows import lost_rows, with_losses
from magnetar.pipeline.jobs.passing_over import LossyReport, PassedOver, of_row
from magnetar.pipeline.loss_reports import KEPT_MAX, LossReports
from magnetar.pipeline.losses import LOST, Loss, lost_entry
from magnetar.pipeline.places import START, Offset, Place, Point
from magnetar.pipeline.planning.plans import lost_between
from magnetar.pipeline.schema import check_read_schema, spark_schema, with_lost
from tests.unit.pipeline.driving import options

T = "persistent://public/default/t-partition-3"


def schema_of(naming: str = "magnetar") -> pa.Schema:
    return to_arrow_schema(with_lost(spark_schema(None, naming)), timezone="UTC")


@pytest.mark.parametrize(("naming", "topic"), [("magnetar", T), ("kafka", T[:-12])])
def test_a_loss_is_a_row_with_its_place_and_nothing_of_a_message(naming: str, topic: str) -> None:
    loss = lost_entry(T, Place(4, 7, 0), "no replica has it sound", Place(4, 8, 0), 5)
    (row,) = lost_rows(schema_of(naming), naming, T, [loss]).to_pylist()
    assert row.pop(LOST) == {
        "ledger_id": 4,
        "entry_id": 7,
        "entries": 1,
        "messages": 5,
        "why": "entry 4:7 is lost: no replica has it sound",
    }
    assert (row.pop("topic"), row.pop("partition")) == (topic, 3)
    assert set(row.values()) == {None}


def test_losses_come_behind_the_batches_and_the_last_ones_at_the_end() -> None:
    reports = LossReports(fatal=False, keeps=True)
    schema = schema_of()

    def batches() -> Any:
        reports.report(Loss(T, "first", 1, START))
        yield pa.RecordBatch.from_pylist([], schema=schema)
        reports.report(Loss(T, "second", 1, START))

    found = [
        row[LOST]["why"]
        for batch in with_losses(batches(), reports, lambda each: lost_rows(schema, "", T, each))
        for row in batch.to_pylist()
    ]
    assert found == ["first", "second"]


def test_many_losses_are_told_as_their_sum() -> None:
    reports = LossReports(fatal=False, keeps=True)
    for number in range(KEPT_MAX + 50):
        reports.report(Loss(T, f"loss {number}", 2, START, 3, Place(1, number, 0)))
    kept = reports.taken()
    assert len(kept) == KEPT_MAX
    (others,) = reports.taken(last=True)
    assert (others.entries, others.messages, others.at) == (100, 150, Place(1, KEPT_MAX, 0))
    assert not reports.taken(last=True)


def test_what_a_micro_batch_found_gone_is_told_by_its_offsets_alone() -> None:
    points = {T: Point(Place(1, 2, 0), 2)}
    first, last = Offset(points, lost={T: 3}), Offset(points, lost={T: 10, "u": 1})
    told = [(each.topic, each.messages, each.at) for each in lost_between(first, last)]
    assert told == [(T, 7, Place(1, 2, 0)), ("u", 1, START)]
    assert not lost_between(last, last)
    initial = Offset(points, lost={T: 3}, initial=True)
    assert [each.messages for each in lost_between(initial, first)] == [3]


def test_rows_of_losses_need_losses_that_are_passed_over() -> None:
    with pytest.raises(ConfigError, match="failOnDataLoss=false"):
        options(topic="t", includeLosses="true")
    assert options(topic="t", includeLosses="true", failOnDataLoss="false").losses
    with pytest.raises(ConfigError, match=LOST):
        check_read_schema(spark_schema(None), losses=True)
    with pytest.raises(ConfigError, match="no column '_lost'"):
        check_read_schema(with_lost(spark_schema(None)))


def test_a_report_counts_what_was_passed_over_and_is_not_well_then() -> None:
    report = LossyReport()
    assert report.ok
    assert not list(report.loss_lines())
    row = {"topic": T, "ledger_id": 4, "entry_id": 7, "entries": 1, "messages": None, "why": "gone"}
    report.pass_over(of_row(row))
    report.pass_over(PassedOver(T, 5, 0, 9, 10, 100, "all of it"))
    assert not report.ok
    assert (report.losses, report.lost_entries, report.lost_messages) == (2, 11, 100)
    assert list(report.loss_lines()) == [
        f"LOST: {T} from 4:7 (at least 1 entries): gone",
        f"LOST: {T} from 5:0 to 5:9 (100 messages): all of it",
        "passed over: 2 losses, 11 entries and 100 messages as far as they could be counted",
    ]
