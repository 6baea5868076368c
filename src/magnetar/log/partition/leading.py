"""Becoming the leader of a partition, because its topic is served here.

Owns the way from "this broker owns the topic" to "this process leads", in the stored state and in
its replica. Decides nothing: ``election`` does.

Rules:

* Each opening is a new epoch: what an earlier one of this process still has under way is refused.
* A broker leads only with a replica in sync. One whose directory may have forgotten something is
  not (its lineage is another), but for the one case in which nobody else can know more: it is the
  only replica. Then it goes on with what is there, and says so.
* Who is assigned, and who is alive, is the ``Company``'s to say.
* A leader that lives keeps the partition: topics go to it, and not it to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import structlog

from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.hosting import HostedReplica, PartitionHost, steady_ms
from magnetar.log.partition.replication.cut_short import WAIT_MS, CutShort
from magnetar.log.partition.replication.election import (
    Live,
    LiveBroker,
    alone_in_sync,
    give_up,
    move,
)
from magnetar.log.partition.replication.partition_state import Member, PartitionState
from magnetar.log.partition.replication.state_store import StateStore, VersionedState
from magnetar.log.policy import LogPolicy
from magnetar.model.errors import (
    LogError,
    NodeExistsError,
    NoNodeError,
    NotLeaderError,
    ReplicationFactorError,
)

log = structlog.get_logger(__name__)


class Company(Protocol):
    """The other brokers that may have replicas."""

    async def live(self) -> Live:
        """Those that are registered. Raises ``MetadataError``."""
        ...

    async def replicas(self, partition: Partition, replication_factor: int) -> Sequence[int]:
        """The brokers of a new partition, this one first. Raises ``ReplicationFactorError`` if
        there never are enough, ``NotLeaderError`` if there are not now; ``MetadataError``."""
        ...

    def stored(self, partition: Partition, state: VersionedState) -> None:
        """This process has written the state."""
        ...


class NoCompany:
    """This process has the only replicas that there are."""

    def __init__(self, host: PartitionHost) -> None:
        self._host = host

    async def live(self) -> Live:
        host = self._host
        return {host.me.broker: LiveBroker(host.start, host.me.lineage)}

    async def replicas(self, partition: Partition, replication_factor: int) -> Sequence[int]:
        if replication_factor > 1:
            raise ReplicationFactorError(
                f"{replication_factor} replicas are asked for, and this broker replicates with no "
                "others (they need one ZooKeeper, kafka.port and partition.directory each)"
            )
        return (self._host.me.broker,)

    def stored(self, partition: Partition, state: VersionedState) -> None:
        """Nobody else asks."""


class PartitionLeading:
    """Of one process. ``replication_factor`` and ``min_isr``: of partitions whose policy does not
    say it."""

    def __init__(
        self,
        host: PartitionHost,
        states: StateStore,
        *,
        replication_factor: int = 1,
        min_isr: int = 1,
    ) -> None:
        self.host = host
        self.states = states
        self.company: Company = NoCompany(host)
        self.replication_factor = replication_factor
        self.min_isr = min_isr

    async def lead(
        self, partition: Partition, policy: LogPolicy | None = None, *, known: bool = False
    ) -> HostedReplica:
        """This process leads, in a new epoch. ``known``: it was led before, so that there must be a
        state. Raises ``NotLeaderError``, ``LogError``, ``MetadataError``."""
        found = await self._make_state(partition, policy, known)
        await self._give_up_failed(partition)
        counted_on = found.counts_on(self.host.me)
        hosted = await self.host.replica(partition, found.topic_id, counted_on=counted_on)
        await self._give_up_cut(partition)
        live = await self.company.live()
        stored = await self.states.change(*partition, partial(self._taken, live=live))
        await hosted.learnt(stored)
        self.company.stored(partition, stored)
        if hosted.leader_epoch is None:
            state, me = stored.state, self.host.me
            why = f"broker {state.leader} leads it" if state.leader >= 0 else "nobody leads it"
            raise NotLeaderError(
                f"{hosted.name} cannot be led here: broker {me.broker} has no replica that is in "
                f"sync, or another leads (replicas {list(state.replicas)}, {why})"
            )
        return hosted

    async def _give_up_failed(self, partition: Partition) -> None:
        """Before a log that failed is opened again: it may lack then what it counted as stored, so
        that it must not be elected by what it was."""
        failed = self.host.replicas.get(partition)
        if failed is None or failed.failure is None or self.host.directory.policy.sync.durable:
            return
        live = await self.company.live()
        change = partial(give_up, live=live, broker=self.host.me.broker, forgets=True)
        self.company.stored(partition, await self.states.change(*partition, change))

    async def _give_up_cut(self, partition: Partition) -> None:
        """The end of its log was cut when it was opened: others may have what it lacks. Raises
        ``NotLeaderError``: none of them is there now."""
        since_ms = self.host.cut.get(partition)
        if since_ms is None:
            return
        live, cut = await self.company.live(), CutShort(self.host.me.broker)
        change = partial(cut.decide, live=live)
        self.company.stored(partition, await self.states.change(*partition, change))
        if cut.waits_still(steady_ms() - since_ms):
            raise NotLeaderError(
                f"partition {partition[0]}-{partition[1]} is not led here yet: its log's end was "
                "cut when it was opened, and no other replica in sync is there; it is waited for "
                f"{WAIT_MS // 1000} seconds"
            )
        self.host.cut.pop(partition, None)

    async def _make_state(
        self, partition: Partition, policy: LogPolicy | None, known: bool
    ) -> PartitionState:
        """If there is none; what is stored."""
        try:
            return (await self.states.read(*partition)).state
        except NoNodeError as error:
            if known:  # a new one would be of another topic: nothing of this one would be read
                topic, number = partition
                raise LogError(
                    f"partition {topic}-{number} has no state in the metadata store any more "
                    f"({error}), and its topic was not deleted: restore the store, or delete the "
                    "topic"
                ) from error
            said, unclean = (0, 0), False
            if policy is not None:
                said = policy.replication_factor, policy.min_insync_replicas
                unclean = policy.unclean_election
            factor = said[0] or self.replication_factor
            replicas = tuple(await self.company.replicas(partition, factor))
            least = said[1] or self.min_isr
            topic_id = self.host.new_id()
            first = PartitionState(
                replicas,
                least,
                await self._all_of(replicas),
                topic_id=topic_id,
                unclean=unclean,
            )
            if unclean:
                log.warning(
                    "unclean election is on for a partition: if no replica in sync is left, it "
                    "loses what the next leader lacks",
                    partition=f"{partition[0]}-{partition[1]}",
                )
            try:
                await self.states.create(*partition, first)
            except NodeExistsError:  # somebody else was first
                return (await self.states.read(*partition)).state
            return first

    async def _all_of(self, replicas: Sequence[int]) -> tuple[Member, ...]:
        """Of a partition that nobody has anything of yet, so that each has all of it: those that
        live are in sync. (Were this broker alone at first, what asks for more in sync would be
        refused until others had fetched, and of an idempotent producer's first batches, all on
        their way at once, a later one would be taken before the earlier ones that were refused:
        docs/adr/0196-a-new-partition-is-in-sync-everywhere.md.)"""
        live = await self.company.live()
        me = self.host.me
        others = [each for each in replicas if each != me.broker and each in live]
        return (me, *(Member(each, live[each].lineage) for each in others))

    def _taken(self, state: PartitionState, live: Live) -> PartitionState | None:
        me = self.host.me
        if state.replicas == (me.broker,) and state.isr != (me,):
            log.warning(
                "the only replica of a partition goes on with what it has; what was not synced "
                "may be gone",
                broker=me.broker,
                lineage=me.lineage,
            )
            state = alone_in_sync(state, Member(*me))
        leader = live.get(state.leader)
        alive = leader is not None and leader.start == state.leader_start
        if alive and state.leader != me.broker:
            return None  # it serves: a topic goes where its log is led
        return move(state, live, me.broker)

    async def delete(self, partition: Partition) -> None:
        """The state goes, and nothing is served any more; files go after their grace, as at others
        that have replicas and learn it from the state. Raises ``MetadataError``."""
        await self.states.delete(*partition)
        await self.host.doom(partition)
