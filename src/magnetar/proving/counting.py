"""What became of the messages of one lane: counted, and held against what must come out.

A *lane* is one topic with its producer: an engine, its settings, how long the producer waits
(``acks``). It numbers its messages; a number that was acknowledged and is not read in the end is
lost.

*Exposed* are numbers that the fault leaves on one machine alone, or that a deposed leader
acknowledged: how many is known from the way the fault was made, before anything is read back. An
expectation of ``EXPOSED`` is that number and no other.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from magnetar.log.policy import Engine


class Back(Enum):
    """Who took the first message after the fault."""

    ANOTHER = "another broker"
    SAME = "the same broker, when it was back"
    ALWAYS = "it went on all the time"
    NOBODY = "nobody"


EXPOSED: Final = "exposed"
RESENT: Final = "sent again"
"""Of duplicates: as many at most as a producer without a number of its own has sent twice."""
Count: TypeAlias = int | str
"""A number, or one that the run itself has counted."""


@dataclass(frozen=True, slots=True)
class Expected:
    """``refused``: messages were not taken while the fault lasted. ``exposed``: how many there must
    be, where the fault makes it so; None: some (at least one) if ``lost`` speaks of them.
    ``duplicated``: at most. ``back``
    None: whoever it is; ``NOBODY``: nothing is given out, lost or not, until somebody decides."""

    lost: Count = 0
    duplicated: Count = 0
    reordered: int = 0
    back: Back | None = Back.ANOTHER
    refused: bool = False
    exposed: int | None = None


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """``acks``: -1 is all. ``text``: what is special about it, for people. ``peer``: the system
    whose lane it is; empty: ours."""

    name: str
    engine: Engine
    acks: int
    expected: Expected
    min_isr: int = 1
    unclean: bool = False
    text: str = ""
    peer: str = ""

    @property
    def side(self) -> str:
        """What is compared: an engine of ours, or a peer."""
        return self.peer or self.engine.value


@dataclass(slots=True)
class Observed:
    """``unavailable_s``: from the fault to the first message that was acknowledged after it; None:
    none was. ``notes``: what was seen beside it, for people."""

    acknowledged: int = 0
    exposed: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    refused: int = 0
    resent: int = 0
    unavailable_s: float | None = None
    back: Back = Back.NOBODY
    notes: list[str] = field(default_factory=list)


def count(acknowledged: Sequence[int], read: Sequence[int]) -> tuple[int, int, int]:
    """(lost, duplicated, reordered). Reordered are numbers that come for the first time after a
    greater one has come for the first time."""
    found: set[int] = set()
    duplicated = reordered = 0
    greatest = -1
    for number in read:
        if number in found:
            duplicated += 1
            continue
        found.add(number)
        if number < greatest:
            reordered += 1
        greatest = max(greatest, number)
    return len(set(acknowledged) - found), duplicated, reordered


def judge(expected: Expected, observed: Observed) -> list[str]:
    """What did not come out as expected, in words; empty: all did."""
    wrong: list[str] = []

    def hold(name: str, wanted: object, found: object) -> None:
        if wanted != found:
            wrong.append(f"{name}: expected {_said(wanted)}, observed {_said(found)}")

    if not observed.acknowledged:
        wrong.append("nothing was acknowledged: the scenario has shown nothing")
    if expected.exposed is not None:
        hold("exposed", expected.exposed, observed.exposed)
    elif expected.lost == EXPOSED and not observed.exposed:
        wrong.append("exposed: expected at least one, observed none: the fault was not made")
    lost = observed.exposed if expected.lost == EXPOSED else expected.lost
    if expected.back is not Back.NOBODY:
        hold("lost", lost, observed.lost)
    most = observed.resent if expected.duplicated == RESENT else expected.duplicated
    if observed.duplicated > int(most):
        hold("duplicated", f"{most} at most", observed.duplicated)
    hold("reordered", expected.reordered, observed.reordered)
    if expected.back is not None:
        hold("taken again by", expected.back, observed.back)
    hold("not taken while it lasted", expected.refused, observed.refused > 0)
    return wrong


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value.value if isinstance(value, Enum) else str(value)
