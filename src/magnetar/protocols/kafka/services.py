"""What every session of a broker's Kafka listener shares: topics by Kafka's names, brokers by
Kafka's numbers.

A broker's number (node id) is that of its log directory, if it replicates partitions with others; 0
if it is alone for good, on a metadata store of its own; else that of its start, which no other
start of a broker has. Clients learn it, with the address, from Metadata
and FindCoordinator.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.ownership import At
from magnetar.cluster.security.access import Access
from magnetar.cluster.topic_name import TopicName
from magnetar.config import BrokerConfig, KafkaConfig
from magnetar.env.files.disk import DiskSpace
from magnetar.env.keyed_locks import KeyedLocks
from magnetar.env.network.connections import Connections
from magnetar.env.tasks import TaskScope
from magnetar.log.policy import PieceRule
from magnetar.model.errors import (
    InvalidTopicNameError,
    MagnetarError,
    NotAllowedError,
    ServiceNotReadyError,
    TopicNotFoundError,
    UnknownTopicIdError,
)
from magnetar.model.ledger import Quorums
from magnetar.protocols.kafka.known_places import STORE_AWAY, KnownPlaces, Questions
from magnetar.protocols.kafka.last_epochs import LastEpochs
from magnetar.protocols.kafka.names import topic_of
from magnetar.protocols.kafka.partitions.partition import Partition
from magnetar.protocols.kafka.peers import PeerLines
from magnetar.protocols.kafka.topic_ids import TopicIds
from magnetar.protocols.kafka.traffic import KafkaTraffic
from magnetar.protocols.kafka.unread import UnreadPlaces
from magnetar.topics.entry_format import EntryFormat
from magnetar.topics.quota_keeping import note_quota
from magnetar.topics.registry import Topics
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.fetch_messages import ClientFetchRequest, FetchResponse

PRODUCER_IDS_PER_BLOCK: Final = 1000
RECOMPRESSIONS_AT_ONCE: Final = 2
NAMES_KEPT_MAX: Final = 100_000


class Address(NamedTuple):
    """A broker, by one of its listeners."""

    node_id: int
    host: str
    port: int


class Node(NamedTuple):
    """A broker that Kafka's clients may connect to. Of a port -1: it has no such listener."""

    node_id: int
    host: str
    port: int
    tls_port: int = -1

    def by(self, tls: bool) -> Address:
        """As clients are told that came by TLS, or not: they go on as they came."""
        return Address(self.node_id, self.host, self.tls_port if tls else self.port)


NO_NODE: Final = Node(-1, "", -1)


TakesPart: TypeAlias = Callable[[str, int, int, tuple[str, int]], Awaitable[ErrorCode]]
"""``(transactional id, producer id, epoch, partition)``."""


class KnownReplicas(NamedTuple):
    """Of a partition: node ids; ``leader`` -1: nobody leads it."""

    leader: int
    leader_epoch: int
    replicas: Sequence[int]
    in_sync: Sequence[int]


class KeptReplica(NamedTuple):
    """Of a partition, by Kafka's name of its topic: the bytes of its files, and how many offsets it
    lacks up to the high watermark."""

    topic: str
    number: int
    byte_count: int
    lag: int


class PartitionDirectory(Protocol):
    """Where this broker's replicas of partitions lie."""

    @property
    def path(self) -> str: ...

    @property
    def pieces(self) -> PieceRule:
        """Its segments, where a topic says nothing."""
        ...

    async def space(self) -> DiskSpace:
        """Of its file system. Raises ``OSError``."""
        ...

    def kept(self) -> Sequence[KeptReplica]:
        """Those that can be used, in the order of their names."""
        ...


