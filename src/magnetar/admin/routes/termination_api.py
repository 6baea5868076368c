"""Terminating topics: its paths of Pulsar's admin v2."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from magnetar.admin.elsewhere import note_authoritative
from magnetar.admin.errors import CONFLICT
from magnetar.admin.paths import Segment, TopicSegment, topic_name
from magnetar.admin.termination import PATH, TerminationService
from magnetar.admin.views import MessageIdView

TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"


def routes(service: TerminationService) -> APIRouter:
    """Both of them."""
    router = APIRouter(tags=["topics"], dependencies=[Depends(note_authoritative)])

    @router.post(TOPIC + PATH, responses=CONFLICT)
    async def terminate(tenant: Segment, namespace: Segment, topic: TopicSegment) -> MessageIdView:
        """Nothing more is published to the topic, for good; what it holds stays to be read. The id
        of its last message."""
        return await service.topic(topic_name(tenant, namespace, topic))

    @router.post(TOPIC + PATH + "/partitions", responses=CONFLICT)
    async def terminate_partitions(
        tenant: Segment, namespace: Segment, topic: TopicSegment
    ) -> dict[int, MessageIdView]:
        """The same of each partition; the ids by their numbers."""
        return await service.partitions(topic_name(tenant, namespace, topic))

    return router
