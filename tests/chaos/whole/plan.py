"""Which faults come when: from a seed, before anything runs. Pure.

Rules on what may be broken at once (Qw 3, Qa 2, three ZooKeepers):

* Faults stand in *lanes*: ``zookeeper``, ``bookie``, ``broker``, ``read-only``, ``client``. Of a
  lane one fault is in force at a time, and the next begins when all of the lane are well again.
  So there is always a quorum of ZooKeepers, at most Qw - Qa bookies are away, and brokers remain.
  A bookie that was wiped is well when no ledger names it any more, none lacks copies, and it has
  begun anew without entries.
* Lanes know nothing of each other, but for *meetings*: half of the faults of ZooKeeper's leader,
  and some of bookies, are met by a broker's fault that begins while they are in force.
* Every kind of a lane comes as often as the others.

A plan says when a fault is to begin; where servers take longer to come back it begins later.
Which of the servers it hits is a number that the driver maps to those there are.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

SESSION_MS: Final = 6_000
"""ZooKeeper sessions of all servers. Twice what a busy machine makes them wait now and then."""
CUTS: Final = "cuts"
"""A server can be cut off from everybody, and from ZooKeeper."""
PARTITIONS: Final = "partitions"
"""Any two servers can be parted, one way too."""
DISKS: Final = "disks"
EVERYTHING: Final = (CUTS, PARTITIONS, DISKS)

ZOOKEEPER, BOOKIE, BROKER, READ_ONLY, CLIENT = LANES = (
    "zookeeper", "bookie", "broker", "read-only", "client",
)  # fmt: skip


class Kind(NamedTuple):
    """``for_s``: how long it is in force, at least and at most. ``needs``: of the machine."""

    name: str
    for_s: tuple[float, float]
    needs: str = ""


_SESSION_S: Final = SESSION_MS / 1000
_SHORT: Final = (0.5, 2.5)
_SOME: Final = (2.0, 7.0)
_PAST_SESSION: Final = (1.5 * _SESSION_S, 2.2 * _SESSION_S)

KINDS: Final[Mapping[str, Sequence[Kind]]] = {
    ZOOKEEPER: (
        Kind("any killed", _SOME),
        Kind("leader killed", _SOME),
        Kind("leader paused", _SOME),
        Kind("leader cut off", _SOME, CUTS),
        Kind("any cut off", _SOME, CUTS),
    ),
    BOOKIE: (
        Kind("killed", _SOME),
        Kind("wiped", _SOME),
        Kind("paused", _SOME),
        Kind("paused past its session", _PAST_SESSION),
        Kind("cut off", _SOME, CUTS),
        Kind("cut off past its session", _PAST_SESSION, CUTS),
        Kind("cut off from one broker", _SOME, PARTITIONS),
        Kind("not heard, but hearing", _SOME, PARTITIONS),
        Kind("disk full", _SOME, DISKS),
    ),
    BROKER: (
        Kind("killed", _SHORT),
        Kind("stopped in order", _SHORT),
        Kind("paused", _SHORT),
        Kind("paused past its session", _PAST_SESSION),
        Kind("cut off past its session", _PAST_SESSION, CUTS),
        Kind("cut off from ZooKeeper", _PAST_SESSION, CUTS),
        Kind("cut off from bookies", _SOME, PARTITIONS),
    ),
    READ_ONLY: (
        Kind("killed", _SHORT),
        Kind("stopped in order", _SHORT),
        Kind("paused", _SHORT),
        Kind("paused past its session", _PAST_SESSION),
        Kind("cut off past its session", _PAST_SESSION, CUTS),
        Kind("cut off from owners", _SOME, PARTITIONS),
    ),
    CLIENT: (Kind("killed", _SHORT), Kind("paused", _SOME)),
}
REST_S: Final[Mapping[str, tuple[float, float]]] = {
    ZOOKEEPER: (4.0, 10.0),
    BOOKIE: (3.0, 8.0),
    BROKER: (3.0, 8.0),
    READ_ONLY: (3.0, 8.0),
    CLIENT: (6.0, 14.0),
}
"""Between a lane's faults, beside the time in which its servers come back."""
BACK_S: Final = 4.0
"""What coming back takes, about: plans without it would always be late."""
FIRST_S: Final = 3.0
MEETS_S: Final = 15.0
"""A broker's fault is moved this far at most to meet another."""


