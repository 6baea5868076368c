"""One broker's part in replication: its copy of all states, its replicas, and a controller that
acts when it is this broker's turn.

Owns these parts and their order: the copy is kept from the beginning; replicas are played from when
the broker is registered, since none is elected before; in the end what is led here is handed over
before anything stops.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from magnetar.env.metadata import MetadataStore
from magnetar.env.tasks import TaskScope
from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.hosting import PartitionHost
from magnetar.log.partition.replication import election
from magnetar.log.partition.replication.assignment import assign
from magnetar.log.partition.replication.brokers import PeerBrokers, live_of
from magnetar.log.partition.replication.controller import Controller
from magnetar.log.partition.replication.fetcher import FetchLimits, Line
from magnetar.log.partition.replication.partition_state import Member, PartitionState
from magnetar.log.partition.replication.replicas import Replicas
from magnetar.log.partition.replication.state_image import StateImage
from magnetar.log.partition.replication.state_store import VersionedState
from magnetar.model.errors import LeaderUnreachableError, NodeExistsError


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """See ``config.PartitionsConfig``."""

    unclean: bool = False
    preferred_leader_interval_ms: int = 300_000
    fetch: FetchLimits = field(default_factory=FetchLimits)


Connect: TypeAlias = Callable[[str, int], Awaitable[Line]]
"""``connect(host, port)``."""


class ReplicationNode:
    """Of one process. ``clock_s``: a clock that does not go back. ``connect``: to the broker
    there; raises ``LeaderUnreachableError``."""

    def __init__(
        self,
        host: PartitionHost,
        metadata: MetadataStore,
        brokers: PeerBrokers,
        connect: Connect,
        scope: TaskScope,
        clock_s: Callable[[], float],
        settings: ReplicationSettings,
    ) -> None:
        self.me = host.me
        self._host = host
        self.brokers = brokers
        self.image = StateImage(metadata)
        self._connect_to = connect
        self._scope = scope
        self.replicas = Replicas(
            host,
            self.image,
            brokers,
            self._connect,
            scope,
            settings.fetch,
        )
        self.controller = Controller(
            metadata,
            self.image,
            brokers,
            f"{host.me.broker} {host.start}",
            clock_s,
            unclean=settings.unclean,
            preferred_leader_interval_ms=settings.preferred_leader_interval_ms,
        )

    def begin(self) -> None:
        """This broker is registered."""
        self.replicas.begin()
        self._scope.spawn(self.image.run(), "states of partitions")
        self._scope.spawn(self.replicas.run(), "in-sync replicas")
        self._scope.spawn(self.controller.run(), "controller of partitions")

    async def _connect(self, leader: int) -> Line:
        found = (await self.brokers.look()).get(leader)
        if found is None or found.port <= 0:
            raise LeaderUnreachableError(f"broker {leader} is not registered")
        return await self._connect_to(found.host, found.port)

    # -- topics -------------------------------------------------------------------------------

    async def create(
        self, topic: str, numbers: Sequence[int], replication_factor: int, min_isr: int
    ) -> Mapping[Partition, VersionedState]:
        """States for partitions that have none, replicas spread over the brokers that live; each
        with a leader. What exists is as it is. Raises ``ReplicationFactorError``,
        ``MetadataError``."""
        brokers = await self.brokers.look()
        zones = {number: each.zone for number, each in brokers.items()}
        live = live_of(brokers)
        # So that topics with one partition are not all led by the same broker.
        first = sum(topic.encode()) + min(numbers, default=0)
        found: dict[Partition, VersionedState] = {}
        assigned = assign(zones, len(numbers), replication_factor, first)
        for number, replicas in zip(numbers, assigned, strict=True):
            members = tuple(Member(each, live[each].lineage) for each in replicas)
            state = PartitionState(replicas, min_isr, isr=members, topic_id=self._host.new_id())
            state = election.elect(state, live) or state
            try:
                stored = await self.image.store.create(topic, number, state)
            except NodeExistsError:
                stored = await self.image.store.read(topic, number)
            self.image.stored((topic, number), stored)
            found[topic, number] = stored
        return found

    async def relieve(self) -> None:
        """This broker drains: others lead what is led here, where they can."""
        await self.replicas.relieve()

    # -- the end ------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Others lead what is led here, and look after it."""
        await self.replicas.hand_over()
        await self.controller.resign()

    def close(self) -> None:
        """End every watch; the scope's tasks end with it. Before the log directory is closed."""
        self.replicas.close()
        self.controller.close()
        self.image.close()
