"""Ring 2, brokers that replicate partitions: one rule of the loops around the machines broken each.
(Rules of the machines themselves: ``partitions``.)"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

from magnetar.log.partition.doomed_files import DoomedPartitions
from magnetar.log.partition.hosting import PartitionHost
from magnetar.log.partition.limits import SyncPolicy
from magnetar.log.partition.replication import election, fetcher
from magnetar.log.partition.replication.fetcher import Fetcher
from magnetar.log.partition.replication.follower import PartitionFollower
from magnetar.log.partition.replication.leader import PartitionLeader
from magnetar.log.partition.replication.replicas import Replicas
from magnetar.log.partition.replication.state_store import (
    VersionedState,
)
from magnetar.log.partition.segment import Segment
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX: Final = 200


def _unsynced(source: Any, records: Any, now_ms: int) -> None:
    """What a follower has got counts before it is on its disk."""
    policy = source.policy
    source.policy = replace(policy, sync=SyncPolicy.OPERATING_SYSTEM)
    source.append_as_follower(records, now_ms)
    source.policy = policy


async def _believes(self: Any, kept: Any, leader: Any, error: Any) -> VersionedState | None:
    """What was not answered is taken for stored."""
    if kept.hosted is None or leader.pending is None:
        return None
    return VersionedState(leader.proposal(), kept.hosted.machine.version + 1)


_REQUEST = Fetcher._request


def _without_last_epoch(self: Any, asked: Any) -> Any:
    request = _REQUEST(self, asked)
    for topic in request.topics:
        for part in topic.partitions:
            part.last_fetched_epoch = -1
    return request


async def _stays(self: Any, partition: Any, change: Any) -> bool:
    return True


def _only_leads_no_more(self: Any, state: Any, live: Any) -> Any:
    """As it was: a follower whose log failed stays in sync, and a leader is eligible."""
    others = {number: each for number, each in live.items() if number != self._me.broker}
    return election.elect(state, others) if state.leader == self._me.broker else None


def _waits_where_it_is(self: Any, request: Any, log_start: int, log_end: int) -> Any:
    return None if self.log_end < log_start else _OUT_OF_RANGE(self, request, log_start, log_end)


_OUT_OF_RANGE = PartitionFollower.out_of_range


def _is_not_told(self: Any, log_start: int) -> None:
    """A leader does not know that its log begins later."""


_DOOM, _TAKE = PartitionHost.doom, Replicas._take


async def _deletes(self: Any, partition: Any) -> None:
    """As it was: what is gone from the store is gone."""
    await _DOOM(self, partition)
    async with self._opening:
        await self._lanes[0].run(lambda: self.directory.delete_log(partition))


async def _of_whatever_cluster(self: Any, partition: Any, topic_id: Any) -> Any:
    said = await self._witness.ask(partition, topic_id)
    return said._replace(cluster=self._directory.cluster, rooted=True)


async def _stays_open(self: Any, kept: Any, wanted: Any) -> None:
    """What is open is taken for the files of whatever topic there is now."""
    if kept.hosted is not None and wanted is not None:
        kept.hosted.topic_id = wanted.state.topic_id
    await _TAKE(self, kept, wanted)


def _leaves(self: Any, batches: Any, *, through: bool) -> None:
    """As it was: what a sync that failed has left behind the log's end stays there."""
    parts = [part for batch in batches for part in batch.parts]
    (self.file.write_through if through else self.file.pwritev)(parts, self.byte_count)
    for batch in batches:
        self.taken(batch.header)


def _mutant(name: str, known: str, *changes: tuple[Any, str, Any]) -> Mutant:
    def plant() -> AbstractContextManager[None]:
        return replaced(*changes)

    return Mutant(name, 2, known, plant, SEEDS_MAX, kind="replicated")


REPLICAS: tuple[Mutant, ...] = (
    _mutant(
        "a follower does not say which epoch its log ends in", "KIP-279",
        (Fetcher, "_request", _without_last_epoch),
    ),
    _mutant(
        "a follower's log counts before it is synced", "",
        (fetcher, "_append", _unsynced),
    ),
    _mutant(
        "a change of the in-sync set that was not answered counts", "KIP-497",
        (Replicas, "_in_doubt", _believes),
    ),
    _mutant(
        "a log that failed is opened again in the epoch that it led", "",
        (Replicas, "_step_down", _stays),
    ),
    _mutant(
        "files of a partition without a state go at once", "",
        (PartitionHost, "doom", _deletes),
    ),
    _mutant(
        "doomed files go whatever cluster the store is of", "",
        (DoomedPartitions, "_answer", _of_whatever_cluster),
    ),
    _mutant(
        "a replica stays open when its topic is made again", "",
        (Replicas, "_take", _stays_open),
    ),
    _mutant(
        "what a sync that failed has left counts as stored", "",
        (Segment, "append", _leaves),
    ),
    _mutant(
        "a replica whose log has failed counts as before", "KIP-966",
        (Replicas, "_given_up", _only_leads_no_more),
    ),
    _mutant(
        "a follower waits for what its leader has deleted", "",
        (PartitionFollower, "out_of_range", _waits_where_it_is),
    ),
    _mutant(
        "a leader is not told that its log begins later", "",
        (PartitionLeader, "trimmed", _is_not_told),
    ),
)  # fmt: skip
