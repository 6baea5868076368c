"""Deleting namespaces and tenants: paths of Pulsar's admin v2."""

from __future__ import annotations

from fastapi import APIRouter, Response

from magnetar.admin.deletions import DeletionService
from magnetar.admin.errors import CONFLICT
from magnetar.admin.paths import Segment


def routes(service: DeletionService) -> APIRouter:
    """All of it."""
    router = APIRouter(tags=["cluster"])

    @router.delete("/admin/v2/tenants/{tenant}", status_code=204, responses=CONFLICT)
    async def tenant(tenant: Segment, force: bool = False) -> Response:
        """Delete a tenant. 409 while it has namespaces, unless it is forced: then with all of
        them."""
        await service.delete_tenant(tenant, force)
        return Response(status_code=204)

    @router.delete("/admin/v2/namespaces/{tenant}/{namespace}", status_code=204, responses=CONFLICT)
    async def namespace(tenant: Segment, namespace: Segment, force: bool = False) -> Response:
        """Delete a namespace with all that is said of it. 409 while it has topics, unless it is
        forced: then with all of them, whoever is connected."""
        await service.delete_namespace(f"{tenant}/{namespace}", force)
        return Response(status_code=204)

    return router
