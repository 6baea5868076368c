"""One run of ring 2 in which policies, and not the run, say who is served by read-only brokers
(``read_only_run``): consumers come to the owner, and go where it sends them.

Some clients name the version of one that follows, others one that does not, which the owner has to
serve itself. The policy changes now and then, also while brokers are killed or cut off.
"""

from __future__ import annotations

import random
from typing import Final

from magnetar.cluster.policies.read_rules import ReadRule, ReadRules, Target
from magnetar.metrics import Metrics
from magnetar.model.errors import MagnetarError
from magnetar_sim.brokers.broker_run import FAULTS_FROM_S, HEAL_S
from magnetar_sim.brokers.pulsar_client import Link, LinkError, PulsarClient, RefusedError, host_of
from magnetar_sim.brokers.read_only_run import ReadOnlyRun
from magnetar_sim.brokers.topic_consumers import ConsumerPlan, TopicConsumer
from magnetar_sim.world.loop import SimLoop
from magnetar_sim.world.trace import Trace

FOLLOWS: Final = "Pulsar-CPP-v4.2.0"
FOLLOWING_SHARE = 0.75
TO_ANY: Final = ReadRules((ReadRule(Target()),))
SAYINGS: Final = (
    TO_ANY,
    TO_ANY,
    ReadRules((ReadRule(Target(), type="Shared"),)),
    ReadRules((ReadRule(Target(owner=True), "reader-*"), ReadRule(Target()))),
    ReadRules(),
    None,
)


class SteeredConsumer(TopicConsumer):
    """Goes once to where it is sent; whatever comes of that, it looks up then, as official clients
    do. Those of a version that does not follow look up at once."""

    _sent_to = ""

    def _told_closed(self, service_url: str) -> None:
        self._sent_to = service_url if self.client.version == FOLLOWS else ""
        if self._sent_to:
            self.client.cluster.count("consumers that were sent elsewhere")

    async def _reach(self) -> Link:
        service_url, self._sent_to = self._sent_to, ""
        if service_url:
            client = self.client
            try:
                return await client.link_at(host_of(service_url))
            except (LinkError, RefusedError, MagnetarError, OSError) as error:
                client.cluster.trace.note(client.name, f"{self.name} was sent in vain: {error}")
        return await super()._reach()


class SteeredRun(ReadOnlyRun):
    """The run of ``seed``."""

    def __init__(self, seed: int, loop: SimLoop, trace: Trace, metrics: Metrics) -> None:
        super().__init__(seed, loop, trace, metrics)
        self._steering_random = random.Random(f"{seed}/steering")
        self._named: list[PulsarClient] = []
        """Clients that have a version: all connections of one name the same."""

    def _plan_quiet_times(self, begin_s: float) -> None:
        super()._plan_quiet_times(begin_s)
        rng = self._steering_random
        self._begin_saying(TO_ANY)
        for _ in range(rng.choice((0, 1, 3))):
            at_s = rng.uniform(begin_s + FAULTS_FROM_S, begin_s + HEAL_S)
            self.loop.call_at(at_s, self._begin_saying, rng.choice(SAYINGS))

    def _begin_saying(self, rules: ReadRules | None) -> None:
        saying = self._say("read_only_brokers", rules)
        self._sayings.append(self.loop.create_task(saying, name="rules of reading"))

    def _consumer(
        self, client: PulsarClient, name: str, plan: ConsumerPlan, rng: random.Random
    ) -> TopicConsumer:
        if client not in self._named:
            self._named.append(client)
            follows = self._steering_random.random() < FOLLOWING_SHARE
            client.version = FOLLOWS if follows else "simulated"
        return SteeredConsumer(client, name, plan, rng)