class ReplicatedPartitions(Protocol):
    """Logs that brokers replicate, as Kafka's clients and other brokers ask for them."""

    def replicas_of(self, name: TopicName) -> KnownReplicas | None:
        """As far as is known; None: its log is no such one."""
        ...

    async def planned(
        self, name: TopicName, leader: int, replication_factor: int
    ) -> KnownReplicas | None:
        """What a partition is to be that was never used, if ``leader`` is the first to use it;
        None: there are too few brokers for it. Raises ``MetadataError``."""
        ...

    async def brokers(self) -> int:
        """How many can have replicas. Raises ``MetadataError``."""
        ...

    async def brokers_away(self) -> int:
        """How many more have replicas, and are not there now. Raises ``MetadataError``."""
        ...

    async def elect(self, name: TopicName, unclean: bool) -> KnownReplicas | None:
        """Have its preferred replica lead it, or, ``unclean`` and if nobody leads it, any that
        lives. What it is then; None: its log is no such one. Raises ``MetadataError``."""
        ...

    async def serve(self, request: ClientFetchRequest) -> FetchResponse:
        """The fetch of a follower."""
        ...


class ClientConnection(Protocol):
    """What the server knows of a session. ``frames``: whole ones received. ``is_known``: its client
    has shown who it is, or need not. ``descriptor``: of its socket; -1: there is none."""

    peer: str
    frames: int

    @property
    def is_known(self) -> bool: ...

    @property
    def waits(self) -> bool: ...

    @property
    def partial_frame_bytes(self) -> int: ...

    @property
    def descriptor(self) -> int: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


@dataclass(frozen=True, slots=True)
class CopyDefaults:
    """How many copies of a log there are where no policy says: on ledgers, and on partitions."""

    quorums: Quorums = field(default_factory=lambda: Quorums(1, 1, 1))
    replication_factor: int = 1


