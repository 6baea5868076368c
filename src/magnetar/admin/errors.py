"""Every error of REST is ``{"reason": ...}`` with a fitting status."""

from __future__ import annotations

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from magnetar.model.errors import (
    BookieUnavailableError,
    BrokerMetadataError,
    InvalidTopicNameError,
    LogClosedError,
    MagnetarError,
    MetadataError,
    NoEntryError,
    NoLedgerError,
    NoNodeError,
    NoSuchLedgerError,
    NotAllowedError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)

log = structlog.get_logger(__name__)

STATUSES: tuple[tuple[type[MagnetarError], int], ...] = (
    (TopicNotFoundError, 404),
    (SubscriptionNotFoundError, 404),
    (NoSuchLedgerError, 404),
    (NoEntryError, 404),
    (NoLedgerError, 404),
    (NoNodeError, 404),
    (InvalidTopicNameError, 412),
    (NotAllowedError, 409),
    (BookieUnavailableError, 503),
    (ServiceNotReadyError, 503),
    (LogClosedError, 503),
    (BrokerMetadataError, 503),
    (MetadataError, 503),
)
"""The first class that fits decides; any other error of ours is a 500."""


def install(app: FastAPI) -> None:
    """Give ``app`` these answers."""
    app.add_exception_handler(MagnetarError, _ours)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(HTTPException, _framework)
    app.add_exception_handler(Exception, _unexpected)


def reason(status: int, text: str) -> JSONResponse:
    return JSONResponse({"reason": text}, status_code=status)


async def _ours(request: Request, error: Exception) -> JSONResponse:
    status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
    if status == 500:
        log.error("request failed", path=request.url.path, error=repr(error), exc_info=error)
    return reason(status, str(error) or type(error).__name__)


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
    if error.status_code == 404 and error.detail == "Not Found":
        return reason(404, f"there is nothing at {request.url.path}; /docs lists what there is")
    return reason(error.status_code, error.detail)
