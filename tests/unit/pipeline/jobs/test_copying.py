"""What the jobs that copy make of the progress of their streams."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from magnetar.model.errors import ConfigError
from magnetar.pipeline.jobs import backfill, copying
from magnetar.pipeline.jobs.backfill import BackfillOptions, BackfillReport
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.places import Place


@dataclass(frozen=True)
class Observed:
    counts: Mapping[str, int]

    def asDict(self) -> Mapping[str, int]:  # noqa: N802
        return self.counts


@dataclass(frozen=True)
class Source:
    latestOffset: str | None  # noqa: N815
    endOffset: str | None = None  # noqa: N815


@dataclass(frozen=True)
class StateOperator:
    numRowsDroppedByWatermark: int  # noqa: N815


@dataclass(frozen=True)
class Progress:
    """As ``StreamingQueryProgress`` of PySpark 4.3."""

    batchId: int  # noqa: N815
    read: int | None = None
    """None: told while the stream waits."""
    behind: int | None = 0
    at: str | None = None
    """Up to where the topic was read."""
    late: int = 0

    @property
    def stateOperators(self) -> Sequence[StateOperator]:  # noqa: N802
        return [StateOperator(self.late)] if self.late else []

    @property
    def numInputRows(self) -> int:  # noqa: N802
        return self.read or 0

    @property
    def observedMetrics(self) -> Mapping[str, Observed]:  # noqa: N802
        return {} if self.read is None else {"job": Observed({"read": self.read})}

    @property
    def durationMs(self) -> Mapping[str, int]:  # noqa: N802
        return {"latestOffset": 1} if self.read is None else {"latestOffset": 1, "addBatch": 2}

    @property
    def sources(self) -> Sequence[Source]:
        told = None if self.behind is None else json.dumps({"messages_behind": self.behind})
        end = None if self.at is None else json.dumps({"places": {"t": self.at}})
        return [Source(told, end)]


@dataclass
class Query:
    """Goes a step with each look at it; it ends by itself after the last one."""

    steps: list[list[Progress]]
    recentProgress: list[Progress] = field(default_factory=list)  # noqa: N815

    def awaitTermination(self, _wait_s: float) -> bool:  # noqa: N802
        if not self.steps:
            return True
        self.recentProgress += self.steps.pop(0)
        return False

    @property
    def lastProgress(self) -> Any:  # noqa: N802
        return self.recentProgress[-1] if self.recentProgress else None


END: Mapping[str, Place] = {"t": Place(7, 12, 0)}


def watched(
    *steps: list[Progress], until: Mapping[str, Place] | None = None
) -> tuple[copying.Streamed, Query]:
    counted, query = copying.Streamed(), Query(list(steps))
    copying._watch(JobContext(), query, counted, "messages", until=until)
    return counted, query


def test_what_comes_after_a_stream_has_waited_is_counted() -> None:
    """While it waits, Spark tells of the next micro-batch, under the number that it will have."""
    counted, _ = watched(
        [Progress(0, 0)], [Progress(1, 5)], [Progress(2)], [Progress(2, 7)], [Progress(3)]
    )
    assert (counted.observed, counted.batches) == ({"read": 12}, 2)


def test_a_run_at_a_rate_ends_where_topics_end() -> None:
    _, query = watched(
        [Progress(0, 0, 9)], [Progress(1, 4, 5)], [Progress(2, 4, 1)], [Progress(3, 1, 0)], [],
        until=END,
    )  # fmt: skip
    assert query.steps == [[]]


def test_a_run_at_a_rate_goes_on_behind_what_another_run_has_left() -> None:
    """A micro-batch that was planned before the run began is told of without how much is left."""
    counted, query = watched(
        [Progress(7, 4, None)], [Progress(8, 4, 1)], [Progress(9, 1, 0)], [], until=END
    )
    assert (counted.observed, query.steps) == ({"read": 9}, [[]])


def test_a_run_at_a_rate_ends_where_brokers_do_not_number_messages() -> None:
    _, query = watched(
        [Progress(0, 0, None)], [Progress(1, 4, None)], [Progress(2, None, None)], [],
        until=END,
    )  # fmt: skip
    assert query.steps == [[]]


def test_a_run_at_a_rate_ends_where_topics_ended_when_it_began() -> None:
    """It went on as long as somebody published faster than it read."""
    _, query = watched(
        [Progress(0, 0, 9, "7:0:0")], [Progress(1, 9, 90, "7:11:5")],
        [Progress(2, 9, 900, "7:13:0")], [Progress(3, 9, 9000, "7:20:0")],
        until=END,
    )  # fmt: skip
    assert query.steps == [[Progress(3, 9, 9000, "7:20:0")]]


def test_what_comes_too_late_is_counted() -> None:
    """It was left out without a word."""
    counted, _ = watched([Progress(0, 0)], [Progress(1, 5, late=2)], [Progress(2)])
    assert counted.late == 2


# -- names of backfills -----------------------------------------------------------------------

PLAIN = BackfillOptions("lake/flights", "flights")


def test_what_says_what_is_written_makes_the_name() -> None:
    others = [
        replace(PLAIN, key="carrier"),
        replace(PLAIN, key="origin"),
        replace(PLAIN, event_time="departed"),
        replace(PLAIN, value="to_json(struct(*))"),
        replace(PLAIN, order_by=("departed",)),
        replace(PLAIN, format="csv"),
        replace(PLAIN, table=True),
        replace(PLAIN, where="delay > 0"),
        replace(PLAIN, topic="others"),
    ]
    names = {backfill._name(each) for each in (PLAIN, *others)}
    assert len(names) == 1 + len(others)
    assert backfill._name(replace(PLAIN, key="carrier", name="mine")) == "mine"


def test_what_an_earlier_release_may_have_written_is_not_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keyed = replace(PLAIN, key="carrier")
    last = {backfill._name(PLAIN): 1}
    monkeypatch.setattr(backfill, "_last_version", lambda _options, name: last.get(name, -1))
    assert backfill._was_written(PLAIN)
    assert not backfill._was_written(replace(PLAIN, version=2))
    with pytest.raises(ConfigError, match=f"--name {backfill._name(PLAIN)}"):
        backfill._was_written(keyed)
    assert backfill._was_written(replace(keyed, name=backfill._name(PLAIN)))
    assert not backfill._was_written(replace(keyed, name="beside"))
    last = {backfill._name(keyed): 1}
    assert backfill._was_written(keyed)
    assert not backfill._was_written(replace(PLAIN, key="origin"))


def test_what_is_passed_over_is_said() -> None:
    (_, told) = BackfillReport(name="mine", rows=3, passed_over=True).lines()
    assert told.startswith("passed over: mine was written before")
