"""Who wants to hear of which path: the bookkeeping of watches, for every metadata store.

Lives on the loop. Callbacks run one by one through ``call_soon``, so one that raises is reported
by the loop and does not keep the others from running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")


class Listeners(Generic[T]):
    """Callbacks in the order they came, each ended by the function that ``add`` returned."""

    def __init__(self) -> None:
        self._callbacks: dict[object, Callable[[T], None]] = {}

    def add(self, callback: Callable[[T], None]) -> Callable[[], None]:
        token = object()
        self._callbacks[token] = callback
        return partial(self._end, token)

    def _end(self, token: object) -> None:
        self._callbacks.pop(token, None)

    def notify(self, loop: asyncio.AbstractEventLoop, value: T) -> None:
        for token in self._callbacks:
            loop.call_soon(self._call, token, value)

    def _call(self, token: object, value: T) -> None:
        callback = self._callbacks.get(token)
        if callback is not None:  # ended between the change and this turn of the loop
            callback(value)

    def __len__(self) -> int:
        return len(self._callbacks)


class PathWatches:
    """Listeners by path; a path without listeners is forgotten."""

    def __init__(self) -> None:
        self._paths: dict[str, Listeners[str]] = {}

    def add(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        listeners = self._paths.setdefault(path, Listeners())
        return partial(self._end, path, listeners, listeners.add(changed))

    def _end(self, path: str, listeners: Listeners[str], end_listener: Callable[[], None]) -> None:
        end_listener()
        if not len(listeners) and self._paths.get(path) is listeners:
            del self._paths[path]

    def notify(self, loop: asyncio.AbstractEventLoop, paths: Iterable[str]) -> None:
        for path in paths:
            listeners = self._paths.get(path)
            if listeners is not None:
                listeners.notify(loop, path)

    def paths(self) -> list[str]:
        return list(self._paths)

    def __contains__(self, path: str) -> bool:
        return path in self._paths

    def clear(self) -> None:
        self._paths.clear()
