"""A broker's part in the replication of partitions, joined to what asks for it: opening of logs
(``log.partition.leading``), lookups (``cluster.led_topics``), Kafka's clients
(``protocols.kafka.services``).

Why: docs/adr/0114-brokers-replicate-partitions.md, and who is away:
docs/adr/0197-brokers-that-are-away-get-replicas.md.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Container, Hashable, Mapping, Sequence
from functools import partial

import structlog

from magnetar.app.partition_brokers import ReportedBrokers
from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.sharing.led_topics import LedBy
from magnetar.cluster.topic_name import TopicName
from magnetar.config import PartitionConfig
from magnetar.env.metadata import MetadataStore
from magnetar.env.network.connections import Connections
from magnetar.env.tasks import TaskScope
from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.leading import PartitionLeading
from magnetar.log.partition.replication import election
from magnetar.log.partition.replication.assignment import beside
from magnetar.log.partition.replication.brokers import PeerBroker, live_of
from magnetar.log.partition.replication.election import Live
from magnetar.log.partition.replication.node import ReplicationNode, ReplicationSettings
from magnetar.log.partition.replication.partition_state import PartitionState
from magnetar.log.partition.replication.state_store import VersionedState
from magnetar.log.partition.serving.partition_names import partition_of
from magnetar.model.errors import LogError, NoNodeError, NotLeaderError, ReplicationFactorError
from magnetar.protocols.kafka.lines import BrokerWay, LeaderLine, connect_line
from magnetar.protocols.kafka.services import KnownReplicas
from magnetar.wire.kafka.fetch_messages import ClientFetchRequest, FetchResponse

log = structlog.get_logger(__name__)


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
        """This broker, and others as far as possible of other zones; those that are away if there
        are too few. Raises ``NotLeaderError`` if there are too few all the same: its topic was
        taken, so whoever asks is not to give up, but to ask again."""
        brokers = await self._brokers.look()
        try:
            return self._beside(self.me.node_id, brokers, partition, replication_factor)
        except ReplicationFactorError as error:
            name = f"{partition[0]}-{partition[1]}"
            raise NotLeaderError(f"partition {name} is not made yet: {error}") from error

    def _beside(
        self,
        leader: int,
        brokers: Mapping[int, PeerBroker],
        partition: Partition,
        replication_factor: int,
    ) -> Sequence[int]:
        """Raises ``ReplicationFactorError``."""
        zones = {number: each.zone for number, each in brokers.items()}
        turn = zlib.crc32(f"{partition[0]}-{partition[1]}".encode())
        away = self._away(brokers) if len(brokers) < replication_factor else []
        return beside(leader, zones, away, replication_factor, turn)

    def _away(self, brokers: Container[int]) -> list[int]:
        return [each for each in self.node.image.assigned() if each not in brokers]

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

    def watch(self, changed: Callable[[Hashable], None]) -> None:
        self.node.image.watch(lambda partition, _: changed(partition))

    def place(self, name: TopicName) -> Hashable:
        return partition_of(name.log_name)

    # -- protocols.kafka.services.ReplicatedPartitions ----------------------------------------

    def replicas_of(self, name: TopicName) -> KnownReplicas | None:
        state = self.state_of(name)
        return None if state is None else _known(state)

    async def planned(
        self, name: TopicName, leader: int, replication_factor: int
    ) -> KnownReplicas | None:
        brokers = await self._brokers.look()
        if leader not in brokers:
            return None
        try:
            replicas = self._beside(
                leader, brokers, partition_of(name.log_name), replication_factor
            )
        except LogError:  # too few brokers, or a name that no partition can have
            return None
        return KnownReplicas(leader, -1, replicas, [each for each in replicas if each in brokers])

    async def elect(self, name: TopicName, unclean: bool) -> KnownReplicas | None:
        before = self.state_of(name)
        if before is None:
            return None
        live, change = await self.live(), election.rescue if unclean else election.prefer
        partition = partition_of(name.log_name)
        try:
            stored = await self.node.image.store.change(*partition, partial(change, live=live))
        except NoNodeError:
            self.node.image.refresh(partition)
            return None
        if stored.state.leader != before.leader:
            log.info(
                "partition has another leader, as was asked for",
                partition=f"{partition[0]}-{partition[1]}",
                leader=stored.state.leader,
                unclean=unclean,
            )
        self.stored(partition, stored)
        return _known(stored.state)

    async def brokers(self) -> int:
        return len(await self._brokers.look())

    async def brokers_away(self) -> int:
        return len(self._away(await self._brokers.look()))

    async def serve(self, request: ClientFetchRequest) -> FetchResponse:
        return await self.node.replicas.fetches.serve(request)


def _known(state: PartitionState) -> KnownReplicas:
    in_sync = [member.broker for member in state.isr]
    return KnownReplicas(state.leader, state.leader_epoch, state.replicas, in_sync)
