"""Where a log on partitions begins for readers by offsets, and how it begins later.

Owns the order of a deletion: files, then who reads, then where the log begins, then the answer.
Nothing is deleted that a later owner must read (``log.seam.Checkpoints``). Implements
``log.seam.LogFront``.

Why: docs/adr/0138-records-are-deleted-at-offsets.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.log.partition.group_append import FULL
from magnetar.log.partition.hosting import HostedReplica
from magnetar.log.partition.serving.batch_places import BatchPlaces
from magnetar.model.errors import LogError, OffsetOutOfRangeError

EVERYTHING: Final = -1


class PartitionFront:
    """``require_open`` raises if the log is not open here; ``count`` if what is before an offset
    cannot be deleted now; ``trimmed`` is told that it begins later."""

    def __init__(
        self,
        hosted: HostedReplica,
        places: BatchPlaces,
        require_open: Callable[[], None],
        count: Callable[[int], Awaitable[None]],
        trimmed: Callable[[], None],
    ) -> None:
        self._count = count
        self._hosted = hosted
        self._places = places
        self._require_open = require_open
        self._trimmed = trimmed
        self._stored = 0
        """The log begins there or later, also after a crash."""

    @property
    def offset(self) -> int:
        """See the seam."""
        return self._hosted.source.log_start

    async def delete_before(self, offset: int) -> int:
        """See the seam. Raises ``OffsetOutOfRangeError``, ``LogError``, ``MetadataError``, and
        ``ServiceNotReadyError`` for what can be deleted a little later."""
        self._require_open()
        source, end, name = self._hosted.source, self._places.end, self._hosted.name
        wanted = end if offset == EVERYTHING else offset
        if not 0 <= wanted <= end:
            raise OffsetOutOfRangeError(f"{name}: records can be deleted up to {end}, not {offset}")

        if wanted > source.log_start:
            await self._count(wanted)
            self._require_open()

        def job() -> None:
            source.delete_records(max(wanted, source.log_start))  # another may have been quicker
            source.drop_deleted()

        try:
            if wanted > source.log_start:
                await self._hosted.run(job)
                self._trimmed()
            start = source.log_start
            # Before it is answered: what is gone is not there again after a crash. Also if another
            # has deleted it, whose write is under way, or has failed.
            if start > self._stored:
                await self._hosted.store_start()
                self._stored = max(self._stored, start)
        except OSError as error:
            if error.errno in FULL:  # whoever asks again has it written
                self._trimmed()
            else:
                self._hosted.fail(error)
            raise LogError(f"records of {name} are not deleted: {error}") from error
        return start
