"""Pulsar's paths that are not served here, so that each is answered as what it is (501) and not
taken for something else. ``*`` stands for one segment, ``**`` for the rest, of any length.

Pure. docs/rest.md has the same as a table, which a test holds to this one.

Why: docs/adr/0076-rest-paths.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple


class NotServed(NamedTuple):
    """``methods`` of a path; an empty text means all."""

    path: str
    what: str
    methods: str = ""


CLUSTER: Final = "/admin/v2/clusters/*"
NAMESPACE: Final = "/admin/v2/namespaces/*/*"
TOPIC: Final = "/admin/v2/persistent/*/*/*"

WHOLE: Final = (
    NotServed(CLUSTER, "changing clusters", "POST DELETE"),
    NotServed(f"{CLUSTER}/**", "policies of clusters"),
    NotServed(NAMESPACE, "policies of namespaces", "POST"),
    NotServed(f"{NAMESPACE}/0x*", "deleting bundles", "DELETE"),
    NotServed(f"{NAMESPACE}/0x*/clearBacklog/**", "clearBacklog of bundles"),
    NotServed(f"{NAMESPACE}/0x*/topicHashPositions", "topicHashPositions of bundles"),
    NotServed(f"{NAMESPACE}/0x*/unsubscribe/**", "unsubscribe of bundles"),
    NotServed(f"{NAMESPACE}/persistence/bookieAffinity", "bookieAffinity of namespaces"),
    NotServed("/admin/v2/namespaces/*/antiAffinity/*", "antiAffinity of namespaces"),
    NotServed(f"{NAMESPACE}/permissions/subscription", "permissions of subscriptions", "GET"),
    NotServed(f"{NAMESPACE}/permissions/*/*", "permissions of subscriptions"),
    NotServed("/admin/v2/namespaces/grantPermissionsOnTopics", "permissions"),
    NotServed("/admin/v2/namespaces/revokePermissionsOnTopics", "permissions"),
    NotServed(f"{TOPIC}/subscription/*", "changing subscriptions over HTTP", "POST"),
    NotServed(
        f"{TOPIC}/subscription/*/**",
        "expiring up to a message id, analysing backlogs, properties, and replicated subscriptions",
    ),
    NotServed("/admin/v2/brokers/configuration/**", "configuring brokers over HTTP"),
    NotServed("/admin/v2/brokers/internal-configuration", "how brokers are configured"),
    NotServed("/admin/v2/brokers/leaderBroker", "leaders: brokers have none"),
    NotServed("/admin/v2/brokers/shutdown", "stopping brokers over HTTP"),
    NotServed("/admin/v2/broker-stats/**", "broker statistics; /metrics has them"),
    NotServed("/admin/v2/schemas/*/*/*/metadata", "where schemas lie"),
    NotServed("/admin/v2/resource-quotas/**", "resource quotas"),
    NotServed("/admin/v2/resourcegroups/**", "resource groups"),
    NotServed("/admin/v2/bookies/**", "bookies by Pulsar's paths; /magnetar/v1/bookies has them"),
    NotServed("/admin/v2/functions/**", "functions"),
    NotServed("/admin/v2/sinks/**", "functions"),
    NotServed("/admin/v2/sources/**", "functions"),
    NotServed("/admin/v2/packages/**", "packages"),
    NotServed("/admin/v2/worker/**", "functions"),
    NotServed("/admin/v2/worker-stats/**", "functions"),
    NotServed("/admin/v2/non-persistent/**", "non-persistent topics"),
    NotServed("/admin/v3/**", "functions, sources, sinks, packages and transactions"),
    NotServed("/admin/v4/**", "scalable topics"),
    NotServed("/admin/persistent/**", "Pulsar's admin v1"),
    NotServed("/admin/non-persistent/**", "Pulsar's admin v1"),
    NotServed("/admin/namespaces/**", "Pulsar's admin v1"),
    NotServed("/admin/properties/**", "Pulsar's admin v1"),
    NotServed("/admin/clusters/**", "Pulsar's admin v1"),
    NotServed("/lookup/v2/topic/non-persistent/**", "non-persistent topics"),
    NotServed("/lookup/v2/topic/persistent/*/*/*/bundle", "bundles of topics"),
    NotServed("/lookup/v2/destination/**", "Pulsar's lookup v1"),
    NotServed("/proxy-stats/**", "proxies; clients reach brokers without one"),
    NotServed("/topics/**", "producing over HTTP"),
    NotServed("/ws/**", "WebSockets"),
)

NAMESPACE_PARTS: Final = (
    "allowedClusters", "antiAffinity", "bookieAffinity",
    "clearBacklog", "configversion", "deduplicationSnapshotInterval",
    "dispatcherPauseOnAckStatePersistent", "encryptionRequired",
    "entryFilters", "inactiveTopicPolicies", "migration", "offloadDeletionLagMs",
    "offloadPolicies", "offloadThreshold", "offloadThresholdInSeconds",
    "properties", "property", "removeOffloadPolicies",
    "replicatorDispatchRate", "resourcegroup", "scanOffloadedLedgers",
    "schemaAutoUpdateCompatibilityStrategy", "split", "subscriptionAuthMode",
    "subscriptionPermission", "subscriptionTypesEnabled", "topicHashPositions", "unsubscribe",
)  # fmt: skip
"""What Pulsar has below a namespace."""

TOPIC_PARTS: Final = (
    "all_subscription", "analyzeBacklog", "backlog", "createMissedPartitions",
    "deduplicationSnapshotInterval",
    "dispatcherPauseOnAckStatePersistent", "entryFilters", "examinemessage",
    "expireMessages", "inactiveTopicPolicies", "internal-info",
    "offload", "offloadPolicies", "partitioned-internalStats",
    "policies", "properties", "replication",
    "replicatorDispatchRate", "resourceGroup",
    "shadowTopics", "subscriptionTypesEnabled", "trim", "truncate",
)  # fmt: skip
"""What Pulsar has below a topic."""


def _every() -> Iterator[NotServed]:
    yield from WHOLE
    for part in NAMESPACE_PARTS:
        yield NotServed(f"{NAMESPACE}/{part}/**", f"{part} of namespaces")
    for part in TOPIC_PARTS:
        yield NotServed(f"{TOPIC}/{part}/**", f"{part} of topics")


EVERY: Final = tuple((tuple(each.path[1:].split("/")), each) for each in _every())


def not_served(method: str, path: str) -> str | None:
    """What a request asks for that Pulsar serves and this platform does not; None if it is none
    of those. ``path`` is encoded."""
    segments = path.strip("/").split("/")
    for pattern, each in EVERY:
        if _fits(pattern, segments) and (not each.methods or method in each.methods.split()):
            return each.what
    return None


def _fits(pattern: tuple[str, ...], segments: list[str]) -> bool:
    for index, wanted in enumerate(pattern):
        if wanted == "**":
            return True
        if index >= len(segments):
            return False
        found = segments[index]
        if wanted.endswith("*"):
            if not found.startswith(wanted[:-1]):
                return False
        elif found != wanted:
            return False
    return len(pattern) == len(segments)
