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
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, Protocol, TypeAlias, runtime_checkable

import structlog

from magnetar.cluster.partitioned_topics import PartitionedTopics
from magnetar.cluster.topic_name import topic_of_log
from magnetar.cluster.topic_patterns import TopicPattern
from magnetar.env.tasks import TaskScope, awaited, shared_result
from magnetar.log.seam import LogStore, WatchedNames
from magnetar.model.errors import MagnetarError

log = structlog.get_logger(__name__)

CHECK_S: Final = 60.0
PAUSE_S: Final = 0.25
"""Between two looks; a look that takes longer is followed by ``PAUSES`` times its own time."""
PAUSES: Final = 20
RETRY_S: Final = 1.0
"""After a look that failed; twice as long after each further one."""

PIECE: Final = 500
"""Names that an expression is matched with in one turn of the loop: a millisecond or two."""

Heard: TypeAlias = Callable[[Sequence[str], Sequence[str]], None]
"""Is told the full names of topics that are new, and of those that have gone."""


@runtime_checkable
class _Store(LogStore, WatchedNames, Protocol):
    """The logs of a cluster, watched."""


class ChosenNames:
    """The names of a list that match one expression, for all who watch it by that."""

    def __init__(self, pattern: TopicPattern, digest: Callable[[Sequence[str]], str]) -> None:
        self.names: Sequence[str] = ()
        """Sorted. Another sequence after each change: who keeps one has what it was."""
        self.digest = ""
        self._matches = pattern.matches
        self._digest = digest
        self._listeners: dict[Heard, None] = {}

    def listen(self, heard: Heard) -> Callable[[], None]:
        """Tell it of what changes from now on. Returns the function that ends it."""
        self._listeners[heard] = None

        def end() -> None:
            self._listeners.pop(heard, None)

        return end

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    async def begin(self, names: Mapping[str, str]) -> None:
        """Choose from them; each with what expressions are matched with."""
        found: list[str] = []
        each = iter(names.items())
        while piece := list(islice(each, PIECE)):
            found += [name for name, matched in piece if self._matches(matched)]
            await asyncio.sleep(0)
        self._set(sorted(found))

    def _set(self, names: Sequence[str]) -> None:
        self.names, self.digest = names, self._digest(names)

    async def change(self, added: Mapping[str, str], removed: Collection[str]) -> None:
        """Whoever begins to listen meanwhile has the names already."""
        new = sorted(name for name, matched in added.items() if self._matches(matched))
        before = set(self.names) if removed else ()
        gone = [name for name in removed if name in before]
        if not new and not gone:
            return
        left = set(gone)
        self._set(sorted([*(each for each in self.names if each not in left), *new]))
        for heard in list(self._listeners):
            if heard in self._listeners:
                heard(new, gone)
                await asyncio.sleep(0)


class NameList:
    """The topics of one namespace, each partition by itself. Made by ``NameLists``."""

    def __init__(
        self,
        namespace: str,
        store: _Store,
        partitioned: PartitionedTopics,
        digest: Callable[[Sequence[str]], str],
    ) -> None:
        self.ended = False
        self._namespace = namespace
        self._prefix = f"{namespace}/persistent"
        self._store = store
        self._partitioned = partitioned
        self._digest = digest
        self._names: dict[str, str] = {}
        """Full name -> the name of the topic that it is, or is a partition of, without the
        domain."""
        self._logs: dict[str, tuple[str, str]] = {}
        """By the name of the log, so that it is parsed once."""
        self._choices: dict[str, ChosenNames] = {}
        """By their expressions."""
        self._choosing = asyncio.Lock()
        """Names do not change while somebody chooses from them."""
        self._changed = asyncio.Event()
        self._ends = (
            store.watch_names(self._prefix, self._changed.set),
            partitioned.watch_names(namespace, self._changed.set),
        )

    async def choose(self, text: str, pattern: TopicPattern) -> ChosenNames:
        """What matches; it is kept up to date while somebody listens to it."""
        found = self._choices.get(text)
        if found is not None:
            return found
        async with self._choosing:
            found = self._choices.get(text)
            if found is None:
                found = ChosenNames(pattern, self._digest)
                await found.begin(self._names)
                self._forget_unused()  # or who asks and leaves, again and again, fills the memory
                self._choices[text] = found
        return found

    def has(self, text: str, choice: ChosenNames) -> bool:
        """It is kept up to date."""
        return self._choices.get(text) is choice

    @property
    def listeners(self) -> int:
        return sum(each.listeners for each in self._choices.values())

    def end(self) -> None:
        self.ended = True
        for each in self._ends:
            each()

    async def look(self) -> None:
        """Raises ``MagnetarError``: the store is away, or a record damaged."""
        self._changed.clear()
        logs = await self._store.names(self._prefix, self._logs)
        partitions = await self._partitioned.partition_names(self._namespace)
        known = self._logs
        self._logs = {each: known.get(each) or _listed(each) for each in logs}
        found = dict(self._logs.values())
        for each in partitions:
            found[str(each)] = _matched(each.namespace, each.partitioned.local)
        async with self._choosing:
            before, self._names = self._names, found
            added = {name: matched for name, matched in found.items() if name not in before}
            removed = [name for name in before if name not in found]
            self._forget_unused()
            for choice in list(self._choices.values()) if added or removed else ():
                await choice.change(added, removed)

    def _forget_unused(self) -> None:
        self._choices = {text: each for text, each in self._choices.items() if each.listeners}

    async def run(self) -> None:
        """Look again, until nobody has listened for a while."""
        loop, retry_s = asyncio.get_running_loop(), RETRY_S
        heard = loop.time()
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), CHECK_S)
            began = loop.time()
            if self.listeners:
                heard = began
            elif began - heard >= CHECK_S:
                return
            try:
                await self.look()
            except MagnetarError as error:  # the store is away; a log's record is damaged
                log.info("names are not known", namespace=self._namespace, error=str(error))
                self._changed.set()
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, CHECK_S)
                continue
            retry_s = RETRY_S
            await asyncio.sleep(max(PAUSE_S, PAUSES * (loop.time() - began)))


class NameLists:
    """The lists that somebody listens to, by namespace (``tenant/namespace``)."""

    def __init__(
        self,
        store: LogStore,
        partitioned: PartitionedTopics,
        scope: TaskScope,
        digest: Callable[[Sequence[str]], str],
    ) -> None:
        """``digest``: of names, sorted, for who compares lists."""
        self._store = store if isinstance(store, _Store) else None
        self._digest = digest
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

    async def choose(self, namespace: str, text: str, pattern: TopicPattern) -> ChosenNames:
        """The topics of ``namespace`` that match, for who listens to it in this turn of the loop.
        Raises as ``NameList.look``."""
        while True:
            names = await self._of(namespace)
            chosen = await names.choose(text, pattern)
            if not names.ended and names.has(text, chosen):
                return chosen

    async def _of(self, namespace: str) -> NameList:
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
        made = NameList(namespace, self._store, self._partitioned, self._digest)
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
