"""What holds for the schemas of a topic: what is said of it, or else of its namespace, or else what
the broker's configuration says.

It stands in their nodes, under Pulsar's names (``cluster.policies``); of a namespace alone is said
``is_allow_auto_update_schema``, false: new schemas come from operators alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.cluster.namespaces import Namespaces
from magnetar.cluster.policies.topic_policies import TopicPolicies
from magnetar.cluster.topic_name import TopicName
from magnetar.model.schema import SchemaStrategy

AUTO_UPDATE: Final = "is_allow_auto_update_schema"


@dataclass(frozen=True, slots=True)
class SchemaPolicy:
    """What holds for a topic."""

    strategy: SchemaStrategy = SchemaStrategy.FULL
    validation_enforced: bool = False
    auto_update: bool = True


class SchemaPolicies:
    """``defaults`` are the broker's. Raises ``TopicNotFoundError`` for an unknown namespace, in
    each method."""

    def __init__(
        self, namespaces: Namespaces, topics: TopicPolicies, defaults: SchemaPolicy
    ) -> None:
        self._namespaces = namespaces
        self._topics = topics
        self._defaults = defaults

    async def effective(self, name: TopicName) -> SchemaPolicy:
        said = await self._topics.effective(name)
        return SchemaPolicy(
            said.schema_strategy or self._defaults.strategy,
            self._validation(said.schema_validation_enforced),
            await self.auto_update(name.namespace),
        )

    def _validation(self, said: bool | None) -> bool:
        return self._defaults.validation_enforced or bool(said)

    # -- namespaces ---------------------------------------------------------------------------

    async def auto_update(self, namespace: str) -> bool:
        said = (await self._namespaces.policies(namespace)).get(AUTO_UPDATE)
        return self._defaults.auto_update if said is None else bool(said)

    async def strategy(self, namespace: str) -> SchemaStrategy | None:
        """What the namespace itself says; None if it leaves it to the broker."""
        return (await self._topics.of_namespace(namespace)).schema_strategy

    async def validation_enforced(self, namespace: str) -> bool:
        """Of topics that do not say it themselves."""
        said = await self._topics.of_namespace(namespace)
        return self._validation(said.schema_validation_enforced)

    async def set_strategy(self, namespace: str, strategy: SchemaStrategy | None) -> None:
        await self._topics.set_namespace(namespace, "schema_strategy", strategy)

    async def set_validation_enforced(self, namespace: str, enforced: bool) -> None:
        await self._topics.set_namespace(namespace, "schema_validation_enforced", enforced)

    async def set_auto_update(self, namespace: str, allowed: bool) -> None:
        await self._namespaces.change_policies(namespace, {AUTO_UPDATE: allowed})
