"""What a partition's log held when it was opened, and may not be read yet.

A replica is elected before it can know that the last of its log is committed: its high watermark
trails, until all replicas in sync have fetched from it. Implements ``log.seam.Opening``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from magnetar.log.partition.hosting import HostedReplica
from magnetar.log.partition.serving.batch_places import BatchPlaces
from magnetar.model.errors import LogError

WHOLE_S: Final = 2.0
"""How long who replays the log waits for followers, before it is told to try again."""


class PartitionOpening:
    """``require_open`` raises if the log is not open here."""

    def __init__(
        self, hosted: HostedReplica, places: BatchPlaces, require_open: Callable[[], None]
    ) -> None:
        self._hosted = hosted
        self._places = places
        self._require_open = require_open

    @property
    def end_offset(self) -> int:
        """See the seam."""
        return self._places.held_end

    async def wait_whole(self) -> None:
        """See the seam."""
        places = self._places
        if places.end >= places.held_end:
            return
        moved = asyncio.Event()
        end_watch = self._hosted.watch(moved.set)
        try:
            async with asyncio.timeout(WHOLE_S):
                while places.end < places.held_end:
                    self._require_open()
                    moved.clear()
                    await moved.wait()
        except TimeoutError as error:
            raise LogError(
                f"{self._hosted.name}: what a former leader has stored is not on all replicas in "
                f"sync yet (offsets {places.end} to {places.held_end - 1}); try again"
            ) from error
        finally:
            end_watch()
