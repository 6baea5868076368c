"""The application that the HTTP server serves: every path, the metrics, a page that lists them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from magnetar import __version__
from magnetar.admin import errors
from magnetar.admin.backlogs import BacklogService
from magnetar.admin.body_limit import BodyLimit
from magnetar.admin.brokers import BrokerService
from magnetar.admin.compaction import CompactionService
from magnetar.admin.deletions import DeletionService
from magnetar.admin.docs_page import DOCS_PAGE
from magnetar.admin.guard import Guard
from magnetar.admin.head import HeadAsGet
from magnetar.admin.ledgers import LedgerService
from magnetar.admin.messages import MessageService
from magnetar.admin.namespaces import NamespaceService
from magnetar.admin.paths import EncodedPaths
from magnetar.admin.policies import PolicyService
from magnetar.admin.routes import (
    backlog_api,
    broker_api,
    compaction_api,
    deletion_api,
    health_api,
    ledger_api,
    message_api,
    namespace_api,
    permission_api,
    policy_api,
    schema_api,
    termination_api,
    topic_api,
)
from magnetar.admin.schemas import SchemaService
from magnetar.admin.termination import TerminationService
from magnetar.admin.topics import TopicService
from magnetar.cluster.security.access import Access
from magnetar.config import SecurityConfig
from magnetar.env.health import Health


def create(
    registry: CollectorRegistry,
    namespaces: NamespaceService | None = None,
    topics: TopicService | None = None,
    ledgers: LedgerService | None = None,
    before_scrape: Sequence[Callable[[], None]] = (),
    health: Health | None = None,
    schemas: SchemaService | None = None,
    policies: PolicyService | None = None,
    brokers: BrokerService | None = None,
    compaction: CompactionService | None = None,
    messages: MessageService | None = None,
    guard: tuple[Access, SecurityConfig] | None = None,
    deletions: DeletionService | None = None,
    termination: TerminationService | None = None,
    backlogs: BacklogService | None = None,
) -> FastAPI:
    """The application for a process that has these parts.

    ``before_scrape`` functions fold counts kept elsewhere into the registry's metrics. ``guard``:
    who may do what; None: everybody everything.
    """
    app = FastAPI(
        title="Magnetar",
        version=__version__,
        description="Topics, ledgers and bookies of one Magnetar platform.",
        docs_url=None,  # the framework's page loads its scripts from elsewhere
        redoc_url=None,
    )
    errors.install(app)
    app.add_middleware(BodyLimit)
    if guard is not None:
        app.add_middleware(Guard, *guard)
    app.add_middleware(EncodedPaths)
    app.add_middleware(HeadAsGet)
    app.include_router(_process_routes(registry, before_scrape))
    health = health or Health()
    app.include_router(health_api.routes(health))
    if ledgers is not None:
        app.include_router(ledger_api.routes(ledgers))
    if namespaces is not None and topics is not None:
        app.include_router(namespace_api.routes(namespaces, topics))
        app.include_router(permission_api.routes(namespaces))
        app.include_router(topic_api.routes(topics, health))
    if deletions is not None:
        app.include_router(deletion_api.routes(deletions))
    if termination is not None:
        app.include_router(termination_api.routes(termination))
    if compaction is not None:
        app.include_router(compaction_api.routes(compaction))
    if schemas is not None:
        app.include_router(schema_api.routes(schemas))
    if policies is not None and topics is not None:
        app.include_router(policy_api.routes(policies, topics))
    if messages is not None:  # behind the rate of a subscription `messageid`, which is no time
        app.include_router(message_api.routes(messages))
    if policies is not None and backlogs is not None:  # before a path of brokers that it fits
        app.include_router(backlog_api.routes(policies, backlogs))
    if brokers is not None:
        app.include_router(broker_api.routes(brokers))
    return app


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
