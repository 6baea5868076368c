"""What a producer has to send, and sends, as the official clients do: batches of each partition in
order, up to five of them under way, idempotent; a batch that is refused or not answered goes again
as it was, with its sequence, before what comes after it.

Where brokers say what no well-behaved client is to hear, the run has failed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.batches import TRANSACTIONAL, build_batch
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.produce_messages import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from magnetar.wire.kafka.records import KafkaRecord, encode_records
from magnetar_sim.kafka.kafka_client import DATA, REQUEST_S, KafkaClient, Place
from magnetar_sim.kafka.kafka_history import KafkaHistory, Written
from magnetar_sim.kafka.kafka_link import KafkaLink, LinkError
from magnetar_sim.world.outside import SINCE_1970_S

UNDER_WAY_MAX: Final = 5
VERSION: Final = 11
LOOK_S: Final = 0.01
ALL: Final = -1
AGAIN: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
)
"""What clients in Java try again for."""
COORDINATOR_AWAY: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


@dataclass(eq=False, slots=True)
class Batch:
    place: Place
    records: Sequence[Written]
    first_sequence: int
    payload: bytes
    flies: bool = False
    tries: int = 0


@dataclass(slots=True)
class Lane:
    """Of one partition: batches without a final answer, in order."""

    waiting: deque[Batch] = field(default_factory=deque)
    sequence: int = 0

    @property
    def flying(self) -> int:
        return sum(batch.flies for batch in self.waiting)

    def next(self, eager: bool) -> Batch | None:
        """What may be sent now. ``eager``: as librdkafka, which sends all again at once, in order;
        else as Java's, where the first one is heard of first."""
        if self.flying >= UNDER_WAY_MAX:
            return None
        for index, batch in enumerate(self.waiting):
            if batch.flies:
                continue
            if batch.tries and index and not eager:
                return None
            if not eager and index and self.waiting[0].tries > 1:
                return None
            return batch
        return None


