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
