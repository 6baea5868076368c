"""The file that declares an aggregation: what it may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.model.errors import ConfigError
from magnetar.pipeline.jobs.aggregate import AGGREGATE, AggregateOptions, declared
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.job import run

WHOLE = """
[source]
topic = "flights"
time = "event_time"

[window]
size = "5 minutes"
late = "10 minutes"

[aggregates]
flights = "count(*)"

[sink]
topic = "delays"
"""


def test_the_least_that_a_file_says() -> None:
    found = declared(WHOLE, "f.toml")
    assert found.source == {"topic": "flights", "time": "event_time"}
    assert (found.group, found.aggregates) == ({}, {"flights": "count(*)"})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[source", "is no TOML"),
        (WHOLE.replace("[sink]", "[snk]"), r"no section \[snk\]"),
        (WHOLE.replace('size = "5 minutes"', ""), r"\[window\] lacks size"),
        (WHOLE.replace('late = "10 minutes"', "late = 10"), r"\[window\] late must be text"),
        (WHOLE.replace('topic = "delays"', 'topic = "d"\nmode = "x"'), r"\[sink\] has no mode"),
        (WHOLE.replace('flights = "count(*)"', ""), r"\[aggregates\] lacks"),
        (WHOLE.replace("[window]", 'values = "xml"\n[window]'), "schema, json, bytes, not 'xml'"),
        (WHOLE.replace("[window]", 'values = "json"\n[window]'), "columns goes with"),
        ("size = 1\n" + WHOLE, "stands in no section"),
        (WHOLE.replace("flights =", "window_end ="), "two 'window_end'"),
        (WHOLE.replace("[sink]", "Flights = 'max(1)'\n[sink]"), "two 'Flights'"),
    ],
)
def test_what_a_file_may_not_say(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as found:
        declared(text, "f.toml")
    assert "f.toml" in str(found.value)


def test_a_file_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    """Bytes that are no text were an internal error; results that go where messages are read were
    counted themselves, without end."""
    path = tmp_path / "f.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="no text in UTF-8"):
        run(AGGREGATE, AggregateOptions(str(path)), JobContext())
    path.write_text(WHOLE.replace('"delays"', '"persistent://public/default/flights"'))
    with pytest.raises(ConfigError, match="be counted themselves"):
        run(AGGREGATE, AggregateOptions(str(path)), JobContext())
