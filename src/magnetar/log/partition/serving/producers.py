"""What a partition's leader knows of producers, as the log's users ask for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from magnetar.log.partition.hosting import HostedReplica
from magnetar.log.sequences import KnownProducer


class PartitionProducers:
    """Implements ``log.seam.LogProducers``. ``require_open`` raises ``LogError``."""

    def __init__(self, hosted: HostedReplica, require_open: Callable[[], None]) -> None:
        self._hosted = hosted
        self._require_open = require_open

    def knows(self, producer_id: int) -> bool:
        """See the seam. The lane changes them meanwhile: one look, whose answer is right as of
        before or after a change."""
        return producer_id in self._hosted.source.producers.producers

    async def known(self) -> Sequence[KnownProducer]:
        """See the seam. In the lane, whose the states are."""
        self._require_open()
        source = self._hosted.source
        return await self._hosted.run(lambda: source.producers.known())
