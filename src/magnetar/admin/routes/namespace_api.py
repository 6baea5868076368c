"""Clusters, tenants, namespaces and the lists of their topics: paths of Pulsar's admin v2."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request, Response

from magnetar.admin import bodies
from magnetar.admin.errors import CONFLICT, WITH_BODY, reason
from magnetar.admin.namespaces import NamespaceService
from magnetar.admin.paths import Segment
from magnetar.admin.topics import TopicService
from magnetar.admin.views import ClusterView, TenantView

Mode = Literal["PERSISTENT", "NON_PERSISTENT", "ALL"]


def routes(namespaces: NamespaceService, topics: TopicService) -> APIRouter:
    """All of it."""
    router = APIRouter()
    _add_clusters(router, namespaces)
    _add_tenants(router, namespaces)
    _add_namespaces(router, namespaces)
    _add_clusters_of_namespaces(router, namespaces)
    _add_lists(router, namespaces, topics)
    return router


def _add_clusters(router: APIRouter, service: NamespaceService) -> None:
    @router.get("/admin/v2/clusters", tags=["cluster"])
    async def clusters() -> list[str]:
        """This one; there is no other."""
        return [service.cluster]

    @router.get("/admin/v2/clusters/{cluster}", tags=["cluster"])
    async def cluster(cluster: Segment) -> ClusterView:
        """Where it is reached."""
        return service.about_cluster(cluster)

    @router.put("/admin/v2/clusters/{cluster}", tags=["cluster"], responses=CONFLICT)
    async def put_cluster(cluster: Segment) -> Response:
        """Always refused: this cluster exists, and there can be no other."""
        if cluster != service.cluster:
            return reason(412, f"this is cluster {service.cluster!r}; it knows no other")
        return reason(409, f"cluster {cluster} exists; its addresses are those of its brokers")


def _add_tenants(router: APIRouter, service: NamespaceService) -> None:
    @router.get("/admin/v2/tenants", tags=["cluster"])
    async def tenants() -> list[str]:
        """Every tenant."""
        return await service.tenants()

    @router.get("/admin/v2/tenants/{tenant}", tags=["cluster"])
    async def tenant(tenant: Segment) -> TenantView:
        """The roles that administer it, and its clusters (this one)."""
        return await service.about_tenant(tenant)

    @router.put(
        "/admin/v2/tenants/{tenant}",
        tags=["cluster"],
        status_code=204,
        responses=CONFLICT,
        openapi_extra=WITH_BODY,
    )
    async def put_tenant(tenant: Segment, request: Request) -> Response:
        """Create a tenant; its `adminRoles` may do everything with its namespaces."""
        about = bodies.tenant_about(await bodies.read_json(request), service.cluster)
        if not await service.create_tenant(tenant, about):
            return reason(409, f"tenant {tenant} exists already")
        return Response(status_code=204)

    @router.post(
        "/admin/v2/tenants/{tenant}", tags=["cluster"], status_code=204, openapi_extra=WITH_BODY
    )
    async def post_tenant(tenant: Segment, request: Request) -> Response:
        """Change the roles that administer it."""
        about = bodies.tenant_about(await bodies.read_json(request), service.cluster)
        await service.change_tenant(tenant, about)
        return Response(status_code=204)


def _add_namespaces(router: APIRouter, service: NamespaceService) -> None:
    @router.get("/admin/v2/namespaces/{tenant}", tags=["cluster"])
    async def namespaces(tenant: Segment) -> list[str]:
        """The namespaces of a tenant."""
        return await service.namespaces(tenant)

    @router.get("/admin/v2/namespaces/{tenant}/{namespace}", tags=["cluster"])
    async def namespace_policies(tenant: Segment, namespace: Segment) -> dict[str, Any]:
        """All that is said for it, in Pulsar's fields and ours; what nobody has said is absent."""
        return dict(await service.about_namespace(f"{tenant}/{namespace}"))

    @router.put(
        "/admin/v2/namespaces/{tenant}/{namespace}",
        tags=["cluster"],
        status_code=204,
        responses=CONFLICT,
        openapi_extra=WITH_BODY,
    )
    async def put_namespace(tenant: Segment, namespace: Segment, request: Request) -> Response:
        """Create a namespace; its tenant must exist."""
        policies = bodies.namespace_policies(await bodies.read_json(request), service.cluster)
        if not await service.create_namespace(f"{tenant}/{namespace}", policies):
            return reason(409, f"namespace {tenant}/{namespace} exists already")
        return Response(status_code=204)


def _add_clusters_of_namespaces(router: APIRouter, service: NamespaceService) -> None:
    """What scripts that make a namespace say next: its clusters."""
    path = "/admin/v2/namespaces/{tenant}/{namespace}/replication"

    @router.get(path, tags=["cluster"])
    async def clusters(tenant: Segment, namespace: Segment) -> list[str]:
        """The clusters that have the namespace: this one; there is no other."""
        await service.check_namespace(f"{tenant}/{namespace}")
        return [service.cluster]

    @router.post(path, tags=["cluster"], status_code=204, openapi_extra=WITH_BODY)
    async def set_clusters(tenant: Segment, namespace: Segment, request: Request) -> Response:
        """Say which; the body lists this one, and nothing changes."""
        bodies.check_clusters(await bodies.read_json(request), service.cluster)
        await service.check_namespace(f"{tenant}/{namespace}")
        return Response(status_code=204)


def _add_lists(router: APIRouter, namespaces: NamespaceService, topics: TopicService) -> None:
    @router.get("/admin/v2/namespaces/{tenant}/{namespace}/topics", tags=["topics"])
    async def namespace_topics(
        tenant: Segment, namespace: Segment, mode: Mode = "PERSISTENT"
    ) -> list[str]:
        """Every topic of the namespace, each partition by itself."""
        name = f"{tenant}/{namespace}"
        await namespaces.check_namespace(name)
        return [] if mode == "NON_PERSISTENT" else await topics.names(name)

    @router.get("/admin/v2/persistent/{tenant}/{namespace}/partitioned", tags=["topics"])
    async def partitioned(tenant: Segment, namespace: Segment) -> list[str]:
        """The partitioned topics of the namespace."""
        return await topics.partitioned_names(f"{tenant}/{namespace}")

    @router.get("/admin/v2/persistent/{tenant}/{namespace}", tags=["topics"])
    async def persistent(tenant: Segment, namespace: Segment) -> list[str]:
        """Every topic of the namespace, each partition by itself."""
        return await topics.names(f"{tenant}/{namespace}")

    @router.get("/admin/v2/non-persistent/{tenant}/{namespace}/partitioned", tags=["topics"])
    @router.get("/admin/v2/non-persistent/{tenant}/{namespace}", tags=["topics"])
    async def non_persistent(tenant: Segment, namespace: Segment) -> list[str]:
        """None: such topics are not served. Clients ask for both kinds when they list topics."""
        await namespaces.check_namespace(f"{tenant}/{namespace}")
        return []