@dataclass(slots=True)
class KafkaServices:
    """The parts that sessions and their handlers use; made by ``server.KafkaServer``. ``clock``:
    seconds since 1970. ``node``: this broker. ``takes_part``: how the coordinator of a transaction
    is asked (``transactions.Transactions.takes_part``). ``directory``: None: it has no replicas.
    ``access``: who may do what; None: everybody everything."""

    config: KafkaConfig
    broker: BrokerConfig
    control: ControlPlane
    topics: Topics
    entry_format: EntryFormat
    scope: TaskScope
    connections: Connections
    clock: Callable[[], float]
    node: Node = NO_NODE
    takes_part: TakesPart | None = None
    replicated: ReplicatedPartitions | None = None
    directory: PartitionDirectory | None = None
    access: Access | None = None
    defaults: CopyDefaults = field(default_factory=CopyDefaults)
    sasl_secret: bytes = field(default=b"", repr=False)
    """What salts of users who are not there are made of."""
    closing: bool = False
    sessions: dict[ClientConnection, None] = field(default_factory=dict)
    traffic: KafkaTraffic = field(default_factory=KafkaTraffic)
    recompressions: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(RECOMPRESSIONS_AT_ONCE)
    )
    """Batches that are compressed otherwise at a time."""
    topics_made: KeyedLocks[TopicName] = field(default_factory=KeyedLocks)
    """By admins."""
    on_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread
    """How what takes long is done beside the loop. On virtual time there are no threads."""
    long_messages: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One is read or made on a thread at a time: each thread more is 5 ms more that the loop waits
    for the interpreter, whenever it has to."""
    conversions: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Large entries that a thread takes apart at a time: of each some hundred megabytes."""
    unread: UnreadPlaces = field(init=False)
    known: KnownPlaces[Node] = field(default_factory=KnownPlaces)
    peers: PeerLines = field(init=False)
    topic_ids: TopicIds = field(init=False)
    last_epochs: LastEpochs = field(init=False)
    _partitions: dict[TopicName, Partition] = field(default_factory=dict)
    _names: dict[tuple[str, int], TopicName] = field(default_factory=dict)
    _steady_from_ms: int = field(init=False)
    _next_producer_id: int = 0
    _producer_ids_end: int = 0

    def __post_init__(self) -> None:
        self.unread = UnreadPlaces(asyncio.get_running_loop().time)
        self.peers = PeerLines(self.connections)
        self.topic_ids = TopicIds(self.control, self.topics)
        self.last_epochs = LastEpochs(self.topics)
        self._steady_from_ms = self.now_ms() - self._elapsed_ms()

    # -- time ---------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """What is stored and told: milliseconds since 1970. It jumps when somebody sets the
        clock."""
        return int(self.clock() * 1000)

    def steady_ms(self) -> int:
        """What is waited by (sessions, rebalances, locks, transactions): as ``now_ms`` at the
        start, and from then on by a clock that nobody sets. By the other one a day forward ended
        every session at once, and a day back had those who are gone waited for all day."""
        return self._steady_from_ms + self._elapsed_ms()

    def steady_of(self, date_ms: int) -> int:
        """When that was, by ``steady_ms``; what is stored with a date to come was now."""
        return self.steady_ms() - max(0, self.now_ms() - date_ms)

    def date_of(self, steady_ms: int) -> int:
        """When that was, by ``now_ms``."""
        return self.now_ms() - (self.steady_ms() - steady_ms)

    @staticmethod
    def _elapsed_ms() -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    # -- partitions ---------------------------------------------------------------------------

    def ready(self, name: str, index: int) -> Partition | None:
        """The partition if it can be used in this turn of the loop."""
        found = self._partitions.get(self._names.get((name, index), _NOBODY))
        return found if found is not None and found.usable else None

    async def partition(self, name: str, index: int, asker: Hashable = None) -> Partition:
        """The partition, loaded if need be. Raises ``TopicNotFoundError``, ``ServiceNotReadyError``
        if another broker serves it, and as ``Topics.get``."""
        topic_name = await self.name_of(name, index)
        topic = await self.topics.get(topic_name, create=False, asker=asker)
        found = self._partitions.get(topic_name)
        if found is None or found.topic is not topic:
            # Before anybody can append by it: until the next look nobody asks again.
            await note_quota(topic)
            found = self._partitions.get(topic_name)
        if found is None or found.topic is not topic:
            self._forget_closed()
            idle_ms = self.broker.idle_topic_unload_ms
            found = Partition(topic, self.entry_format, self.now_ms, self.unread, idle_ms)
            self._partitions[topic_name] = found
        if len(self._names) >= NAMES_KEPT_MAX:
            self._names.clear()
        self._names[name, index] = topic_name
        return found

    async def partition_by_id(
        self, topic_id: uuid.UUID, name: str, index: int, asker: Hashable = None
    ) -> Partition:
        """As ``partition``, of the topic that has that id under that name. Raises
        ``UnknownTopicIdError`` as well: another has the name now."""
        found = self.ready(name, index)
        if found is None or found.topic_id != topic_id:
            try:
                found = await self.partition(name, index, asker)
            except TopicNotFoundError as error:
                if topic_id in await self.topic_ids.names([topic_id]):
                    raise  # it has no such partition
                raise UnknownTopicIdError(f"no topic has the id {topic_id}") from error
            # Of the log that is open: what has the name may have changed while it was opened.
            found.topic_id = await self.topic_ids.of_open(found.topic)
            if found.topic_id != topic_id:
                raise UnknownTopicIdError(f"topic {name} has another id than {topic_id}")
        return found

    def _forget_closed(self) -> None:
        """Partitions of topics that were closed; each time that one is added, so there are never
        more than topics were open at once."""
        closed = [name for name, each in self._partitions.items() if not each.usable]
        for name in closed:
            del self._partitions[name]

    async def name_of(self, name: str, index: int) -> TopicName:
        """Raises ``TopicNotFoundError`` for a partition that the topic does not have."""
        topic = topic_of(name)
        count = await self.count_of(topic)
        if not 0 <= index < max(1, count):
            raise TopicNotFoundError(f"topic {name} has {max(1, count)} partitions; no {index}")
        return topic.of_partition(index) if count else topic

    async def has(self, name: str, index: int) -> bool:
        """Whether there is such a partition; True as well while metadata cannot be read."""
        try:
            topic = topic_of(name)
            count = await self.count_of(topic)
            return 0 <= index < count or (index == count == 0 and await self.topics.exists(topic))
        except (TopicNotFoundError, InvalidTopicNameError, NotAllowedError):
            return False
        except MagnetarError:
            return True

    async def count_of(self, topic: TopicName) -> int:
        """Its partitions; 0: it is one that has none, or there is no such topic."""
        await self.control.namespaces.check(topic)
        return 0 if topic.partition >= 0 else await self.control.partitioned.partitions(topic)

    # -- brokers ------------------------------------------------------------------------------

    async def nodes(self) -> Mapping[str, Node]:
        """Brokers that speak Kafka's protocol, by the URL that they have for Pulsar's clients.
        Raises ``MetadataError``."""
        reports = await self.control.bundles.reports()
        found = {}
        for report in reports.values():
            node = node_of(report)
            if node is not None and not report.read_only:
                found[report.service_url] = node
        return found

    async def leader_of(
        self, topic: TopicName, nodes: Mapping[str, Node], authoritative: bool = False
    ) -> Node:
        """The broker that serves the topic, or is to; ``NO_NODE`` if that one does not speak
        Kafka's protocol. ``authoritative``, and raises, as ``Ownership.locate``."""
        owner = await self.control.ownership.locate(topic, authoritative)
        return nodes.get(owner.service_url, NO_NODE) if isinstance(owner, At) else self.node

    async def nodes_soon(self, questions: Questions) -> Mapping[str, Node]:
        """As ``nodes``, or as it was last: the store is not waited for. Raises nothing of it."""
        with suppress(MagnetarError):
            self.known.nodes = await questions.ask(self.nodes)
        return self.known.nodes

    async def leader_soon(
        self, topic: TopicName, nodes: Mapping[str, Node], questions: Questions
    ) -> Node:
        """As ``leader_of``, or as far as is known while the store does not answer; ``NO_NODE``:
        nothing is. Raises as ``leader_of``, but for that."""
        try:
            found = await questions.ask(lambda: self.leader_of(topic, nodes))
        except STORE_AWAY:
            return self._leader_known(topic)
        self.known.led(topic, found)
        return found

    def _leader_known(self, topic: TopicName) -> Node:
        last = self.known.leader(topic)
        if last is None or last == self.node:
            try:
                self.control.ownership.check(topic)
            except MagnetarError:
                return NO_NODE
            return self.node
        return last

    async def ask(self, node: Node, api_key: ApiKey, version: int, request: Any) -> Any:
        """The answer of that broker. Raises ``ServiceNotReadyError``."""
        address = node.by(self.peers.by_tls)
        if address.port < 0:
            raise ServiceNotReadyError(
                f"broker {node.node_id} at {node.host} does not listen as brokers reach one another"
            )
        return await self.peers.ask(address.host, address.port, api_key, version, request)

    # -- producers ----------------------------------------------------------------------------

    async def new_producer_id(self) -> int:
        """One that nobody else gets. Raises ``MetadataError``."""
        if self._next_producer_id == self._producer_ids_end:
            block = await self.control.counters.producer_id_block()
            self._next_producer_id = block * PRODUCER_IDS_PER_BLOCK
            self._producer_ids_end = self._next_producer_id + PRODUCER_IDS_PER_BLOCK
        self._next_producer_id += 1
        return self._next_producer_id - 1


_NOBODY: Final = TopicName("", "", "", -1)


def node_of(report: BrokerReport) -> Node | None:
    """None: it does not speak Kafka's protocol."""
    host, _, port = report.kafka_address.rpartition(":")
    tls_host, _, tls_port = report.kafka_tls_address.rpartition(":")
    if not (port.isdigit() or tls_port.isdigit()):
        return None
    number = report.start if report.node_id < 0 else report.node_id
    plain, tls = (int(each) if each.isdigit() else -1 for each in (port, tls_port))
    return Node(number, host or tls_host, plain, tls)
