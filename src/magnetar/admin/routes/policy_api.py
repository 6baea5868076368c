"""Policies of namespaces and topics, and expiry by hand: paths of Pulsar's admin v2.

Each policy has the same three methods at both levels: GET what is said (204: nothing is), POST it
(PUT where Pulsar's clients do), DELETE it. At a topic ``applied=true`` asks for what is in force,
whoever says it. What namespaces say of schemas is in ``schema_api``.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from magnetar.admin import bodies
from magnetar.admin.errors import WITH_BODY
from magnetar.admin.paths import Segment, SubscriptionSegment, TopicSegment, topic_name
from magnetar.admin.policies import PolicyService
from magnetar.admin.topics import TopicService

NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"

SUBSCRIPTION_RATES: Final = (
    TOPIC + "/{subscription}/dispatchRate",
    TOPIC + "/subscription/{subscription}/dispatchRate",
)
"""Pulsar's path, and ours, which can mean nothing else: where a subscription is called as other
parts of paths are, Pulsar's is theirs (``DELETE .../subscription/dispatchRate`` deletes the
subscription ``dispatchRate``, ``.../permissions/dispatchRate`` is of a role)."""

Seconds = Annotated[int, Path(ge=0, le=2**31 - 1)]


class Policy(NamedTuple):
    """``field`` is one of ``cluster.policies.Policies``, ``part`` the path's last. ``set_by``: at a
    topic; ``namespace_by``: at a namespace; ``topic_part``: the path's last at a topic, if it is
    another one there."""

    part: str
    field: str
    what: str
    set_by: str = "POST"
    namespace_by: str = "POST"
    topic_part: str = ""


DEDUPLICATION: Final = Policy(
    "deduplication",
    "deduplication",
    "Whether what a producer sends again is not stored again",
    topic_part="deduplicationEnabled",
)
POLICIES: Final = (
    Policy("retention", "retention", "How much is kept of what every subscription acknowledged"),
    Policy("messageTTL", "message_ttl_s", "After how many seconds messages expire"),
    Policy("persistence", "persistence", "How new ledgers are replicated"),
    Policy(
        "subscriptionExpirationTime",
        "subscription_expiration_minutes",
        "After how many minutes without consumers a subscription is deleted",
    ),
    Policy(
        "compactionThreshold",
        "compaction_threshold_bytes",
        "How many bytes that are not compacted have a topic compacted (0: none do)",
        namespace_by="PUT",
    ),
    Policy("delayedDelivery", "delayed_delivery", "Whether messages may be for later"),
    Policy(
        "autoTopicCreation",
        "topic_creation",
        "Whether topics are made on their first use, and with how many partitions",
    ),
    Policy(
        "autoSubscriptionCreation",
        "subscription_creation",
        "Whether subscriptions are made by their first consumer",
    ),
    DEDUPLICATION,
    Policy(
        "publishRate",
        "publish_rate",
        "How fast each topic takes messages of its producers, who wait for the rest",
    ),
    Policy("dispatchRate", "dispatch_rate", "How fast a topic gives messages to its consumers"),
    Policy(
        "subscriptionDispatchRate",
        "subscription_dispatch_rate",
        "How fast each subscription gets messages",
    ),
    Policy("subscribeRate", "subscribe_rate", "How often a consumer may subscribe to a topic"),
    Policy(
        "maxProducersPerTopic",
        "max_producers",
        "How many producers a topic may have",
        topic_part="maxProducers",
    ),
    Policy(
        "maxConsumersPerTopic",
        "max_consumers",
        "How many consumers a topic may have",
        topic_part="maxConsumers",
    ),
    Policy(
        "maxConsumersPerSubscription",
        "max_consumers_per_subscription",
        "How many consumers a subscription may have",
    ),
    Policy(
        "maxSubscriptionsPerTopic",
        "max_subscriptions",
        "How many subscriptions a topic may have",
    ),
    Policy(
        "maxTopicsPerNamespace",
        "max_topics",
        "How many topics a namespace may have, each partition by itself",
    ),
    Policy(
        "maxUnackedMessagesPerConsumer",
        "max_unacked_per_consumer",
        "How many messages a consumer of a shared subscription may have that it has not "
        "acknowledged",
        topic_part="maxUnackedMessagesOnConsumer",
    ),
    Policy(
        "maxUnackedMessagesPerSubscription",
        "max_unacked_per_subscription",
        "How many messages all consumers of a shared subscription may have that they have not "
        "acknowledged",
        topic_part="maxUnackedMessagesOnSubscription",
    ),
    Policy(
        "readOnlyBrokers",
        "read_only_brokers",
        "Which subscriptions read-only brokers serve, and which of them (ours, not Pulsar's)",
    ),
    Policy(
        "engine",
        "engine",
        "What keeps logs that are made: ledger or partition (ours, not Pulsar's)",
    ),
)
ENFORCED: Final = "schemaValidationEnforced"
"""Pulsar's clients take the answer for a boolean: no word of it is false."""

TOPICS_ONLY: Final = (
    Policy("maxMessageSize", "max_message_bytes", "How many bytes a message (or batch) may have"),
    Policy(
        "schemaCompatibilityStrategy",
        "schema_strategy",
        "How schemas of the topic may follow each other",
        "PUT",
    ),
    Policy(
        ENFORCED,
        "schema_validation_enforced",
        "Whether producers without a schema are refused where there is one",
    ),
)
NAMESPACES_ONLY: Final = (
    "subscriptionExpirationTime",
    "autoTopicCreation",
    "maxTopicsPerNamespace",
)
BY_QUERY: Final = "messageTTL"
"""At a topic Pulsar's clients send this one in the query."""


