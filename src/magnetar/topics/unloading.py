"""Topics that nobody uses are unloaded, after a while or to make place for others.

Nothing is lost by it and nobody is fenced: acknowledgements are stored first, and a topic that
cannot store them stays; then the log is closed as when a broker ends. Whoever asks for the topic
while it closes waits for that, and loads it again.

What an unloaded topic forgets is what a broker that starts again does not know either: counters,
producers that were refused for good, the pause after an append that failed.

Rules:

* A topic that is in use is never unloaded, nor one that is being deleted.
* One timer for all topics; ``idle_order`` decides which are looked at.
* At most ``UNLOADS_AT_ONCE`` are unloaded for being idle at a time.
* A log that will delete something by itself when time has passed (retention) stays open until it
  has, unless its place is needed: nobody else would delete it. So does a topic of which something
  expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping
from typing import Final

import structlog

from magnetar.cluster.topic_name import TopicName
from magnetar.env.tasks import TaskScope
from magnetar.model.errors import MagnetarError
from magnetar.topics.idle_order import IdleOrder, Look
from magnetar.topics.topic import Topic

log = structlog.get_logger(__name__)

UNLOADS_AT_ONCE: Final = 32
"""Each writes to the metadata store and to bookies, which those who are served need too."""
LOOKS_PER_SWEEP_MAX: Final = 1000
SWEEP_INTERVAL_S_MIN: Final = 0.1
ATTEMPTS: Final = 3
"""Topics that are tried to make one place; the first may be in use again, or fail to store."""


class Unloading:
    """See the module's text. ``topics`` are the open ones, ``deleting`` those whose deletion is
    under way; ``retire`` takes a topic out of the open ones and closes it in a task."""

    def __init__(
        self,
        idle_ms: int,
        topics: Mapping[TopicName, Topic],
        deleting: Container[TopicName],
        retire: Callable[[Topic], asyncio.Task[None]],
        scope: TaskScope,
    ) -> None:
        self.unloaded = 0
        """Since the broker started."""
        self._sweeps = idle_ms > 0
        self._topics = topics
        self._deleting = deleting
        self._retire = retire
        self._scope = scope
        self._order: IdleOrder[TopicName] = IdleOrder(idle_ms / 1000, self._look)
        self._loop = asyncio.get_running_loop()
        self._due = scope.guarded(self._sweep, "sweep idle topics")
        self._timer: asyncio.TimerHandle | None = None
        self._under_way = 0
        self._closed = False

    def _look(self, name: TopicName) -> Look:
        topic = self._topics[name]
        if topic.in_use or name in self._deleting:
            return Look.IN_USE
        needed = topic.expires_later or topic.log.stats().frees_later
        return Look.NEEDED if needed else Look.UNUSED

    # -- what the registry says ---------------------------------------------------------------

    def touch(self, topic: Topic) -> None:
        """A use of ``topic`` ends, or it was just loaded."""
        if self._topics.get(topic.name) is topic and not topic.closed:
            self._order.touch(topic.name, self._loop.time())
            self._plan_sweep()

    def forget(self, name: TopicName) -> None:
        """The topic is not open any more."""
        self._order.forget(name)

    def close(self) -> None:
        """Unload nothing from now on."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    # -- idle topics --------------------------------------------------------------------------

    def _plan_sweep(self) -> None:
        due_s = self._order.due_s()
        if self._timer is None and self._sweeps and not self._closed and due_s is not None:
            delay_s = max(SWEEP_INTERVAL_S_MIN, due_s - self._loop.time())
            self._timer = self._loop.call_later(delay_s, self._due)

    def _sweep(self) -> None:
        self._timer = None
        room = UNLOADS_AT_ONCE - self._under_way
        for name in self._order.take_idle(self._loop.time(), room, LOOKS_PER_SWEEP_MAX):
            self._under_way += 1
            self._scope.spawn(self._unload_counted(name), f"unload {name}")
        self._plan_sweep()

    async def _unload_counted(self, name: TopicName) -> None:
        try:
            await self._unload(name)
        finally:
            self._under_way -= 1

    # -- making place -------------------------------------------------------------------------

    async def make_place(self) -> bool:
        """Unload the topic that was unused for the longest time. False if that does not work out:
        all are in use, or cannot store what was acknowledged."""
        for _ in range(ATTEMPTS):
            name = None if self._closed else self._order.take_oldest()
            if name is None:
                return False
            if await self._unload(name):
                return True
        return False

    # -- one topic ----------------------------------------------------------------------------

    async def _unload(self, name: TopicName) -> bool:
        """Unload a topic that was taken out of the order; False if it stays."""
        topic = self._topics.get(name)
        if topic is None:
            return False  # its log was lost just now
        # Before anything ends: a topic that cannot store now can go on, and store later.
        if not await self._store_cursors(topic):
            self.touch(topic)
            return False
        # It went on meanwhile. From here to its closing there is no wait, so nobody comes between.
        if self._closed or topic.closed or self._topics.get(name) is not topic:
            return False
        if name in self._order or self._look(name) is Look.IN_USE:
            return False  # it is in the order, or touched when that use ends
        topic.disconnect()  # before its task runs: whoever has it already is told to come again
        closing = self._retire(topic)
        self.unloaded += 1
        log.debug("idle topic unloaded", topic=str(name))
        await asyncio.shield(closing)
        return True

    async def _store_cursors(self, topic: Topic) -> bool:
        try:
            for cursor in topic.log.cursors.durable().values():
                await cursor.wait_stored()
        except MagnetarError as error:
            log.warning(
                "idle topic stays loaded: acknowledgements could not be stored",
                topic=str(topic.name),
                error=str(error),
            )
            return False
        return True
