"""Paths as they came, and the parts of them.

A topic or subscription may be named anything, a slash included, which then stands encoded in one
segment of the path (``%2F``). So requests are routed by their encoded path, segment by segment, and
a segment is decoded where it is used. Decoded before, ``a%2Fstats`` would be another request.

Segments are decoded as Pulsar does it, because its clients encode them so: a topic as a form field
(``+`` is a space), a subscription twice, as a segment and then as a form field.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias
from urllib.parse import quote, unquote, unquote_plus

from fastapi import Path
from pydantic import BeforeValidator
from starlette.types import ASGIApp, Receive, Scope, Send


class EncodedPaths:
    """Lets an application route by the path as it came."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw = scope.get("raw_path")
            path = raw.decode("ascii", "replace") if raw else quote(scope["path"])
            scope = {**scope, "path": path}
        await self._app(scope, receive, send)


def _decoded(segment: object) -> str:
    """Raises ``ValueError``, a bad request, for what is not UTF-8."""
    return unquote(str(segment), errors="strict")


def _decoded_field(segment: object) -> str:
    return unquote_plus(str(segment), errors="strict")


def _decoded_twice(segment: object) -> str:
    return _decoded_field(_decoded(segment))


_BOUNDS = Path(min_length=1, max_length=8192)
Segment: TypeAlias = Annotated[str, BeforeValidator(_decoded), _BOUNDS]
"""One segment of a path, decoded: a tenant, a namespace, a cluster."""
TopicSegment: TypeAlias = Annotated[str, BeforeValidator(_decoded_field), _BOUNDS]
SubscriptionSegment: TypeAlias = Annotated[str, BeforeValidator(_decoded_twice), _BOUNDS]
ID_MAX: Final = 2**63 - 1
IdSegment: TypeAlias = Annotated[int, Path(ge=0, le=ID_MAX)]
"""The id of a ledger, or of an entry in one."""


def topic_name(tenant: str, namespace: str, topic: str) -> str:
    """The full name of the topic in a path; ``cluster.topic_name`` says whether it can be one."""
    return f"persistent://{tenant}/{namespace}/{topic}"
