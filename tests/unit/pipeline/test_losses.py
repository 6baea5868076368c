"""What is lost at a place, against what the log is now."""

from __future__ import annotations

import os

import pytest

from magnetar.model.errors import DataLossError
from magnetar.pipeline.loss_reports import LossReports, said_in_one_line
from magnetar.pipeline.losses import LogExtent, Loss, gap_before, loss_at
from magnetar.pipeline.places import START, Place

T = "persistent://public/default/t"
MADE = 1_700_000_000_000
WHOLE = LogExtent(START, Place(3, 0, 0), Place(9, 5, 0), MADE)
TRIMMED = LogExtent(Place(5, 10, 0), Place(9, 0, 0), Place(9, 5, 0), MADE)
"""Up to 5:9 everything is deleted; the next ledger is 9."""
NEVER_USED = LogExtent(START, START, START, MADE)


@pytest.mark.parametrize("place", [START, Place(3, 0, 0), Place(7, 2, 1), Place(9, 5, 0)])
def test_nothing_is_lost_within_a_whole_log(place: Place) -> None:
    assert loss_at(T, place, MADE, WHOLE) is None
    assert loss_at(T, place, 0, WHOLE) is None


@pytest.mark.parametrize(
    ("place", "entries"),
    [(START, 10), (Place(4, 0, 0), 10), (Place(5, 4, 0), 6), (Place(5, 9, 0), 1)],
)
def test_what_retention_deleted_before_it_was_read_is_lost(place: Place, entries: int) -> None:
    loss = loss_at(T, place, MADE, TRIMMED)
    assert loss is not None
    assert (loss.entries, loss.go_on) == (entries, Place(5, 10, 0))
    assert str(place) in str(loss)


def test_ids_that_are_offsets_do_not_count_entries() -> None:
    """A stream's sum of what was lost had them for messages."""
    extent = LogExtent(Place(0, 750, 0), Place(0, 750, 0), Place(0, 1000, 0), MADE, 750, 1050, True)
    loss = loss_at(T, Place(0, 300, 33), MADE, extent, 333)
    assert loss is not None
    assert (loss.entries, loss.messages) == (1, 417)


@pytest.mark.parametrize("place", [Place(5, 10, 0), Place(7, 0, 0), Place(9, 0, 0)])
def test_a_reader_that_had_read_everything_deleted_loses_nothing(place: Place) -> None:
    """Though the ledger that its place names is gone."""
    assert loss_at(T, place, MADE, TRIMMED) is None


def test_a_place_inside_of_a_deleted_batch_is_lost() -> None:
    assert loss_at(T, Place(5, 9, 3), MADE, TRIMMED) is not None


def test_places_of_older_checkpoints_that_may_have_lost_nothing_have_not() -> None:
    """They wrote the place after a batch as one inside of it, and START for whatever there is."""
    assert loss_at(T, Place(5, 9, 3), 0, TRIMMED) is None
    assert loss_at(T, START, 0, TRIMMED) is None
    assert loss_at(T, Place(5, 9, 0), 0, TRIMMED) is not None
    assert loss_at(T, Place(5, 8, 3), 0, TRIMMED) is not None


@pytest.mark.parametrize("extent", [WHOLE, TRIMMED, NEVER_USED])
def test_a_topic_made_anew_is_another_wherever_the_place_is(extent: LogExtent) -> None:
    for place in (START, Place(1, 0, 0), Place(9, 5, 0), Place(10, 0, 0)):
        loss = loss_at(T, place, MADE - 1, extent)
        assert loss is not None
        assert "made anew at 2023-11-14T22:13:20" in loss.what
        assert loss.go_on == extent.kept_from


def test_without_creation_times_ledger_ids_tell_a_topic_made_anew() -> None:
    loss = loss_at(T, Place(2, 7, 0), 0, WHOLE)
    assert loss is not None
    assert "made anew;" in str(loss_at(T, Place(2, 7, 0), 0, WHOLE._replace(created_ms=0)))


def test_past_the_end_is_another_log() -> None:
    for extent in (WHOLE, TRIMMED, NEVER_USED):
        loss = loss_at(T, Place(9, 5, 1), MADE, extent)
        assert loss is not None
        assert "past the end" in loss.what


def test_ids_of_a_ledger_follow_each_other() -> None:
    assert gap_before(T, Place(1, 4, 0), 1, 4) is None
    assert gap_before(T, Place(1, 4, 3), 1, 4) is None
    assert gap_before(T, Place(1, 4, 0), 2, 0) is None
    assert gap_before(T, START, 2, 0) is None
    for expected, entries in ((Place(1, 4, 0), 2), (Place(0, 9, 0), 6), (START, 6)):
        loss = gap_before(T, expected, 1, 6)
        assert loss is not None
        assert loss.entries == entries


def test_a_loss_is_fatal_or_counted(caplog: pytest.LogCaptureFixture) -> None:
    loss = Loss(T, "something is gone", 4, Place(5, 10, 0))
    with pytest.raises(
        DataLossError, match=r"something is gone \(at least 4 entries\); to read on"
    ):
        LossReports(fatal=True).report(loss)
    reports = LossReports(fatal=False)
    reports.report(loss)
    reports.report(loss)
    assert (reports.losses, reports.entries) == (2, 8)
    assert "reading goes on at 5:10:0 (loss 2 of this reader, 8 entries and" in caplog.text


def test_an_error_of_ours_is_said_in_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(DataLossError), said_in_one_line():
        raise DataLossError("it is gone; do this")
    assert [record.getMessage() for record in caplog.records] == ["magnetar: it is gone; do this"]
    with pytest.raises(ValueError, match="not ours"), said_in_one_line():
        raise ValueError("not ours")
    assert len(caplog.records) == 1
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"
