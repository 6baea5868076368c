"""What REST asks about backlogs beside their quotas, which are policies (``policies``)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from magnetar.admin.topics import TopicService
from magnetar.model.ids import EARLIEST, Position
from magnetar.topics.quotas import backlog_bytes


class BacklogService:
    """``look`` has this broker's topics held against their quotas."""

    def __init__(self, topics: TopicService, look: Callable[[], Awaitable[None]]) -> None:
        self._topics = topics
        self._look = look

    async def check(self) -> None:
        """Now, and not only when it is time to."""
        await self._look()

    async def size(self, topic: str, after: Position) -> int:
        """Bytes of what lies after that message, or of all the topic holds after ``EARLIEST``; an
        estimate within a ledger. Raises as ``TopicService.opened``."""
        opened = await self._topics.opened(topic)
        stored, positions = opened.log.stats(), opened.log.positions
        if after <= EARLIEST:
            return stored.stored_bytes
        return backlog_bytes(stored, after, positions.entries_between(after, positions.readable))
