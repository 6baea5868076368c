"""One client's watch of the topics that match its expression.

What the client was told is kept, so that a difference can be worked out for it. A client that does
not read is told nothing meanwhile, and all of it at once when it reads again.

Why: docs/adr/0215-clients-are-told-of-new-topics.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from magnetar.cluster.topic_patterns import TopicPattern
from magnetar.env.tasks import nothing
from magnetar.topics.name_lists import NameList
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from magnetar.wire.pulsar.topic_lists import topics_hash

NAMES_PER_UPDATE: Final = 1000
"""Of up to 1 KiB each; a frame may be 5 MiB."""

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Listener(Protocol):
    """The client's connection."""

    @property
    def writable(self) -> bool: ...

    def send_command(self, command: BaseCommand) -> None: ...


class TopicListWatch:
    """From its making on; ``end`` it. ``told`` is sorted."""

    properties = NOTHING

    def __init__(
        self, listener: Listener, watcher_id: int, text: str, pattern: TopicPattern, names: NameList
    ) -> None:
        self.name = text
        self.told = _matching(pattern, names)
        self._listener = listener
        self._id = watcher_id
        self._pattern = pattern
        self._names = names
        self._behind = False
        self._end: Callable[[], None] = names.listen(self._changed)

    def end(self) -> None:
        self._end()
        self._end = nothing

    def catch_up(self) -> None:
        """The client reads again."""
        if not self._behind:
            return
        self._behind = False
        now = _matching(self._pattern, self._names)
        before, after = set(self.told), set(now)
        self._tell([each for each in now if each not in before], before - after)

    def _changed(self, added: Collection[str], removed: Collection[str]) -> None:
        if self._behind or not self._listener.writable:
            self._behind = True
            return
        matches, names = self._pattern.matches, self._names.names
        # Who has caught up since the list changed has it already.
        new = [each for each in added if matches(names[each]) and not self._has(each)]
        self._tell(new, set(filter(self._has, removed)))

    def _has(self, name: str) -> bool:
        at = bisect_left(self.told, name)
        return at < len(self.told) and self.told[at] == name

    def _tell(self, added: Sequence[str], removed: Collection[str]) -> None:
        """In as many updates as it takes: those that have gone first."""
        gone = sorted(removed)
        for start in range(0, len(gone), NAMES_PER_UPDATE):
            some = gone[start : start + NAMES_PER_UPDATE]
            left = set(some)
            self.told = [each for each in self.told if each not in left]
            self._update([], some)
        for start in range(0, len(added), NAMES_PER_UPDATE):
            new = added[start : start + NAMES_PER_UPDATE]
            self.told = sorted([*self.told, *new])
            self._update(new, [])

    def _update(self, added: Sequence[str], removed: Sequence[str]) -> None:
        command = BaseCommand(type=BaseCommand.WATCH_TOPIC_UPDATE)
        update = command.watchTopicUpdate
        update.watcher_id = self._id
        update.new_topics.extend(added)
        update.deleted_topics.extend(removed)
        update.topics_hash = topics_hash(self.told)
        self._listener.send_command(command)


def _matching(pattern: TopicPattern, names: NameList) -> list[str]:
    return sorted(name for name, matched in names.names.items() if pattern.matches(matched))
