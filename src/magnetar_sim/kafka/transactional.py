"""Producers of transactions, one after the other or side by side under one transactional id.

``TransactionalProducer`` is one of them: begins with the id, which fences whoever had it, then
makes transactions of batches in several partitions, and commits or aborts. It does as the official
clients: adds a partition before its first batch, asks for an outcome when every batch has its
answer, tries again what is not answered, and is no more when it is fenced. Sometimes it aborts with
batches under way, whose outcome it then does not know, and takes another epoch. A zombie is one
that goes on after another has begun.

``TransactionalId`` is the application: it has producers follow one another, on any host, also
before the one before is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.produce_messages import InitProducerIdRequest
from magnetar.wire.kafka.topic_shapes import TopicPartitions
from magnetar.wire.kafka.transaction_messages import AddPartitionsToTxnRequest, EndTxnRequest
from magnetar_sim.kafka.batch_sender import BatchSender
from magnetar_sim.kafka.kafka_client import TRANSACTION, KafkaClient, Place
from magnetar_sim.kafka.kafka_history import KafkaHistory, Transaction

INIT_VERSION: Final = 4
VERSION: Final = 3
POLL_S: Final = 0.01
FENCED: Final = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
UNDER_WAY: Final = (ErrorCode.CONCURRENT_TRANSACTIONS,)


class FencedError(Exception):
    """Another producer has its id: it is no more."""


@dataclass(frozen=True)
class TransactionPlan:
    """``spread_s``: between batches; ``aborts``: of the transactions; ``impatient``: of these, with
    batches under way; ``timeout_ms``: after which the coordinator aborts."""

    places: tuple[Place, ...]
    batches_max: int
    records_max: int
    padding: int
    spread_s: float
    rest_s: float
    aborts: float
    impatient: float
    timeout_ms: int
    eager: bool


@dataclass(slots=True)
class Beginning:
    """One producer's InitProducerId, as others may be fenced by it."""

    first_s: float
    last_s: float
    answered_s: float | None = None