def routes(policies: PolicyService, topics: TopicService) -> APIRouter:
    """All of it."""
    router = APIRouter(tags=["policies"])
    for policy in POLICIES:
        _add_namespace(router, policies, policy)
        if policy.part not in NAMESPACES_ONLY:
            _add_topic(router, policies, policy)
    for policy in TOPICS_ONLY:
        _add_topic(router, policies, policy)
    for path in SUBSCRIPTION_RATES:
        _add_subscriptions(router, policies, path)
    _add_expiry(router, topics)
    return router


def _answer(value: object) -> Response:
    return Response(status_code=204) if value is None else JSONResponse(value)


def _add_namespace(router: APIRouter, service: PolicyService, policy: Policy) -> None:
    path, field, what = f"{NAMESPACE}/{policy.part}", policy.field, policy.what

    @router.get(path, description=f"{what}, for its topics; 204: it does not say.")
    async def get(tenant: Segment, namespace: Segment) -> Response:
        return _answer(await service.of_namespace(f"{tenant}/{namespace}", field))

    @router.api_route(
        path,
        methods=[policy.namespace_by],
        status_code=204,
        openapi_extra=WITH_BODY,
        description="Set it.",
    )
    async def change(tenant: Segment, namespace: Segment, request: Request) -> Response:
        body = await bodies.read_json(request)
        await service.set_namespace(f"{tenant}/{namespace}", field, body)
        return Response(status_code=204)

    @router.delete(path, status_code=204, description="Leave it to the configuration.")
    async def delete(tenant: Segment, namespace: Segment) -> Response:
        await service.remove_namespace(f"{tenant}/{namespace}", field)
        return Response(status_code=204)


def _add_topic(router: APIRouter, service: PolicyService, policy: Policy) -> None:
    part = policy.topic_part or policy.part
    path, field, what = f"{TOPIC}/{part}", policy.field, policy.what

    @router.get(
        path, description=f"{what}; 204: the topic does not say. `applied=true`: what is in force."
    )
    async def get(
        tenant: Segment, namespace: Segment, topic: TopicSegment, applied: bool = False
    ) -> Response:
        name = topic_name(tenant, namespace, topic)
        value = await service.of_topic(name, field, applied)
        return _answer(False if value is None and policy.part == ENFORCED else value)

    if policy.part == BY_QUERY:
        _add_by_query(router, service, path, field)
    else:
        _add_by_body(router, service, path, policy)

    @router.delete(path, status_code=204, description="Leave it to the namespace.")
    async def delete(tenant: Segment, namespace: Segment, topic: TopicSegment) -> Response:
        await service.remove_topic(topic_name(tenant, namespace, topic), field)
        return Response(status_code=204)


def _add_by_body(router: APIRouter, service: PolicyService, path: str, policy: Policy) -> None:
    @router.api_route(
        path,
        methods=[policy.set_by],
        status_code=204,
        openapi_extra=WITH_BODY,
        description="Set it.",
    )
    async def change(
        tenant: Segment, namespace: Segment, topic: TopicSegment, request: Request
    ) -> Response:
        body = await bodies.read_json(request)
        await service.set_topic(topic_name(tenant, namespace, topic), policy.field, body)
        return Response(status_code=204)


def _add_by_query(router: APIRouter, service: PolicyService, path: str, field: str) -> None:
    @router.post(path, status_code=204, description="Set it: `?messageTTL=` seconds.")
    async def post(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        value: Annotated[int, Query(alias=BY_QUERY)],
    ) -> Response:
        await service.set_topic(topic_name(tenant, namespace, topic), field, value)
        return Response(status_code=204)


def _add_subscriptions(router: APIRouter, service: PolicyService, path: str) -> None:
    """The same at each of ``SUBSCRIPTION_RATES``."""

    @router.get(path)
    async def get(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        subscription: SubscriptionSegment,
        applied: bool = False,
    ) -> Response:
        """How fast that subscription gets messages, there or not; 204: the topic does not say.
        `applied=true`: what is in force."""
        name = topic_name(tenant, namespace, topic)
        return _answer(await service.of_subscription(name, subscription, applied))

    @router.post(path, status_code=204, openapi_extra=WITH_BODY)
    async def change(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        subscription: SubscriptionSegment,
        request: Request,
    ) -> Response:
        """Set it, before what `subscriptionDispatchRate` says of each."""
        body = await bodies.read_json(request)
        name = topic_name(tenant, namespace, topic)
        await service.set_subscription(name, subscription, body)
        return Response(status_code=204)

    @router.delete(path, status_code=204)
    async def delete(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        subscription: SubscriptionSegment,
    ) -> Response:
        """Leave it to what is said of each."""
        await service.remove_subscription(topic_name(tenant, namespace, topic), subscription)
        return Response(status_code=204)


def _add_expiry(router: APIRouter, service: TopicService) -> None:
    @router.post(TOPIC + "/subscription/{subscription}/expireMessages/{seconds}", status_code=204)
    async def expire(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        subscription: SubscriptionSegment,
        seconds: Seconds,
    ) -> Response:
        """What is that many seconds old or older counts as acknowledged for the subscription; of a
        partitioned topic, in every partition."""
        name = topic_name(tenant, namespace, topic)
        await service.expire_messages(name, subscription, seconds)
        return Response(status_code=204)

    @router.post(TOPIC + "/all_subscription/expireMessages/{seconds}", status_code=204)
    async def expire_all(
        tenant: Segment, namespace: Segment, topic: TopicSegment, seconds: Seconds
    ) -> Response:
        """The same for every durable subscription of the topic."""
        await service.expire_messages(topic_name(tenant, namespace, topic), None, seconds)
        return Response(status_code=204)
