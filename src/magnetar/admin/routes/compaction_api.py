"""Compaction: its paths of Pulsar's admin v2."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response

from magnetar.admin.compaction import PATH, CompactionService
from magnetar.admin.elsewhere import note_authoritative
from magnetar.admin.errors import CONFLICT
from magnetar.admin.paths import Segment, TopicSegment, topic_name
from magnetar.admin.views import LongRunningView

TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"


def routes(service: CompactionService) -> APIRouter:
    """Both of them."""
    router = APIRouter(tags=["topics"], dependencies=[Depends(note_authoritative)])

    @router.put(TOPIC + PATH, status_code=204, responses=CONFLICT)
    async def begin(tenant: Segment, namespace: Segment, topic: TopicSegment) -> Response:
        """Compact a topic, or all partitions of one, by key: in the background, by its owner."""
        await service.begin(topic_name(tenant, namespace, topic))
        return Response(status_code=204)

    @router.get(TOPIC + PATH)
    async def status(tenant: Segment, namespace: Segment, topic: TopicSegment) -> LongRunningView:
        """How the last compaction ended, or that it runs: NOT_RUN, RUNNING, SUCCESS, ERROR."""
        return await service.status(topic_name(tenant, namespace, topic))

    return router