class IdHistory:
    """Who began with a transactional id, and when."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.beginnings: list[Beginning] = []

    def begin(self, now_s: float) -> Beginning:
        made = Beginning(now_s, now_s)
        self.beginnings.append(made)
        return made

    def is_replaced(self, mine: Beginning) -> bool:
        """Another one was told, after it began, that the id is its own: brokers know it by now."""
        if (begun_s := mine.answered_s) is None:
            return False
        others = (each for each in self.beginnings if each is not mine)
        return any(each.answered_s is not None and each.first_s > begun_s for each in others)

    def may_be_replaced(self, mine: Beginning) -> bool:
        """Another one has asked since it has, or may have: what it asked last it may not have heard
        of."""
        return any(
            each.answered_s is None or each.last_s >= mine.first_s
            for each in self.beginnings
            if each is not mine
        )


class TransactionalProducer:
    """``name``: of the incarnation. ``ended``: it will do nothing more."""

    def __init__(
        self,
        client: KafkaClient,
        history: KafkaHistory,
        of: IdHistory,
        name: str,
        plan: TransactionPlan,
    ) -> None:
        self.client = client
        self.name = name
        self.over = False
        self.ended = False
        self.at = "begins"
        """For people: what it does."""
        self.history = history
        self.plan = plan
        self._of = of
        self._mine: Beginning | None = None
        self._began_s = 0.0
        self._numbers: dict[Place, int] = {}
        self._added: set[Place] = set()
        self.is_open = False
        """The coordinator knows of its transaction."""
        self._count = 0
        self.transaction: Transaction | None = None
        self.sender = BatchSender(client, history, name, plan.eager)
        self.sender.transactional_id = of.name
        self.sender.barred = self._is_replaced

    @property
    def settled(self) -> bool:
        return self.ended or not self.client.host.process.alive

    def _is_replaced(self) -> bool:
        return self._mine is not None and self._of.is_replaced(self._mine)

    # -- what it asks -------------------------------------------------------------------------

    async def ask(
        self, api: ApiKey, version: int, request: Any, code_of: Callable[[Any], int]
    ) -> Any:
        """Raises ``FencedError``."""
        self.at = api.name
        replaced = self._is_replaced()
        answer = await self.client.settled(
            TRANSACTION, self._of.name, (api, version, request), code_of, UNDER_WAY
        )
        code = code_of(answer)
        if code in FENCED:
            self.fenced(f"{api.name} is answered {code}")
        if code != ErrorCode.NONE:
            self.history.broken(f"{self.name}: {api.name} is answered {code}")
            raise FencedError
        if replaced and api is not ApiKey.INIT_PRODUCER_ID:
            self.history.broken(f"{self.name} was replaced, and {api.name} is done for it")
        return answer

    def fenced(self, what: str) -> NoReturn:
        """Raises ``FencedError``; is there a reason?"""
        self.client.note(f"{self.name} is fenced: {what}")
        assert self._mine is not None
        open_s = self.client.loop.time() - self._began_s
        timed_out = self.transaction is not None and open_s * 1000 >= self.plan.timeout_ms
        if not timed_out and not self._of.may_be_replaced(self._mine):
            self.history.broken(f"{self.name} is fenced by nobody: {what}")
        self.history.count("transactions that timed out" if timed_out else "fenced producers")
        raise FencedError

    async def begin(self) -> None:
        """InitProducerId. Raises ``FencedError``."""
        self._mine = mine = self._of.begin(self.client.loop.time())

        def heard(answer: Any) -> int:
            mine.last_s = self.client.loop.time()
            return int(answer.error_code)

        request = InitProducerIdRequest(self._of.name, self.plan.timeout_ms)
        answer = await self.ask(ApiKey.INIT_PRODUCER_ID, INIT_VERSION, request, heard)
        mine.answered_s = mine.last_s = self.client.loop.time()
        self.client.note(f"{self.name} begins: {answer.producer_id}, {answer.producer_epoch}")
        self.sender.begin(answer.producer_id, answer.producer_epoch)

    async def _take_epoch(self) -> None:
        """Another one, since it does not know what its last batches did. Raises ``FencedError``."""
        sender = self.sender
        request = InitProducerIdRequest(
            self._of.name, self.plan.timeout_ms, sender.producer_id, sender.epoch
        )
        answer = await self.ask(ApiKey.INIT_PRODUCER_ID, INIT_VERSION, request, code_of)
        sender.begin(answer.producer_id, answer.producer_epoch)
        self.history.count("epochs that producers of transactions took")

    async def add(self, places: Sequence[Place]) -> None:
        """Partitions become part of the transaction. Raises ``FencedError``."""
        self.is_open = True
        topics: dict[str, TopicPartitions] = {}
        new = [place for place in places if place not in self._added]
        if not new:
            return
        for name, index in new:
            topics.setdefault(name, TopicPartitions(name, [])).partitions.append(index)
        sender = self.sender
        request = AddPartitionsToTxnRequest(
            self._of.name, sender.producer_id, sender.epoch, [*topics.values()]
        )

        def first_of(answer: Any) -> int:
            codes = [part.error_code for topic in answer.topics for part in topic.partitions]
            return int(next((code for code in codes if code != ErrorCode.NONE), ErrorCode.NONE))

        await self.ask(ApiKey.ADD_PARTITIONS_TO_TXN, VERSION, request, first_of)
        self._added.update(new)

    def begin_transaction(self) -> Transaction:
        """Nothing is asked for that."""
        self._count += 1
        self._added = set()
        self.is_open = False
        self._began_s = self.client.loop.time()
        self.transaction = self.history.begin(f"{self.name}/{self._count}")
        return self.transaction

    async def end(self, commits: bool) -> None:
        """Raises ``FencedError``."""
        transaction, sender = self.transaction, self.sender
        assert transaction is not None
        if self.is_open:
            transaction.asked = commits
            request = EndTxnRequest(self._of.name, sender.producer_id, sender.epoch, commits)
            await self.ask(ApiKey.END_TXN, VERSION, request, code_of)
        transaction.outcome = commits
        self.transaction = None
        self.client.note(f"{transaction} is {'committed' if commits else 'aborted'}")
        self.history.count(f"transactions that were {'committed' if commits else 'aborted'}")

    # -- what it does -------------------------------------------------------------------------

    async def run(self) -> None:
        process = self.client.host.process
        process.spawn(self.sender.run(), f"{self.name} sends")
        try:
            await self.begin()
            while not self.over:
                self.at = "rests"
                await asyncio.sleep(self.plan.rest_s * self.client.random.uniform(0.2, 1.8))
                await self._transaction()
        except FencedError:
            pass
        finally:
            self.ended = True
            self.sender.end()

    async def _transaction(self) -> None:
        plan, rng = self.plan, self.client.random
        transaction = self.begin_transaction()
        for _ in range(rng.randint(1, plan.batches_max)):
            await asyncio.sleep(plan.spread_s * rng.uniform(0.2, 1.8))
            place = rng.choice(plan.places)
            await self.add([place])
            self.write(transaction, place, rng.randint(1, plan.records_max))
        commits = rng.random() >= plan.aborts
        if not commits and rng.random() < plan.impatient:
            self.sender.drop()
            await self.end(False)
            await self._take_epoch()
            return
        await self.flush()
        await self.end(commits)

    def number(self, place: Place, count: int) -> int:
        """Of the first of so many records more."""
        first = self._numbers.get(place, 0)
        self._numbers[place] = first + count
        return first

    def write(self, transaction: Transaction, place: Place, count: int) -> None:
        first = self.number(place, count)
        write, padding = self.history.write, self.plan.padding
        records = [write(place, self.name, first + n, padding, transaction) for n in range(count)]
        self.sender.add(place, records)

    async def flush(self) -> None:
        """Every batch has its answer. Raises ``FencedError``."""
        self.at = "waits for its batches"
        while not self.sender.settled:
            if self.sender.refused is not None:
                self.fenced(f"a batch is answered {self.sender.refused}")
            await asyncio.sleep(POLL_S)


def code_of(answer: Any) -> int:
    return int(answer.error_code)


class Incarnation(Protocol):
    """One of those that have a transactional id, one after the other. ``settled``: it does nothing
    more; ``over``: it is to end."""

    name: str
    over: bool

    @property
    def at(self) -> str: ...

    @property
    def settled(self) -> bool: ...

    @property
    def client(self) -> KafkaClient: ...

    async def run(self) -> None: ...


class TransactionalId:
    """An application with one transactional id. ``make``: an incarnation of that name, on some
    host."""

    def __init__(
        self, history: KafkaHistory, name: str, make: Callable[[IdHistory, str], Incarnation]
    ) -> None:
        self.name = name
        self.incarnations: list[Incarnation] = []
        self._history = history
        self._make = make
        self._of = IdHistory(name)
        self._over = False

    def start(self) -> None:
        """One more: whoever was there before is fenced."""
        if self._over:
            return
        if any(not each.settled for each in self.incarnations):
            self._history.count("producers that others replaced")
        made = self._make(self._of, f"{self.name}.{len(self.incarnations) + 1}")
        self.incarnations.append(made)
        made.client.host.process.spawn(made.run(), made.name)

    def restart(self) -> None:
        """If there is none."""
        if all(each.settled for each in self.incarnations):
            self.start()

    def end(self) -> None:
        self._over = True
        for each in self.incarnations:
            each.over = True

    @property
    def waits(self) -> str | None:
        """For people; None: it has ended."""
        for each in self.incarnations:
            if not each.settled:
                return f"{each.name}: {each.at}"
        return None
