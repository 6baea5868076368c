"""Consume, transform, produce: a member of a group that writes what it reads to another topic, and
commits in the same transaction how far it has read, as applications do that want everything once.

What it reads of a partition it writes to the partition with that number. After an abort it reads
again from what is committed; whoever takes its partitions waits for the offsets that its open
transaction may commit yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.transaction_messages import (
    AddOffsetsToTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetPartition,
    TxnOffsetTopic,
)
from magnetar_sim.kafka.group_history import GroupHistory
from magnetar_sim.kafka.kafka_client import GROUP, KafkaClient, Place
from magnetar_sim.kafka.kafka_history import KafkaHistory, Transaction, Written
from magnetar_sim.kafka.kafka_reader import PartitionReader, ReaderPlan
from magnetar_sim.kafka.membership import (
    MEMBER_GONE,
    GroupMembership,
    MemberPlan,
    ReplacedError,
    StaticInstance,
)
from magnetar_sim.kafka.transactional import (
    FENCED,
    UNDER_WAY,
    VERSION,
    FencedError,
    IdHistory,
    TransactionalProducer,
    TransactionPlan,
    code_of,
)

BATCH_MAX: Final = 3
"""Records of a batch that it writes."""
HESITATES_S: Final = 5.0
NOT_TAKEN: Final = (*MEMBER_GONE, ErrorCode.REBALANCE_IN_PROGRESS)


@dataclass(frozen=True)
class PipePlan:
    member: MemberPlan
    reader: ReaderPlan
    transactions: TransactionPlan
    target: str
    """The topic that it writes to."""
    hesitates: float
    """In how many of its transactions it is silent for a while before it commits."""


class Sources:
    """Which record each output was made of."""

    def __init__(self) -> None:
        self._of: dict[int, Written] = {}
        self.count = 0

    def made(self, source: Written, output: Written) -> None:
        self._of[id(output)] = source

    def next(self) -> int:
        self.count += 1
        return self.count

    def of(self, output: Written) -> Written | None:
        return self._of.get(id(output))


class Pipe:
    """``Incarnation`` of one transactional id."""

    def __init__(
        self,
        client: KafkaClient,
        group: GroupHistory,
        producer: TransactionalProducer,
        sources: Sources,
        plan: PipePlan,
        instance: StaticInstance | None,
    ) -> None:
        self.client = client
        self.name = producer.name
        self.over = False
        self.ended = False
        self.producer = producer
        self._group = group
        self._sources = sources
        self._plan = plan
        self.member = GroupMembership(
            client, producer.history, group, self.name, plan.member, instance
        )
        self._given: list[tuple[Written, int]] = []
        self._joined_as = -1, ""
        """Generation and member id with which it got what it reads. It commits as that: one that
        has heard meanwhile that it is no member would commit as nobody, which is taken."""
        self.reader = PartitionReader(client, producer.history, self.name, plan.reader, self._give)

    @property
    def at(self) -> str:
        return self.producer.at

    @property
    def settled(self) -> bool:
        return self.ended or not self.client.host.process.alive

    def _give(self, written: Written, offset: int) -> None:
        self._given.append((written, offset))

    async def run(self) -> None:
        process = self.client.host.process
        process.spawn(self.producer.sender.run(), f"{self.name} sends")
        beats = process.spawn(self.member.beat(), f"{self.name} beats")
        try:
            await self.producer.begin()
            while not self.over:
                await self._turn()
            await self.member.leave()
        except (FencedError, ReplacedError):
            pass
        finally:
            beats.cancel()
            self.ended = True
            self.producer.sender.end()

    async def _turn(self) -> None:
        """Raises ``FencedError``, ``ReplacedError``."""
        self.producer.at = "joins, or reads"
        self.member.check_replaced()
        if self.member.must_join:
            self.reader.read_from({})
            await self.member.join()
            self._joined_as = self.member.generation, self.member.member_id
            await self._begin_at_committed()
        await self.reader.fetch_once()
        given, self._given = self._given, []
        if given:
            await self._pipe(given)

    async def _begin_at_committed(self) -> None:
        places = self.member.places
        starts = await self.member.committed(places, stable=True) if places else {}
        self._given = []
        self.reader.read_from(starts)

    async def _pipe(self, given: Sequence[tuple[Written, int]]) -> None:
        """Raises ``FencedError``, ``ReplacedError``."""
        producer, rng = self.producer, self.client.random
        offsets = {place: at.offset for place, at in self.reader.places.items()}
        generation, member_id = self._joined_as
        transaction = producer.begin_transaction()
        by_place: dict[Place, list[Written]] = {}
        for record, _ in given:
            by_place.setdefault(record.place, []).append(record)
        for (_, index), records in by_place.items():
            target = self._plan.target, index
            await producer.add([target])
            for start in range(0, len(records), BATCH_MAX):
                self._write(transaction, target, records[start : start + BATCH_MAX])
            await asyncio.sleep(producer.plan.spread_s * rng.uniform(0.2, 1.8))
        await producer.flush()
        healed = producer.history.healed
        aborts = rng.random() < producer.plan.aborts and not healed
        if not aborts or rng.random() < 0.5:
            taken = await self._add_offsets(transaction, offsets, generation, member_id)
            aborts = aborts or not taken
        if rng.random() < self._plan.hesitates and not healed:
            producer.history.count("pipes that hesitate")
            self.member.silent = True
            await asyncio.sleep(rng.uniform(1.0, HESITATES_S))
            self.member.silent = False
        await producer.end(not aborts)
        if aborts:
            await self._begin_at_committed()
            return
        for place, offset in offsets.items():
            self._group.commit(place, offset)

    def _write(self, transaction: Transaction, target: Place, records: Sequence[Written]) -> None:
        producer, outputs = self.producer, []
        first = producer.number(target, len(records))
        for number, source in enumerate(records, first):
            value = f"> {self._sources.next()} ".encode() + source.value
            made = Written(value, target, self.name, number, transaction)
            self._sources.made(source, made)
            outputs.append(producer.history.keep(made))
        producer.sender.add(target, outputs)

    async def _add_offsets(
        self,
        transaction: Transaction,
        offsets: dict[Place, int],
        generation: int,
        member_id: str,
    ) -> bool:
        """Whether the group takes them from this member. Raises ``FencedError``,
        ``ReplacedError``."""
        producer, group = self.producer, self._plan.member.group
        sender, name = producer.sender, producer.sender.transactional_id
        assert name is not None
        add = AddOffsetsToTxnRequest(name, sender.producer_id, sender.epoch, group)
        await producer.ask(ApiKey.ADD_OFFSETS_TO_TXN, VERSION, add, code_of)
        topics: dict[str, TxnOffsetTopic] = {}
        for (topic, index), offset in offsets.items():
            part = TxnOffsetPartition(index, offset)
            topics.setdefault(topic, TxnOffsetTopic(topic, [])).partitions.append(part)
            self._group.offer((topic, index), offset, transaction)
        request = TxnOffsetCommitRequest(
            name, group, sender.producer_id, sender.epoch, generation, member_id,
            self.member.instance_id, [*topics.values()],
        )  # fmt: skip
        answer = await self.client.settled(
            GROUP, group, (ApiKey.TXN_OFFSET_COMMIT, VERSION, request), _first_of, UNDER_WAY
        )
        code = _first_of(answer)
        if code in FENCED:
            producer.fenced(f"TXN_OFFSET_COMMIT is answered {code}")
        if code == ErrorCode.NONE:
            return True
        self.client.note(f"{self.name} commits offsets: {code}")
        if code == ErrorCode.FENCED_INSTANCE_ID:
            await self.member.told(code, "commits offsets")
        if code not in NOT_TAKEN:
            producer.history.broken(f"{self.name}: TXN_OFFSET_COMMIT is answered {code}")
        self.member.must_join = True
        if code in MEMBER_GONE:
            self.member.reset()
        return False


def _first_of(answer: Any) -> int:
    codes = [part.error_code for topic in answer.topics for part in topic.partitions]
    return int(next((code for code in codes if code != ErrorCode.NONE), ErrorCode.NONE))


def pipe_incarnation(
    client: KafkaClient,
    history: KafkaHistory,
    group: GroupHistory,
    of: IdHistory,
    name: str,
    sources: Sources,
    plan: PipePlan,
    instance: StaticInstance | None,
) -> Pipe:
    producer = TransactionalProducer(client, history, of, name, plan.transactions)
    return Pipe(client, group, producer, sources, plan, instance)
