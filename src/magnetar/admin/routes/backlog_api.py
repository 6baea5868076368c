"""Backlog quotas of namespaces and topics, and what is asked about backlogs: paths of Pulsar's
admin v2."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from magnetar.admin import bodies
from magnetar.admin.backlogs import BacklogService
from magnetar.admin.elsewhere import note_authoritative
from magnetar.admin.errors import WITH_BODY
from magnetar.admin.paths import Segment, TopicSegment, topic_name
from magnetar.admin.policies import QUOTAS, PolicyService

NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
MAP, ONE = "/backlogQuotaMap", "/backlogQuota"


class QuotaKind(StrEnum):
    """``cluster.policies.backlog_quotas.KINDS``."""

    destination_storage = "destination_storage"
    message_age = "message_age"


Kind = Annotated[QuotaKind, Query(alias="backlogQuotaType")]


def routes(policies: PolicyService, backlogs: BacklogService) -> APIRouter:
    """All of it."""
    router = APIRouter(tags=["policies"])
    _add_namespaces(router, policies)
    _add_topics(router, policies)
    _add_questions(router, backlogs)
    return router


def _add_namespaces(router: APIRouter, service: PolicyService) -> None:
    @router.get(NAMESPACE + MAP)
    async def quotas(tenant: Segment, namespace: Segment) -> dict[str, object]:
        """The namespace's backlog quotas by kind; empty: it does not say any."""
        found = await service.of_namespace(f"{tenant}/{namespace}", QUOTAS)
        return found if isinstance(found, dict) else {}

    @router.post(NAMESPACE + ONE, status_code=204, openapi_extra=WITH_BODY)
    async def change(
        tenant: Segment,
        namespace: Segment,
        request: Request,
        kind: Kind = QuotaKind.destination_storage,
    ) -> Response:
        """Set the one of that kind: `{"limitSize", "limitTime", "policy"}`."""
        body = await bodies.read_json(request)
        await service.set_namespace_quota(f"{tenant}/{namespace}", kind, body)
        return Response(status_code=204)

    @router.delete(NAMESPACE + ONE, status_code=204)
    async def delete(
        tenant: Segment, namespace: Segment, kind: Kind = QuotaKind.destination_storage
    ) -> Response:
        """Leave it to the configuration."""
        await service.remove_namespace_quota(f"{tenant}/{namespace}", kind)
        return Response(status_code=204)


def _add_topics(router: APIRouter, service: PolicyService) -> None:
    @router.get(TOPIC + MAP)
    async def quotas(
        tenant: Segment, namespace: Segment, topic: TopicSegment, applied: bool = False
    ) -> dict[str, object]:
        """The topic's backlog quotas by kind. `applied=true`: those in force, of both kinds."""
        found = await service.of_topic(topic_name(tenant, namespace, topic), QUOTAS, applied)
        return found if isinstance(found, dict) else {}

    @router.post(TOPIC + ONE, status_code=204, openapi_extra=WITH_BODY)
    async def change(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        request: Request,
        kind: Kind = QuotaKind.destination_storage,
    ) -> Response:
        """Set the one of that kind, for each partition of a partitioned topic."""
        body = await bodies.read_json(request)
        await service.set_topic_quota(topic_name(tenant, namespace, topic), kind, body)
        return Response(status_code=204)

    @router.delete(TOPIC + ONE, status_code=204)
    async def delete(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        kind: Kind = QuotaKind.destination_storage,
    ) -> Response:
        """Leave it to the namespace."""
        await service.remove_topic_quota(topic_name(tenant, namespace, topic), kind)
        return Response(status_code=204)


def _add_questions(router: APIRouter, service: BacklogService) -> None:
    @router.get("/admin/v2/brokers/backlog-quota-check", status_code=204)
    async def check() -> Response:
        """Have this broker's topics held against their backlog quotas now."""
        await service.check()
        return Response(status_code=204)

    @router.put(
        TOPIC + "/backlogSize",
        openapi_extra=WITH_BODY,
        dependencies=[Depends(note_authoritative)],
    )
    async def size(
        tenant: Segment, namespace: Segment, topic: TopicSegment, request: Request
    ) -> int:
        """About how many bytes lie behind a message id, which is the body (that of earliest: all).
        Of a partitioned topic name a partition."""
        after, _ = bodies.moved_to(await bodies.read_json(request))
        return await service.size(topic_name(tenant, namespace, topic), after)
