"""Producers of the simulator: several sends under way, and what was not answered is sent again
when they come back, under the same name and a higher epoch, as the official clients do."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.hot import signed64
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandProducer, ProducerAccessMode
from magnetar_sim.brokers.deduplication import ANSWERED_KEPT
from magnetar_sim.brokers.pulsar_client import (
    RETRY_S,
    Chunk,
    Link,
    LinkError,
    PulsarClient,
    RefusedError,
    encode_send,
)
from magnetar_sim.world.loop import until

PENDING_MAX = 40
TWICE_SHARE = 0.2
"""Of the bursts of producers that repeat: sent twice before there is an answer."""
DELAY_MS_MAX = 6000
TURN_S = 25.0
"""How long it waits for its turn to have the topic for itself."""


class _Pending(NamedTuple):
    sequence_id: int
    texts: tuple[bytes, ...]
    time_ms: int
    chunk: Chunk | None = None
    deliver_at_ms: int = 0


@dataclass(frozen=True)
class ProducerPlan:
    """``texts``: how many messages it sends, over about ``spread_s``. ``named``: it brings a name
    of its own."""

    topic: str
    texts: int
    spread_s: float
    batch_max: int
    padding: int
    named: bool
    mode: ProducerAccessMode.ValueType
    """Of ``CommandProducer``."""
    chunked: float = 0.0
    """The chance that a message is sent in chunks."""
    delayed: float = 0.0
    """The chance that an entry is for later."""
    keys: int = 0
    """How many keys its entries have, in turn; 0: none."""
    repeats: float = 0.0
    """The chance that it, coming back, sends again what it has receipts for."""


class TopicProducer:
    """One producer of ``client``. ``now_ms`` is its wall clock."""

    def __init__(
        self,
        client: PulsarClient,
        name: str,
        plan: ProducerPlan,
        rng: random.Random,
        now_ms: Callable[[], int],
        chunk_rng: random.Random,
        delay_rng: random.Random,
        repeat_rng: random.Random,
    ) -> None:
        self.client = client
        self.name = name
        self.plan = plan
        self.fenced = False
        self.over = False
        """It sends nothing new; what is pending goes on."""
        self.sent_all = False
        self._random = rng
        self._now_ms = now_ms
        self._chunk_random = chunk_rng
        self._delay_random = delay_rng
        self._repeat_random = repeat_rng
        self._producer_id = client.new_id()
        self._given_name = name if plan.named else ""
        self._epoch = 0
        self._topic_epoch: int | None = None
        self._closed = False
        self._pending: deque[_Pending] = deque()
        self._answered: deque[_Pending] = deque(maxlen=ANSWERED_KEPT)
        self._told_stored: set[int] = set()
        self._sequence_id = 0
        self._link: Link | None = None
        client.process.spawn(self._connect(), f"producer {name}")
        client.process.spawn(self._produce(), f"messages of {name}")

    @property
    def settled(self) -> bool:
        """All that it sent has been answered, or nobody waits for it any more."""
        done = self.sent_all and not self._pending
        return self.fenced or done or not self.client.process.alive

    # -- sending ------------------------------------------------------------------------------

    async def _produce(self) -> None:
        rng, plan = self._random, self.plan
        index = 0
        await asyncio.sleep(rng.random())
        while index < plan.texts and not self.over:
            await asyncio.sleep(2 * rng.random() * plan.spread_s * plan.batch_max / plan.texts)
            burst = []
            for _ in range(rng.choice((1, 1, 3))):
                count = rng.randint(1, plan.batch_max)
                padding = b" " + b"x" * rng.randrange(plan.padding)
                texts = tuple(
                    b"%s/%d" % (self.name.encode(), index + i) + padding for i in range(count)
                )
                index += count
                due_ms = self._due_ms()
                if self._chunk_random.random() < plan.chunked:
                    burst += self._in_chunks(texts, due_ms)
                else:
                    now_ms = self._now_ms()
                    burst.append(_Pending(self._sequence_id, texts, now_ms, None, due_ms))
                self._sequence_id += count
            if self._repeat_random.random() < TWICE_SHARE * plan.repeats:
                burst += [entry for entry in burst if entry.chunk is None]
            self._pending += burst
            self._send(burst)
            while len(self._pending) >= PENDING_MAX and not self.fenced:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        self.sent_all = True

    def _due_ms(self) -> int:
        """When what is sent now is to be delivered; 0: at once. Some together, by the second."""
        rng = self._delay_random
        if rng.random() >= self.plan.delayed:
            return 0
        due_ms = self._now_ms() + rng.choice((1, 50, 500, 2000, DELAY_MS_MAX))
        return due_ms if rng.random() < 0.5 else -(-due_ms // 1000) * 1000

    def _in_chunks(self, texts: Sequence[bytes], due_ms: int) -> list[_Pending]:
        """Texts are what one entry has, so each chunk has one; all go under one sequence id."""
        message = f"{self.name}-{self._sequence_id}"
        # Even of unequal chunks: the broker holds the total against each of them.
        total, now_ms = len(texts) * min(map(len, texts)), self._now_ms()
        chunks = (Chunk(message, index, len(texts), total) for index in range(len(texts)))
        return [
            _Pending(self._sequence_id, (text,), now_ms, chunk, due_ms)
            for text, chunk in zip(texts, chunks, strict=True)
        ]

    def _send(self, entries: Sequence[_Pending]) -> None:
        """In one write, so that the broker has them at once."""
        link, producer_id, name = self._link, self._producer_id, self._given_name
        if link is None or not name or not entries:
            return
        link.write(
            b"".join(
                encode_send(
                    producer_id,
                    name,
                    entry.sequence_id,
                    entry.time_ms,
                    entry.texts,
                    entry.chunk,
                    entry.deliver_at_ms,
                    self._key(entry),
                )
                for entry in entries
            )
        )

    def _key(self, entry: _Pending) -> str:
        keys = self.plan.keys
        return f"k{entry.sequence_id % keys}" if keys else ""

    # -- being connected ----------------------------------------------------------------------

    async def _connect(self) -> None:
        client, topic = self.client, self.plan.topic
        while not self.fenced and not self._closed:
            link = await client.link(topic)
            try:
                await self._serve(link)
            except RefusedError as error:
                client.cluster.trace.note(client.name, f"producer {self.name}: {error}")
                if error.code == ServerError.PRODUCER_FENCED:
                    self.fenced = True
            except LinkError:
                pass
            self._link = None
            self._epoch += 1
            await asyncio.sleep(RETRY_S * self._random.random())

    async def _serve(self, link: Link) -> None:
        """Until the connection or the producer on it is gone."""
        gone = asyncio.Event()
        producer_id = self._producer_id
        link.on[BaseCommand.SEND_RECEIPT, producer_id] = lambda c, _: self._receipt(
            link, c.send_receipt.sequence_id, signed64(c.send_receipt.message_id.entryId) >= 0
        )
        link.on[BaseCommand.SEND_ERROR, producer_id] = lambda *_: link.abort()

        def closed(command: BaseCommand, _payload: memoryview) -> None:
            url = command.close_producer.assignedBrokerServiceUrl
            self.client.moved(self.plan.topic, url)
            gone.set()

        link.on[BaseCommand.CLOSE_PRODUCER, producer_id] = closed
        link.lost[self] = gone.set
        answer = (await link.ask(self._request(link), wait_s=TURN_S)).producer_success
        self._given_name = answer.producer_name
        if answer.HasField("topic_epoch"):
            self._topic_epoch = answer.topic_epoch
        self._link = link
        # What is stored, as it was told once, it need not send again.
        told = self._told_stored
        self._pending = deque(each for each in self._pending if each.sequence_id not in told)
        self._repeat()
        self._send(self._pending)
        if link.gone:
            raise LinkError("the connection is gone")
        shared = self.plan.mode == ProducerAccessMode.Shared

        def done() -> bool:
            return gone.is_set() or (self.sent_all and not self._pending and not shared)

        await until(done, 0.05)
        if not gone.is_set():
            await self._close(link)

    def _repeat(self) -> None:
        """Some of what was answered last is to be answered again, as of an application that does
        not know what it had receipts for when it ended."""
        rng, answered = self._repeat_random, self._answered
        if rng.random() >= self.plan.repeats or not answered:
            return
        for _ in range(rng.randint(1, len(answered))):
            self._pending.appendleft(answered.pop())
        self.client.cluster.count("times that what was answered was sent again")

    async def _close(self, link: Link) -> None:
        """So that others may have the topic for themselves."""
        command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
        command.close_producer.producer_id = self._producer_id
        command.close_producer.request_id = link.next_request()
        self._link = None
        await link.ask(command)
        self._closed = True

    def _request(self, link: Link) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.PRODUCER)
        request: CommandProducer = command.producer
        request.topic = self.plan.topic
        request.producer_id = self._producer_id
        request.request_id = link.next_request()
        request.epoch = self._epoch
        request.user_provided_producer_name = self.plan.named
        request.producer_access_mode = self.plan.mode
        if self._given_name:
            request.producer_name = self._given_name
        if self._topic_epoch is not None:
            request.topic_epoch = self._topic_epoch
        return command

    def _receipt(self, link: Link, sequence_id: int, says_where: bool) -> None:
        if link is not self._link or not self._pending:
            return
        if self._pending[0].sequence_id != sequence_id:
            link.abort()
            return
        entry = self._pending.popleft()
        if not says_where:
            self._told_stored.add(sequence_id)
        elif entry.chunk is None:
            self._answered.append(entry)
        else:  # of a message in chunks all is stored again until its last one is there
            self._answered.clear()
