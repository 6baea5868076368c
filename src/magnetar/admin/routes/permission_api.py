"""What roles may do with a namespace's topics, or with one topic: paths of Pulsar's admin v2. They
count where clients must show who they are (``security.authentication``), and may be set before."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from magnetar.admin import bodies
from magnetar.admin.errors import WITH_BODY
from magnetar.admin.namespaces import NamespaceService
from magnetar.admin.paths import Segment, TopicSegment, topic_name
from magnetar.cluster.security.permissions import decode_actions
from magnetar.cluster.topic_name import parse_topic

NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}/permissions"
TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/permissions"


def routes(service: NamespaceService) -> APIRouter:
    """All of it."""
    router = APIRouter(tags=["permissions"])
    _add_namespace(router, service)
    _add_topic(router, service)
    return router


def _add_namespace(router: APIRouter, service: NamespaceService) -> None:
    @router.get(NAMESPACE)
    async def permissions(tenant: Segment, namespace: Segment) -> dict[str, list[str]]:
        """Role -> what it may do with the namespace's topics."""
        return dict(await service.permissions(f"{tenant}/{namespace}"))

    @router.post(NAMESPACE + "/{role}", status_code=204, openapi_extra=WITH_BODY)
    async def grant(
        tenant: Segment, namespace: Segment, role: Segment, request: Request
    ) -> Response:
        """Let a role do what the body lists (`["produce", "consume"]`), and nothing else."""
        actions = decode_actions(await bodies.read_json(request))
        await service.grant(f"{tenant}/{namespace}", role, actions)
        return Response(status_code=204)

    @router.delete(NAMESPACE + "/{role}", status_code=204)
    async def revoke(tenant: Segment, namespace: Segment, role: Segment) -> Response:
        """Let a role do nothing. What it has open goes on until its clients come again."""
        await service.grant(f"{tenant}/{namespace}", role, None)
        return Response(status_code=204)


def _add_topic(router: APIRouter, service: NamespaceService) -> None:
    @router.get(TOPIC)
    async def permissions(
        tenant: Segment, namespace: Segment, topic: TopicSegment
    ) -> dict[str, list[str]]:
        """The same, of the topic, with what is said for its namespace."""
        name = parse_topic(topic_name(tenant, namespace, topic))
        found = dict(await service.permissions(name.namespace))
        for role, actions in (
            await service.permissions(name.namespace, str(name.partitioned))
        ).items():
            found[role] = sorted({*found.get(role, ()), *actions})
        return found

    @router.post(TOPIC + "/{role}", status_code=204, openapi_extra=WITH_BODY)
    async def grant(
        tenant: Segment, namespace: Segment, topic: TopicSegment, role: Segment, request: Request
    ) -> Response:
        """Let a role do that with this topic and its partitions, besides what it may anyway."""
        name = parse_topic(topic_name(tenant, namespace, topic))
        actions = decode_actions(await bodies.read_json(request))
        await service.grant(name.namespace, role, actions, str(name.partitioned))
        return Response(status_code=204)

    @router.delete(TOPIC + "/{role}", status_code=204)
    async def revoke(
        tenant: Segment, namespace: Segment, topic: TopicSegment, role: Segment
    ) -> Response:
        """Take back what was said for this topic."""
        name = parse_topic(topic_name(tenant, namespace, topic))
        await service.grant(name.namespace, role, None, str(name.partitioned))
        return Response(status_code=204)