class Fault(NamedTuple):
    """``meets``: the number of the fault that must be in force when this one begins, or -1.
    ``choice``: from 0 to below 1, picks the target."""

    number: int
    at_s: float
    lane: str
    kind: str
    for_s: float
    choice: float
    meets: int = -1

    @property
    def name(self) -> str:
        return f"{self.lane}: {self.kind}"


def plan(seed: int, seconds: float, abilities: Collection[str] = EVERYTHING) -> list[Fault]:
    """Faults by their time; the last of each lane is over before ``seconds``. ``abilities``: what
    this machine can do; kinds that need more are left out."""
    rng = random.Random(seed)
    drafts = [draft for name in LANES for draft in _lane(name, seconds, abilities, rng)]
    ordered = sorted(drafts, key=lambda each: (each.at_s, LANES.index(each.lane)))
    numbered = [each._replace(number=number) for number, each in enumerate(ordered)]
    return _meetings(numbered, rng)


def left_out(abilities: Collection[str]) -> list[str]:
    """Names of the kinds of fault that need what is not there."""
    return [
        f"{name}: {kind.name}"
        for name in LANES
        for kind in KINDS[name]
        if kind.needs and kind.needs not in abilities
    ]


def _lane(
    name: str, seconds: float, abilities: Collection[str], rng: random.Random
) -> Iterator[Fault]:
    kinds = [kind for kind in KINDS[name] if not kind.needs or kind.needs in abilities]
    at_s = FIRST_S + rng.uniform(0.0, REST_S[name][1])
    for kind in _decks(kinds, rng):
        for_s = rng.uniform(*kind.for_s)
        if at_s + for_s > seconds:
            return
        yield Fault(0, round(at_s, 2), name, kind.name, round(for_s, 2), rng.random())
        at_s += for_s + BACK_S + rng.uniform(*REST_S[name])


def _decks(kinds: Sequence[Kind], rng: random.Random) -> Iterator[Kind]:
    """Each as often as the others, in any order."""
    while True:
        deck = list(kinds)
        rng.shuffle(deck)
        yield from deck


def _meetings(faults: Sequence[Fault], rng: random.Random) -> list[Fault]:
    """Let brokers' faults meet others that are near, without moving past their neighbours."""
    found = list(faults)
    brokers = [each.number for each in faults if each.lane == BROKER]
    taken: set[int] = set()
    for other in faults:
        leader = other.lane == ZOOKEEPER and "leader" in other.kind
        if not (leader or other.lane == BOOKIE) or rng.random() > (0.5 if leader else 0.25):
            continue
        near = [n for n in brokers if n not in taken and abs(found[n].at_s - other.at_s) < MEETS_S]
        if near:
            nearest = min(near, key=lambda n: abs(found[n].at_s - other.at_s))
            taken.add(nearest)
            found[nearest] = found[nearest]._replace(meets=other.number)
    return _without_crossings(found)


def _without_crossings(faults: Sequence[Fault]) -> list[Fault]:
    """Of the brokers' faults, those that meet others must do so in the others' order: else a lane
    would wait for what is over already."""
    kept = list(faults)
    latest: dict[str, int] = {}
    for fault in faults:
        if fault.meets < 0:
            continue
        lane = faults[fault.meets].lane
        if fault.meets < latest.get(lane, -1):
            kept[fault.number] = fault._replace(meets=-1)
        else:
            latest[lane] = fault.meets
    return kept


def lanes_of(faults: Sequence[Fault]) -> dict[str, list[Fault]]:
    """Lane -> its faults, in order."""
    by_lane = itertools.groupby(sorted(faults, key=lambda f: (f.lane, f.number)), lambda f: f.lane)
    return {name: list(each) for name, each in by_lane}
