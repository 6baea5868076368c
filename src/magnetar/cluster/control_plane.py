"""The control plane's parts, as brokers and admin use them together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from magnetar.cluster.namespaces import Namespaces
from magnetar.cluster.ownership import Bundles, Ownership, SoleBroker
from magnetar.cluster.partitioned_topics import PartitionedTopics
from magnetar.cluster.policies.topic_policies import TopicPolicies
from magnetar.cluster.schemas.policies import SchemaPolicies, SchemaPolicy
from magnetar.cluster.schemas.registry import Schemas, ValueStore
from magnetar.cluster.security.stored_users import StoredUsers
from magnetar.cluster.sharing.shared_topics import SharedTopics
from magnetar.cluster.stored.counters import Counters
from magnetar.cluster.stored.group_settings import GroupSettings
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
    groups: GroupSettings
    ownership: Ownership
    bundles: Bundles
    """The same, as those see it who look after the cluster."""
    users: StoredUsers
    """Whom Kafka's admins have made."""

    @classmethod
    def over(
        cls,
        metadata: MetadataStore,
        values: ValueStore,
        name: str,
        schema_defaults: SchemaPolicy,
        now_ms: Callable[[], int],
        make_ownership: Callable[[Namespaces], SoleBroker | SharedTopics] = SoleBroker,
    ) -> ControlPlane:
        """``values`` keeps what is too large for the metadata. ``close`` ends its watches; the
        stores stay open."""
        namespaces = Namespaces(metadata)
        ownership = make_ownership(namespaces)
        policies = TopicPolicies(metadata, namespaces)
        schema_policies = SchemaPolicies(namespaces, policies, schema_defaults)
        return cls(
            name,
            namespaces,
            PartitionedTopics(metadata, namespaces.confirm),
            Counters(metadata, now_ms),
            Schemas(metadata, values, schema_policies, now_ms),
            policies,
            GroupSettings(metadata),
            ownership,
            ownership,
            StoredUsers(metadata),
        )

    def close(self) -> None:
        self.bundles.close()
        self.namespaces.close()
        self.partitioned.close()
        self.schemas.close()
        self.policies.close()
        self.groups.close()
        self.users.close()
