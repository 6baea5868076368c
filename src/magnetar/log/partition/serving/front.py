"""Where a log on partitions begins for readers by offsets, and how it begins later.

Owns the order of a deletion: files, then who reads, then the checkpoint, then the answer.
Implements ``log.seam.LogFront``.

Why: docs/adr/0138-records-are-deleted-at-offsets.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from magnetar.log.partition.group_append import FULL
from magnetar.log.partition.hosting import HostedReplica
from magnetar.log.partition.serving.batch_places import BatchPlaces
from magnetar.model.errors import LogError, OffsetOutOfRangeError

EVERYTHING: Final = -1


class PartitionFront:
    """``require_open`` raises if the log is not open here; ``trimmed`` is told that it begins
    later."""

    def __init__(
        self,
        hosted: HostedReplica,
        places: BatchPlaces,
        require_open: Callable[[], None],
        trimmed: Callable[[], None],
    ) -> None:
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
        """See the seam. Raises ``OffsetOutOfRangeError``, ``LogError``."""
        self._require_open()
        source, end, name = self._hosted.source, self._places.end, self._hosted.name
        wanted = end if offset == EVERYTHING else offset
        if not 0 <= wanted <= end:
            raise OffsetOutOfRangeError(f"{name}: records can be deleted up to {end}, not {offset}")

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
