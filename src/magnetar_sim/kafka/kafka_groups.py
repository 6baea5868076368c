"""Groups whose coordinator assigns, and share groups, of a run with Kafka's clients: which there
are, who is in them, and what they have to have done in the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from magnetar.config import KafkaConfig
from magnetar.protocols.kafka.consumers.assignors import ASSIGNORS
from magnetar.protocols.kafka.handlers.group_configs import GROUP as GROUP_RESOURCE
from magnetar.protocols.kafka.shares.share_settings import COMMITTED, EARLIEST, ISOLATION, RESET
from magnetar.wire.kafka.admin_messages import (
    ChangeResource,
    ConfigChange,
    IncrementalAlterConfigsRequest,
)
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.errors import ErrorCode
from magnetar_sim.kafka.assigned_membership import AssignedMembership, AssignedPlan
from magnetar_sim.kafka.group_consumer import ConsumerPlan, GroupConsumer
from magnetar_sim.kafka.group_history import GroupHistory
from magnetar_sim.kafka.held_places import HeldPlaces
from magnetar_sim.kafka.kafka_client import REQUEST_S, KafkaClient, Place
from magnetar_sim.kafka.kafka_history import KafkaHistory, Written
from magnetar_sim.kafka.kafka_reader import ReaderPlan
from magnetar_sim.kafka.share_consumer import ShareConsumer, SharePlan
from magnetar_sim.kafka.share_history import ShareHistory

ALTER_VERSION: Final = 1
STATIC_SHARE: Final = 0.3
"""Of the groups whose coordinator assigns: their members are static."""
DELIVERIES_ENOUGH: Final = 100
"""A record comes to its end before it was delivered so often."""

Got = Mapping[Place, Sequence[tuple[Written, int]]]


@dataclass
class AssignedGroup:
    """``committed``: it reads nothing else."""

    history: GroupHistory
    places: list[Place]
    committed: bool
    consumers: list[GroupConsumer]


@dataclass
class ShareGroup:
    history: ShareHistory
    topics: tuple[str, ...]
    consumers: list[ShareConsumer]


class KafkaGroups:
    """``topics``: how many partitions each has. ``broken``, ``count``: as of histories."""

    def __init__(
        self,
        seed: int,
        topics: Mapping[str, int],
        history: KafkaHistory,
        broken: Callable[[str], None],
        count: Callable[[str], None],
    ) -> None:
        self.random = random.Random(f"{seed}/kafka groups")
        self._topics = topics
        self._history = history
        self._broken = broken
        self._count = count
        self.assigned = [f"a{number + 1}" for number in range(self.random.choice((0, 0, 1, 2)))]
        self._session_ms = self.random.choice((1000, 2000))
        deliveries_max = self.random.choice((3, DELIVERIES_ENOUGH, DELIVERIES_ENOUGH))
        self.shares = [
            self._plan_share(f"s{number + 1}", deliveries_max)
            for number in range(self.random.choice((0, 0, 1, 2)))
        ]
        self._config: dict[str, Any] = {
            "consumer_session_timeout_ms": self._session_ms,
            "consumer_heartbeat_interval_ms": self.random.choice((100, 300)),
            "share_record_lock_ms": self.random.choice((1000, 3000)),
            "share_partition_locks_max": self.random.choice((100, 2000)),
            "share_delivery_count_max": deliveries_max,
        }

    def _plan_share(self, name: str, deliveries_max: int) -> ShareGroup:
        committed = self.random.random() < 0.5
        history = ShareHistory(name, committed, deliveries_max, self._broken, self._count)
        return ShareGroup(history, self._some_topics(), [])

    def _some_topics(self) -> tuple[str, ...]:
        names = list(self._topics)
        return tuple(self.random.sample(names, self.random.randint(1, len(names))))

    def config(self, config: KafkaConfig) -> KafkaConfig:
        """What brokers are told."""
        return replace(config, **self._config)

    async def configure(self, client: KafkaClient) -> None:
        """As an operator does, before anybody joins."""
        for share in self.shares:
            changes = [ConfigChange(RESET, 0, EARLIEST)]
            if share.history.committed:
                changes.append(ConfigChange(ISOLATION, 0, COMMITTED))
            resource = ChangeResource(GROUP_RESOURCE, share.history.name, changes)
            request = IncrementalAlterConfigsRequest([resource])
            while True:
                link = await client.any_broker()
                answer = await link.ask(
                    ApiKey.INCREMENTAL_ALTER_CONFIGS, ALTER_VERSION, request, REQUEST_S
                )
                (said,) = answer.responses
                if said.error_code == ErrorCode.NONE:
                    break
                client.note(f"settings of {share.history.name}: {said}")
                await client.pause()

    # -- who is there -------------------------------------------------------------------------

    def consume(
        self,
        name: str,
        new_client: Callable[[str], KafkaClient],
        new_plan: Callable[[bool], ReaderPlan],
    ) -> AssignedGroup:
        """Its members run."""
        rng = self.random
        topics, committed = self._some_topics(), rng.random() < 0.5
        group = GroupHistory(name, self._broken, self._count)
        held = HeldPlaces(name, self._session_ms, self._broken)
        plan = AssignedPlan(
            topics,
            "|".join(topics) if rng.random() < 0.3 else None,
            rng.choice((800, 2000)),
            rng.choice((None, *ASSIGNORS)),
            static=rng.random() < STATIC_SHARE,
            restless=rng.choice((0.0, 0.0, 0.05)),
        )
        found = []
        for number in range(rng.choice((1, 2, 3, 4))):
            client = new_client(f"{name}.{number + 1}")
            member = AssignedMembership(client, self._history, group, held, client.name, plan)
            consumer_plan = ConsumerPlan(
                new_plan(committed),
                commits=rng.choice((0.1, 0.5, 1.0)),
                leaves=rng.choice((0.0, 0.03) if plan.static else (0.0, 0.0, 0.03)),
                think_s=rng.choice((0.0, 0.02, 0.2)),
            )
            made = GroupConsumer(client, self._history, group, member, client.name, consumer_plan)
            client.host.process.spawn(made.run(), made.name)
            found.append(made)
        return AssignedGroup(group, self._places(topics), committed, found)

    def share(self, share: ShareGroup, new_client: Callable[[str], KafkaClient]) -> None:
        """Its members, which run."""
        rng = self.random
        for number in range(rng.choice((1, 2, 3))):
            client = new_client(f"{share.history.name}.{number + 1}")
            plan = SharePlan(
                share.topics,
                records_max=rng.choice((1, 20, 500)),
                bytes_max=rng.choice((1, 2000, 1 << 20)),
                batch_size=rng.choice((1, 10, 500)),
                wait_ms=rng.choice((50, 200)),
                think_s=rng.choice((0.0, 0.02, 0.2)),
                releases=rng.choice((0.0, 0.1)),
                rejects=rng.choice((0.0, 0.05)),
                silent=rng.choice((0.0, 0.03)),
                apart=rng.choice((0.0, 0.5)),
                leaves=rng.choice((0.0, 0.0, 0.02)),
            )
            made = ShareConsumer(client, self._history, share.history, client.name, plan)
            share.consumers.append(made)
            client.host.process.spawn(made.run(), made.name)

    def _places(self, topics: Sequence[str]) -> list[Place]:
        return [(name, index) for name in topics for index in range(self._topics[name])]

    # -- the end ------------------------------------------------------------------------------

    @property
    def sharers(self) -> list[ShareConsumer]:
        return [each for share in self.shares for each in share.consumers]

    def undone(self, committed: Got, whole: Got) -> str | None:
        """What share groups have not done yet, of which a member lives."""
        for share in self.shares:
            history = share.history
            alive = any(not each.settled for each in share.consumers)
            if not alive or history.deliveries_max < DELIVERIES_ENOUGH:
                continue
            got = committed if history.committed else whole
            for place in self._places(share.topics):
                missing = history.undone(place, [offset for _, offset in got[place]])
                if missing is not None:
                    return f"{history.name} has not done {missing} of {place}"
        return None
