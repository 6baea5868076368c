"""Bodies of requests: none here needs a large one, so a large one is refused, not read.

A body whose length is told and too large is answered with 413 before a byte of it is read; one in
chunks, as soon as they are too many. The answer ends the connection (``server.py``), as the
rest of the body would have to be read to find the next request behind it.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from magnetar.admin import errors

BODY_BYTES_MAX: Final = 64 << 10


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
        if length is None and b"transfer-encoding" not in headers:
            await self._app(scope, receive, send)  # no body
        elif length is not None and not (length.isdigit() and int(length) <= BODY_BYTES_MAX):
            await _refuse(scope, receive, send)
        else:
            await self._with_body(scope, receive, send)

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return  # nobody is there to be answered
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > BODY_BYTES_MAX:
                await _refuse(scope, receive, send)
                return
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def whole() -> Message:
            return first.pop() if first else await receive()

        await self._app(scope, whole, send)


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    answer = errors.reason(413, f"the body is too large; at most {BODY_BYTES_MAX} bytes are taken")
    answer.headers["connection"] = "close"
    await answer(scope, receive, send)
