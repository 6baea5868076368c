"""How much of the entry logs stays in the kernel's page cache.

What is flushed is seldom read soon: tail readers are served from memory, and whoever catches up
reads ahead. Left alone, the kernel gives every written page fresh memory until there is none, and
only then looks for pages to take back. Fresh memory is dear (a virtual machine's host has to find
it first, which costs several times the write), so the logs are written through a window: of what
is durable, the newest ``bytes_max`` stay cached; older pages are given back, and used again for
what is written next.

A window belongs to the flush lane of one directory.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from magnetar.env.files.disk import Disk


class PageWindow:
    """Runs of written bytes, the oldest first."""

    def __init__(self, disk: Disk, bytes_max: int) -> None:
        self._disk = disk
        self._bytes_max = bytes_max
        self._written: list[tuple[Path, int, int]] = []
        self._durable: deque[tuple[Path, int, int]] = deque()
        self._durable_bytes = 0

    def written(self, path: Path, start: int, end: int) -> None:
        """Bytes [start, end) of a log were written."""
        if self._written and self._written[-1][0] == path and self._written[-1][2] == start:
            start = self._written.pop()[1]
        self._written.append((path, start, end))

    def synced(self) -> None:
        """All that was written is durable. Blocking."""
        self._durable.extend(self._written)
        self._durable_bytes += sum(end - start for _, start, end in self._written)
        self._written.clear()
        while self._durable_bytes > self._bytes_max:
            path, start, end = self._durable.popleft()
            self._durable_bytes -= end - start
            self._disk.drop_cached(path, start, end)
