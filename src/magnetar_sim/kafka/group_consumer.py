"""A consumer in a group, classic or not: has partitions by its membership, reads them from what is
committed, does the records, and commits what it has done; comes and leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.offset_messages import (
    CommitPartition,
    CommitTopic,
    OffsetCommitRequest,
)
from magnetar_sim.kafka.group_history import GroupHistory
from magnetar_sim.kafka.kafka_client import GROUP, REQUEST_S, KafkaClient, Place
from magnetar_sim.kafka.kafka_history import KafkaHistory, Written
from magnetar_sim.kafka.kafka_link import LinkError
from magnetar_sim.kafka.kafka_reader import PartitionReader, ReaderPlan
from magnetar_sim.kafka.membership import (
    AGAIN,
    AnyMembership,
    NoMemberError,
    ReplacedError,
)

REMOVED_SHARE: Final = 0.3
"""Of static members that leave: an operator removes them; the others go without a word."""


@dataclass(frozen=True)
class ConsumerPlan:
    """``commits``, ``leaves``: how likely after a fetch; ``think_s``: for what a fetch gave."""

    reader: ReaderPlan
    commits: float
    leaves: float
    think_s: float


class GroupConsumer:
    """``over``: it commits what it has done, and leaves for good. ``alone``: nobody else who lives
    has its name as a static member."""

    def __init__(
        self,
        client: KafkaClient,
        history: KafkaHistory,
        group: GroupHistory,
        member: AnyMembership,
        name: str,
        plan: ConsumerPlan,
        alone: Callable[[], bool] = lambda: True,
    ) -> None:
        self.client = client
        self.name = name
        self.over = False
        self.ended = False
        self._history = history
        self._group = group
        self._plan = plan
        self._alone = alone
        self.member = member
        self._given: list[tuple[Place, int]] = []
        self._done: dict[Place, int] = {}
        """Where its partitions are read on, when all that it was given is done."""
        self.reader = PartitionReader(client, history, name, plan.reader, self._give)

    @property
    def settled(self) -> bool:
        return self.ended or not self.client.host.process.alive

    def _give(self, written: Written, offset: int) -> None:
        self._given.append((written.place, offset))

    async def run(self) -> None:
        beats = self.client.host.process.spawn(self.member.beat(), f"{self.name} beats")
        while not self.over:
            try:
                await self._turn()
            except ReplacedError:
                self.member.reset()
                if not self._alone():
                    break
        with suppress(ReplacedError):
            await self._commit()
        await self.member.leave()
        beats.cancel()
        self.ended = True

    async def _turn(self) -> None:
        """Raises ``ReplacedError``."""
        rng, plan = self.client.random, self._plan
        self.member.check_replaced()
        if self.member.must_join:
            await self._join()
        await self.reader.fetch_once()
        await asyncio.sleep(self._history.think_s(plan.think_s) * rng.uniform(0.5, 1.5))
        self._do()
        if rng.random() < plan.commits:
            await self._commit()
        if rng.random() < plan.leaves:
            await self._commit()
            await self._leave()

    async def _leave(self) -> None:
        """And comes back; a static member perhaps before its session is over."""
        rng, member = self.client.random, self.member
        if member.instance is not None and rng.random() < REMOVED_SHARE:
            await member.be_removed()
        else:
            await member.leave()
        self.reader.read_from({})
        self._history.count("members that left")
        await asyncio.sleep(rng.uniform(0.05, 1.0))

    async def _join(self) -> None:
        """What it has done is committed first, if it still may."""
        if self.member.generation >= 0:
            await self._commit()
        self.reader.read_from({})
        self._done = {}
        await self.member.join()
        places: Sequence[Place] = self.member.places
        starts = await self.member.committed(places, stable=False) if places else {}
        self.reader.read_from(starts)
        self._done = dict(starts)

    def _do(self) -> None:
        given, self._given = self._given, []
        for place, offset in given:
            self._group.do(place, offset)
        for place, at in self.reader.places.items():
            self._done[place] = at.offset

    async def _commit(self) -> None:
        """Once. Raises ``ReplacedError``."""
        member, offsets = self.member, dict(self._done)
        if not offsets or member.generation < 0:
            return
        topics: dict[str, CommitTopic] = {}
        for (name, index), offset in offsets.items():
            part = CommitPartition(index, offset)
            topics.setdefault(name, CommitTopic(name, [])).partitions.append(part)
            self._group.offer((name, index), offset)
        request = OffsetCommitRequest(
            self._group.name, member.generation, member.member_id, member.instance_id,
            topics=[*topics.values()],
        )  # fmt: skip
        try:
            answer = await self.client.ask_coordinator(
                GROUP, self._group.name, ApiKey.OFFSET_COMMIT, member.commit_version, request,
                REQUEST_S,
            )  # fmt: skip
        except LinkError as error:
            self.client.note(f"{self.name} commits: {error}")
            return
        for topic in answer.topics:
            for part in topic.partitions:
                place = topic.name, part.index
                if part.error_code == ErrorCode.NONE:
                    self._group.commit(place, offsets[place])
        codes = {part.error_code for topic in answer.topics for part in topic.partitions}
        for code in sorted(codes - {ErrorCode.NONE}):
            if code in AGAIN:
                self.client.coordinator_moved(GROUP, self._group.name)
                return
            try:
                await member.told(code, "commits")
            except NoMemberError:
                return
