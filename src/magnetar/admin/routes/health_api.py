"""How the process is: ``/health`` part by part, and Pulsar's one word."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from magnetar.admin.errors import reason
from magnetar.admin.views import HealthView, PartHealthView
from magnetar.env.health import Health

UNWELL = 503
"""Load balancers and supervisors go by the status alone."""


def routes(health: Health) -> APIRouter:
    """All of it."""
    router = APIRouter(tags=["process"])

    @router.get("/health", responses={UNWELL: {"model": HealthView}})
    async def every_part(response: Response) -> HealthView:
        """Each part of this process: whether it is well, else what is wrong and what to do."""
        view = await health_view(health)
        if not view.ok:
            response.status_code = UNWELL
        return view

    @router.get("/admin/v2/brokers/health", response_class=PlainTextResponse)
    async def pulsar_health() -> Response:
        """``ok``, or 503 with the first thing that is wrong."""
        view = await health_view(health)
        for each in view.parts:
            if not each.ok:
                return reason(UNWELL, f"{each.part}: {each.problem}; {each.remedy}")
        return PlainTextResponse("ok")

    return router


async def health_view(health: Health) -> HealthView:
    report = await health.report()
    parts = [
        PartHealthView(part=part, ok=each.ok, problem=each.problem, remedy=each.remedy)
        for part, each in report.items()
    ]
    return HealthView(ok=all(each.ok for each in parts), parts=parts)
