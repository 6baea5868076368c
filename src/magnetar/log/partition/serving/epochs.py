"""Which epoch wrote what of a log on partitions, as consumers ask. Implements
``log.seam.LogEpochs``.

A leader that was elected unclean lacks what they may have read from the one before (KIP-320).
"""

from __future__ import annotations

from collections.abc import Callable

from magnetar.log.partition.hosting import HostedReplica


class PartitionEpochs:
    """``require_open`` raises if the log is not open here."""

    def __init__(self, hosted: HostedReplica, require_open: Callable[[], None]) -> None:
        self._hosted = hosted
        self._require_open = require_open

    @property
    def whole_since(self) -> int:
        """See the seam. Each opening is a new epoch; were readers of the one before sent to find
        out, those of a topic that is unloaded sooner than they come back would never read."""
        return self._hosted.machine.led_since

    async def end_of(self, epoch: int) -> tuple[int, int]:
        """See the seam. The last epoch ends where the log does, readable or not: a reader is not
        told that something is gone because it is not readable yet."""
        self._require_open()
        source = self._hosted.source
        # Where batches are written, since what is asked changes with them.
        found = await self._hosted.run(lambda: source.epochs.end_of(epoch, source.log_end))
        return found.epoch, found.end_offset
