"""Who follows a topic's log from elsewhere, and is told how far it may be read.

Owns the followers of one topic at its owner: the connections of read-only brokers. They read the
entries from the bookies; but of an entry's being confirmed bookies learn with the next entry, or
once the writer has been idle, and the owner knows it at once.

Rules:

* What is confirmed within ``TELL_S`` after a telling is told of together: the cost is one small
  frame per follower and millisecond at most, whatever is published and however many subscriptions
  the follower serves.
* A follower that takes nothing is told nothing; nothing is queued for it. It sees the end later, as
  one that is not told.
* While nobody follows the log is not watched for it.

Why: docs/adr/0057-followed-logs.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Final, Protocol

from magnetar.env.tasks import TaskScope
from magnetar.log.seam import ReadableLog
from magnetar.model.ids import Position

TELL_S: Final = 0.001


class Follower(Protocol):
    """A connection of a broker that follows the topic's log."""

    @property
    def connected(self) -> bool: ...

    @property
    def writable(self) -> bool:
        """It takes what is told."""
        ...

    def tell_grew(self, last: Position) -> None:
        """The log may be read up to ``last``."""
        ...

    def tell_closed(self, service_url: str = "") -> None:
        """The topic closes here; its next owner is to be asked."""
        ...


class Followers:
    """See the module's text."""

    def __init__(self, source: ReadableLog, scope: TaskScope) -> None:
        self._log = source
        self._scope = scope
        self._followers: dict[Hashable, Follower] = {}
        self._end_watch: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._told_s = 0.0
        self._loop = asyncio.get_running_loop()

    def __bool__(self) -> bool:
        """Somebody follows."""
        return any(each.connected for each in self._followers.values())

    def add(self, key: Hashable, follower: Follower) -> Position:
        """``follower`` is told from now on; returns how far the log may be read now. ``key`` is its
        own: of two of one key the later one counts."""
        self._followers[key] = follower
        if self._end_watch is None:
            self._end_watch = self._log.watch_readable(self._grown)
        return self._log.positions.readable

    def remove(self, key: Hashable) -> None:
        """It is told nothing any more; fine if it is not."""
        self._followers.pop(key, None)
        if not self._followers:
            self._end()

    def lost(self) -> bool:
        """Whether a follower's connection is gone since somebody asked last."""
        gone = [key for key, each in self._followers.items() if not each.connected]
        for key in gone:
            self.remove(key)
        return bool(gone)

    def detach(self) -> list[Callable[[str], None]]:
        """Follow no more; what is returned tells each follower so."""
        followers = [each for each in self._followers.values() if each.connected]
        self._followers.clear()
        self._end()
        return [each.tell_closed for each in followers]

    def _end(self) -> None:
        if self._end_watch is not None:
            self._end_watch()
            self._end_watch = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _grown(self) -> None:
        if self._timer is not None:
            return
        wait_s = self._told_s + TELL_S - self._loop.time()
        if wait_s > 0:
            self._timer = self._loop.call_later(
                wait_s, self._scope.guard, self._tell, "tell followers"
            )
        else:
            self._tell()

    def _tell(self) -> None:
        self._timer = None
        self._told_s = self._loop.time()
        last = self._log.positions.readable
        for each in self._followers.values():
            if each.connected and each.writable:
                each.tell_grew(last)
