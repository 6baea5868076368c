"""A Kafka client of the simulator: where partitions and coordinators are, and connections to them.

``KafkaHost`` is a process with several clients, ``KafkaClient`` one of them: it knows brokers by
Metadata, a partition's leader with its epoch (an older one is not believed any more), coordinators
by FindCoordinator. It has a connection to each broker that it needs, and one more for each *lane*:
as the official clients it talks to a coordinator, and fetches, by connections of their own.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.cluster_messages import (
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataTopic,
)
from magnetar.wire.kafka.errors import ErrorCode
from magnetar_sim.cluster.cluster import Cluster
from magnetar_sim.kafka.kafka_link import KafkaLink, LinkError
from magnetar_sim.world.loop import SimProcess

KAFKA_PORT: Final = 9092
REQUEST_S: Final = 3.0
CONNECT_S: Final = 2.0
RETRY_S: Final = 0.05
METADATA_VERSION: Final = 12
COORDINATOR_VERSION: Final = 3
GROUP: Final = 0
TRANSACTION: Final = 1
DATA: Final = "data"
FETCH: Final = "fetch"
ASK: Final = "ask"

Place = tuple[str, int]
"""A topic's name and a partition's number."""
Address = tuple[str, int]


class Leader(NamedTuple):
    node_id: int
    epoch: int


class KafkaHost:
    """A process with clients. ``links``: what its clients have, or had."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self.cluster = cluster
        self.process: SimProcess = cluster.loop.new_process(name)
        self.current: KafkaLink | None = None
        """The connection that was made last."""
        self.links: list[KafkaLink] = []

    def note(self, who: str, what: str) -> None:
        self.cluster.trace.note(who, what)

    def kill(self, silently: bool = False) -> None:
        """As ``kill -9``; ``silently``: its host loses power, and nobody is told."""
        if self.process.alive:
            self.note(self.name, "loses power" if silently else "is killed")
            self.process.kill()
            self.cluster.network.process_ended(self.process, silently)


