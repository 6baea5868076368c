"""Which policies topics on partitions cannot have, so that they are refused where they are set, and
not met by producers later, or never.

Rules:

* What only ledgers can serve is not set for a topic on partitions, nor for a namespace whose topics
  are made there. A namespace's deduplication would have producers of its topics refused that are on
  partitions already: it is refused while there is one that does not say false itself.
* Nor is the engine chosen for what says, or would have, what it cannot serve.
* What is in force otherwise for a topic on partitions (compaction, read-only brokers of its
  namespace's) counts for the topics of the namespace that are on ledgers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.policies.policies import Policies
from magnetar.cluster.topic_name import TopicName
from magnetar.log.policy import Engine
from magnetar.model.errors import InvalidPolicyError, NoSuchLogError
from magnetar.topics.policy import TopicPolicy
from magnetar.topics.registry import Topics

READS_AT_A_TIME: Final = 64


class _OnLedgers(NamedTuple):
    """``asks``: a value of it asks for anything. ``what``: as people call it."""

    asks: Callable[[Any], bool]
    what: str


ON_LEDGERS: Final[Mapping[str, _OnLedgers]] = {
    "deduplication": _OnLedgers(bool, "deduplication"),
    "compaction_threshold_bytes": _OnLedgers(bool, "compaction by a threshold"),
    "read_only_brokers": _OnLedgers(lambda value: bool(value.rules), "reading at other brokers"),
    "backlog_quotas": _OnLedgers(lambda value: value.limited, "a backlog quota"),
}
"""By the field of ``Policies``."""


class EngineRules:
    """All raise ``InvalidPolicyError``, and as asking for policies does."""

    def __init__(self, control: ControlPlane, topics: Topics) -> None:
        self._policies = control.policies
        self._topics = topics

    async def check_topic(self, name: TopicName, field: str, value: object) -> None:
        """Before the topic says that."""
        if field == "engine" and value == Engine.PARTITION.value:
            said = await self._policies.of_topic(name)
            self._check_engine(str(name), said, await self._topics.policies.of(name))
        limited = ON_LEDGERS.get(field)
        if limited is not None and limited.asks(value) and await self._on_partitions(name):
            raise InvalidPolicyError(
                f"topic {name} is on partitions, and {limited.what} is served on ledgers only"
            )

    async def check_namespace(self, namespace: str, field: str, value: object) -> None:
        """Before the namespace says that."""
        policy = await self._topics.policies.of_namespace(namespace)
        if field == "engine" and value == Engine.PARTITION.value:
            said = await self._policies.of_namespace(namespace)
            self._check_engine(f"namespace {namespace}", said, policy)
        limited = ON_LEDGERS.get(field)
        if limited is None or not limited.asks(value):
            return
        if policy.log.engine is Engine.PARTITION:
            raise InvalidPolicyError(
                f"topics of namespace {namespace} are made on partitions, and {limited.what} is "
                "served on ledgers only; say it for single topics, or choose the engine ledger"
            )
        if field == "deduplication":
            await self._check_topics(namespace)

    def _check_engine(self, whose: str, said: Policies, policy: TopicPolicy) -> None:
        for field, limited in ON_LEDGERS.items():
            value = getattr(said, field)
            if value is not None and limited.asks(value):
                raise InvalidPolicyError(
                    f"{whose} asks for {limited.what}, which the engine partition does not serve; "
                    "remove that first, or choose the engine ledger"
                )
        if policy.deduplicates:
            raise InvalidPolicyError(
                f"deduplication is in force for {whose}, which the engine partition does not "
                "serve: producers would be refused; say false for it first, or choose the engine "
                "ledger"
            )

    async def _check_topics(self, namespace: str) -> None:
        names = await self._topics.names(namespace)
        for start in range(0, len(names), READS_AT_A_TIME):
            await asyncio.gather(*map(self._check_one, names[start : start + READS_AT_A_TIME]))

    async def _check_one(self, name: TopicName) -> None:
        said = await self._policies.of_topic(name)
        if said.deduplication is None and await self._on_partitions(name):
            raise InvalidPolicyError(
                f"topic {name} is on partitions, where deduplication is not served: its producers "
                "would be refused; say false for it first"
            )

    async def _on_partitions(self, name: TopicName) -> bool:
        """Where it is; if it has no log yet, where that is made."""
        for log_name in name.first_logs:
            try:
                return not await self._topics.on_ledgers(log_name)
            except NoSuchLogError:
                continue
        return (await self._topics.policies.of(name)).log.engine is Engine.PARTITION
