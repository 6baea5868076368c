"""Single messages: their paths of Pulsar's admin v2."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Response

from magnetar.admin.elsewhere import note_authoritative
from magnetar.admin.messages import PEEKED_MAX, MessageService, ShownEntry
from magnetar.admin.paths import IdSegment, Segment, SubscriptionSegment, TopicSegment, topic_name
from magnetar.admin.views import MessageIdView
from magnetar.model.ids import Position

TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999."""
BYTES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}}}


def routes(service: MessageService) -> APIRouter:
    """All of it."""
    router = APIRouter(tags=["topics"], dependencies=[Depends(note_authoritative)])

    @router.get(
        TOPIC + "/ledger/{ledger_id}/entry/{entry_id}", response_class=Response, responses=BYTES
    )
    async def by_id(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        ledger_id: IdSegment,
        entry_id: IdSegment,
    ) -> Response:
        """The message, or the batch, of an id: what clients sent as the body, the rest in headers.
        For a partitioned topic name a partition."""
        name = topic_name(tenant, namespace, topic)
        return _answer(await service.by_id(name, Position(ledger_id, entry_id)))

    @router.get(
        TOPIC + "/subscription/{subscription}/position/{number}",
        response_class=Response,
        responses=BYTES,
    )
    async def peek(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        subscription: SubscriptionSegment,
        number: Annotated[int, Path(ge=1, le=PEEKED_MAX)],
    ) -> Response:
        """The same of the first (1), second, ... of what the subscription has not acknowledged."""
        name = topic_name(tenant, namespace, topic)
        return _answer(await service.peek(name, subscription, number))

    @router.get(TOPIC + "/messageid/{time_ms}")
    async def id_at(
        tenant: Segment,
        namespace: Segment,
        topic: TopicSegment,
        time_ms: Annotated[int, Path(ge=0, le=TIME_MS_MAX)],
    ) -> MessageIdView:
        """The id of the first message that was published then (milliseconds since 1970) or later;
        the place of the next one if there is none."""
        return await service.id_at(topic_name(tenant, namespace, topic), time_ms)

    @router.get(TOPIC + "/lastMessageId")
    async def last_id(tenant: Segment, namespace: Segment, topic: TopicSegment) -> MessageIdView:
        """The id of the last message; entry -1 while there is none."""
        return await service.last_id(topic_name(tenant, namespace, topic))

    return router


def _answer(found: ShownEntry) -> Response:
    return Response(found.body, media_type="application/octet-stream", headers=dict(found.headers))
