"""The control plane's parts, as brokers and admin use them together."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.cluster.counters import Counters
from magnetar.cluster.namespaces import Namespaces
from magnetar.cluster.ownership import Ownership, SoleBroker
from magnetar.cluster.partitioned_topics import PartitionedTopics
from magnetar.env.metadata import MetadataStore


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """What a cluster's metadata says of names, and who serves what."""

    name: str
    """Of the cluster."""
    namespaces: Namespaces
    partitioned: PartitionedTopics
    counters: Counters
    ownership: Ownership

    @classmethod
    def over(cls, metadata: MetadataStore, name: str) -> ControlPlane:
        """Of a cluster with one broker. ``close`` ends its watches; the store stays open."""
        return cls(
            name,
            Namespaces(metadata),
            PartitionedTopics(metadata),
            Counters(metadata),
            SoleBroker(),
        )

    def close(self) -> None:
        self.namespaces.close()
        self.partitioned.close()
