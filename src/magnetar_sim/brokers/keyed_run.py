"""One run of ring 2 with Key_Shared subscriptions: the run of ``broker_run``, in which entries have
keys, and most durable subscriptions are shared by key. Consumers come and go more than elsewhere,
and what may wait for the consumer of its key, or be sent to one in a turn, is little at times.
"""

from __future__ import annotations

import random
from dataclasses import replace

from magnetar.config import ConnectionsConfig
from magnetar.metrics import Metrics
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandSubscribe, KeySharedMode
from magnetar_sim.brokers.broker_run import BrokerRun
from magnetar_sim.brokers.pulsar_client import Link, PulsarClient
from magnetar_sim.brokers.topic_consumers import ConsumerPlan, TopicConsumer
from magnetar_sim.world.loop import SimLoop
from magnetar_sim.world.trace import Trace

KEYED_SHARE = 0.85
OUT_OF_ORDER_SHARE = 0.1
CROWDED_SHARE = 0.5


class KeyedConsumer(TopicConsumer):
    """``out_of_order``: of all consumers of its subscription."""

    def __init__(
        self,
        client: PulsarClient,
        name: str,
        plan: ConsumerPlan,
        rng: random.Random,
        out_of_order: bool,
    ) -> None:
        self._out_of_order = out_of_order
        super().__init__(client, name, plan, rng)

    def _request(self, link: Link) -> BaseCommand:
        command = super()._request(link)
        meta = command.subscribe.keySharedMeta
        meta.keySharedMode = KeySharedMode.AUTO_SPLIT
        meta.allowOutOfOrderDelivery = self._out_of_order
        return command


class KeyedRun(BrokerRun):
    """The run of ``seed``."""

    def __init__(self, seed: int, loop: SimLoop, trace: Trace, metrics: Metrics) -> None:
        super().__init__(seed, loop, trace, metrics)
        self._key_random = rng = random.Random(f"{seed}/keys")
        self._keys = rng.choice((1, 3, 7, 30))
        config = replace(
            self.brokers[0].config,
            key_shared_waiting_per_consumer_max=rng.choice((1, 10, 2000, 2000)),
            key_shared_waiting_max=rng.choice((3, 100, 500_000, 500_000)),
        )
        self.watch.looks_far_ahead = (
            min(config.key_shared_waiting_per_consumer_max, config.key_shared_waiting_max) > 1000
        )
        # Some hundred bytes fill a connection for a turn of the loop, as large entries do.
        crowding = random.Random(f"{seed}/crowding")
        connections = ConnectionsConfig()
        if crowding.random() < CROWDED_SHARE:
            connections = ConnectionsConfig(unsent_bytes_max=crowding.choice((2, 16)) << 10)
        for broker in self.brokers:
            broker.config = config
            broker.connections = connections
        self._chosen: dict[tuple[str, str], tuple[bool, bool]] = {}

    def _consumer(
        self, client: PulsarClient, name: str, plan: ConsumerPlan, rng: random.Random
    ) -> TopicConsumer:
        keys, served = self._key_random, (plan.topic, plan.subscription)
        if not plan.durable:
            return super()._consumer(client, name, plan, rng)
        if served not in self._chosen:
            self._chosen[served] = keys.random() < KEYED_SHARE, keys.random() < OUT_OF_ORDER_SHARE
        by_key, out_of_order = self._chosen[served]
        if not by_key:
            return super()._consumer(client, name, plan, rng)
        plan = replace(
            plan,
            kind=CommandSubscribe.Key_Shared,
            leaves=max(plan.leaves, keys.choice((0.0, 0.3, 1.0))),
        )
        return KeyedConsumer(client, name, plan, rng, out_of_order)
