"""What is wrong with what was seen after one file was damaged."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.damage.contents import COMPACTED, KEYS, TOPICS
from tests.chaos.damage.filling import ACKNOWLEDGED, COMPACTED_ROUND, ROUND
from tests.chaos.damage.looking import Look, Seen

LIMBO: Final = "it has lost entries and denies nothing"
"""What /health says of a bookie that is in limbo: no topic that may lack entries is opened."""
UNREADABLE: Final = re.compile(r"entries of ledgers [\d, .]+ cannot be read")
"""What it says of a bookie that has damaged entries: a log whose end they hide is not opened."""


@dataclass
class Verdict:
    """``wrong``: what must not be. ``told``: what is lost, and was said."""

    wrong: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


def judge(found: Look, rounds: int, said: str) -> Verdict:
    """``said``: the server's log."""
    verdict = Verdict()
    for name, seen in found.seen.items():
        way, topic = name.split(" ")
        if seen.foreign:
            verdict.wrong.append(f"{name}: bytes that nobody sent: {seen.foreign[:3]}")
        if way == "left":
            acknowledged = rounds * ACKNOWLEDGED
            wanted = set(range(acknowledged, rounds * ROUND))
        else:
            wanted = _wanted(topic, rounds, compacted=way == "compacted")
            if seen.numbers != sorted(set(seen.numbers)):
                verdict.wrong.append(f"{name}: out of order, or twice: {_strange(seen.numbers)}")
        named = topic in found.health or topic in said
        told = named or LIMBO in found.health or bool(UNREADABLE.search(found.health))
        _lost(verdict, name, wanted - set(seen.numbers), seen, told)
    for each in TOPICS:
        got, right = found.committed.get(each.name), (rounds - 1) * ROUND + ACKNOWLEDGED
        if got != right:
            what = f"committed in {each.name}: {got}, not {right}"
            (verdict.wrong if isinstance(got, int) else verdict.told).append(what)
    return verdict


def _wanted(topic: str, rounds: int, *, compacted: bool) -> set[int]:
    if topic not in {each.name for each in COMPACTED}:
        return set(range(rounds * ROUND))
    numbers = [
        number
        for first in range(0, rounds * ROUND, ROUND)
        for number in range(first, first + COMPACTED_ROUND)
    ]
    return set({each % KEYS: each for each in numbers}.values()) if compacted else set(numbers)


def _lost(verdict: Verdict, name: str, lost: set[int], seen: Seen, told: bool) -> None:
    """``told``: the server has named the topic, or its bookie."""
    if not lost:
        return
    what = f"{name}: {len(lost)} lost ({min(lost)} to {max(lost)}); {seen.complaint or 'no error'}"
    if any(number > min(lost) for number in seen.numbers):
        verdict.wrong.append(f"{what}; passed over")
    elif not (seen.complaint and told):
        verdict.wrong.append(f"{what}; {'' if told else 'not '}told by the server")
    else:
        verdict.told.append(what)


def _strange(numbers: list[int]) -> str:
    for at, (one, two) in enumerate(itertools.pairwise(numbers)):
        if two <= one:
            return f"{numbers[max(at - 2, 0) : at + 4]}"
    return ""
