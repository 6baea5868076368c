"""Lanes of another system beside ours: which there are, what is expected of them, and the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.log.policy import Engine
from magnetar.model.errors import StartError
from magnetar.proving import running
from magnetar.proving.counting import Back, Expected, Observed
from magnetar.proving.faults import Making, Outcome
from magnetar.proving.magnetar_stage import MagnetarStage
from magnetar.proving.pages import html, markdown, verdict
from magnetar.proving.peers import Peer, side_by_side
from magnetar.proving.pictures import losses, outages
from magnetar.proving.results import LaneResult, RunResult, as_json
from magnetar.proving.running import run
from magnetar.proving.scenarios import BY_NAME
from magnetar.proving.stage import Settings, Stage

OTHER = Expected(back=None)


def no_stage(folder: Path, settings: Settings) -> Stage:
    raise AssertionError("nobody enters it")


def peer(**more: object) -> Peer:
    return Peer("Other 1", Engine.PARTITION, no_stage, **more)  # type: ignore[arg-type]


def test_a_peer_has_the_lanes_of_its_model() -> None:
    scenario = BY_NAME["leader-dies"]
    mine = {each.name: each for each in scenario.lanes}
    theirs = peer(differs={("leader-dies", "partition-all"): OTHER}).beside(scenario)
    assert [each.name for each in theirs.lanes] == ["partition-acks1", "partition-all"]
    for each in theirs.lanes:
        assert each.side == "Other 1"
        assert mine[each.name].side == "partition"
    assert theirs.lanes[0] == replace(mine["partition-acks1"], peer="Other 1")
    assert theirs.lanes[1].expected == OTHER
    assert not peer().beside(BY_NAME["ledger-loses-bookies"]).lanes


def test_each_lane_stands_behind_ours() -> None:
    def result(name: str, of: str) -> LaneResult:
        spec = next(each for each in BY_NAME["leader-dies"].lanes if each.name == name)
        return LaneResult(replace(spec, peer=of), Observed())

    ours = [result("partition-acks1", ""), result("ledger-all", "")]
    theirs = [result("partition-all", "x"), result("partition-acks1", "x")]
    found = [(each.spec.name, each.spec.peer) for each in side_by_side(ours, theirs)]
    assert found == [
        ("partition-acks1", ""),
        ("partition-acks1", "x"),
        ("ledger-all", ""),
        ("partition-all", "x"),
    ]


def made(making: Making) -> Outcome:
    """200 lost where they must be, and one where none may, of the peer."""
    found = {}
    for each in making.scenario.lanes:
        lost = 200 if each.acks == 1 and each.engine is Engine.PARTITION else 0
        if each.peer and each.acks != 1:
            lost = 1
        found[each.name] = Observed(300, lost, lost, unavailable_s=4.0, back=Back.ANOTHER)
    return found


def test_a_peer_that_is_missing_is_run_nowhere_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(running.MAKERS, "leader-dies", made)  # type: ignore[arg-type]
    missing = peer(notes={"leader-dies": ("it differs",)}).missing("there is no mvn")
    assert set(missing.not_run) == set(BY_NAME)
    found = run([BY_NAME["leader-dies"]], 1, lambda _text: None, [missing])
    assert found.as_expected, "ours are counted all the same"
    assert {each.spec.peer for each in found.scenarios[0].lanes} == {""}
    text = markdown(found)
    assert "* Other 1 not run: there is no mvn" in text
    assert "it differs" not in text


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> RunResult:
    stages: list[object] = []

    def maker(making: Making) -> Outcome:
        stages.append(making.open_stage)
        return made(making)

    def fails(making: Making) -> Outcome:
        if making.open_stage is not MagnetarStage:
            raise StartError("broker-1 did not start")
        return made(making)

    monkeypatch.setitem(running.MAKERS, "leader-dies", maker)  # type: ignore[arg-type]
    monkeypatch.setitem(running.MAKERS, "isolated", fails)  # type: ignore[arg-type]
    monkeypatch.setitem(running.MAKERS, "power-cut-synced", made)  # type: ignore[arg-type]
    names = "leader-dies", "isolated", "power-cut-synced"
    other = peer(
        notes={"leader-dies": ("it has `eligible` replicas",)},
        not_run={"power-cut-synced": "nobody can <see> its disk"},
    )
    found = run([BY_NAME[name] for name in names], 1, lambda _text: None, [other])
    assert stages == [MagnetarStage, no_stage]
    return found


def test_a_peer_is_judged_as_we_are(compared: RunResult) -> None:
    dies = compared.scenarios[0]
    assert [(each.spec.side, each.spec.name) for each in dies.lanes] == [
        ("partition", "partition-acks1"),
        ("Other 1", "partition-acks1"),
        ("partition", "partition-all"),
        ("Other 1", "partition-all"),
        ("ledger", "ledger-acks1"),
        ("ledger", "ledger-all"),
    ]
    wrong = [each.spec.side for each in dies.lanes if each.wrong]
    assert wrong == ["Other 1"]
    assert not dies.as_expected


def test_what_was_not_made_has_no_number(compared: RunResult) -> None:
    _, isolated, power = compared.scenarios
    assert {each.spec.peer for each in (*isolated.lanes, *power.lanes)} == {""}
    assert isolated.peers[0].failed == "StartError: broker-1 did not start"
    assert not isolated.as_expected
    assert power.as_expected, "but it is said"
    text = verdict(compared)
    assert "1 scenarios FAILED; NOT RUN: Other 1 in power-cut-synced" in text


def test_the_page_has_both(compared: RunResult) -> None:
    text, page = markdown(compared), html(compared)
    assert "| partition | acks=1 | 300 | 200 | 200 |" in text
    assert "| Other 1 | acks=1 | 300 | 200 | 200 |" in text
    assert "* Other 1: it has `eligible` replicas" in text
    assert "<li>Other 1: it has <code>eligible</code> replicas</li>" in page
    assert "* Other 1 not run: nobody can <see> its disk" in text
    assert "<li>Other 1 not run: nobody can &lt;see&gt; its disk</li>" in page
    assert "Other 1 FAILED: StartError: broker-1 did not start" in page
    for picture in (losses(compared), outages(compared)):
        assert "Other 1: acks=1" in picture
    told = json.loads(json.dumps(as_json(compared)))["scenarios"]
    assert told[0]["lanes"][1]["side"] == "Other 1"
    assert told[2]["peers"] == [
        {"name": "Other 1", "notes": [], "not_run": "nobody can <see> its disk", "failed": ""}
    ]
