"""Topics and lookup: the paths of Pulsar's admin v2 for one topic."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from magnetar.admin import bodies
from magnetar.admin.elsewhere import note_authoritative
from magnetar.admin.errors import CONFLICT, WITH_BODY, reason
from magnetar.admin.paths import Segment, SubscriptionSegment, TopicSegment, topic_name
from magnetar.admin.stats_views import (
    InternalStatsView,
    PartitionedStatsView,
    SubscriptionView,
    TopicStatsView,
)
from magnetar.admin.topic_stats import ASK_AGE, left_out
from magnetar.admin.topics import SUBSCRIPTION_EXISTS, TopicService
from magnetar.admin.views import LookupView, PartitionsView
from magnetar.env.health import Health
from magnetar.model.ids import LATEST
from magnetar.topics.positions import PublishTime

ExcludePublishers: TypeAlias = Annotated[bool, Query(alias="excludePublishers")]
ExcludeConsumers: TypeAlias = Annotated[bool, Query(alias="excludeConsumers")]
WithAge: TypeAlias = Annotated[bool, Query(alias=ASK_AGE)]
TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"


def routes(service: TopicService, health: Health) -> APIRouter:
    """All of it. ``health``: of the process, to say what keeps messages from being stored."""
    router = APIRouter(tags=["topics"], dependencies=[Depends(note_authoritative)])
    _add_lookup(router, service)
    _add_stats(router, service, health)
    _add_subscriptions(router, service)
    _add_moves(router, service)
    _add_partitions(router, service)
    _add_changes(router, service)
    return router


def _add_lookup(router: APIRouter, service: TopicService) -> None:
    @router.get("/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}")
    async def lookup(tenant: Segment, namespace: Segment, topic: TopicSegment) -> LookupView:
        """Where the topic is served."""
        return await service.lookup(topic_name(tenant, namespace, topic))


def _add_stats(router: APIRouter, service: TopicService, health: Health) -> None:
    @router.get(TOPIC + "/stats")
    async def stats(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        exclude_publishers: ExcludePublishers = False,
        exclude_consumers: ExcludeConsumers = False,
        with_age: WithAge = False,
    ) -> TopicStatsView:
        """Counters and rates, connected producers, subscriptions and their consumers; and what
        keeps messages from being stored."""
        found = await service.stats(topic_name(tenant, namespace, topic), with_age)
        found = left_out(found, exclude_publishers, exclude_consumers)
        problem = await health.problem_of("bookies")
        return found.model_copy(update={"storage_problem": problem}) if problem else found

    @router.get("/magnetar/v1/read-only/{tenant}/{namespace}/{topic}/subscriptions")
    async def followed_stats(
        tenant: Segment, namespace: Segment, topic: TopicSegment
    ) -> dict[str, SubscriptionView]:
        """At a read-only broker: the subscriptions of the topic that it serves, with their
        consumers. The topic's owner asks, for its own stats."""
        return service.followed_stats(topic_name(tenant, namespace, topic))

    @router.get(TOPIC + "/partitioned-stats")
    async def partitioned_stats(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        per_partition: Annotated[bool, Query(alias="perPartition")] = True,
        exclude_publishers: ExcludePublishers = False,
        exclude_consumers: ExcludeConsumers = False,
        with_age: WithAge = False,
    ) -> PartitionedStatsView:
        """Of all partitions together, and of each."""
        name = topic_name(tenant, namespace, topic)
        found = await service.partitioned_stats(name, per_partition, with_age)
        return left_out(found, exclude_publishers, exclude_consumers)

    @router.get(TOPIC + "/internalStats")
    async def internal_stats(
        tenant: Segment, namespace: Segment, topic: TopicSegment
    ) -> InternalStatsView:
        """The topic's ledgers and cursors."""
        return await service.internal_stats(topic_name(tenant, namespace, topic))


def _add_subscriptions(router: APIRouter, service: TopicService) -> None:
    @router.get(TOPIC + "/subscriptions")
    async def subscriptions(tenant: Segment, namespace: Segment, topic: TopicSegment) -> list[str]:
        """Names of subscriptions; of a partitioned topic, those of all its partitions."""
        return await service.subscriptions(topic_name(tenant, namespace, topic))

    @router.put(
        TOPIC + "/subscription/{subscription}",
        status_code=204,
        responses=CONFLICT,
        openapi_extra=WITH_BODY,
    )
    async def create_subscription(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        subscription: SubscriptionSegment,
        request: Request,
    ) -> Response:
        """Create a subscription; of a partitioned topic, on every partition. 409 if it is there, on
        all of them. The body is Pulsar's message id of earliest or of latest; without one it is
        latest."""
        name = topic_name(tenant, namespace, topic)
        start = bodies.subscription_start(await bodies.read_json(request))
        if not await service.create_subscription(name, subscription, start):
            return reason(409, f"{SUBSCRIPTION_EXISTS}: {subscription} of {name}")
        return Response(status_code=204)

    @router.delete(TOPIC + "/subscription/{subscription}", status_code=204)
    async def delete_subscription(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        subscription: SubscriptionSegment,
        force: bool = False,
    ) -> Response:
        """Delete a subscription; of a partitioned topic, from every partition."""
        name = topic_name(tenant, namespace, topic)
        await service.delete_subscription(name, subscription, force)
        return Response(status_code=204)


