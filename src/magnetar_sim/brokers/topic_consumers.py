"""Consumers and readers of the simulator: permits, acknowledgements of every kind, refusals, seeks,
and coming back when the connection or the subscription's place is lost."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from magnetar.model.ids import Position
from magnetar.protocols.pulsar.clients import returns_skipped
from magnetar.wire.pulsar.hot import unsigned64
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandAck, CommandSubscribe, MessageIdData
from magnetar_sim.brokers.pulsar_client import RETRY_S, Link, LinkError, PulsarClient, RefusedError
from magnetar_sim.brokers.topic_history import (
    HIGHEST,
    LOWEST,
    Content,
    bits_of,
    decoded,
    position_of,
)

REFUSED_AFTER_S = 0.4
SHARES = (CommandSubscribe.Shared, CommandSubscribe.Key_Shared)


@dataclass(frozen=True)
class ConsumerPlan:
    """Chances are per entry; what is neither acknowledged nor refused stays out. ``queue``: permits
    that it keeps up."""

    topic: str
    subscription: str
    kind: CommandSubscribe.SubType.ValueType
    earliest: bool
    queue: int
    think_s: float
    durable: bool = True
    acknowledges: float = 1.0
    cumulative: float = 0.0
    partly: float = 0.0
    refuses: float = 0.0
    receipts: float = 0.5
    seeks: float = 0.0
    """The chance of a seek, per second."""
    leaves: float = 0.0
    """The chance of closing and coming back, per second."""
    priority: int = 0


class Got(NamedTuple):
    position: Position
    content: Content
    bits: int


class TopicConsumer:
    """One consumer of ``client``; ``now_ms`` is a wall clock to seek by."""

    def __init__(
        self, client: PulsarClient, name: str, plan: ConsumerPlan, rng: random.Random
    ) -> None:
        self.client = client
        self.name = name
        self.plan = plan
        self.over = False
        """It closes, and does not come back."""
        self.still = False
        """It takes what it is sent: no refusals, seeks or leaving any more."""
        self.closed = False
        self.ended = False
        """It has unsubscribed."""
        self._random = rng
        self._consumer_id = client.new_id()
        self._queue: deque[Got] = deque()
        self._taken = 0
        """Messages taken from the queue that the broker was not told of as permits."""
        self._returns_skipped = False
        """Permits of messages that came acknowledged are given back, as its client does."""
        self._link: Link | None = None
        self._refused: list[Got] = []
        self._seen: list[Position] = []
        self._times: list[int] = []
        self._seek_to: MessageIdData | int | None = None
        self._begin = LOWEST
        """Of a reader: what it got last."""
        client.process.spawn(self._connect(), f"consumer {name}")
        client.process.spawn(self._consume(), f"messages for {name}")
        if plan.seeks or plan.leaves:
            client.process.spawn(self._wander(), f"moves of {name}")

    # -- being connected ----------------------------------------------------------------------

    async def _connect(self) -> None:
        client = self.client
        while not self.over and not self.ended:
            link = await self._reach()
            try:
                await self._serve(link)
            except RefusedError as error:
                client.cluster.trace.note(client.name, f"consumer {self.name}: {error}")
            except LinkError:
                pass
            self._link = None
            self._lost(self._queue)
            self._queue.clear()
            self._refused.clear()
            await asyncio.sleep(RETRY_S * (0.2 + self._random.random()))
        self.closed = True

    async def _reach(self) -> Link:
        """A connection to the broker that serves the subscription; as often as it takes."""
        return await self.client.link(self.plan.topic)

    def _told_closed(self, service_url: str) -> None:
        """The broker has closed the consumer; empty: it does not say who serves it now."""
        self.client.moved(self.plan.topic, service_url)

    async def _serve(self, link: Link) -> None:
        gone = asyncio.Event()
        consumer_id = self._consumer_id
        link.on[BaseCommand.MESSAGE, consumer_id] = self._message

        def closed(command: BaseCommand, _payload: memoryview) -> None:
            self._told_closed(command.close_consumer.assignedBrokerServiceUrl)
            gone.set()

        link.on[BaseCommand.CLOSE_CONSUMER, consumer_id] = closed
        link.on[BaseCommand.ACTIVE_CONSUMER_CHANGE, consumer_id] = lambda *_: None
        await link.ask(self._request(link))
        if gone.is_set() and (self.over or self.ended):
            # It was closed while it waited, and wants nothing any more; the broker has it all the
            # same, and would wait for it.
            await self._close(link, BaseCommand.CLOSE_CONSUMER)
            return
        link.lost[self] = gone.set
        self._queue.clear()
        self._taken = 0
        self._returns_skipped = returns_skipped(self.client.version)
        self._link = link
        self._flow(link, self.plan.queue)
        self._is_back(link)
        if link.gone:
            raise LinkError("the connection is gone")
        while not gone.is_set():
            if self._seek_to is not None:
                await self._seek(link)
            if self.over or self._leaves():
                await self._close(link, BaseCommand.CLOSE_CONSUMER)
                return
            if self.ended:
                self.ended = False
                await self._close(link, BaseCommand.UNSUBSCRIBE)
                self.ended = True
                return
            try:
                async with asyncio.timeout(0.05):
                    await gone.wait()
            except TimeoutError:
                continue

    def _lost(self, in_hand: Sequence[Got]) -> None:
        """Its connection has ended, or it was closed; that is not acknowledged."""

    def _is_back(self, link: Link) -> None:
        """It is connected again."""

    def _leaves(self) -> bool:
        leaves = self.plan.leaves
        return bool(leaves) and not self.still and self._random.random() < 0.05 * leaves

    def _request(self, link: Link) -> BaseCommand:
        plan = self.plan
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        request = command.subscribe
        request.topic, request.subscription, request.subType = (
            plan.topic,
            plan.subscription,
            plan.kind,
        )
        request.consumer_id, request.request_id = self._consumer_id, link.next_request()
        request.consumer_name = self.name
        request.durable = plan.durable
        request.priority_level = plan.priority
        request.initialPosition = (
            CommandSubscribe.Earliest if plan.earliest else CommandSubscribe.Latest
        )
        if not plan.durable:
            begin = self._begin if plan.earliest or self._begin > LOWEST else HIGHEST
            request.start_message_id.CopyFrom(message_id(begin))
        return command

    async def _close(self, link: Link, kind: BaseCommand.Type.ValueType) -> None:
        self._link = None
        self._queue.clear()
        command = BaseCommand(type=kind)
        body = command.close_consumer if kind == BaseCommand.CLOSE_CONSUMER else command.unsubscribe
        body.consumer_id, body.request_id = self._consumer_id, link.next_request()
        await link.ask(command)

    # -- messages -----------------------------------------------------------------------------

    def _message(self, command: BaseCommand, payload: memoryview) -> None:
        content = decoded(payload)
        if content is None:
            return
        position = position_of(command.message.message_id)
        bits = bits_of(command.message.ack_set, len(content.texts))
        self._queue.append(Got(position, content, bits))

    def _flow(self, link: Link, permits: int) -> None:
        command = BaseCommand(type=BaseCommand.FLOW)
        command.flow.consumer_id = self._consumer_id
        command.flow.messagePermits = permits
        link.send(command)

    def _take(self, link: Link) -> Got:
        got = self._queue.popleft()
        left_out = 0 if self._returns_skipped else len(got.content.texts) - got.bits.bit_count()
        self._taken += len(got.content.texts) - left_out
        if self._taken >= max(1, self.plan.queue // 2):
            self._flow(link, self._taken)
            self._taken = 0
        return got

    async def _consume(self) -> None:
        rng, plan = self._random, self.plan
        while not self.closed:
            link = self._link
            if link is None or not self._queue:
                await asyncio.sleep(0.02 + plan.think_s * rng.random())
                continue
            batch = [self._take(link) for _ in range(min(len(self._queue), rng.choice((1, 1, 4))))]
            self._note(batch)
            if plan.durable:
                self._act(link, batch)
            if plan.think_s:
                await asyncio.sleep(plan.think_s * rng.random())

    def _note(self, batch: Sequence[Got]) -> None:
        self._begin = batch[-1].position
        self._seen.append(batch[-1].position)
        self._times.append(batch[-1].content.publish_time_ms)

    def _act(self, link: Link, batch: Sequence[Got]) -> None:
        rng, plan = self._random, self.plan
        refused = [got for got in batch if not self.still and rng.random() < plan.refuses]
        if refused:
            self._refused += refused
            link_now = self._link
            asyncio.get_running_loop().call_later(
                REFUSED_AFTER_S * rng.random(), self._refuse, link_now
            )
        taken = [got for got in batch if got not in refused and rng.random() < plan.acknowledges]
        if not taken:
            return
        if plan.kind not in SHARES and rng.random() < plan.cumulative:
            self._ack(link, [self._id(taken[-1])], CommandAck.Cumulative)
            return
        self._ack(link, [self._id(got) for got in taken], CommandAck.Individual)

    def _id(self, got: Got) -> MessageIdData:
        """Of the whole entry, or of some messages of a batch."""
        made = message_id(got.position)
        size = len(got.content.texts)
        if size > 1 and self._random.random() < self.plan.partly:
            left = got.content.all_bits & ~(1 << self._random.randrange(size))
            made.ack_set.append(left)
            made.batch_size = size
        return made

    def _ack(
        self, link: Link, ids: Sequence[MessageIdData], kind: CommandAck.AckType.ValueType
    ) -> None:
        command = BaseCommand(type=BaseCommand.ACK)
        command.ack.consumer_id = self._consumer_id
        command.ack.ack_type = kind
        command.ack.message_id.extend(ids)
        if self._random.random() < self.plan.receipts:
            command.ack.request_id = link.next_request()
        link.send(command)

    def _refuse(self, link: Link | None) -> None:
        refused, self._refused = self._refused, []
        if link is None or link is not self._link or not refused:
            return
        command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        request = command.redeliverUnacknowledgedMessages
        request.consumer_id = self._consumer_id
        if self.plan.kind in SHARES and self._random.random() < 0.8:
            request.message_ids.extend(message_id(got.position) for got in refused)
        else:  # everything that is out; what waits in the queue will come again
            dropped = sum(len(got.content.texts) for got in self._queue)
            self._queue.clear()
            if dropped:
                self._flow(link, dropped)
        link.send(command)

    # -- moving -------------------------------------------------------------------------------

    async def _wander(self) -> None:
        """Now and then, want to be elsewhere; see ``_serve``."""
        rng, plan = self._random, self.plan
        while not self.still:
            await asyncio.sleep(1.0)
            if self._seek_to is None and self._seen and rng.random() < plan.seeks:
                at = rng.randrange(len(self._seen))
                places = (message_id(LOWEST), message_id(HIGHEST), message_id(self._seen[at]))
                self._seek_to = rng.choice((*places, places[2], self._times[at]))

    async def _seek(self, link: Link) -> None:
        command = BaseCommand(type=BaseCommand.SEEK)
        command.seek.consumer_id, command.seek.request_id = self._consumer_id, link.next_request()
        if isinstance(self._seek_to, int):
            command.seek.message_publish_time = self._seek_to
        elif self._seek_to is not None:
            command.seek.message_id.CopyFrom(self._seek_to)
        await link.ask(command)
        self._seek_to = None

    @property
    def seeking(self) -> bool:
        return self._seek_to is not None


def message_id(position: Position) -> MessageIdData:
    return MessageIdData(
        ledgerId=unsigned64(position.ledger_id), entryId=unsigned64(position.entry_id)
    )