class KafkaClient:
    """``brokers``: its bootstrap servers, by their hosts."""

    def __init__(
        self, host: KafkaHost, name: str, brokers: Sequence[str], rng: random.Random
    ) -> None:
        self.host = host
        self.name = name
        self.random = rng
        self._bootstrap = [(each, KAFKA_PORT) for each in brokers]
        self._nodes: dict[int, Address] = {}
        self._leaders: dict[Place, Leader] = {}
        self._epochs: dict[Place, int] = {}
        self._topic_ids: dict[str, uuid.UUID] = {}
        self._links: dict[tuple[Address, str], KafkaLink] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}
        self._next = rng.randrange(len(self._bootstrap))

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.host.cluster.loop

    def note(self, what: str) -> None:
        self.host.note(self.name, what)

    async def pause(self) -> None:
        """Before something is tried again."""
        await asyncio.sleep(RETRY_S * self.random.uniform(0.5, 2.0))

    # -- connections --------------------------------------------------------------------------

    async def _link(self, address: Address, lane: str) -> KafkaLink:
        """Raises ``LinkError``."""
        found = self._links.get((address, lane))
        if found is not None and not found.gone:
            return found
        try:
            async with asyncio.timeout(CONNECT_S):
                _, made = await self.loop.create_connection(self._new_link, *address)
        except (OSError, TimeoutError) as error:
            raise LinkError(f"{address[0]} is not reached: {error!r}") from None
        other = self._links.get((address, lane))
        if other is not None and not other.gone:  # somebody else of this client was quicker
            made.abort()
            return other
        self._links[address, lane] = self.host.current = made
        self.host.links = [each for each in self.host.links if not each.gone] + [made]
        return made

    def _new_link(self) -> KafkaLink:
        return KafkaLink(self.name, self.broken)

    def broken(self, what: str) -> None:
        self.host.cluster.broken(f"{self.name}: {what}")

    def close(self) -> None:
        for link in self._links.values():
            link.abort()

    # -- brokers ------------------------------------------------------------------------------

    async def any_broker(self) -> KafkaLink:
        """One after the other. Raises ``LinkError``."""
        known = list(dict.fromkeys([*self._bootstrap, *self._nodes.values()]))
        self._next += 1
        return await self._link(known[self._next % len(known)], ASK)

    async def refresh(self, topics: Iterable[str]) -> None:
        """Who leads their partitions. Raises ``LinkError``."""
        link = await self.any_broker()
        request = MetadataRequest([MetadataTopic(name=each) for each in topics], False)
        answer = await link.ask(ApiKey.METADATA, METADATA_VERSION, request, REQUEST_S)
        self._nodes = {each.node_id: (each.host, each.port) for each in answer.brokers}
        for topic in answer.topics:
            if topic.error_code == ErrorCode.NONE:
                self._topic_ids[topic.name] = topic.topic_id
            for part in topic.partitions:
                self._learn((topic.name, part.index), Leader(part.leader_id, part.leader_epoch))

    async def topic_ids(self, topics: Iterable[str]) -> dict[str, uuid.UUID]:
        """By name; as often as it takes."""
        wanted = list(topics)
        while not all(name in self._topic_ids for name in wanted):
            with suppress(LinkError):
                await self.refresh(wanted)
            if not all(name in self._topic_ids for name in wanted):
                await self.pause()
        return {name: self._topic_ids[name] for name in wanted}

    def _learn(self, place: Place, said: Leader) -> None:
        if said.epoch < self._epochs.get(place, -1):
            return
        self._epochs[place] = said.epoch
        if said.node_id >= 0:
            self._leaders[place] = said

    def leader(self, place: Place) -> Leader | None:
        """As far as is known."""
        found = self._leaders.get(place)
        return found if found is not None and found.node_id in self._nodes else None

    def moved(self, place: Place) -> None:
        """Whoever led it does not any more, or is not there."""
        self._leaders.pop(place, None)

    async def at_leader(self, place: Place, lane: str) -> KafkaLink:
        """Raises ``LinkError``."""
        if self.leader(place) is None:
            await self.refresh([place[0]])
        leader = self.leader(place)
        if leader is None:
            raise LinkError(f"nobody leads {place}")
        try:
            return await self._link(self._nodes[leader.node_id], lane)
        except LinkError:
            self.moved(place)
            raise

    # -- coordinators -------------------------------------------------------------------------

    async def ask_coordinator(
        self, kind: int, key: str, api_key: ApiKey, version: int, request: Any, within_s: float
    ) -> Any:
        """Once. Raises ``LinkError``."""
        address = self._coordinators.get((kind, key))
        if address is None:
            address = await self._find(kind, key)
        try:
            link = await self._link(address, f"{kind} {key}")
            return await link.ask(api_key, version, request, within_s)
        except LinkError:
            self.coordinator_moved(kind, key)
            raise

    def coordinator(self, kind: int, key: str) -> Address | None:
        """As far as is known."""
        return self._coordinators.get((kind, key))

    async def _find(self, kind: int, key: str) -> Address:
        link = await self.any_broker()
        request = FindCoordinatorRequest(key, kind)
        answer = await link.ask(ApiKey.FIND_COORDINATOR, COORDINATOR_VERSION, request, REQUEST_S)
        if answer.error_code != ErrorCode.NONE:
            if answer.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE:
                self.broken(f"the coordinator of {key} is {answer.error_code}")
            raise LinkError(f"no coordinator of {key}: {answer.error_message}")
        self._nodes[answer.node_id] = answer.host, answer.port
        found = self._coordinators[kind, key] = answer.host, answer.port
        return found

    def coordinator_moved(self, kind: int, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    async def settled(
        self,
        kind: int,
        key: str,
        call: tuple[ApiKey, int, Any],
        code_of: Callable[[Any], int],
        again: Sequence[int] = (),
        within_s: float = REQUEST_S,
    ) -> Any:
        """The answer of the coordinator, asked until there is one that says something: all that
        clients try again for, and ``again``, is none."""
        while True:
            try:
                answer = await self.ask_coordinator(kind, key, *call, within_s)
            except LinkError as error:
                self.note(f"{call[0].name}: {error}")
                await self.pause()
                continue
            code = code_of(answer)
            if code in COORDINATOR_MOVED:
                self.coordinator_moved(kind, key)
            elif code not in again:
                return answer
            self.note(f"{call[0].name}: {code}")
            await self.pause()


COORDINATOR_MOVED: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