class BatchSender:
    """Of one producer. ``refused``: why nothing more is sent, if a broker has said that another
    producer has its place. ``barred``: whether it is known that it is so."""

    def __init__(self, client: KafkaClient, history: KafkaHistory, name: str, eager: bool) -> None:
        self.client = client
        self.history = history
        self.name = name
        self.transactional_id: str | None = None
        self.producer_id = -1
        self.epoch = -1
        self.refused: ErrorCode | None = None
        self.barred: Callable[[], bool] = lambda: False
        self._eager = eager
        self._lanes: dict[Place, Lane] = {}
        self._over = False
        self._wake = asyncio.Event()
        self._making = 0
        """Of what a producer was before it had another epoch no answer counts."""

    @property
    def settled(self) -> bool:
        return not any(lane.waiting for lane in self._lanes.values())

    @property
    def waits(self) -> str:
        """For people: what it waits for."""
        batches = [batch for lane in self._lanes.values() for batch in lane.waiting]
        return f"{self.name} waits for {len(batches)} batches, first {batches[0].records[0]}"

    def begin(self, producer_id: int, epoch: int) -> None:
        """From now on as that one, with sequences from 0; nothing is under way."""
        self.producer_id, self.epoch, self.refused = producer_id, epoch, None
        self.drop()

    def drop(self) -> None:
        """Nothing more is done for what has no answer yet."""
        self._lanes.clear()
        self._making += 1

    def bump(self) -> None:
        """As idempotent producers do for themselves, with nothing under way."""
        assert self.settled
        self.begin(self.producer_id, self.epoch + 1)

    def add(self, place: Place, records: Sequence[Written]) -> None:
        lane = self._lanes.setdefault(place, Lane())
        now_ms = int((SINCE_1970_S + self.client.loop.time()) * 1000)
        encoded = encode_records(
            [KafkaRecord(n, 0, None, record.value) for n, record in enumerate(records)]
        )
        payload = build_batch(
            encoded,
            count=len(records),
            last_offset_delta=len(records) - 1,
            attributes=TRANSACTIONAL if self.transactional_id is not None else 0,
            base_timestamp_ms=now_ms,
            max_timestamp_ms=now_ms,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=lane.sequence,
        )
        lane.waiting.append(Batch(place, records, lane.sequence, payload))
        lane.sequence += len(records)
        self._wake.set()

    # -- sending ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is to ``end``."""
        while not self._over:
            await asyncio.sleep(LOOK_S * self.client.random.uniform(0.5, 1.5))
            if self.refused is None and any(map(self._ready, list(self._lanes))):
                await self._send_some()
            else:
                self._wake.clear()
                await self._wake.wait()

    def end(self) -> None:
        """It sends nothing more."""
        self._over = True
        self._wake.set()

    async def _send_some(self) -> None:
        """To each leader one request, with a batch of each of its partitions that may go."""
        making = self._making
        by_link: dict[KafkaLink, list[Place]] = {}
        for place in list(self._lanes):
            if self._ready(place) is None:
                continue
            try:
                link = await self.client.at_leader(place, DATA)
            except LinkError as error:
                self.client.note(f"cannot send to {place}: {error}")
                await self.client.pause()
            else:
                by_link.setdefault(link, []).append(place)
        if making != self._making or self.refused is not None:
            return
        for link, places in by_link.items():
            batches = [batch for batch in map(self._ready, places) if batch is not None]
            if batches:
                self._send(link, batches)

    def _ready(self, place: Place) -> Batch | None:
        lane = self._lanes.get(place)
        return None if lane is None else lane.next(self._eager)

    def _send(self, link: KafkaLink, batches: Sequence[Batch]) -> None:
        barred = self.barred()
        topics: dict[str, ProduceTopic] = {}
        for batch in batches:
            name, index = batch.place
            topic = topics.setdefault(name, ProduceTopic(name, []))
            topic.partitions.append(ProducePartition(index, batch.payload))
            if barred and not batch.tries:
                for record in batch.records:
                    record.barred = True
            batch.flies, batch.tries = True, batch.tries + 1
            if batch.tries > 1:
                self.history.count("batches that are sent again")
        request = ProduceRequest(
            self.transactional_id, ALL, int(REQUEST_S * 1000), [*topics.values()]
        )
        answer = link.send(ApiKey.PRODUCE, VERSION, request)
        hearing = self._hear(link, answer, batches, self._making)
        self.client.host.process.spawn(hearing, f"{self.name} hears")

    async def _hear(
        self, link: KafkaLink, answer: asyncio.Future[Any], batches: Sequence[Batch], making: int
    ) -> None:
        try:
            response = await link.heard(answer, REQUEST_S)
        except LinkError:
            for batch in batches:
                batch.flies = False
                self.client.moved(batch.place)
            self._wake.set()
            return
        if making != self._making:
            return
        told: dict[Place, ProducedPartition] = {
            (topic.name, part.index): part for topic in response.topics for part in topic.partitions
        }
        again = False
        for batch in batches:
            batch.flies = False
            again = self._told(batch, told[batch.place]) or again
        if again:
            await self.client.pause()
        self._wake.set()

    def _told(self, batch: Batch, said: ProducedPartition) -> bool:
        """Whether it is to be sent again."""
        code, lane = said.error_code, self._lanes[batch.place]
        if code == ErrorCode.NONE:
            lane.waiting.remove(batch)
            self.history.acknowledge(batch.records, said.base_offset, self.name)
            self.history.count("batches that were acknowledged")
            return False
        self.client.note(f"{batch.records[0]}, seq {batch.first_sequence}: {code}")
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and lane.waiting[0] is not batch:
            self.history.count("batches that came before those before them")
            return True
        if code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED):
            self.refused = ErrorCode(code)
            return False
        if code in COORDINATOR_AWAY and self.transactional_id is not None:
            return True
        if code not in AGAIN:
            self.history.broken(f"{self.name} is told {code} of {batch.records[0]}: {said}")
            return False
        self.client.moved(batch.place)
        return True
