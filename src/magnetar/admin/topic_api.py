"""Topics, namespaces and lookup: the paths of Pulsar's admin v2.

A topic's local name may hold anything, slashes too, so it is a ``path`` parameter and the routes
with a suffix come before the bare ones.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Response

from magnetar.admin.errors import reason
from magnetar.admin.queries import TopicQueries
from magnetar.admin.views import (
    InternalStatsView,
    LookupView,
    PartitionsView,
    Reason,
    TopicStatsView,
)

NAME_PATTERN = r"^[-=:.\w]+$"
PARTITIONS_MAX = 10_000

Name = Annotated[str, Path(pattern=NAME_PATTERN, max_length=255)]
Topic = Annotated[str, Path(min_length=1, max_length=1024)]
Partitions = Annotated[int, Body(ge=1, le=PARTITIONS_MAX)]
TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic:path}"
CONFLICT: dict[int | str, dict[str, object]] = {409: {"model": Reason}}


def topic_name(tenant: str, namespace: str, topic: str) -> str:
    return f"persistent://{tenant}/{namespace}/{topic}"


def routes(queries: TopicQueries) -> APIRouter:
    """All of it."""
    router = APIRouter()
    _add_cluster(router, queries)
    _add_lookup(router, queries)
    _add_reads(router, queries)
    _add_subscriptions(router, queries)
    _add_partitions(router, queries)
    _add_changes(router, queries)
    return router


def _add_cluster(router: APIRouter, queries: TopicQueries) -> None:
    @router.get("/admin/v2/clusters", tags=["cluster"])
    async def clusters() -> list[str]:
        return [queries.cluster]

    @router.put("/admin/v2/clusters/{cluster}", tags=["cluster"], status_code=204)
    async def put_cluster(cluster: Name) -> Response:
        """Accepted for this process's own cluster; there is no other."""
        if cluster != queries.cluster:
            return reason(412, f"this platform is cluster {queries.cluster!r}; it knows no other")
        return Response(status_code=204)

    @router.get("/admin/v2/tenants", tags=["cluster"])
    async def tenants() -> list[str]:
        return await queries.tenants()

    @router.put("/admin/v2/tenants/{tenant}", tags=["cluster"], status_code=204)
    async def put_tenant(tenant: Name) -> Response:
        await queries.create_tenant(tenant)
        return Response(status_code=204)

    @router.get("/admin/v2/namespaces/{tenant}", tags=["cluster"])
    async def namespaces(tenant: Name) -> list[str]:
        return await queries.namespaces(tenant)

    @router.put("/admin/v2/namespaces/{tenant}/{namespace}", tags=["cluster"], status_code=204)
    async def put_namespace(tenant: Name, namespace: Name) -> Response:
        await queries.create_namespace(f"{tenant}/{namespace}")
        return Response(status_code=204)


def _add_lookup(router: APIRouter, queries: TopicQueries) -> None:
    @router.get("/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic:path}", tags=["lookup"])
    async def lookup(tenant: Name, namespace: Name, topic: Topic) -> LookupView:
        """Where the topic is served."""
        return await queries.lookup(topic_name(tenant, namespace, topic))

    @router.get("/admin/v2/namespaces/{tenant}/{namespace}/topics", tags=["topics"])
    async def namespace_topics(tenant: Name, namespace: Name) -> list[str]:
        """Every topic of the namespace, each partition by itself."""
        return await queries.topics(f"{tenant}/{namespace}")

    @router.get("/admin/v2/persistent/{tenant}/{namespace}/partitioned", tags=["topics"])
    async def partitioned(tenant: Name, namespace: Name) -> list[str]:
        return await queries.partitioned_topics(f"{tenant}/{namespace}")

    @router.get("/admin/v2/persistent/{tenant}/{namespace}", tags=["topics"])
    async def topics(tenant: Name, namespace: Name) -> list[str]:
        """Every topic of the namespace, each partition by itself."""
        return await queries.topics(f"{tenant}/{namespace}")


