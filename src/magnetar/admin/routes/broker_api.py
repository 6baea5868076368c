"""Brokers and bundles: paths of Pulsar's admin v2, and what it has no path for."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException

from magnetar import __version__
from magnetar.admin.brokers import BrokerService
from magnetar.admin.elsewhere import note_authoritative
from magnetar.admin.paths import Segment
from magnetar.admin.views import BrokerView, BundlesView, BundleView, OwnedView
from magnetar.model.errors import TopicNotFoundError

BROKERS = "/admin/v2/brokers"
NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"


def routes(service: BrokerService) -> APIRouter:
    """All of it."""
    router = APIRouter(tags=["brokers"], dependencies=[Depends(note_authoritative)])
    _add_brokers(router, service)
    _add_draining(router, service)
    _add_bundles(router, service)
    _add_unloading(router, service)
    return router


def _add_brokers(router: APIRouter, service: BrokerService) -> None:
    @router.get(BROKERS)
    async def names() -> list[str]:
        """The ids of the brokers that are there."""
        return await service.names()

    # Before the list of a cluster, whose path it fits.
    @router.get(BROKERS + "/version", response_class=PlainTextResponse)
    async def version() -> str:
        """The release that this broker runs, Magnetar's own number."""
        return __version__

    @router.get(BROKERS + "/configuration/runtime")
    async def configuration() -> dict[str, str]:
        """What this broker runs with: its settings by name, and `clusterName`."""
        return service.configuration()

    @router.get(BROKERS + "/{cluster}")
    async def names_of_cluster(cluster: Segment) -> list[str]:
        """The same, of this cluster."""
        try:
            return await service.names(cluster)
        except TopicNotFoundError as error:
            # So that a path of Pulsar's that is not served is answered as one.
            raise HTTPException(404, str(error)) from error

    @router.get(BROKERS + "/{cluster}/{broker}/ownedNamespaces")
    async def owned(cluster: Segment, broker: Segment) -> dict[str, OwnedView]:
        """The bundles that a broker owns."""
        await service.names(cluster)
        return await service.owned(broker)

    @router.get("/magnetar/v1/brokers")
    async def brokers() -> list[BrokerView]:
        """Every broker, and what it reports of itself."""
        return await service.brokers()


def _add_draining(router: APIRouter, service: BrokerService) -> None:
    @router.put("/magnetar/v1/brokers/{broker}/drain", status_code=204)
    async def drain(broker: Segment) -> Response:
        """Have a broker hand over everything that it owns or leads, and take nothing more until it
        is told or started again. Answered when that is done. Partitions of which no other replica
        is in sync stay (it logs how many) until one is."""
        await service.drain(broker)
        return Response(status_code=204)

    @router.put("/magnetar/v1/brokers/{broker}/undrain", status_code=204)
    async def undrain(broker: Segment) -> Response:
        """Have it take topics again."""
        await service.undrain(broker)
        return Response(status_code=204)


def _add_bundles(router: APIRouter, service: BrokerService) -> None:
    @router.get(NAMESPACE + "/bundles")
    async def bundles(tenant: Segment, namespace: Segment) -> BundlesView:
        """How the namespace is cut."""
        return await service.bundles(f"{tenant}/{namespace}")

    @router.get("/magnetar/v1/namespaces/{tenant}/{namespace}/bundles")
    async def owners(tenant: Segment, namespace: Segment) -> list[BundleView]:
        """Who owns which part of it."""
        return await service.owners(f"{tenant}/{namespace}")


def _add_unloading(router: APIRouter, service: BrokerService) -> None:
    @router.put(NAMESPACE + "/unload", status_code=204)
    async def unload_namespace(tenant: Segment, namespace: Segment) -> Response:
        """Have every bundle of the namespace released by its owner."""
        await service.unload_namespace(f"{tenant}/{namespace}")
        return Response(status_code=204)

    @router.put(NAMESPACE + "/{bundle}/unload", status_code=204)
    async def unload(tenant: Segment, namespace: Segment, bundle: Segment) -> Response:
        """Have a bundle released by its owner. Its topics' clients come back at once, to whoever
        is chosen then."""
        await service.unload(f"{tenant}/{namespace}", bundle)
        return Response(status_code=204)

    @router.put(NAMESPACE + "/{bundle}/split", status_code=204)
    async def split(
        tenant: Segment,
        namespace: Segment,
        bundle: Segment,
        unload: bool = False,
        algorithm: Annotated[str, Query(alias="splitAlgorithmName")] = "",
    ) -> Response:
        """Have a bundle cut in two by its owner, who keeps both unless they are to be unloaded.
        Nobody is interrupted by the cut."""
        await service.split(f"{tenant}/{namespace}", bundle, algorithm, unload)
        return Response(status_code=204)
