"""A broker's part in the replication of partitions, joined to what asks for it: opening of logs
(``log.partition.leading``), lookups (``cluster.led_topics``), Kafka's clients
(``protocols.kafka.services``).

Why: docs/adr/0114-brokers-replicate-partitions.md.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from magnetar.app.partition_brokers import ReportedBrokers
from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.sharing.led_topics import LedBy
from magnetar.cluster.topic_name import TopicName
from magnetar.config import PartitionConfig
from magnetar.env.connections import Connections
from magnetar.env.metadata import MetadataStore
from magnetar.env.tasks import TaskScope
from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.leading import PartitionLeading
from magnetar.log.partition.replication.assignment import zones_in_turn
from magnetar.log.partition.replication.brokers import live_of
from magnetar.log.partition.replication.election import Live
from magnetar.log.partition.replication.node import ReplicationNode, ReplicationSettings
from magnetar.log.partition.replication.partition_state import PartitionState
from magnetar.log.partition.replication.state_store import VersionedState
from magnetar.log.partition.serving.partition_names import partition_of
from magnetar.model.errors import LogError, NoNodeError, ReplicationFactorError
from magnetar.protocols.kafka.lines import BrokerWay, LeaderLine, connect_line
from magnetar.protocols.kafka.services import KnownReplicas
from magnetar.wire.kafka.fetch_messages import ClientFetchRequest, FetchResponse


class Replication:
    """Of one broker that shares its cluster with others. ``reports``: of all brokers. ``way``:
    how they are reached."""

    def __init__(
        self,
        leading: PartitionLeading,
        config: PartitionConfig,
        metadata: MetadataStore,
        reports: Callable[[], Awaitable[Mapping[str, BrokerReport]]],
        connections: Connections,
        scope: TaskScope,
        way: BrokerWay,
    ) -> None:
        host = leading.host
        self.me = LedBy(host.me.broker, host.start)
        self.lineage = host.me.lineage
        self._brokers = ReportedBrokers(metadata, reports, way.tls is not None)
        self.node = ReplicationNode(
            host,
            metadata,
            self._brokers,
            partial(connect_line, LeaderLine, connections, way),
            scope,
            asyncio.get_running_loop().time,
            ReplicationSettings(
                config.unclean_leader_election, config.preferred_leader_interval_ms
            ),
        )
        leading.company = self

    # -- leading.Company ----------------------------------------------------------------------

    async def live(self) -> Live:
        return live_of(await self._brokers.look())

    async def replicas(self, partition: Partition, replication_factor: int) -> Sequence[int]:
        """This broker, and others as far as possible of other zones."""
        brokers = await self._brokers.look()
        if replication_factor > len(brokers):
            raise ReplicationFactorError(
                f"{replication_factor} replicas are asked for, and {len(brokers)} brokers are "
                "there that can have them; start more, or ask for fewer"
            )
        me = self.me.node_id
        mine = brokers[me].zone if me in brokers else ""
        zones = {number: each.zone for number, each in brokers.items() if number != me}
        others = list(zones_in_turn(zones))
        if others:  # so that one broker's partitions have their followers on different ones
            first = zlib.crc32(f"{partition[0]}-{partition[1]}".encode()) % len(others)
            others = others[first:] + others[:first]
        others.sort(key=lambda number: zones[number] == mine)
        return (me, *others[: replication_factor - 1])

    def stored(self, partition: Partition, state: VersionedState) -> None:
        self.node.image.stored(partition, state)

    # -- cluster.led_topics.Leaders -----------------------------------------------------------

    def known(self, name: TopicName) -> LedBy | None:
        state = self.state_of(name)
        return None if state is None else LedBy(state.leader, state.leader_start)

    def state_of(self, name: TopicName) -> PartitionState | None:
        try:
            found = self.node.image.states.get(partition_of(name.log_name))
        except LogError:  # no partition can have that name
            return None
        return None if found is None else found.state

    async def stored_leader(self, name: TopicName) -> LedBy | None:
        try:
            found = await self.node.image.store.read(*partition_of(name.log_name))
        except (NoNodeError, LogError):
            return None
        return LedBy(found.state.leader, found.state.leader_start)

    # -- protocols.kafka.services.ReplicatedPartitions ----------------------------------------

    def replicas_of(self, name: TopicName) -> KnownReplicas | None:
        state = self.state_of(name)
        if state is None:
            return None
        in_sync = [member.broker for member in state.isr]
        return KnownReplicas(state.leader, state.leader_epoch, state.replicas, in_sync)

    async def brokers(self) -> int:
        return len(await self._brokers.look())

    async def serve(self, request: ClientFetchRequest) -> FetchResponse:
        return await self.node.replicas.fetches.serve(request)