def _add_reads(router: APIRouter, queries: TopicQueries) -> None:
    @router.get(TOPIC + "/stats", tags=["topics"])
    async def stats(tenant: Name, namespace: Name, topic: Topic) -> TopicStatsView:
        """Counters, connected producers, subscriptions and their consumers."""
        return await queries.stats(topic_name(tenant, namespace, topic))

    @router.get(TOPIC + "/internalStats", tags=["topics"])
    async def internal_stats(tenant: Name, namespace: Name, topic: Topic) -> InternalStatsView:
        """The topic's ledgers and cursors."""
        return await queries.internal_stats(topic_name(tenant, namespace, topic))


def _add_subscriptions(router: APIRouter, queries: TopicQueries) -> None:
    @router.get(TOPIC + "/subscriptions", tags=["topics"])
    async def subscriptions(tenant: Name, namespace: Name, topic: Topic) -> list[str]:
        return await queries.subscriptions(topic_name(tenant, namespace, topic))

    @router.delete(TOPIC + "/subscription/{subscription}", tags=["topics"], status_code=204)
    async def delete_subscription(
        tenant: Name, namespace: Name, topic: Topic, subscription: str, force: bool = False
    ) -> Response:
        name = topic_name(tenant, namespace, topic)
        await queries.delete_subscription(name, subscription, force)
        return Response(status_code=204)


def _add_partitions(router: APIRouter, queries: TopicQueries) -> None:
    @router.get(TOPIC + "/partitions", tags=["topics"])
    async def partitions(
        tenant: Name,
        namespace: Name,
        topic: Topic,
        create: Annotated[bool, Query(alias="checkAllowAutoCreation")] = False,
    ) -> PartitionsView:
        """0 for a topic that is not partitioned."""
        count = await queries.partitions(topic_name(tenant, namespace, topic), create)
        return PartitionsView(partitions=count)

    @router.put(TOPIC + "/partitions", tags=["topics"], status_code=204, responses=CONFLICT)
    async def create_partitioned(
        tenant: Name, namespace: Name, topic: Topic, partitions: Partitions
    ) -> Response:
        """Create a partitioned topic; the body is the number of partitions."""
        name = topic_name(tenant, namespace, topic)
        if not await queries.create_partitioned(name, partitions):
            return reason(409, f"{name} exists already")
        return Response(status_code=204)

    @router.post(TOPIC + "/partitions", tags=["topics"], status_code=204, responses=CONFLICT)
    async def grow_partitions(
        tenant: Name, namespace: Name, topic: Topic, partitions: Partitions
    ) -> Response:
        """Give a partitioned topic more partitions; the body is their new number."""
        await queries.grow_partitions(topic_name(tenant, namespace, topic), partitions)
        return Response(status_code=204)


def _add_changes(router: APIRouter, queries: TopicQueries) -> None:
    @router.delete(TOPIC + "/partitions", tags=["topics"], status_code=204)
    async def delete_partitioned(
        tenant: Name, namespace: Name, topic: Topic, force: bool = False
    ) -> Response:
        """Delete a partitioned topic with all its partitions."""
        await queries.delete(topic_name(tenant, namespace, topic), force)
        return Response(status_code=204)

    @router.put(TOPIC, tags=["topics"], status_code=204, responses=CONFLICT)
    async def create(tenant: Name, namespace: Name, topic: Topic) -> Response:
        """Create a topic that is not partitioned."""
        name = topic_name(tenant, namespace, topic)
        if not await queries.create(name):
            return reason(409, f"{name} exists already")
        return Response(status_code=204)

    @router.delete(TOPIC, tags=["topics"], status_code=204, responses=CONFLICT)
    async def delete(tenant: Name, namespace: Name, topic: Topic, force: bool = False) -> Response:
        """Delete a topic with its subscriptions and its ledgers."""
        await queries.delete(topic_name(tenant, namespace, topic), force)
        return Response(status_code=204)
