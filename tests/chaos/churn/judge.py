"""What has grown between two looks, and what of it may.

A cache that has a bound grows until it has reached it, in more cycles than a run has: those are
named here, each with its bound. Whatever else grows by one in two cycles or more is told.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

MADE_BY: Final = ("magnetar.", "kazoo.", "prometheus_client.", "uvloop.", "asyncio.", "_asyncio.")
"""Objects of other modules (dicts, methods) belong to some of these."""

COORDINATION: Final = "magnetar.protocols.kafka.coordination"
KEPT: Final = {
    "magnetar.bookie.ledgers.ledger_state.HeldLedger": "what a bookie knows of ledgers",
    "magnetar.cluster.stored.watched_nodes._Node": "watched nodes, 10 000 of a kind",
    "magnetar.env.metadata_stores.watches.Listeners": "their watches",
    "magnetar.cluster.topic_name.TopicName": "names in caches",
    "magnetar.cluster.partitioned_topics.PartitionedTopic": "values of watched nodes",
    "magnetar.cluster.policies.policies.Policies": "values of watched nodes",
    "magnetar.cluster.policies.policies.RetentionPolicy": "values of watched nodes",
    "magnetar.cluster.namespaces._NamespaceNode": "values of watched nodes",
    "magnetar.model.schema.RegisteredSchema": "values of watched nodes",
    "magnetar.model.schema.TopicSchema": "values of watched nodes",
    "magnetar.log.managed.tail_cache._Run": "given back in batches of 1 024",
    "magnetar.log.managed.tail_cache.LogTail": "as its runs",
    "magnetar.log.partition.serving.tail.PartitionTail": "until its turn in the budget comes",
    "magnetar.protocols.kafka.last_epochs.KnownEpoch": "50 000",
    "magnetar.protocols.kafka.last_epochs.LeaderOf": "as the epochs",
    "magnetar.protocols.kafka.topic_ids._Named": "ids of topics",
    "magnetar.protocols.kafka.known_places.FoundTopic": "places of topics",
    "magnetar.speedups.pure.messages.AroundMessage": "1 024",
    "magnetar.topics.compacting.CompactionOutcome": "10 000",
    f"{COORDINATION}.transaction.TransactionRecord": "transactional ids: seven days",
    f"{COORDINATION}.coordinator.Since": "as the ids",
    f"{COORDINATION}.coordinator.Shard.used_since": "as the ids",
    f"{COORDINATION}.coordinator_state.CoordinatorState.transactions": "as the ids",
}


@dataclass(frozen=True)
class Counts:
    """``kinds``: objects that the collector sees, by class. ``held``: what is in containers, by
    class and attribute. ``resident``: bytes."""

    kinds: dict[str, int]
    held: dict[str, int]
    descriptors: int
    threads: int
    resident: int

    @staticmethod
    def read(path: Path) -> Counts:
        return Counts(**json.loads(path.read_text()))


class Growth(NamedTuple):
    """``of``: a class, or an attribute that holds things. ``each``: by one cycle."""

    of: str
    before: int
    after: int
    each: float

    def __str__(self) -> str:
        return f"{self.of}: {self.before} -> {self.after}, {self.each:+.2f} a cycle"


def grown(before: Counts, after: Counts, cycles: int) -> tuple[list[Growth], list[Growth]]:
    """What may not, and what may (``KEPT``), the fastest first."""
    wrong: list[Growth] = []
    right: list[Growth] = []
    for old, new in ((before.kinds, after.kinds), (before.held, after.held)):
        for name in old.keys() | new.keys():
            found = Growth(name, old.get(name, 0), new.get(name, 0), 0.0)
            found = found._replace(each=(found.after - found.before) / cycles)
            if found.each >= 0.5 and name.startswith(MADE_BY):
                (right if _may(name) else wrong).append(found)
    for name in ("descriptors", "threads"):
        counts = getattr(before, name), getattr(after, name)
        if counts[1] - counts[0] >= cycles / 2:
            wrong.append(Growth(name, *counts, (counts[1] - counts[0]) / cycles))
    return sorted(wrong, key=_speed), sorted(right, key=_speed)


def _may(name: str) -> bool:
    """Also what an object that is kept holds."""
    return name in KEPT or any(name.startswith(f"{each}.") for each in KEPT)


def _speed(growth: Growth) -> float:
    return -growth.each


def nodes_left(data_dir: Path, word: str) -> list[str]:
    """Nodes of the metadata of a standalone that has ended, whose path has the word in it."""
    path = data_dir / "metadata.sqlite"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        found = database.execute("SELECT parent, name FROM node").fetchall()
    paths = [f"{parent.rstrip('/')}/{name}" for parent, name in found]
    return sorted(each for each in paths if word in each)


def files_left(data_dir: Path, word: str) -> list[str]:
    return sorted(
        str(each.relative_to(data_dir)) for each in data_dir.rglob("*") if word in each.name
    )
