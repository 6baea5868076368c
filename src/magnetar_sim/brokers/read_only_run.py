"""One run of ring 2 with read-only brokers beside the owners: the run of ``broker_run``, in which
most subscriptions, and some readers, are sent to brokers that own nothing, here and there in turn.

Who is sent where is the run's own decision, whatever policies say: a change of it has consumers
leave where they are and come to where they should be, which the brokers must bear in any order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

from magnetar.metrics import Metrics
from magnetar.model.errors import MagnetarError
from magnetar_sim.brokers.broker_moves import BrokerMoves
from magnetar_sim.brokers.broker_run import FAULTS_FROM_S, HEAL_S, BrokerRun
from magnetar_sim.brokers.brokers import BrokerMachine
from magnetar_sim.brokers.pulsar_client import RETRY_S, Link, LinkError, PulsarClient, RefusedError
from magnetar_sim.brokers.topic_consumers import ConsumerPlan, TopicConsumer
from magnetar_sim.brokers.topic_history import Subscription, Topic
from magnetar_sim.cluster.faults import Faults
from magnetar_sim.world.loop import SimLoop, call_from_outside
from magnetar_sim.world.planned_faults import PlannedFaults
from magnetar_sim.world.trace import Trace

READ_SHARE = 0.75
AUDITED_AT_OWNER = 0.5
LEAVES_AT_LOOK = 0.15
"""Looks come every 50 ms."""


class SentConsumer(TopicConsumer):
    """``place``: the host that it is to be served by; None: the topic's owner."""

    def __init__(
        self,
        client: PulsarClient,
        name: str,
        plan: ConsumerPlan,
        rng: random.Random,
        place: Callable[[], str | None],
    ) -> None:
        self._place = place
        self._at: str | None = None
        super().__init__(client, name, plan, rng)

    async def _reach(self) -> Link:
        client = self.client
        while True:
            self._at = self._place()
            if self._at is None:
                return await super()._reach()
            try:
                return await client.link_at(self._at)
            except (LinkError, RefusedError, MagnetarError, OSError) as error:
                client.cluster.trace.note(client.name, f"{self.name} cannot connect yet: {error}")
                await asyncio.sleep(RETRY_S)

    def _leaves(self) -> bool:
        """Not all at once: one broker is asked for it while another has consumers still."""
        if self._place() != self._at and self._random.random() < LEAVES_AT_LOOK:
            return True
        return super()._leaves()


class ReadOnlyRun(BrokerRun):
    """The run of ``seed``."""

    def __init__(self, seed: int, loop: SimLoop, trace: Trace, metrics: Metrics) -> None:
        super().__init__(seed, loop, trace, metrics)
        self._read_random = rng = random.Random(f"{seed}/read-only brokers")
        config = replace(
            self.brokers[0].config,
            bound_ack_interval_ms=rng.choice((5, 50, 300)),
            binding_idle_ms=rng.choice((50, 300, 1500)),
            binding_silence_ms=20_000,
        )
        for broker in self.brokers:
            broker.config = replace(broker.config, binding_silence_ms=20_000)
        self.reading = [
            BrokerMachine(
                self.cluster, f"r{i + 1}", config, random.Random(f"{seed}/r{i}"), read_only=True
            )
            for i in range(rng.choice((1, 2, 2)))
        ]
        self.add_brokers(self.reading)
        self._places: dict[tuple[str, str], str | None] = {}

    def _plan_quiet_times(self, begin_s: float) -> None:
        super()._plan_quiet_times(begin_s)
        rng = self._read_random
        for _ in range(rng.choice((0, 1, 4, 10))):
            at_s = rng.uniform(begin_s + FAULTS_FROM_S, begin_s + HEAL_S)
            self.loop.call_at(at_s, self._send_elsewhere)

    def _plan_faults(self, begin_s: float) -> list[Faults | PlannedFaults | BrokerMoves]:
        """Also the ways between read-only brokers and owners."""
        planned = super()._plan_faults(begin_s)
        rng, end_s = self._read_random, begin_s + HEAL_S - 1
        for _ in range(rng.choice((0, 2, 6, 15))):
            at_s = rng.uniform(begin_s + FAULTS_FROM_S, end_s)
            act = rng.choice((self._break_to_owner, self._break_to_owner, self._block_to_owner))
            call_from_outside(self.loop, at_s, act, lambda: False)
        return planned

    def _pair(self) -> tuple[str, str]:
        owners = [each.name for each in self.brokers if not each.read_only]
        return self._read_random.choice(self.reading).name, self._read_random.choice(owners)

    def _break_to_owner(self) -> None:
        reader, owner = self._pair()
        if self.cluster.network.break_between(reader, owner):
            self.trace.note("fault", f"the connection of {reader} to {owner} breaks")
            self.cluster.count("connections to owners that broke")

    def _block_to_owner(self) -> None:
        """One way or both: answers are lost, or requests arrive late."""
        rng, network = self._read_random, self.cluster.network
        reader, owner = self._pair()
        both = [(reader, owner), (owner, reader)]
        links = rng.choice((both, both[:1], both[1:]))
        for link in links:
            network.block(*link)

        def unblock() -> None:
            for link in links:
                network.unblock(*link)

        lasts_s = rng.choice((0.3, 1.5, 4.0))
        call_from_outside(self.loop, self.loop.time() + lasts_s, unblock, lambda: False)
        self.trace.note("fault", f"{reader} and {owner} are cut off for {lasts_s} s: {links}")

    def _send_elsewhere(self) -> None:
        if self._places:
            served = self._read_random.choice(list(self._places))
            self._places[served] = place = self._choose()
            self.trace.note("run", f"{served[1]} of {served[0]} is to be served by {place}")

    def _choose(self) -> str | None:
        rng = self._read_random
        return rng.choice(self.reading).name if rng.random() < READ_SHARE else None

    def _audit(self, last: PulsarClient, topic: Topic, subscription: Subscription) -> None:
        """Here or there: what a broker that is gone was bound to comes back to the owner, too."""
        if self._read_random.random() < AUDITED_AT_OWNER:
            self._places[topic.name, subscription.name] = None
        super()._audit(last, topic, subscription)

    def _consumer(
        self, client: PulsarClient, name: str, plan: ConsumerPlan, rng: random.Random
    ) -> TopicConsumer:
        served = plan.topic, plan.subscription
        if served not in self._places:
            self._places[served] = self._choose()
        return SentConsumer(client, name, plan, rng, lambda: self._places[served])
