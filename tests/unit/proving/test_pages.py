"""The page of the loss comparison: what it must say, from results that are made up."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from magnetar.proving.counting import Back, Observed, judge
from magnetar.proving.pages import html, markdown, verdict
from magnetar.proving.pictures import losses, outages
from magnetar.proving.results import LaneResult, RunResult, ScenarioResult, as_json
from magnetar.proving.running import write
from magnetar.proving.scenarios import BY_NAME


def result(lost: int = 200) -> RunResult:
    scenario, power = BY_NAME["leader-dies"], BY_NAME["power-cut-synced"]
    bad, *good = scenario.lanes
    seen = [Observed(300, 200, lost, unavailable_s=4.25, back=Back.ANOTHER)]
    seen += [Observed(300, unavailable_s=3.5, back=Back.ANOTHER) for _ in good]
    lanes = [
        LaneResult(spec, each, judge(spec.expected, each))
        for spec, each in zip((bad, *good), seen, strict=True)
    ]
    found = ScenarioResult(scenario, lanes, 20.0)
    return RunResult(
        [found, ScenarioResult(power, not_run="needs a C compiler")], 7, "2026-11-23", 30.0
    )


def test_expected_stands_beside_observed() -> None:
    text = markdown(result())
    assert "| partition | acks=1 | 300 | 200 | 200 | 0 | 0 | 4.2 s | another broker | yes |" in text
    assert "**4 of 4 lanes came out as expected; NOT RUN: power-cut-synced" in text
    assert "**not run: needs a C compiler**" in text
    assert result().as_expected, "but it is said"


def test_what_failed_cannot_be_overlooked() -> None:
    found = result(lost=199)
    assert not found.as_expected
    assert verdict(found).startswith("3 of 4 lanes came out as expected")
    for text in (markdown(found), html(found)):
        assert "NO: lost: expected 200, observed 199" in text
    told = as_json(found)["scenarios"][0]["lanes"][0]
    assert told["wrong"] == ["lost: expected 200, observed 199"]
    assert told["observed"]["lost"] == 199
    broken = RunResult([ScenarioResult(BY_NAME["paused"], failed="StartError: <none>")], 1, "today")
    assert not broken.as_expected
    assert "FAILED: StartError: &lt;none&gt;" in html(broken)
    assert "1 scenarios FAILED" in verdict(broken)


@pytest.mark.parametrize("picture", [losses, outages])
def test_pictures_need_nothing_from_elsewhere(picture: object) -> None:
    assert callable(picture)
    text = picture(result())
    ElementTree.fromstring(text)
    assert "not run: needs a C compiler" in text
    assert "href" not in text
    assert "url(" not in text


def test_the_files_of_a_run(tmp_path: Path) -> None:
    page = write(result(), tmp_path / "out")
    names = {each.name for each in page.parent.iterdir()}
    assert names == {"index.html", "prove.md", "prove.json", "lost.svg", "unavailable.svg"}
    assert page.read_text().count("<svg") == 2
    assert json.loads((page.parent / "prove.json").read_text())["seed"] == 7
