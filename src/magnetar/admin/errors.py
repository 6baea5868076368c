"""Every error of REST is ``{"reason": ...}`` with a fitting status.

A path that Pulsar has and this platform does not is 501 "not served: ..." (``not_served``): clients
show the reason, and none takes it for a topic that is not there (404). Other unknown paths are 404,
other methods of known ones 405.
"""

from __future__ import annotations

from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from magnetar.admin.bodies import BadBodyError, NotServedError
from magnetar.admin.elsewhere import ServedElsewhereError
from magnetar.admin.messages import UnreadableEntryError
from magnetar.admin.not_served import not_served
from magnetar.admin.peers import PeerError
from magnetar.admin.topics import PartitionedTopicError
from magnetar.admin.views import Reason
from magnetar.model.errors import (
    AuthenticationError,
    AuthorizationError,
    BookieUnavailableError,
    BrokerMetadataError,
    FencedLeaderEpochError,
    IncompatibleSchemaError,
    InvalidPolicyError,
    InvalidSchemaError,
    InvalidTopicNameError,
    LeaderUnreachableError,
    LedgerError,
    LogClosedError,
    MagnetarError,
    MetadataError,
    NoEntryError,
    NoLedgerError,
    NoNodeError,
    NoSuchLedgerError,
    NotAllowedError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderError,
    ReplicationFactorError,
    SchemaNotFoundError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TooManyTopicsError,
    TopicNotFoundError,
    UnknownLeaderEpochError,
)

CONFLICT: dict[int | str, dict[str, object]] = {409: {"model": Reason}}
WITH_BODY: dict[str, Any] = {"requestBody": {"content": {"application/json": {}}}}
"""For requests whose body is read by ``bodies``."""

CHALLENGE = 'Bearer realm="magnetar", Basic realm="magnetar"'

log = structlog.get_logger(__name__)

STATUSES: tuple[tuple[type[MagnetarError], int], ...] = (
    (AuthenticationError, 401),
    (AuthorizationError, 403),
    (TopicNotFoundError, 404),
    (SubscriptionNotFoundError, 404),
    (SchemaNotFoundError, 404),
    (InvalidSchemaError, 422),
    (UnreadableEntryError, 422),
    (IncompatibleSchemaError, 409),
    (NoSuchLedgerError, 404),
    (NoEntryError, 404),
    (NoLedgerError, 404),
    (NoNodeError, 404),
    (InvalidTopicNameError, 412),
    (PartitionedTopicError, 412),
    (NotServedError, 412),
    (InvalidPolicyError, 412),
    (BadBodyError, 400),
    (TooManyTopicsError, 412),
    (NotAllowedError, 409),
    (BookieUnavailableError, 503),
    (ServiceNotReadyError, 503),
    (LogClosedError, 503),
    (BrokerMetadataError, 503),
    (MetadataError, 503),
    (LedgerError, 503),
    # Nobody leads the partition at the moment, or too few replicas are there: that passes.
    (NotLeaderError, 503),
    (LeaderUnreachableError, 503),
    (NotEnoughReplicasError, 503),
    (NotEnoughReplicasAfterAppendError, 503),
    (FencedLeaderEpochError, 503),
    (UnknownLeaderEpochError, 503),
    (ReplicationFactorError, 503),
    (PeerError, 503),
)
"""The first class that fits decides; any other error of ours is a 500."""


def install(app: FastAPI) -> None:
    """Give ``app`` these answers."""
    app.add_exception_handler(MagnetarError, answer)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(HTTPException, _framework)
    app.add_exception_handler(Exception, _unexpected)


def reason(status: int, text: str) -> JSONResponse:
    shown = text.encode("utf-8", "backslashreplace").decode()
    return JSONResponse({"reason": shown}, status_code=status)


async def answer(request: Request, error: Exception) -> JSONResponse:
    """What a request is answered that fails with ``error``, one of ours."""
    if isinstance(error, ServedElsewhereError):
        return await _elsewhere(request, error)
    status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
    if status == 500:
        log.error("request failed", path=request.url.path, error=repr(error), exc_info=error)
    made = reason(status, str(error) or type(error).__name__)
    if status == 401:
        made.headers["www-authenticate"] = CHALLENGE
    return made


async def _elsewhere(request: Request, error: ServedElsewhereError) -> JSONResponse:
    query, http_url = request.url.query, error.http_url
    if request.url.scheme == "https":  # what came by TLS must not be sent on without
        addresses = getattr(request.app.state, "tls_addresses", None)
        http_url = "" if addresses is None else await addresses.of(http_url)
        if not http_url:
            return reason(503, f"{error}; it has no TLS, give it http.tls_port")
    if error.candidate and "authoritative=" not in query:
        query += "&authoritative=true" if query else "authoritative=true"
    answer = reason(307, str(error))
    answer.headers["location"] = f"{http_url}{request.scope['path']}{'?' if query else ''}{query}"
    return answer


async def _bad_request(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    faults = (
        f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
        for fault in error.errors()
    )
    return reason(400, "; ".join(faults))


async def _unexpected(_request: Request, _error: Exception) -> JSONResponse:
    """The framework logs it."""
    return reason(500, "internal error; the platform's log says more")


async def _framework(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code in (404, 405):
        asked = not_served(request.method, request.scope["path"])
        if asked is not None:
            return reason(501, f"not served: {asked}; docs/rest.md lists what is")
    if error.status_code == 404 and error.detail == "Not Found":
        return reason(404, f"there is nothing at {request.url.path}; /docs lists what there is")
    return reason(error.status_code, error.detail)
