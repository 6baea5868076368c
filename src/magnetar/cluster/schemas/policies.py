"""What namespaces say of the schemas of their topics.

It stands in the namespace's node, under Pulsar's names; what a namespace does not say is as the
broker is configured:

| field | value |
|---|---|
| ``schema_compatibility_strategy`` | the name of a ``SchemaStrategy`` |
| ``schema_validation_enforced`` | true: a producer without a schema is refused where there is one |
| ``is_allow_auto_update_schema`` | false: new schemas come from operators alone |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.cluster.namespaces import Namespaces
from magnetar.model.errors import BrokerMetadataError
from magnetar.model.schema import SchemaStrategy

STRATEGY: Final = "schema_compatibility_strategy"
VALIDATION: Final = "schema_validation_enforced"
AUTO_UPDATE: Final = "is_allow_auto_update_schema"


@dataclass(frozen=True, slots=True)
class SchemaPolicy:
    """What holds for the topics of a namespace."""

    strategy: SchemaStrategy = SchemaStrategy.FULL
    validation_enforced: bool = False
    auto_update: bool = True


class SchemaPolicies:
    """``defaults`` are the broker's."""

    def __init__(self, namespaces: Namespaces, defaults: SchemaPolicy) -> None:
        self._namespaces = namespaces
        self._defaults = defaults

    async def effective(self, namespace: str) -> SchemaPolicy:
        """Raises ``TopicNotFoundError`` for an unknown namespace."""
        said = await self._namespaces.policies(namespace)
        strategy = _strategy(namespace, said.get(STRATEGY))
        auto_update = said.get(AUTO_UPDATE)
        return SchemaPolicy(
            strategy or self._defaults.strategy,
            self._defaults.validation_enforced or bool(said.get(VALIDATION)),
            self._defaults.auto_update if auto_update is None else bool(auto_update),
        )

    async def strategy(self, namespace: str) -> SchemaStrategy | None:
        """What the namespace itself says; None if it leaves it to the broker."""
        said = await self._namespaces.policies(namespace)
        return _strategy(namespace, said.get(STRATEGY))

    async def set_strategy(self, namespace: str, strategy: SchemaStrategy | None) -> None:
        """Raises ``TopicNotFoundError``, as all of these do."""
        value = None if strategy is None else str(strategy)
        await self._namespaces.change_policies(namespace, {STRATEGY: value})

    async def set_validation_enforced(self, namespace: str, enforced: bool) -> None:
        await self._namespaces.change_policies(namespace, {VALIDATION: enforced})

    async def set_auto_update(self, namespace: str, allowed: bool) -> None:
        await self._namespaces.change_policies(namespace, {AUTO_UPDATE: allowed})


def _strategy(namespace: str, value: object) -> SchemaStrategy | None:
    if value is None:
        return None
    try:
        return SchemaStrategy(str(value))
    except ValueError:
        raise BrokerMetadataError(
            f"namespace {namespace}: {STRATEGY} is {value!r}; known are {', '.join(SchemaStrategy)}"
        ) from None
