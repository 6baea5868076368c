"""When what has changed is stored, or sent: one timer, not one for each of thousands of cursors."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Flushed(Protocol):
    """What the timer flushes."""

    @property
    def dirty(self) -> bool:
        """True while it has something to flush."""
        ...

    def tick(self) -> None:
        """The interval has passed."""
        ...


class FlushTimer:
    """One timer for all: every ``interval_ms`` while any has something to flush, each that has is
    told to, all in one turn of the loop."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_s = interval_ms / 1000
        self._dirty: dict[Flushed, None] = {}
        self._handle: asyncio.TimerHandle | None = None

    def add(self, store: Flushed) -> None:
        """``store`` changed."""
        self._dirty[store] = None
        if self._handle is None:
            loop = asyncio.get_running_loop()
            self._handle = loop.call_later(self._interval_s, self._tick)

    def _tick(self) -> None:
        self._handle = None
        stores, self._dirty = self._dirty, {}
        for store in stores:
            store.tick()
            if store.dirty:
                self.add(store)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._dirty.clear()
