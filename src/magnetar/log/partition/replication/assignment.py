"""Which brokers get the replicas of a new topic's partitions, as Kafka assigns them.

Pure.

Rules:

* The first replica of each partition is the preferred leader. It goes round all brokers, from
  ``first`` on, so that leaders are spread evenly.
* The others follow it at a distance that grows by one after each round of partitions: so that the
  partitions that a broker leads have their followers on different brokers, and its load is spread
  when it dies.
* With zones, brokers of different zones take turns in the order: replicas of one partition are of
  as many zones as there are, or as it has replicas.
* Where fewer brokers live than replicas are asked for, those that are away have the rest: they
  fetch when they are back. Known of those is whoever has a replica of some partition; of no other
  broker can it be said that it will come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magnetar.model.errors import ReplicationFactorError


def assign(
    zones: Mapping[int, str], partitions: int, replication_factor: int, first: int = 0
) -> list[tuple[int, ...]]:
    """``zones``: of each live broker. The replicas of each partition, the preferred leader first.
    Raises ``ReplicationFactorError``."""
    if not 1 <= replication_factor <= len(zones):
        raise ReplicationFactorError(
            f"{replication_factor} replicas are asked for, and {len(zones)} brokers are there; "
            "start more brokers, or ask for fewer replicas"
        )
    brokers = zones_in_turn(zones)
    count = len(brokers)
    return [
        tuple(
            brokers[(first + number + _distance(number // count, place, count)) % count]
            for place in range(replication_factor)
        )
        for number in range(partitions)
    ]


def beside(
    leader: int, zones: Mapping[int, str], away: Sequence[int], replication_factor: int, turn: int
) -> tuple[int, ...]:
    """The replicas of one partition that ``leader`` is to lead, itself first, then others, of other
    zones as far as possible; ``turn``: so that one broker's partitions have their followers on
    different ones. ``zones``: of the brokers that live. Raises ``ReplicationFactorError``."""
    others = list(zones_in_turn({each: zones[each] for each in zones if each != leader}))
    missing = replication_factor - 1 - len(others)
    absent = sorted(each for each in away if each != leader and each not in zones)
    if missing > len(absent):
        raise ReplicationFactorError(
            f"{replication_factor} replicas are asked for, and {len(others) + 1} brokers are there "
            f"that can have them, {len(absent)} are away; start more, or ask for fewer"
        )
    others = _turned(others, turn)
    others.sort(key=lambda each: zones[each] == zones.get(leader, ""))
    return (leader, *(others + _turned(absent, turn))[: replication_factor - 1])


def _turned(brokers: list[int], turn: int) -> list[int]:
    first = turn % len(brokers) if brokers else 0
    return brokers[first:] + brokers[:first]


def _distance(turn: int, place: int, count: int) -> int:
    """Of the replica at ``place`` from the first one, in the order of brokers."""
    if place == 0:
        return 0
    return 1 + (turn + place - 1) % (count - 1)


def zones_in_turn(zones: Mapping[int, str]) -> Sequence[int]:
    """All brokers: one of each zone, then the next of each."""
    waiting: dict[str, list[int]] = {}
    for broker in sorted(zones):
        waiting.setdefault(zones[broker], []).append(broker)
    found: list[int] = []
    while waiting:
        for zone in sorted(waiting):
            found.append(waiting[zone].pop(0))
            if not waiting[zone]:
                del waiting[zone]
    return found
