"""Has a topic's owner tell how far its log may be read, while a read-only broker serves it.

Rules:

* Without it the same is seen later, by the bookies: what fails is tried again, with growing pauses,
  and nobody waits for it.
* Whoever owns the topic next is asked as soon as this one says that it is not the owner, or its
  connection breaks.
* The owner is told when nobody is served here any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from magnetar.cluster.topic_name import TopicName
from magnetar.env.tasks import TaskScope
from magnetar.model.errors import MagnetarError
from magnetar.model.ids import Position
from magnetar.topics.following.remote_acks import CursorOwners, NewsKind, OwnerNews

log = structlog.get_logger(__name__)

RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 10.0


class ToldEnd:
    """See the module's text. ``tell`` is called with the last entry that may be read."""

    def __init__(
        self,
        topic: TopicName,
        owners: CursorOwners,
        scope: TaskScope,
        tell: Callable[[Position], None],
    ) -> None:
        self._topic = topic
        self._owners = owners
        self._scope = scope
        self._tell = tell
        self._change = asyncio.Event()
        """It is to be asked again, or nobody wants to be told any more."""
        self._wanted = False
        self._task: asyncio.Task[None] | None = None

    def want(self, wanted: bool) -> None:
        """Idempotent."""
        self._wanted = wanted
        if not wanted:
            self._change.set()
        elif self._task is None:
            self._task = self._scope.spawn(self._keep_told(), "the end of the log")

    async def _keep_told(self) -> None:
        retry_s = RETRY_FIRST_S
        try:
            while self._wanted:
                self._change.clear()  # before it is asked: what comes meanwhile counts
                try:
                    self._tell(await self._owners.follow(self._topic, self._told))
                except MagnetarError as error:
                    log.debug("not told of a log's end", topic=str(self._topic), error=str(error))
                    retry_s = min(2 * retry_s, RETRY_MAX_S)
                else:
                    retry_s = RETRY_FIRST_S
                    await self._change.wait()
                await asyncio.sleep(retry_s)
        finally:
            self._task = None
            self._owners.unfollow(self._topic)

    def _told(self, news: OwnerNews) -> None:
        if news.what is NewsKind.SAY_AGAIN:
            self._change.set()
        elif news.what is NewsKind.GREW and news.mark_delete is not None:
            self._tell(news.mark_delete)