def _add_moves(router: APIRouter, service: TopicService) -> None:
    path = TOPIC + "/subscription/{subscription}"

    @router.post(path + "/resetcursor/{time_ms}", status_code=204)
    async def reset_to_time(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        subscription: SubscriptionSegment,
        time_ms: Annotated[int, Path(ge=0, lt=2**63)],
    ) -> Response:
        """Move a subscription to the first message that was published at that time (milliseconds
        since 1970) or later; of a partitioned topic, in every partition. Its consumers are sent
        away, and come back."""
        name = topic_name(tenant, namespace, topic)
        await service.move_subscription(name, subscription, PublishTime(time_ms))
        return Response(status_code=204)

    @router.post(path + "/resetcursor", status_code=204, openapi_extra=WITH_BODY)
    async def reset_to_message(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        subscription: SubscriptionSegment,
        request: Request,
    ) -> Response:
        """The same to a message id, which is the body, or (`excluded`) behind it; of a partitioned
        topic, that of earliest or latest. Of a message within a batch the whole batch comes."""
        to, after = bodies.moved_to(await bodies.read_json(request))
        name = topic_name(tenant, namespace, topic)
        await service.move_subscription(name, subscription, to, after)
        return Response(status_code=204)

    @router.post(path + "/skip/{count}", status_code=204)
    async def skip(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        subscription: SubscriptionSegment,
        count: Annotated[int, Path(ge=0, lt=2**63)],
    ) -> Response:
        """The next so many messages that are not acknowledged count as acknowledged: single
        messages, of a batch too. Of a partitioned topic name a partition."""
        await service.skip(topic_name(tenant, namespace, topic), subscription, count)
        return Response(status_code=204)

    @router.post(path + "/skip_all", status_code=204)
    async def skip_all(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        subscription: SubscriptionSegment,
    ) -> Response:
        """Move a subscription behind all that is there: its backlog is gone."""
        await service.move_subscription(topic_name(tenant, namespace, topic), subscription, LATEST)
        return Response(status_code=204)


def _add_partitions(router: APIRouter, service: TopicService) -> None:
    path = TOPIC + "/partitions"

    @router.get(path)
    async def partitions(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        create: Annotated[bool, Query(alias="checkAllowAutoCreation")] = False,
    ) -> PartitionsView:
        """0 for a topic that is not partitioned; 404 if it is not there, but with
        `checkAllowAutoCreation=true`, as clients ask that are to use it."""
        count = await service.partitions(topic_name(tenant, namespace, topic), create)
        return PartitionsView(partitions=count)

    @router.put(path, status_code=204, responses=CONFLICT, openapi_extra=WITH_BODY)
    async def create_partitioned(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        request: Request,
        engine: str = "",
    ) -> Response:
        """Create a partitioned topic; the body is the number of partitions. ``engine`` (ours):
        ledger or partition, what is to keep it."""
        name = topic_name(tenant, namespace, topic)
        count = bodies.partition_count(await bodies.read_json(request))
        if not await service.create_partitioned(name, count, engine):
            return reason(409, f"{name} exists already")
        return Response(status_code=204)

    @router.post(path, status_code=204, responses=CONFLICT, openapi_extra=WITH_BODY)
    async def grow_partitions(
        tenant: Segment, namespace: Segment, topic: TopicSegment, request: Request
    ) -> Response:
        """Give a partitioned topic more partitions; the body is their new number."""
        count = bodies.partition_count(await bodies.read_json(request))
        await service.grow_partitions(topic_name(tenant, namespace, topic), count)
        return Response(status_code=204)

    @router.delete(path, status_code=204)
    async def delete_partitioned(
        tenant: Segment, namespace: Segment, topic: TopicSegment, force: bool = False
    ) -> Response:
        """Delete a partitioned topic with all its partitions."""
        await service.delete_partitioned(topic_name(tenant, namespace, topic), force)
        return Response(status_code=204)


def _add_changes(router: APIRouter, service: TopicService) -> None:
    @router.put(TOPIC, status_code=204, responses=CONFLICT, openapi_extra=WITH_BODY)
    async def create(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        request: Request,
        engine: str = "",
    ) -> Response:
        """Create a topic that is not partitioned. ``engine`` (ours): ledger or partition, what is
        to keep it."""
        name = topic_name(tenant, namespace, topic)
        bodies.check_topic(await bodies.read_json(request))
        if not await service.create(name, engine):
            return reason(409, f"{name} exists already")
        return Response(status_code=204)

    @router.put(TOPIC + "/unload", status_code=204)
    async def unload(tenant: Segment, namespace: Segment, topic: TopicSegment) -> Response:
        """Close a topic, or all partitions of one. Clients come back at once, which opens it."""
        await service.unload(topic_name(tenant, namespace, topic))
        return Response(status_code=204)

    @router.delete(TOPIC, status_code=204, responses=CONFLICT)
    async def delete(
        tenant: Segment, namespace: Segment, topic: TopicSegment, force: bool = False
    ) -> Response:
        """Delete a topic, or one partition, with its subscriptions and its ledgers."""
        await service.delete(topic_name(tenant, namespace, topic), force)
        return Response(status_code=204)
