"""How the process is: ``/health`` part by part, and Pulsar's one word.

Any role may ask, and probes may without one. But what is wrong names topics, subscriptions and
files of whomever it concerns, so that it is told to super-users; others hear of which part it is.
"""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from magnetar.admin.errors import reason
from magnetar.admin.views import HealthView, PartHealthView
from magnetar.env.health import Health

UNWELL = 503
"""Load balancers and supervisors go by the status alone."""
TELLS_WHY: Final = "magnetar.tells_why"
"""In a request's scope: whether its client is told what is wrong. Where nobody is asked who they
are, everybody is."""
NOT_TOLD: Final = "it is not well"
WHO_IS_TOLD: Final = "super-users are told what it is, and the log says it"


def routes(health: Health) -> APIRouter:
    """All of it."""
    router = APIRouter(tags=["process"])

    @router.get("/health", responses={UNWELL: {"model": HealthView}})
    async def every_part(request: Request, response: Response) -> HealthView:
        """Each part of this process: whether it is well, else what is wrong and what to do."""
        view = await health_view(health, tells_why(request))
        if not view.ok:
            response.status_code = UNWELL
        return view

    @router.get("/admin/v2/brokers/health", response_class=PlainTextResponse)
    async def pulsar_health(request: Request) -> Response:
        """``ok``, or 503 with the first thing that is wrong."""
        view = await health_view(health, tells_why(request))
        for each in view.parts:
            if not each.ok:
                return reason(UNWELL, f"{each.part}: {each.problem}; {each.remedy}")
        return PlainTextResponse("ok")

    return router


def tells_why(request: Request) -> bool:
    return bool(request.scope.get(TELLS_WHY, True))


async def health_view(health: Health, why: bool) -> HealthView:
    """``why``: what is wrong is said, too."""
    report = await health.report()
    parts = [
        PartHealthView(
            part=part,
            ok=each.ok,
            problem=each.problem if why or each.ok else NOT_TOLD,
            remedy=each.remedy if why or each.ok else WHO_IS_TOLD,
        )
        for part, each in report.items()
    ]
    return HealthView(ok=all(each.ok for each in parts), parts=parts)
