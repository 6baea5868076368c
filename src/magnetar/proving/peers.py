"""Systems of others beside ours: the same fault and load on a cluster of theirs, for the lanes of
the engine that has their model.

What a peer is made of (jars, processes) is no part of the package; ``bench/peers`` has it. Why:
docs/adr/0163-peers-in-the-comparison.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from magnetar.log.policy import Engine
from magnetar.proving.counting import Expected
from magnetar.proving.results import LaneResult
from magnetar.proving.scenarios import BY_NAME, Scenario
from magnetar.proving.stage import Settings, Stage


@dataclass(frozen=True, slots=True)
class Peer:
    """``engine``: ours of its model. ``differs``: by scenario and lane, what is expected of it
    where that is not what is expected of ours; ``notes``: by scenario, why, and what else to know;
    ``not_run``: by scenario, why the fault cannot be made for it."""

    name: str
    engine: Engine
    open_stage: Callable[[Path, Settings], Stage]
    differs: Mapping[tuple[str, str], Expected] = field(default_factory=dict)
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    not_run: Mapping[str, str] = field(default_factory=dict)

    def beside(self, scenario: Scenario) -> Scenario:
        """The scenario with the peer's lanes, which have the names of ours; without any: it is not
        about it."""
        lanes = [
            replace(
                each,
                peer=self.name,
                expected=self.differs.get((scenario.name, each.name), each.expected),
            )
            for each in scenario.lanes
            if each.engine is self.engine
        ]
        return replace(scenario, lanes=tuple(lanes))

    def missing(self, why: str) -> Peer:
        """One that is not here: none of its lanes is run, and the page says why."""
        return replace(self, not_run=dict.fromkeys(BY_NAME, why), notes={})


def side_by_side(ours: Sequence[LaneResult], theirs: Sequence[LaneResult]) -> Sequence[LaneResult]:
    """Each lane of theirs behind ours of its name; if that is not there, in the end."""
    found = [
        lane
        for own in ours
        for lane in (own, *(each for each in theirs if each.spec.name == own.spec.name))
    ]
    return [*found, *(each for each in theirs if each not in found)]
