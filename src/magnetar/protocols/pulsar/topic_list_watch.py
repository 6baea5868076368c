"""One client's watch of the topics that match its expression.

What the client was told is kept, so that a difference can be worked out for it. A client that does
not read is told nothing meanwhile, and all of it at once when it reads again.

Why: docs/adr/0215-clients-are-told-of-new-topics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from magnetar.env.tasks import nothing
from magnetar.topics.name_lists import ChosenNames
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand

NAMES_PER_UPDATE: Final = 1000
"""Of up to 1 KiB each; a frame may be 5 MiB."""

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Listener(Protocol):
    """The client's connection."""

    @property
    def writable(self) -> bool: ...

    def send_command(self, command: BaseCommand) -> None: ...


class TopicListWatch:
    """From its making on; ``end`` it. ``told``: the names that the client knows of."""

    properties = NOTHING

    def __init__(self, listener: Listener, watcher_id: int, text: str, choice: ChosenNames) -> None:
        self.name = text
        self.told = choice.names
        self._listener = listener
        self._id = watcher_id
        self._choice = choice
        self._end: Callable[[], None] = choice.listen(self._changed)

    def end(self) -> None:
        self._end()
        self._end = nothing

    def catch_up(self) -> None:
        """The client reads again."""
        now = self._choice.names
        if self.told is now:
            return
        before, after = set(self.told), set(now)
        self._tell([each for each in now if each not in before], sorted(before - after))

    def _changed(self, added: Sequence[str], removed: Sequence[str]) -> None:
        # It may have caught up since; and one that does not read is caught up when it does again.
        if self.told is not self._choice.names and self._listener.writable:
            self._tell(added, removed)

    def _tell(self, added: Sequence[str], removed: Sequence[str]) -> None:
        """In as many updates as it takes: those that have gone first."""
        self.told = self._choice.names
        for start in range(0, len(removed), NAMES_PER_UPDATE):
            self._update([], removed[start : start + NAMES_PER_UPDATE])
        for start in range(0, len(added), NAMES_PER_UPDATE):
            self._update(added[start : start + NAMES_PER_UPDATE], [])

    def _update(self, added: Sequence[str], removed: Sequence[str]) -> None:
        command = BaseCommand(type=BaseCommand.WATCH_TOPIC_UPDATE)
        update = command.watchTopicUpdate
        update.watcher_id = self._id
        update.new_topics.extend(added)
        update.deleted_topics.extend(removed)
        update.topics_hash = self._choice.digest
        self._listener.send_command(command)
