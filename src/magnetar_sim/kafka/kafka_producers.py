"""An idempotent producer without transactions: batches to several partitions, many under way.
Now and then, when everything is answered, it goes on with another epoch of its own, as clients do
that are not sure of their sequences.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.produce_messages import InitProducerIdRequest
from magnetar_sim.kafka.batch_sender import BatchSender
from magnetar_sim.kafka.kafka_client import REQUEST_S, KafkaClient, Place
from magnetar_sim.kafka.kafka_history import KafkaHistory
from magnetar_sim.kafka.kafka_link import LinkError
from magnetar_sim.world.loop import until

INIT_VERSION: Final = 4
POLL_S: Final = 0.02


@dataclass(frozen=True)
class ProducerPlan:
    """``batches``: in all, over ``spread_s``. ``bumps``: of the batches, after how many of them it
    takes another epoch."""

    places: tuple[Place, ...]
    batches: int
    spread_s: float
    records_max: int
    padding: int
    eager: bool
    bumps: float


class KafkaProducer:
    def __init__(
        self, client: KafkaClient, history: KafkaHistory, name: str, plan: ProducerPlan
    ) -> None:
        self.client = client
        self.name = name
        self.over = False
        self._history = history
        self._plan = plan
        self._numbers = dict.fromkeys(plan.places, 0)
        self._done = False
        self.sender = BatchSender(client, history, name, plan.eager)

    @property
    def settled(self) -> bool:
        """It has nothing more to send, and everything is answered; or it is no more."""
        if not self.client.host.process.alive:
            return True
        return self._done and self.sender.settled

    @property
    def waits(self) -> str:
        if not self._done:
            return f"{self.name} waits for a producer id"
        return self.sender.waits

    async def run(self) -> None:
        plan, rng = self._plan, self.client.random
        self.sender.begin(await self._new_id(), 0)
        self.client.host.process.spawn(self.sender.run(), f"{self.name} sends")
        for _ in range(plan.batches):
            if self.over:
                break
            await asyncio.sleep(plan.spread_s / plan.batches * rng.uniform(0.2, 1.8))
            if rng.random() < plan.bumps:
                await until(lambda: self.sender.settled, POLL_S)
                self.sender.bump()
                self._history.count("epochs that producers took themselves")
            self._add(rng.choice(plan.places), rng.randint(1, plan.records_max))
        self._done = True

    def _add(self, place: Place, count: int) -> None:
        first = self._numbers[place]
        self._numbers[place] += count
        write, padding = self._history.write, self._plan.padding
        records = [write(place, self.name, first + n, padding) for n in range(count)]
        self.sender.add(place, records)

    async def _new_id(self) -> int:
        """As often as it takes; of any broker."""
        request = InitProducerIdRequest(None, 1000)
        while True:
            try:
                link = await self.client.any_broker()
                answer = await link.ask(ApiKey.INIT_PRODUCER_ID, INIT_VERSION, request, REQUEST_S)
            except LinkError:
                await self.client.pause()
                continue
            if answer.error_code == ErrorCode.NONE:
                found = answer.producer_id
                assert isinstance(found, int)
                return found
            if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                self._history.broken(f"{self.name} gets no producer id: {answer.error_code}")
            await self.client.pause()
