"""What a run has found, as values: for the pages and for JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.log.policy import Engine
from magnetar.proving.counting import EXPOSED, Back, LaneSpec, Observed
from magnetar.proving.scenarios import Scenario

ACKS: Final = {-1: "all", 0: "0", 1: "1"}


@dataclass(frozen=True, slots=True)
class LaneResult:
    """``wrong``: what did not come out as expected."""

    spec: LaneSpec
    observed: Observed
    wrong: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PeerResult:
    """What is to be said of another system in a scenario beside its lanes."""

    name: str
    notes: Sequence[str] = ()
    not_run: str = ""
    failed: str = ""


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """``not_run``: why, where something is missing that it needs; ``failed``: why the fault could
    not be made, or what came of it not be counted. ``lanes``: those of peers beside ours."""

    scenario: Scenario
    lanes: Sequence[LaneResult] = ()
    seconds: float = 0.0
    not_run: str = ""
    failed: str = ""
    peers: Sequence[PeerResult] = ()

    @property
    def as_expected(self) -> bool:
        failed = self.failed or any(each.failed for each in self.peers)
        return not failed and not any(lane.wrong for lane in self.lanes)


@dataclass(frozen=True, slots=True)
class RunResult:
    """``when``: date and time, ``seed``: of what is left to chance."""

    scenarios: Sequence[ScenarioResult]
    seed: int
    when: str
    seconds: float = 0.0
    about: Sequence[str] = field(default_factory=tuple)

    @property
    def as_expected(self) -> bool:
        return all(each.as_expected for each in self.scenarios)


def settings(spec: LaneSpec) -> str:
    """Of a lane, in the words of its model."""
    if spec.text and spec.engine is Engine.LEDGER:
        return spec.text
    words = [f"acks={ACKS[spec.acks]}"]
    if spec.engine is Engine.PARTITION and spec.acks == -1:
        words.append(f"min ISR {spec.min_isr}")
        words.append(f"unclean {'on' if spec.unclean else 'off'}")
    return ", ".join(words)


def expected_lost(spec: LaneSpec) -> str:
    """In words."""
    expected = spec.expected
    if expected.back is Back.NOBODY:
        return "nothing given out"
    if expected.lost != EXPOSED:
        return str(expected.lost)
    return "all it said after" if expected.exposed is None else str(expected.exposed)


def observed_lost(lane: LaneResult) -> str:
    if lane.observed.back is Back.NOBODY and lane.spec.expected.back is Back.NOBODY:
        return "nothing given out"
    found = str(lane.observed.lost)
    if lane.spec.expected.lost == EXPOSED and lane.spec.expected.exposed is None:
        found += f" (of {lane.observed.exposed} said after)"
    return found


def unavailable(observed: Observed) -> str:
    if observed.back is Back.ALWAYS:
        return "never"
    if observed.unavailable_s is None:
        return "for good"
    return f"{observed.unavailable_s:.1f} s"


def as_json(result: RunResult) -> dict[str, Any]:
    return {
        "when": result.when,
        "seed": result.seed,
        "seconds": round(result.seconds, 1),
        "as_expected": result.as_expected,
        "scenarios": [_scenario(each) for each in result.scenarios],
    }


def _scenario(found: ScenarioResult) -> dict[str, Any]:
    return {
        "name": found.scenario.name,
        "title": found.scenario.title,
        "fault": found.scenario.fault,
        "seconds": round(found.seconds, 1),
        "not_run": found.not_run,
        "failed": found.failed,
        "lanes": [_lane(each) for each in found.lanes],
        "peers": [
            {
                "name": each.name,
                "notes": list(each.notes),
                "not_run": each.not_run,
                "failed": each.failed,
            }
            for each in found.peers
        ],
    }


def _lane(lane: LaneResult) -> dict[str, Any]:
    spec, seen, expected = lane.spec, lane.observed, lane.spec.expected
    back = None if expected.back is None else expected.back.value
    return {
        "name": spec.name,
        "engine": spec.engine.value,
        "side": spec.side,
        "settings": settings(spec),
        "acks": spec.acks,
        "expected": {
            "lost": expected.lost,
            "exposed": expected.exposed,
            "duplicated_at_most": expected.duplicated,
            "reordered": expected.reordered,
            "refused": expected.refused,
            "taken_again_by": back,
        },
        "observed": {
            "acknowledged": seen.acknowledged,
            "exposed": seen.exposed,
            "lost": seen.lost,
            "duplicated": seen.duplicated,
            "reordered": seen.reordered,
            "refused": seen.refused,
            "sent_again": seen.resent,
            "unavailable_s": None if seen.unavailable_s is None else round(seen.unavailable_s, 2),
            "taken_again_by": seen.back.value,
            "notes": list(seen.notes),
        },
        "wrong": list(lane.wrong),
    }
