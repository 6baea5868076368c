"""Waiting for a metadata node to change: watched from the start, so that no change is missed.

    with NodeChanges(store, path) as changes:
        while not await look():
            await changes.wait(at_most_s)

What changes after ``NodeChanges`` is made wakes the next ``wait``, also what changed while ``look``
was under way.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager

from magnetar.env.metadata import MetadataStore


class NodeChanges(AbstractContextManager["NodeChanges"]):
    """Of the node at ``path`` or of its list of children, as ``MetadataStore.watch`` tells them."""

    def __init__(self, store: MetadataStore, path: str) -> None:
        self._changed = asyncio.Event()
        self._end_watch = store.watch(path, lambda _path: self._changed.set())

    async def wait(self, at_most_s: float) -> None:
        """Return when it may have changed since the last call, or after that time."""
        try:
            async with asyncio.timeout(at_most_s):  # wait_for may lose a cancellation
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()

    def wake(self) -> None:
        """Somebody who knows of a change before the store has told it."""
        self._changed.set()

    def __exit__(self, *_: object) -> None:
        self._end_watch()
