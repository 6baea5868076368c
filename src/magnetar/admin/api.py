"""The application that the HTTP server serves: every path, the metrics, a page that lists them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from magnetar import __version__
from magnetar.admin import errors, health_api, ledger_api, topic_api
from magnetar.admin.docs_page import DOCS_PAGE
from magnetar.admin.queries import LedgerQueries, TopicQueries
from magnetar.env.health import Health

BODY_BYTES_MAX = 64 << 10

Next: TypeAlias = Callable[[Request], Awaitable[Response]]


def create(
    registry: CollectorRegistry,
    topics: TopicQueries | None = None,
    ledgers: LedgerQueries | None = None,
    before_scrape: Sequence[Callable[[], None]] = (),
    health: Health | None = None,
) -> FastAPI:
    """The application for a process that has these parts.

    ``before_scrape`` functions fold counts kept elsewhere into the registry's metrics.
    """
    app = FastAPI(
        title="Magnetar",
        version=__version__,
        description="Topics, ledgers and bookies of one Magnetar platform.",
        docs_url=None,  # the framework's page loads its scripts from elsewhere
        redoc_url=None,
    )
    errors.install(app)
    app.middleware("http")(_bounded_body)
    app.include_router(_process_routes(registry, before_scrape))
    app.include_router(health_api.routes(health or Health()))
    if ledgers is not None:
        app.include_router(ledger_api.routes(ledgers))
    if topics is not None:
        app.include_router(topic_api.routes(topics))
    return app


async def _bounded_body(request: Request, call_next: Next) -> Response:
    """No request here needs a large body, so none is buffered: lengths must be told and small."""
    length = request.headers.get("content-length", "0")
    chunked = "transfer-encoding" in request.headers
    if chunked or not length.isdecimal() or int(length) > BODY_BYTES_MAX:
        return errors.reason(413, f"a body must have a content-length of {BODY_BYTES_MAX} at most")
    return await call_next(request)


def _process_routes(
    registry: CollectorRegistry, before_scrape: Sequence[Callable[[], None]]
) -> APIRouter:
    router = APIRouter()

    @router.get("/metrics", tags=["process"], response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus text format."""
        for fold in before_scrape:
            fold()
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @router.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(DOCS_PAGE)

    @router.get("/", include_in_schema=False)
    async def root() -> RedirectResponse:
        return RedirectResponse("/docs")

    return router
