"""What a role must be permitted for a request of REST, by its method and path. Pure.

Every path has an answer: what is not in the table is for super-users, so that a path that is added
is closed until it is opened here. Segments are decoded as routes decode them (``paths``).

| what | who |
|---|---|
| the page, the API's description | everybody |
| ``/metrics``, ``/health`` | every role, or everybody (``security.open_metrics``, ``_health``) |
| names of clusters | every role |
| lookups, lists, stats, schemas: what reads of topics | who may produce or consume there |
| subscriptions, single messages | who may consume |
| uploading schemas | who may produce |
| everything else of a namespace or a topic; a tenant's list of namespaces | the tenant's admins |
| ``public/kafka-groups``, which keeps what is of all tenants | super-users |
| tenants, brokers, ledgers, bookies, and all else | super-users |
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import unquote, unquote_plus

from magnetar.cluster.security.permissions import Action
from magnetar.cluster.topic_name import (
    KAFKA_GROUPS,
    TopicName,
    parse_namespace,
    parse_tenant,
    parse_topic,
)


class NeededLevel(Enum):
    """What is no matter of a topic or namespace."""

    EVERYBODY = auto()
    EVERY_ROLE = auto()
    METRICS = auto()
    HEALTH = auto()
    SUPER_USER = auto()


class OfTenant(NamedTuple):
    """The tenant's admins."""

    tenant: str


class OfTopics(NamedTuple):
    """``of``: a topic, or ``tenant/namespace``."""

    action: Action
    of: TopicName | str


Need: TypeAlias = NeededLevel | OfTenant | OfTopics

FIXED: Final = {
    "/": NeededLevel.EVERYBODY,
    "/docs": NeededLevel.EVERYBODY,
    "/openapi.json": NeededLevel.EVERYBODY,
    "/metrics": NeededLevel.METRICS,
    "/health": NeededLevel.HEALTH,
    "/heartbeat": NeededLevel.HEALTH,
    "/admin/v2/brokers/health": NeededLevel.HEALTH,
}
CONSUMERS: Final = ("subscription", "all_subscription", "ledger", "backlogSize")
"""Parts of a topic that who consumes may read and change: subscriptions, and what messages say."""
READ: Final = (
    "compaction", "internalStats", "lastMessageId", "messageid", "partitioned-stats", "partitions",
    "stats", "subscriptions",
)  # fmt: skip
"""Parts of a topic that who produces or consumes may read."""
RATE: Final = "dispatchRate"
"""Of a topic; behind the name of a subscription, of that
(``routes.policy_api.SUBSCRIPTION_RATES``)."""
QUESTIONS: Final = ("compatibility", "version")
"""Of schemas, asked by POST."""


def need(method: str, path: str) -> Need:
    """``path`` is encoded. Raises ``ValueError`` for a segment that is not UTF-8,
    ``InvalidTopicNameError`` and ``NotAllowedError`` for names that are none."""
    fixed = FIXED.get(path)
    if fixed is not None:
        return fixed
    reads = method in ("GET", "HEAD")
    match path.split("/")[1:]:
        case ["admin", "v2", "clusters", *_] if reads:
            return NeededLevel.EVERY_ROLE
        case ["admin", "v2", "tenants", tenant] if reads:
            return OfTenant(_tenant(tenant))
        case ["admin", "v2", "namespaces", *rest]:
            return _of_namespace(reads, rest)
        case ["admin", "v2", "persistent" | "non-persistent", tenant, namespace] | [
            "admin", "v2", "persistent" | "non-persistent", tenant, namespace, "partitioned",
        ] if reads:  # fmt: skip
            return OfTopics(Action.LOOKUP, _namespace(tenant, namespace))
        case ["admin", "v2", "persistent", tenant, namespace, topic, *rest]:
            return _of_topic(method, _topic(tenant, namespace, topic), rest)
        case ["admin", "v2", "schemas", tenant, namespace, topic, *rest]:
            return _of_schema(method, _topic(tenant, namespace, topic), rest)
        case ["lookup", "v2", "topic", "persistent", tenant, namespace, topic] if reads:
            return OfTopics(Action.LOOKUP, _topic(tenant, namespace, topic))
        case ["magnetar", "v1", "namespaces", tenant, *_] if reads:
            return OfTenant(_tenant(tenant))
    return NeededLevel.SUPER_USER


def _of_namespace(reads: bool, rest: Sequence[str]) -> Need:
    match rest:
        case [tenant, namespace, "topics"] if reads:
            return OfTopics(Action.LOOKUP, _namespace(tenant, namespace))
        case [tenant] if reads:
            return OfTenant(_tenant(tenant))
        case [tenant, namespace, *_] if _namespace(tenant, namespace) != KAFKA_GROUPS:
            return OfTenant(_tenant(tenant))
    return NeededLevel.SUPER_USER


def _of_topic(method: str, name: TopicName, rest: Sequence[str]) -> Need:
    part, reads = rest[0] if rest else "", method in ("GET", "HEAD")
    if rest[1:] == [RATE] and (reads or method == "POST" or part != "subscription"):
        return OfTopics(Action.ADMIN, name)  # a policy, whatever the subscription is called
    if part == "subscription" and rest[2:] == [RATE]:
        return OfTopics(Action.ADMIN, name)
    if part in CONSUMERS:
        return OfTopics(Action.CONSUME, name)
    if reads and part in READ:
        return OfTopics(Action.LOOKUP, name)
    return OfTopics(Action.ADMIN, name)


def _of_schema(method: str, name: TopicName, rest: Sequence[str]) -> Need:
    part = rest[0] if rest else ""
    if method in ("GET", "HEAD") or (method == "POST" and part in QUESTIONS):
        return OfTopics(Action.LOOKUP, name)
    return OfTopics(Action.PRODUCE if method == "POST" else Action.ADMIN, name)


def _tenant(segment: str) -> str:
    return parse_tenant(unquote(segment, errors="strict"))


def _namespace(tenant: str, namespace: str) -> str:
    return parse_namespace(
        f"{unquote(tenant, errors='strict')}/{unquote(namespace, errors='strict')}"
    )


def _topic(tenant: str, namespace: str, topic: str) -> TopicName:
    local = unquote_plus(topic, errors="strict")
    return parse_topic(f"persistent://{_namespace(tenant, namespace)}/{local}")
