"""Being a member of a group whose coordinator assigns (KIP-848), as the official clients are: all
is said and told by heartbeats, with an epoch of the member's own.

A member that is told of other partitions than it has gives up first what is not its own any more,
commits what it has done of that, says so, and begins with what is new. After an answer that it has
not got it says everything anew. Whoever is fenced gives up everything and joins again.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.consumer_group_messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_FOR_A_WHILE_EPOCH,
    ConsumerGroupHeartbeatRequest,
    HeartbeatAssignment,
    HeldPartitions,
)
from magnetar.wire.kafka.errors import ErrorCode
from magnetar_sim.kafka.committed_offsets import fetch_committed
from magnetar_sim.kafka.group_history import GroupHistory
from magnetar_sim.kafka.held_places import HeldPlaces
from magnetar_sim.kafka.kafka_client import GROUP, KafkaClient, Place
from magnetar_sim.kafka.kafka_history import KafkaHistory
from magnetar_sim.kafka.membership import AGAIN, NoMemberError, StaticInstance, ask_once

HEARTBEAT_VERSION: Final = 1
COMMIT_VERSION: Final = 9
PUT_OUT: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)
FOR_A_WHILE_SHARE: Final = 0.7
"""Of static members that leave: they come back within their session, or mean to."""
REST_S: Final = 0.2
"""Between heartbeats, before it is told how long."""


@dataclass(frozen=True)
class AssignedPlan:
    """``pattern``: a regular expression for the topics, instead of their names; ``static``: its
    member has a name, and goes for a while; ``restless``: how likely it subscribes to other ones
    of the topics before a heartbeat, until all faults are over."""

    topics: tuple[str, ...]
    pattern: str | None
    rebalance_ms: int
    assignor: str | None
    static: bool = False
    restless: float = 0.0


class AssignedMembership:
    """A ``AnyMembership``."""

    def __init__(
        self,
        client: KafkaClient,
        history: KafkaHistory,
        group: GroupHistory,
        held: HeldPlaces,
        name: str,
        plan: AssignedPlan,
    ) -> None:
        self.client = client
        self.name = name
        self.plan = plan
        self.group = group
        self.instance: StaticInstance | None = None
        self.commit_version = COMMIT_VERSION
        self._came = 0
        self.member_id = f"{name}'s id 0"
        self.generation = -1
        self.places: Sequence[Place] = ()
        self.must_join = True
        self._history = history
        self._held = held
        self._owned: frozenset[Place] = frozenset()
        """What it has; what it is not assigned any more it has until it says otherwise."""
        self._assigned: frozenset[Place] = frozenset()
        self._says_all = True
        """It has not got its last answer, or has something to tell."""
        self._subscribed = list(plan.topics)
        self._rest_s = REST_S
        self._turn = asyncio.Lock()

    @property
    def instance_id(self) -> str | None:
        return f"{self.name}'s place" if self.plan.static else None

    def reset(self) -> None:
        """It is no member any more, and has nothing."""
        self._held.gone(self.name)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.generation, self.must_join, self.places = -1, True, ()
        self._owned = self._assigned = frozenset()
        self._says_all = True

    def check_replaced(self) -> None:
        """Nobody takes its place."""

    async def told(self, code: int, what: str) -> None:
        """An answer that is no success. Raises ``NoMemberError``."""
        self.client.note(f"{self.name} {what}: {code}")
        if code in AGAIN:
            self.client.coordinator_moved(GROUP, self.group.name)
            await self.client.pause()
        elif code in PUT_OUT:
            if not self._says_all:
                here = self.client.coordinator(GROUP, self.group.name)
                self._held.put_out(self.name, self.client.loop.time(), here)
            self._history.count("members that were put out")
            self.reset()
        elif code == ErrorCode.UNRELEASED_INSTANCE_ID and self._came:
            await self.client.pause()  # nobody has heard that it went
        elif code != ErrorCode.STALE_MEMBER_EPOCH:
            self._history.broken(f"{self.name}: {what} is answered {code}")
        raise NoMemberError

    # -- heartbeats ---------------------------------------------------------------------------

    async def _heartbeat(self, gives_up: bool) -> None:
        """``gives_up``: what is not its own any more; it joins, if it is no member. Raises
        ``NoMemberError``."""
        async with self._turn:
            if self.generation < 0 and not gives_up:
                return  # it has gone while this waited
            ids = await self.client.topic_ids(self.plan.topics)
            if gives_up and self._owned - self._assigned:
                self._owned &= self._assigned
                self._says_all = True
            request, asked_s = self._request(ids), self.client.loop.time()
            try:
                call = ApiKey.CONSUMER_GROUP_HEARTBEAT, HEARTBEAT_VERSION, request
                answer = await ask_once(self.client, self.name, self.group.name, call)
            except NoMemberError:
                self._says_all = True
                raise
            if answer.error_code != ErrorCode.NONE:
                await self.told(answer.error_code, "is there")
            self._says_all = False
            self._take(answer, {topic_id: name for name, topic_id in ids.items()}, asked_s)

    def _request(self, ids: dict[str, uuid.UUID]) -> ConsumerGroupHeartbeatRequest:
        plan, joins = self.plan, self.generation < 0
        request = ConsumerGroupHeartbeatRequest(
            self.group.name,
            self.member_id,
            JOIN_EPOCH if joins else self.generation,
            self.instance_id,
            names=None,
            owned=None,
        )
        if joins or self._says_all:
            by_topic: dict[str, list[int]] = {}
            for name, index in sorted(self._owned):
                by_topic.setdefault(name, []).append(index)
            request.rebalance_timeout_ms = plan.rebalance_ms
            request.names = [] if plan.pattern is not None else [*self._subscribed]
            request.pattern = plan.pattern
            request.assignor = plan.assignor
            request.owned = [HeldPartitions(ids[name], found) for name, found in by_topic.items()]
            self._held.says(self.name, self._owned)
        return request

    def _take(self, answer: Any, names: dict[uuid.UUID, str], asked_s: float) -> None:
        self.generation = answer.member_epoch
        self._rest_s = answer.heartbeat_interval_ms / 1000
        if answer.assignment is not None:
            self._assigned = self._told_places(answer.assignment, names)
            self.client.note(f"{self.name}, epoch {self.generation}, has {sorted(self._assigned)}")
            self.group.count("assignments by coordinators")
        now_s = self.client.loop.time()
        here = self.client.coordinator(GROUP, self.group.name)
        self._held.heard(
            self.name, self.plan.rebalance_ms, asked_s, now_s, self._owned, self._assigned, here
        )
        self.must_join = self._assigned != self._owned

    def _told_places(
        self, assignment: HeartbeatAssignment, names: dict[uuid.UUID, str]
    ) -> frozenset[Place]:
        found: set[Place] = set()
        for topic in assignment.topics:
            if topic.topic_id not in names:
                self._history.broken(f"{self.name} is given {topic}, and subscribes to {names}")
                continue
            found |= {(names[topic.topic_id], index) for index in topic.partitions}
        return frozenset(found)

    async def join(self) -> None:
        """Until it has what is assigned to it, and nothing else."""
        while True:
            try:
                await self._heartbeat(gives_up=True)
            except NoMemberError:
                continue
            if not self._owned - self._assigned:
                break
        if self._owned != self._assigned:
            self._owned, self._says_all = self._assigned, True
        self.places, self.must_join = sorted(self._owned), False

    async def beat(self) -> None:
        """Also while it is to give something up and has not come to it."""
        while True:
            await asyncio.sleep(self._rest_s)
            self._subscribe()
            if self.generation >= 0:
                with suppress(NoMemberError):
                    await self._heartbeat(gives_up=False)

    def _subscribe(self) -> None:
        """Perhaps to others; in the end to all again."""
        rng, topics = self.client.random, self.plan.topics
        wanted = self._subscribed
        if self._history.healed:
            wanted = list(topics)
        elif self.plan.pattern is not None:
            return
        elif rng.random() < self.plan.restless:
            wanted = rng.sample(topics, rng.randint(1, len(topics)))
        if wanted != self._subscribed:
            self._history.count("members that subscribe to others")
            self._subscribed, self._says_all = wanted, True

    async def leave(self) -> None:
        """Once; who is not heard falls silent. A static member may come back, under another id:
        what it has is its own for the session."""
        for_a_while = self.plan.static and self.client.random.random() < FOR_A_WHILE_SHARE
        async with self._turn:
            if self.generation >= 0:
                if for_a_while:
                    self._held.says(self.name, self._assigned)
                else:
                    self._held.gone(self.name)
                request = ConsumerGroupHeartbeatRequest(
                    self.group.name,
                    self.member_id,
                    LEAVE_FOR_A_WHILE_EPOCH if for_a_while else LEAVE_EPOCH,
                    self.instance_id,
                    names=None,
                    owned=None,
                )
                call = ApiKey.CONSUMER_GROUP_HEARTBEAT, HEARTBEAT_VERSION, request
                with suppress(NoMemberError):
                    await ask_once(self.client, self.name, self.group.name, call)
                self._came += 1
                self.member_id = f"{self.name}'s id {self._came}"
            self._begin_anew()

    async def be_removed(self) -> None:
        """Only classic static members are."""
        await self.leave()

    async def committed(self, places: Sequence[Place], stable: bool) -> dict[Place, int]:
        """As ``fetch_committed``."""
        return await fetch_committed(self.client, self.group, self.name, places, stable)
