"""One run of ring 2 with topics on partitions: the run of ``broker_run``, in which brokers keep the
logs on their own disks and replicate them among themselves; cursors lie in ledgers as ever. What a
replica is elected with, and may not show yet, meets what consumers have had of the leader before.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Final

from magnetar.config import KafkaConfig
from magnetar.metrics import Metrics
from magnetar.wire.pulsar.pulsar_pb2 import CommandAck
from magnetar_sim.brokers.broker_moves import BrokerMoves
from magnetar_sim.brokers.broker_run import BrokerRun
from magnetar_sim.brokers.brokers import BrokerMachine
from magnetar_sim.brokers.log_leaders import LogLeaders
from magnetar_sim.brokers.pulsar_client import Link, PulsarClient
from magnetar_sim.brokers.run_with_brokers import SIZES, plan_partitions
from magnetar_sim.brokers.topic_consumers import ConsumerPlan, Got, TopicConsumer
from magnetar_sim.cluster.faults import Faults
from magnetar_sim.world.loop import SimLoop
from magnetar_sim.world.planned_faults import PlannedFaults
from magnetar_sim.world.trace import Trace

KAFKA_PORT: Final = 9092
LATE_SHARE: Final = 0.5
FAR_SHARE: Final = 0.5
"""Of the runs: brokers are far from one another, so that high watermarks trail."""


class LateConsumer(TopicConsumer):
    """When it is back it acknowledges what it had in hand, as clients do that give messages to
    their application as they come."""

    _late: Sequence[Got] = ()

    def _lost(self, in_hand: Sequence[Got]) -> None:
        self._late = [*self._late, *in_hand]

    def _is_back(self, link: Link) -> None:
        late, self._late = self._late, ()
        if late:
            self._ack(link, [self._id(got) for got in late], CommandAck.Individual)


class LedRun(BrokerRun):
    """The run of ``seed``."""

    _deduplication_share = 0.0  # brokers refuse it for such topics
    _followed = False
    _owners = LogLeaders

    def __init__(self, seed: int, loop: SimLoop, trace: Trace, metrics: Metrics) -> None:
        super().__init__(seed, loop, trace, metrics)
        # A topic that takes a deleted one's name has its positions again, and a reader that names
        # one of those begins there: "deleted is gone" cannot be told by positions.
        self._deletes = False
        self._late = random.Random(f"{seed}/late")
        rng = random.Random(f"{seed}/led")
        brokers, replicas, min_isr = rng.choice(SIZES)
        config = replace(self.brokers[0].config, engine="partition")
        machines = [
            BrokerMachine(self.cluster, f"k{i + 1}", config, random.Random(f"{seed}/k{i}"))
            for i in range(brokers)
        ]
        self.brokers.clear()
        self.add_brokers(machines)
        partition = plan_partitions(rng, replicas, min_isr)
        for machine in machines:
            machine.kafka = KafkaConfig(port=KAFKA_PORT)
            machine.partition = partition

    def _consumer(
        self, client: PulsarClient, name: str, plan: ConsumerPlan, rng: random.Random
    ) -> TopicConsumer:
        late = plan.durable and self._late.random() < LATE_SHARE
        return (LateConsumer if late else TopicConsumer)(client, name, plan, rng)

    def _plan_faults(self, begin_s: float) -> list[Faults | PlannedFaults | BrokerMoves]:
        if self._late.random() < FAR_SHARE:
            network = self.cluster.network
            for one, other in permutations([each.name for each in self.brokers], 2):
                network.slow(one, other, self._late.choice((0.02, 0.1)))
        return super()._plan_faults(begin_s)
