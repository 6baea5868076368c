"""Entries of Pulsar's producers for Kafka's consumers, converted while others have their turns.

Small entries are converted on the loop, with a turn of others after each few milliseconds of them.
One that says that it is large is converted on a thread: what a few kilobytes unpack to, and as many
messages as fit a frame, take seconds.
"""

from __future__ import annotations

import asyncio

from magnetar.protocols.entry_work import TO_KAFKA, entry_work
from magnetar.wire.crossing.pulsar_to_kafka import kafka_batch
from magnetar.wire.pulsar.metadata import entry_metadata


class Crossing:
    """Of one answer. ``conversions``: of a broker at a time."""

    def __init__(self, conversions: asyncio.Semaphore) -> None:
        self._conversions = conversions
        self._done = 0

    async def batch(self, payload: memoryview, base_offset: int, leader_epoch: int) -> bytes:
        """Raises as ``kafka_batch``."""
        meta = entry_metadata(payload)
        work = entry_work(payload, meta)
        if not work.fits_turn(TO_KAFKA):
            async with self._conversions:
                return await asyncio.to_thread(
                    kafka_batch, payload, base_offset, leader_epoch, meta
                )
        weight = work.weight(TO_KAFKA)
        self._done += weight
        if self._done > TO_KAFKA.at_once:
            self._done = weight
            await asyncio.sleep(0)
        return kafka_batch(payload, base_offset, leader_epoch, meta)
