"""Who of a share group reads which partitions: everybody some, every partition somebody.

Members share partitions, so there is nothing to give up before another may begin, and a target
holds at once. Of members with one subscription each partition goes to one of them in turn, or, if
there are more members than partitions, each member to one partition in turn. Members with different
subscriptions are dealt with topic by topic.

Pure. Why: docs/adr/0167-share-groups.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from magnetar.protocols.kafka.consumers.id_partitions import (
    NOWHERE,
    IdPartitions,
    TopicIdPartition,
    TopicShape,
)

SIMPLE: Final = "simple"


def shared_out(
    subscriptions: Mapping[str, frozenset[str]], topics: Mapping[str, TopicShape]
) -> dict[str, IdPartitions]:
    """``subscriptions``: the names that each member reads, in the order in which members came;
    ``topics``: those that are there."""
    found: dict[str, set[TopicIdPartition]] = {member: set() for member in subscriptions}
    if len(set(subscriptions.values())) == 1:
        wanted = next(iter(subscriptions.values()))
        _deal(list(subscriptions), _places(sorted(wanted & topics.keys()), topics), found, 0)
    else:
        turn = 0
        for name in sorted(topics):
            readers = [member for member, names in subscriptions.items() if name in names]
            places = _places([name], topics)
            _deal(readers, places, found, turn)
            turn += len(places)
    return {member: frozenset(places) or NOWHERE for member, places in found.items()}


def _places(names: list[str], topics: Mapping[str, TopicShape]) -> list[TopicIdPartition]:
    return [
        TopicIdPartition(topics[name].topic_id, index)
        for name in names
        for index in range(topics[name].partitions)
    ]


def _deal(
    members: list[str],
    places: list[TopicIdPartition],
    found: dict[str, set[TopicIdPartition]],
    turn: int,
) -> None:
    """``turn``: whose turn it is first, so that many small topics do not go to the first member."""
    if not members or not places:
        return
    for number in range(max(len(members), len(places))):
        member = members[(number + turn) % len(members)]
        found[member].add(places[number % len(places)])
