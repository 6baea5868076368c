"""What every session of a broker shares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from magnetar.cluster.brokers.tls_addresses import TlsAddresses
from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.security.access import Access
from magnetar.cluster.topic_name import TopicName
from magnetar.config import BrokerConfig
from magnetar.env.network.connections import Connections
from magnetar.env.tasks import TaskScope
from magnetar.metrics import Metrics
from magnetar.protocols.pulsar.attached import AttachedTotals
from magnetar.protocols.pulsar.liveness import Connection
from magnetar.protocols.pulsar.staged_writes import StagedWrites
from magnetar.protocols.pulsar.stored_ledgers import StoredLedgers
from magnetar.topics.bindings import OwnerBindings
from magnetar.topics.following.followed_topics import FollowedTopics
from magnetar.topics.name_lists import NameLists
from magnetar.topics.registry import Topics
from magnetar.topics.steering import ReadSteering
from magnetar.topics.subscribable import SubscribableTopic


@dataclass(slots=True)
class Services:
    """The parts that sessions and their handlers use; made by ``broker.Broker``.

    ``connections`` is what sessions share with all connections of the process; ``clock`` gives
    seconds since 1970; ``name_prefix`` opens every producer name that this broker
    generates, and no other broker's; ``service_url`` is what lookups answer; ``stored_ledgers``
    knows where entries lie, unless logs are not in ledgers; ``staged_writes`` serves those who
    write staged ledgers, if there are ledgers. ``bindings``: what read-only brokers ask of an
    owner; ``followed``: at a read-only broker, the topics that consumers get, which others own;
    ``steering``: at an owner, sends consumers to read-only brokers. ``access``: who may do what;
    None: everybody everything. ``service_url_tls``: as ``service_url``, by TLS, where that is
    served; ``tls_addresses``: of other brokers, if some clients speak it. ``name_lists``: for
    clients that watch them.
    """

    config: BrokerConfig
    control: ControlPlane
    topics: Topics
    metrics: Metrics
    scope: TaskScope
    connections: Connections
    clock: Callable[[], float]
    name_prefix: str = ""
    service_url: str = ""
    sessions: dict[Connection, None] = field(default_factory=dict)
    names_given: int = 0
    closing: bool = False
    bindings: OwnerBindings | None = None
    followed: FollowedTopics | None = None
    stored_ledgers: StoredLedgers | None = None
    staged_writes: StagedWrites | None = None
    steering: ReadSteering | None = None
    access: Access | None = None
    service_url_tls: str = ""
    tls_addresses: TlsAddresses | None = None
    name_lists: NameLists | None = None
    attached: AttachedTotals = field(init=False)
    listings: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a list of topics is made and written (``session.large_answer``)."""
    schema_answers: asyncio.Lock = field(default_factory=asyncio.Lock)
    """The same of schemas. Lists wait for the metadata store, and no schema waits for a list."""
    conversions: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a thread converts a large batch, for which it takes some hundred megabytes."""

    def __post_init__(self) -> None:
        self.attached = AttachedTotals(self.config)

    async def subscribable(
        self, name: TopicName, create: bool, asker: Hashable
    ) -> SubscribableTopic:
        """The topic that a consumer is to get here. Raises as ``Topics.get``."""
        if self.followed is not None:
            return await self.followed.get(name, create)
        return await self.topics.get(name, create, asker)

    async def tls_url(self, service_url: str) -> str:
        """What clients that speak TLS are told instead; empty: nothing."""
        if service_url == self.service_url or self.tls_addresses is None:
            return self.service_url_tls if service_url == self.service_url else ""
        return await self.tls_addresses.of(service_url)

    def known_tls_url(self, service_url: str) -> str:
        """As ``tls_url``, as far as it is known."""
        if service_url == self.service_url:
            return self.service_url_tls
        return "" if self.tls_addresses is None else self.tls_addresses.known(service_url)

    def now_ms(self) -> int:
        return int(self.clock() * 1000)

    def producer_name(self) -> str:
        """A name that no other producer has or had."""
        self.names_given += 1
        return f"{self.name_prefix}-{self.names_given}"
