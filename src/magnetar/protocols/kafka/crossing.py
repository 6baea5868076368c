"""Entries of Pulsar's producers for Kafka's consumers, converted while others have their turns.

Small entries are converted on the loop, with a turn of others after each few milliseconds of them.
One that says that it is large is converted on a thread: what a few kilobytes unpack to, and as many
messages as fit a frame, take seconds.
"""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.wire.crossing.pulsar_to_kafka import kafka_batch
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.metadata import EntryMetadata, entry_metadata

WORK_AT_ONCE: Final = 1000
"""Messages, of one turn of the loop: some 5 ms."""
WORK_BYTES: Final = 128
"""That take as long as a message."""


class Crossing:
    """Of one answer. ``conversions``: of a broker at a time."""

    def __init__(self, conversions: asyncio.Semaphore) -> None:
        self._conversions = conversions
        self._done = 0

    async def batch(self, payload: memoryview, base_offset: int, leader_epoch: int) -> bytes:
        """Raises as ``kafka_batch``."""
        meta = entry_metadata(payload)
        work = _work(payload, meta)
        if work > WORK_AT_ONCE:
            async with self._conversions:
                return await asyncio.to_thread(
                    kafka_batch, payload, base_offset, leader_epoch, meta
                )
        self._done += work
        if self._done > WORK_AT_ONCE:
            self._done = work
            await asyncio.sleep(0)
        return kafka_batch(payload, base_offset, leader_epoch, meta)


def _work(payload: memoryview, meta: EntryMetadata) -> int:
    """How long it takes, in messages. It cannot have more bytes, or messages, than it says."""
    plain = meta.compression == Compression.NONE
    byte_count = len(payload) if plain else max(len(payload), meta.uncompressed_size)
    return meta.num_messages + byte_count // WORK_BYTES
