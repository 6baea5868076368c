"""The names of a namespace's topics, kept while somebody wants to hear when there are others.

Invariants:

* Who begins to listen gets the names of that moment, and is told of each difference after it, once
  and in order: what it has been told is what the list was at some moment.
* A difference is told some time after it came to be; what came and went between two looks is not.
* Looks follow one another with a pause, so that a namespace in which topics are made by the
  thousand costs a part of a core, and its length for each look, not for each topic.

The metadata store says when to look. ``CHECK_S`` later it is done anyway: of partitioned topics
that nobody has asked for in a while nothing is told.

Why: docs/adr/0215-clients-are-told-of-new-topics.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final, Protocol, TypeAlias, runtime_checkable

import structlog

from magnetar.cluster.partitioned_topics import PartitionedTopics
from magnetar.cluster.topic_name import topic_of_log
from magnetar.env.tasks import TaskScope, awaited, shared_result
from magnetar.log.seam import LogStore, WatchedNames
from magnetar.model.errors import BrokerError, MetadataError

log = structlog.get_logger(__name__)

CHECK_S: Final = 60.0
PAUSE_S: Final = 0.25
"""Between two looks; a look that takes longer is followed by ``PAUSES`` times its own time."""
PAUSES: Final = 20
RETRY_S: Final = 1.0

Heard: TypeAlias = Callable[[Collection[str], Collection[str]], None]
"""Is told the full names of topics that are new, and of those that have gone."""


@runtime_checkable
class _Store(LogStore, WatchedNames, Protocol):
    """The logs of a cluster, watched."""


class NameList:
    """The topics of one namespace, each partition by itself. Made by ``NameLists``."""

    def __init__(self, namespace: str, store: _Store, partitioned: PartitionedTopics) -> None:
        self.names: dict[str, str] = {}
        """Full name -> the name of the topic that it is, or is a partition of, without the
        domain."""
        self.ended = False
        self._namespace = namespace
        self._prefix = f"{namespace}/persistent"
        self._store = store
        self._partitioned = partitioned
        self._logs: dict[str, tuple[str, str]] = {}
        """By the name of the log, so that it is parsed once."""
        self._listeners: dict[Heard, None] = {}
        self._changed = asyncio.Event()
        self._ends = (
            store.watch_names(self._prefix, self._changed.set),
            partitioned.watch_names(namespace, self._changed.set),
        )

    def listen(self, heard: Heard) -> Callable[[], None]:
        """Tell it of what changes from now on. Returns the function that ends it."""
        assert not self.ended
        self._listeners[heard] = None

        def end() -> None:
            self._listeners.pop(heard, None)

        return end

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def end(self) -> None:
        self.ended = True
        for each in self._ends:
            each()

    async def look(self) -> None:
        """Raises ``MetadataError``, ``BrokerError``."""
        self._changed.clear()
        logs = await self._store.names(self._prefix, self._logs)
        partitions = await self._partitioned.partition_names(self._namespace)
        known = self._logs
        self._logs = {each: known.get(each) or _listed(each) for each in logs}
        found = dict(self._logs.values())
        for each in partitions:
            found[str(each)] = _matched(each.namespace, each.partitioned.local)
        before, self.names = self.names, found
        added = [name for name in found if name not in before]
        removed = [name for name in before if name not in found]
        if added or removed:
            await self._tell(added, removed)

    async def _tell(self, added: list[str], removed: list[str]) -> None:
        """Who begins to listen meanwhile has the names already."""
        for heard in list(self._listeners):
            if heard in self._listeners:
                heard(added, removed)
                await asyncio.sleep(0)  # each may look at every name

    async def run(self) -> None:
        """Look again, until nobody listens."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                await asyncio.wait_for(self._changed.wait(), CHECK_S)
            except TimeoutError:
                if not self._listeners:
                    return
            began = loop.time()
            try:
                await self.look()
            except (MetadataError, BrokerError) as error:
                log.info("names are not known", namespace=self._namespace, error=str(error))
                self._changed.set()
                await asyncio.sleep(RETRY_S)
                continue
            await asyncio.sleep(max(PAUSE_S, PAUSES * (loop.time() - began)))


class NameLists:
    """The lists that somebody listens to, by namespace (``tenant/namespace``)."""

    def __init__(self, store: LogStore, partitioned: PartitionedTopics, scope: TaskScope) -> None:
        self._store = store if isinstance(store, _Store) else None
        self._partitioned = partitioned
        self._scope = scope
        self._lists: dict[str, asyncio.Task[NameList]] = {}
        self._kept: dict[NameList, None] = {}

    @property
    def listeners(self) -> int:
        """Of all lists."""
        return sum(each.listeners for each in self._kept)

    @property
    def served(self) -> bool:
        """The log store tells of changes."""
        return self._store is not None

    async def of(self, namespace: str) -> NameList:
        """A list that has not ended, and does not before the next turn of the loop. Raises
        ``MetadataError``, ``BrokerError``."""
        while True:
            opening = self._lists.get(namespace)
            if opening is None or _is_over(opening):
                opening = self._scope.spawn(
                    self._open(namespace), f"names of {namespace}", awaited("who wants them")
                )
                self._lists[namespace] = opening
            found = await shared_result(opening)
            if not found.ended:
                return found

    async def _open(self, namespace: str) -> NameList:
        assert self._store is not None, "see served"
        made = NameList(namespace, self._store, self._partitioned)
        try:
            await made.look()
        except BaseException:
            made.end()
            raise
        self._scope.spawn(self._keep(namespace, made), f"names of {namespace}")
        return made

    async def _keep(self, namespace: str, kept: NameList) -> None:
        self._kept[kept] = None
        try:
            await kept.run()
        finally:
            kept.end()
            del self._kept[kept]
            self._lists.pop(namespace, None)


def _is_over(opening: asyncio.Task[NameList]) -> bool:
    """It has failed, or its list has ended."""
    if not opening.done():
        return False
    return opening.cancelled() or opening.exception() is not None or opening.result().ended


def _listed(log_name: str) -> tuple[str, str]:
    name = topic_of_log(log_name)
    return str(name), _matched(name.namespace, name.partitioned.local)


def _matched(namespace: str, local: str) -> str:
    return f"{namespace}/{local}"
