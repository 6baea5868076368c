"""Becoming the leader of a partition, because its topic is served here.

Owns the way from "this broker owns the topic" to "this process leads", in the stored state and in
its replica. Decides nothing: ``election`` does.

Rules:

* Each opening is a new epoch: what an earlier one of this process still has under way is refused.
* A broker leads only with a replica in sync. One whose directory may have forgotten something is
  not (its lineage is another), but for the one case in which nobody else can know more: it is the
  only replica. Then it goes on with what is there, and says so.
* Who is assigned is ``assign``'s to say, who is alive ``live``'s: alone they know this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.hosting import HostedReplica, PartitionHost
from magnetar.log.partition.replication.election import Live, LiveBroker, move
from magnetar.log.partition.replication.partition_state import Member, PartitionState
from magnetar.log.partition.replication.state_store import StateStore
from magnetar.model.errors import NodeExistsError, NoNodeError, NotLeaderError

log = structlog.get_logger(__name__)


class PartitionLeading:
    """Of one process."""

    def __init__(
        self,
        host: PartitionHost,
        states: StateStore,
        *,
        assign: Callable[[], Sequence[int]] | None = None,
        live: Callable[[], Live] | None = None,
        min_isr: int = 1,
    ) -> None:
        """``assign``: the brokers of a new partition, this one first."""
        self.host = host
        self.states = states
        self.assign = assign or (lambda: (host.me.broker,))
        self.live = live or (lambda: {host.me.broker: LiveBroker(host.start, host.me.lineage)})
        self.min_isr = min_isr

    async def lead(self, partition: Partition) -> HostedReplica:
        """This process leads, in a new epoch. Raises ``NotLeaderError``, ``LogError``,
        ``MetadataError``."""
        await self._make_state(partition)
        hosted = await self.host.replica(partition)
        stored = await self.states.change(*partition, self._taken)
        await hosted.learnt(stored)
        if hosted.leader_epoch is None:
            state, me = stored.state, self.host.me
            why = f"broker {state.leader} leads it" if state.leader >= 0 else "nobody leads it"
            raise NotLeaderError(
                f"{hosted.name} cannot be led here: broker {me.broker} has no replica that is in "
                f"sync (replicas {list(state.replicas)}, {why})"
            )
        return hosted

    async def _make_state(self, partition: Partition) -> None:
        try:
            await self.states.read(*partition)
        except NoNodeError:
            replicas = tuple(self.assign())
            # Nobody has anything yet, so that all have all of it; but only who is known to be
            # there can be elected, and the others join when they have fetched.
            first = PartitionState(replicas, self.min_isr, (self.host.me,))
            try:
                await self.states.create(*partition, first)
            except NodeExistsError:
                return

    def _taken(self, state: PartitionState) -> PartitionState | None:
        me = self.host.me
        if state.replicas == (me.broker,) and state.isr != (me,):
            log.warning(
                "the only replica of a partition goes on with what it has; what was not synced "
                "may be gone",
                broker=me.broker,
                lineage=me.lineage,
            )
            state = replace(state, isr=(Member(*me),), elr=())
        return move(state, self.live(), me.broker)

    async def delete(self, partition: Partition) -> None:
        """State and files go; others that have replicas learn it from the state. Raises
        ``LogError``, ``MetadataError``."""
        await self.states.delete(*partition)
        await self.host.forget(partition)
