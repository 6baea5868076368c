"""Processes that follow topics' logs, as brokers do that serve reads only: through the log library,
without a word to the broker that owns them. What must hold: ``topic_history``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from magnetar.log.managed.followed_log import FollowedLog
from magnetar.log.managed.history import History
from magnetar.model.entry import Entry
from magnetar.model.errors import MagnetarError
from magnetar.model.ids import EARLIEST, Position
from magnetar_sim.brokers.broker_watch import BrokerWatch, following
from magnetar_sim.brokers.topic_history import LOWEST, decoded
from magnetar_sim.cluster.cluster import Client
from magnetar_sim.cluster.log_workload import new_store

RETRY_S = 0.3
READ_ENTRIES = 20
READ_BYTES = 1 << 16


class TopicFollower:
    """Follows the log of ``topic`` as ``client``. A log that is deleted is not followed on."""

    def __init__(
        self,
        client: Client,
        topic: str,
        log_name: str,
        watch: BrokerWatch,
        leaves: Callable[[], bool],
        history: History | None = None,
    ) -> None:
        self.name = f"{client.name} of {topic}"
        self.client = client
        self.topic = topic
        self._log_name = log_name
        self._watch = watch
        self._leaves = leaves
        self._history = history
        self._last = LOWEST
        client.process.spawn(self._run(), "follower")

    @property
    def behind(self) -> Position | None:
        """An entry that it is still to get."""
        topic = self._watch.topics.get(self.topic)
        if topic is None or topic.vague or not self.client.process.alive:
            return None
        late = (p for p in topic.receipted if p > self._last and not topic.may_be_gone(p))
        return next(late, None)

    async def _run(self) -> None:
        """Begins anew, now and then, where it was."""
        while True:
            store = new_store(self.client, self._history)
            try:
                followed = await store.follow(self._log_name)
                try:
                    await self._follow(followed)
                finally:
                    await followed.close()
            except MagnetarError as error:
                self.client.cluster.trace.note(self.client.name, f"cannot follow: {error}")
            await asyncio.sleep(RETRY_S)

    async def _follow(self, followed: FollowedLog) -> None:
        grown = asyncio.Event()
        end = followed.watch_readable(grown.set)
        try:
            while not self._leaves():
                grown.clear()
                start = EARLIEST if self._last == LOWEST else following(self._last)
                entries = await self._read(followed, start)
                self._got(entries)
                if not entries:
                    await self._wait(grown)
        finally:
            end()

    async def _read(self, followed: FollowedLog, start: Position) -> Sequence[Entry]:
        cached = followed.read_cached(start, READ_ENTRIES, READ_BYTES)
        if cached is not None:
            return cached
        return await followed.read(start, READ_ENTRIES, READ_BYTES)

    async def _wait(self, grown: asyncio.Event) -> None:
        """What is readable is told of by the watch; the limit is for ``leaves`` alone."""
        try:
            async with asyncio.timeout(1.0):
                await grown.wait()
        except TimeoutError:
            return

    def _got(self, entries: Sequence[Entry]) -> None:
        """Invariants 1 and 14."""
        topic = self._watch.topic(self.topic)
        for entry in entries:
            position = entry.position
            content = decoded(memoryview(entry.payload))
            if content is None and position in topic.erased:
                self._last = position  # its header says its place, and that nothing is there
                continue
            if content is None:
                topic.broken(f"{self.name} reads no message at {position}")
                continue
            if position <= self._last:
                topic.broken(f"{self.name} reads {position} after {self._last}")
            for left_out in topic.between(following(self._last), position):
                if left_out in topic.receipted and not topic.may_be_gone(left_out):
                    topic.broken(f"{self.name} reads {position}, and has not read {left_out}")
            topic.stands_at(position, content, self.name)
            self._watch.count("entries that followers read")
            self._last = position
