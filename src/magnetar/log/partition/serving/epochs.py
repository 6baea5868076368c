"""Which epoch wrote what of a log on partitions, as consumers ask. Implements
``log.seam.LogEpochs``.

A leader that was elected unclean lacks what they may have read from the one before (KIP-320); any
other has it. So of epochs since the last such election nothing is told to end before the log does:
librdkafka compares that end with a place that it has read up to since, takes it for a log that was
cut, goes back to it, and drops what its application has not had yet.

Why: docs/adr/0234-readers-are-told-of-what-is-gone-alone.md.
"""

from __future__ import annotations

from collections.abc import Callable

from magnetar.log.partition.hosting import HostedReplica
from magnetar.log.partition.leader_epochs import UNKNOWN_END, EpochEnd


class PartitionEpochs:
    """``require_open`` raises if the log is not open here."""

    def __init__(self, hosted: HostedReplica, require_open: Callable[[], None]) -> None:
        self._hosted = hosted
        self._require_open = require_open

    @property
    def whole_since(self) -> int:
        """See the seam. Each opening is a new epoch; were readers of the one before sent to find
        out, those of a topic that is unloaded sooner than they come back would never read."""
        return self._hosted.machine.whole_since

    async def end_of(self, epoch: int) -> tuple[int, int]:
        """See the seam. The last epoch ends where the log does, readable or not: a reader is not
        told that something is gone because it is not readable yet."""
        self._require_open()
        source, whole = self._hosted.source, epoch >= self.whole_since

        def find() -> EpochEnd:
            found = source.epochs.end_of(epoch, source.log_end)
            if whole and found != UNKNOWN_END:
                return found._replace(end_offset=source.log_end)
            return found

        # Where batches are written, since what is asked changes with them.
        return await self._hosted.run(find)
