"""Before every request of REST, where clients must show who they are: 401 for those who do not, 403
for what their role may not do (``needs``).

A client shows a token or a password (``Authorization: Bearer``, ``Basic``), or the certificate of
its connection; else it is anonymous. A redirect to another broker is asked for its own permission
there: clients send the header again.
"""

from __future__ import annotations

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from magnetar.admin import errors
from magnetar.admin.needs import Need, NeededLevel, OfTenant, need
from magnetar.admin.routes.health_api import TELLS_WHY
from magnetar.admin.server import CERTIFICATE_NAME
from magnetar.cluster.security.access import Access
from magnetar.cluster.security.principals import Principal
from magnetar.config import SecurityConfig
from magnetar.env.network.refusals import Refusals
from magnetar.model.errors import AuthenticationError, AuthorizationError, MagnetarError


class Guard:
    """Before ``app``; ``EncodedPaths`` is before this."""

    def __init__(self, app: ASGIApp, access: Access, config: SecurityConfig) -> None:
        self._app = app
        self._access = access
        self._refusals = Refusals()
        opened = {NeededLevel.METRICS: config.open_metrics, NeededLevel.HEALTH: config.open_health}
        self._open = {
            NeededLevel.EVERYBODY,
            *(level for level, is_open in opened.items() if is_open),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            asked = need(scope["method"], scope["path"])
            if asked not in self._open:
                who = await self._who(scope)
                await self._check(who, asked, scope["path"])
                scope = {**scope, TELLS_WHY: self._access.is_super_user(who)}
            elif asked is NeededLevel.HEALTH:
                scope = {**scope, TELLS_WHY: await self._is_super_user(scope)}
        except MagnetarError as error:
            if isinstance(error, AuthenticationError):
                fields = {"path": scope["path"], "why": error.why}
                self._refusals.say("request refused", _peer(scope), **fields)
            answer = await errors.answer(Request(scope), error)
        except ValueError as error:  # a segment that is not UTF-8: routes would say so, too
            answer = errors.reason(400, str(error))
        else:
            await self._app(scope, receive, send)
            return
        answer.headers["connection"] = "close"  # its body, if there is one, is not read
        await answer(scope, receive, send)

    async def _who(self, scope: Scope) -> Principal:
        shown = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(shown) > 1:
            raise AuthenticationError("authentication failed: two Authorization headers")
        name = (scope.get("state") or {}).get(CERTIFICATE_NAME)
        if not shown and name is not None:
            return self._access.authenticator.by_certificate(name)
        return await self._access.by_header(shown[0].decode("latin-1") if shown else "")

    async def _is_super_user(self, scope: Scope) -> bool:
        """Of a client that need not show who it is."""
        try:
            return self._access.is_super_user(await self._who(scope))
        except AuthenticationError:
            return False

    async def _check(self, who: Principal, asked: Need, path: str) -> None:
        access = self._access
        if isinstance(asked, OfTenant):
            if not await access.administers(who, asked.tenant):
                raise AuthorizationError(
                    f"role {who.role} does not administer tenant {asked.tenant}: that is for "
                    "super-users and its adminRoles"
                )
        elif not isinstance(asked, NeededLevel):
            await access.check(who, asked.action, asked.of)
        elif asked is NeededLevel.SUPER_USER:
            access.check_super_user(who, f"use {path}")


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else "?"
