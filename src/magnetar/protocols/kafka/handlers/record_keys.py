"""Topics that are compacted take records with keys only: a record without one could be no key's
last, and would be gone soon.

Small batches that are not compressed are looked through in their turn of the loop; others on a
thread, as many at a time as are recompressed.

Why: docs/adr/0173-partitions-are-compacted.md.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from magnetar.model.errors import (
    ConfigError,
    ImplausibleMessageError,
    MagnetarError,
    ProtocolError,
)
from magnetar.protocols.kafka.partitions.partition import Partition, Produced
from magnetar.protocols.kafka.services import KafkaServices
from magnetar.wire.kafka.batches import BATCH_HEADER_BYTES, CODEC_MASK, check_produced
from magnetar.wire.kafka.compression import Codec, decompress
from magnetar.wire.kafka.errors import ErrorCode, error_code
from magnetar.wire.kafka.produce_messages import ProducePartition
from magnetar.wire.kafka.records import keyless_records

AT_ONCE_BYTES: Final = 16 << 10
NAMED_MAX: Final = 10_000
"""Records of a batch that are named: its producer may send the others again."""


def _needs_keys(partition: Partition) -> bool:
    # Logs on ledgers, which know of no sequences, are not compacted in place.
    return partition.topic.policy.log.cleanup.compacts and partition.log.owns_sequences


def is_keyed(partition: Partition, records: Any) -> bool:
    """The batch is known to be taken, as far as its keys go."""
    if not _needs_keys(partition):
        return True
    if not isinstance(records, memoryview) or len(records) > AT_ONCE_BYTES:
        return False
    try:
        return not records[22] & CODEC_MASK and not _keyless(records, 1)
    except (IndexError, MagnetarError):
        return False  # it is told so on the longer way


async def check_keys(
    services: KafkaServices, partition: Partition, part: ProducePartition
) -> Produced | None:
    """Why the batch is refused, if it is."""
    records = part.records
    too_large = len(records or b"") > services.broker.message_bytes_max  # is told so
    if too_large or not isinstance(records, memoryview) or is_keyed(partition, records):
        return None
    try:
        async with services.recompressions:
            numbers = await asyncio.to_thread(_keyless, records, NAMED_MAX)
    except ConfigError as error:
        return Produced(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, why=str(error))
    except MagnetarError as error:
        return Produced(error_code(error), why=str(error))
    if not numbers:
        return None
    why = (
        f"record {numbers[0]} of the batch has no key, and {partition.topic.name} is compacted by "
        "key (cleanup.policy)"
    )
    return Produced(ErrorCode.INVALID_RECORD, why=why, refused_records=tuple(numbers))


def _keyless(batch: memoryview, most: int) -> list[int]:
    """Raises as ``check_produced``, and ``ConfigError``."""
    header = check_produced(batch)
    records = batch[BATCH_HEADER_BYTES:]
    try:
        codec = Codec(header.attributes & CODEC_MASK)
        data = records if codec is Codec.NONE else decompress(codec, records)
        return keyless_records(data, header.record_count, most)
    except (ProtocolError, ValueError) as error:  # or no codec has that number
        raise ImplausibleMessageError(str(error)) from error
