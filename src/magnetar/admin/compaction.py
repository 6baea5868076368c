"""What REST asks and tells about compaction: begin it, and how the last one ended.

Of a partitioned topic it is about every partition, each at its owner; its status is that of the one
that is least far.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Final

from magnetar.admin.elsewhere import AUTHORITATIVE, ServedElsewhereError
from magnetar.admin.peers import Peers, about_topic, read_answer
from magnetar.admin.views import LongRunningView
from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.ownership import At
from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.model.errors import TopicNotFoundError
from magnetar.topics.compacting import CompactionStatus, TopicCompactions
from magnetar.topics.parts import each_part
from magnetar.topics.registry import Topics

PATH: Final = "/compaction"
LEAST_FIRST: Final = ("ERROR", "RUNNING", "NOT_RUN", "SUCCESS")


class CompactionService:
    """See the module's text. Both methods raise ``TopicNotFoundError``, and
    ``ServedElsewhereError`` for a topic without partitions."""

    def __init__(
        self,
        control: ControlPlane,
        topics: Topics,
        compactions: TopicCompactions,
        peers: Peers,
    ) -> None:
        self._control = control
        self._topics = topics
        self._compactions = compactions
        self._peers = peers

    async def begin(self, topic: str) -> None:
        """Every partition is begun, whatever is said of the others. Raises ``NotAllowedError`` if
        it (one of them) is being compacted, ``ServiceNotReadyError``."""
        name = parse_topic(topic)
        parts = await self._parts(name)
        await each_part(name, parts, "begun", partial(self._begin, name))

    async def _begin(self, name: TopicName, part: TopicName) -> None:
        owner = await self._owner(name, part)
        if owner is None:
            self._compactions.begin(await self._topics.get(part, create=False))
            return
        with contextlib.suppress(TopicNotFoundError):  # never used
            await self._peers.ask(owner.http_url, about_topic("PUT", part, PATH))

    async def status(self, topic: str) -> LongRunningView:
        name = parse_topic(topic)
        found = []
        for part in await self._parts(name):
            owner = await self._owner(name, part)
            if owner is None:
                outcome = self._compactions.outcome(await self._topics.get(part, create=False))
                view = LongRunningView(status=outcome.status.value, last_error=outcome.error)
                found.append(view)
                continue
            with contextlib.suppress(TopicNotFoundError):
                told = await self._peers.ask(owner.http_url, about_topic("GET", part, PATH))
                found.append(read_answer(LongRunningView, told, owner.http_url))
        if not found:
            return LongRunningView(status=CompactionStatus.NOT_RUN.value, last_error="")
        return min(found, key=_how_far)

    async def _parts(self, name: TopicName) -> list[TopicName]:
        count = await self._control.partitioned.partitions(name)
        return [name.of_partition(index) for index in range(count)] or [name]

    async def _owner(self, name: TopicName, part: TopicName) -> At | None:
        """Another broker, if it is one's."""
        owner = await self._control.ownership.locate(part, AUTHORITATIVE.get())
        if not isinstance(owner, At):
            return None
        if part == name:
            raise ServedElsewhereError(f"topic {name}", owner.http_url, owner.candidate)
        return owner


def _how_far(view: LongRunningView) -> int:
    """One that another release calls otherwise is shown before all."""
    return LEAST_FIRST.index(view.status) if view.status in LEAST_FIRST else -1
