"""Bodies of requests: but for schemas none is large, so a large one is refused, not read.

A body whose length is told and too large is answered with 413 before a byte of it is read; one in
chunks, as soon as they are too many. The answer ends the connection (``server.py``), as the
rest of the body would have to be read to find the next request behind it.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from magnetar.admin import errors
from magnetar.model.schema import SCHEMA_BYTES_MAX, SCHEMA_PROPERTIES_BYTES_MAX

BODY_BYTES_MAX: Final = 64 << 10
SCHEMA_PATHS: Final = "/admin/v2/schemas/"
SCHEMA_BODY_BYTES_MAX: Final = 2 * (SCHEMA_BYTES_MAX + SCHEMA_PROPERTIES_BYTES_MAX) + BODY_BYTES_MAX
"""The largest schema in a text of JSON, whose quotes are doubled by it."""


class BodyLimit:
    """Before ``app``; hands it bodies that are whole."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        length = headers.get(b"content-length")
        most = bytes_max(scope["path"])
        if length is None and b"transfer-encoding" not in headers:
            await self._app(scope, receive, send)  # no body
        elif length is not None and not (length.isdigit() and int(length) <= most):
            await _refuse(most, scope, receive, send)
        else:
            await self._with_body(most, scope, receive, send)

    async def _with_body(self, most: int, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return  # nobody is there to be answered
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > most:
                await _refuse(most, scope, receive, send)
                return
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def whole() -> Message:
            return first.pop() if first else await receive()

        await self._app(scope, whole, send)


def bytes_max(path: str) -> int:
    """Of the body of a request for ``path``."""
    return SCHEMA_BODY_BYTES_MAX if path.startswith(SCHEMA_PATHS) else BODY_BYTES_MAX


async def _refuse(most: int, scope: Scope, receive: Receive, send: Send) -> None:
    answer = errors.reason(413, f"the body is too large; at most {most} bytes are taken")
    answer.headers["connection"] = "close"
    await answer(scope, receive, send)
