"""The control plane's parts, as brokers and admin use them together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from magnetar.cluster.counters import Counters
from magnetar.cluster.namespaces import Namespaces
from magnetar.cluster.ownership import Ownership, SoleBroker
from magnetar.cluster.partitioned_topics import PartitionedTopics
from magnetar.cluster.schemas.policies import SchemaPolicies, SchemaPolicy
from magnetar.cluster.schemas.registry import Schemas, ValueStore
from magnetar.cluster.topic_policies import TopicPolicies
from magnetar.env.metadata import MetadataStore


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """What a cluster's metadata says of names, and who serves what."""

    name: str
    """Of the cluster."""
    namespaces: Namespaces
    partitioned: PartitionedTopics
    counters: Counters
    schemas: Schemas
    policies: TopicPolicies
    ownership: Ownership

    @classmethod
    def over(
        cls,
        metadata: MetadataStore,
        values: ValueStore,
        name: str,
        schema_defaults: SchemaPolicy,
        now_ms: Callable[[], int],
    ) -> ControlPlane:
        """Of a cluster with one broker. ``values`` keeps what is too large for the metadata.
        ``close`` ends its watches; the stores stay open."""
        namespaces = Namespaces(metadata)
        policies = SchemaPolicies(namespaces, schema_defaults)
        return cls(
            name,
            namespaces,
            PartitionedTopics(metadata),
            Counters(metadata),
            Schemas(metadata, values, policies, now_ms),
            TopicPolicies(metadata, namespaces),
            SoleBroker(),
        )

    def close(self) -> None:
        self.namespaces.close()
        self.partitioned.close()
        self.schemas.close()
        self.policies.close()
