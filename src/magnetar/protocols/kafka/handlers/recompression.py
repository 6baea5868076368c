"""Batches of a produce request that their topics keep otherwise compressed than they came.

The work is done on a thread, ``AT_ONCE`` of them at a time in a broker: a megabyte of gzip takes
tens of milliseconds, in which the loop would serve nobody, and what a batch unpacks to is
``UNCOMPRESSED_BYTES_MAX`` at most. The request waits, and so do those that follow it on its
connection: their order stays.

Why: docs/adr/0166-batches-are-compressed-as-a-topic-says.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from magnetar.model.errors import ConfigError, MagnetarError
from magnetar.protocols.kafka.partitions.partition import Partition, Produced
from magnetar.protocols.kafka.services import KafkaServices
from magnetar.wire.kafka.compression import Codec
from magnetar.wire.kafka.errors import ErrorCode, error_code
from magnetar.wire.kafka.produce_messages import ProducePartition
from magnetar.wire.kafka.recompressing import is_compressed_by, recompressed

CODECS: Final[Mapping[str, Codec]] = MappingProxyType(
    {
        "uncompressed": Codec.NONE,
        "gzip": Codec.GZIP,
        "snappy": Codec.SNAPPY,
        "lz4": Codec.LZ4,
        "zstd": Codec.ZSTD,
    }
)
"""By Kafka's names (``cluster.policies.policies.COMPRESSION_TYPES``)."""


def is_kept_as_it_comes(partition: Partition, records: Any) -> bool:
    """The batch need not be recompressed."""
    wanted = partition.topic.policy.kafka.compression
    if not wanted or not isinstance(records, memoryview):
        return True
    return is_compressed_by(CODECS[wanted], records)


async def recompress(
    services: KafkaServices, partition: Partition, part: ProducePartition
) -> Produced | None:
    """Put the batch into ``part`` as the topic keeps it; why that cannot be, if it cannot."""
    records = part.records
    too_large = len(records or b"") > services.broker.message_bytes_max  # is told so as it is
    if too_large or is_kept_as_it_comes(partition, records):
        return None
    assert isinstance(records, memoryview)
    codec = CODECS[partition.topic.policy.kafka.compression]
    try:
        async with services.recompressions:
            part.records = memoryview(await asyncio.to_thread(recompressed, codec, records))
    except ConfigError as error:
        return Produced(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, why=str(error))
    except MagnetarError as error:
        return Produced(error_code(error), why=str(error))
    return None
