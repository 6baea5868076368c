"""Schemas of topics and namespaces' policies of them: paths of Pulsar's admin v2."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from magnetar.admin import bodies
from magnetar.admin.errors import CONFLICT, WITH_BODY
from magnetar.admin.paths import Segment, TopicSegment, topic_name
from magnetar.admin.schemas import SchemaService
from magnetar.admin.views import (
    CompatibilityView,
    PostedSchemaView,
    SchemaListView,
    SchemaVersionView,
    SchemaView,
)

SCHEMAS = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"


def routes(service: SchemaService) -> APIRouter:
    """All of it."""
    router = APIRouter(tags=["schemas"])
    _add_reads(router, service)
    _add_questions(router, service)
    _add_changes(router, service)
    _add_strategy(router, service)
    _add_flags(router, service)
    return router


def _add_reads(router: APIRouter, service: SchemaService) -> None:
    @router.get(SCHEMAS + "/schema")
    async def newest(tenant: Segment, namespace: Segment, topic: TopicSegment) -> SchemaView:
        """The newest schema of the topic; a partitioned one's is that of all its partitions."""
        return await service.get(topic_name(tenant, namespace, topic))

    @router.get(SCHEMAS + "/schema/{version}")
    async def at(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        version: Annotated[int, Path(ge=0)],
    ) -> SchemaView:
        """One version of it."""
        return await service.get(topic_name(tenant, namespace, topic), version)

    @router.get(SCHEMAS + "/schemas")
    async def versions(tenant: Segment, namespace: Segment, topic: TopicSegment) -> SchemaListView:
        """Every version, from the oldest on."""
        return await service.versions(topic_name(tenant, namespace, topic))


def _add_questions(router: APIRouter, service: SchemaService) -> None:
    @router.post(SCHEMAS + "/compatibility", openapi_extra=WITH_BODY)
    async def compatibility(
        tenant: Segment, namespace: Segment, topic: TopicSegment, request: Request
    ) -> CompatibilityView:
        """Whether the schema in the body could be uploaded, by which strategy, and why not."""
        body = await bodies.read_json(request)
        return await service.test(topic_name(tenant, namespace, topic), body)

    @router.post(SCHEMAS + "/version", openapi_extra=WITH_BODY)
    async def version(
        tenant: Segment, namespace: Segment, topic: TopicSegment, request: Request
    ) -> SchemaVersionView:
        """Which version the schema in the body is; -1 for none."""
        body = await bodies.read_json(request)
        found = await service.find(topic_name(tenant, namespace, topic), body)
        return SchemaVersionView(version=found)


def _add_changes(router: APIRouter, service: SchemaService) -> None:
    @router.post(SCHEMAS + "/schema", responses=CONFLICT, openapi_extra=WITH_BODY)
    async def upload(
        tenant: Segment, namespace: Segment, topic: TopicSegment, request: Request
    ) -> PostedSchemaView:
        """Give the topic a schema, if it may follow those that it has."""
        body = await bodies.read_json(request)
        version = await service.upload(topic_name(tenant, namespace, topic), body)
        return PostedSchemaView(version=SchemaVersionView(version=version))

    @router.delete(SCHEMAS + "/schema")
    async def delete(tenant: Segment, namespace: Segment, topic: TopicSegment) -> SchemaVersionView:
        """Delete every version. Messages that were written with them keep their numbers, which no
        later schema gets."""
        found = await service.delete(topic_name(tenant, namespace, topic))
        return SchemaVersionView(version=found)


def _add_strategy(router: APIRouter, service: SchemaService) -> None:
    path = NAMESPACE + "/schemaCompatibilityStrategy"

    @router.get(path)
    async def strategy(tenant: Segment, namespace: Segment) -> str:
        """How schemas of its topics may follow each other; UNDEFINED: as the broker is
        configured."""
        return await service.strategy(f"{tenant}/{namespace}")

    @router.put(path, status_code=204, openapi_extra=WITH_BODY)
    async def set_strategy(tenant: Segment, namespace: Segment, request: Request) -> Response:
        """Set it; the body is its name."""
        body = await bodies.read_json(request)
        await service.set_strategy(f"{tenant}/{namespace}", bodies.schema_strategy(body))
        return Response(status_code=204)


def _add_flags(router: APIRouter, service: SchemaService) -> None:
    @router.get(NAMESPACE + "/schemaValidationEnforced")
    async def validation(tenant: Segment, namespace: Segment) -> bool:
        """Whether producers without a schema are refused on topics that have one."""
        return await service.validation_enforced(f"{tenant}/{namespace}")

    @router.post(NAMESPACE + "/schemaValidationEnforced", status_code=204, openapi_extra=WITH_BODY)
    async def set_validation(tenant: Segment, namespace: Segment, request: Request) -> Response:
        """Set it; the body is true or false."""
        value = bodies.flag(await bodies.read_json(request))
        await service.set_validation_enforced(f"{tenant}/{namespace}", value)
        return Response(status_code=204)

    @router.get(NAMESPACE + "/isAllowAutoUpdateSchema")
    async def auto_update(tenant: Segment, namespace: Segment) -> bool:
        """Whether producers and consumers may bring new schemas."""
        return await service.auto_update(f"{tenant}/{namespace}")

    @router.post(NAMESPACE + "/isAllowAutoUpdateSchema", status_code=204, openapi_extra=WITH_BODY)
    async def set_auto_update(tenant: Segment, namespace: Segment, request: Request) -> Response:
        """Set it; the body is true or false."""
        value = bodies.flag(await bodies.read_json(request))
        await service.set_auto_update(f"{tenant}/{namespace}", value)
        return Response(status_code=204)
