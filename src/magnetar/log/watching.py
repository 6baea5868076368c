"""Who wants to know that a log's readable end has moved.

Owns: the callbacks of one log. Whoever makes entries readable calls ``grew``: the appender, the
recovery of an append that failed, a follower.

Rules:

* One call per watcher and loop turn, however many appends or entries became readable in it.
* A watcher is called from the loop, never from inside ``grew``: what a turn has confirmed is
  answered to its producers first.
* A watcher that ended its watch is not called any more, not even for what was under way; and to
  end a watch again ends nobody else's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ReadableWatch:
    """The watchers of one log."""

    __slots__ = ("_next_key", "_told_soon", "_watchers")

    def __init__(self) -> None:
        self._watchers: dict[int, Callable[[], None]] = {}
        self._next_key = 0  # no key is given twice: it would be taken for the one before
        self._told_soon = False

    def watch(self, grown: Callable[[], None]) -> Callable[[], None]:
        """Call ``grown`` from now on; returns what ends that."""
        key = self._next_key
        self._next_key += 1
        self._watchers[key] = grown

        def end() -> None:
            self._watchers.pop(key, None)

        return end

    def grew(self) -> None:
        """The readable end has moved."""
        if self._watchers and not self._told_soon:
            self._told_soon = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._told_soon = False
        for key, grown in list(self._watchers.items()):
            if key in self._watchers:  # not ended by one that was called before it
                grown()
