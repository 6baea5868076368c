"""Topics that bound their producers' times (``message.timestamp.before.max.ms``,
``.after.max.ms``): a batch with a record that is too far from this broker's clock is refused.

Each record is asked, on a thread, as many batches at a time as are recompressed: a batch's header
says the greatest time on its producer's word, and the least one nowhere. A record that says no time
passes, as with Kafka.

Why: docs/adr/0175-records-have-the-time-of-their-append.md.
"""

from __future__ import annotations

import asyncio

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
from magnetar.wire.kafka.records import record_times


async def check_times(
    services: KafkaServices, partition: Partition, part: ProducePartition
) -> Produced | None:
    """Why the batch is refused, if it is."""
    policy, records = partition.topic.policy.kafka, part.records
    too_large = len(records or b"") > services.broker.message_bytes_max  # is told so
    if not policy.bounds_times or too_large or not isinstance(records, memoryview):
        return None
    now_ms = services.now_ms()
    try:
        async with services.recompressions:
            least_ms, greatest_ms = await asyncio.to_thread(_times, records)
    except ConfigError as error:
        return Produced(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, why=str(error))
    except MagnetarError as error:
        return Produced(error_code(error), why=str(error))
    for far_ms, bound_ms, which in (
        (now_ms - least_ms, policy.before_ms_max, "before"),
        (greatest_ms - now_ms, policy.after_ms_max, "after"),
    ):
        if least_ms != -1 and 0 <= bound_ms < far_ms:
            why = (
                f"a record's time is {far_ms} ms {which} the broker's; "
                f"message.timestamp.{which}.max.ms of the topic is {bound_ms}"
            )
            return Produced(ErrorCode.INVALID_TIMESTAMP, why=why)
    return None


def _times(batch: memoryview) -> tuple[int, int]:
    """Raises as ``check_produced``, and ``ConfigError``."""
    header = check_produced(batch)
    try:
        data = decompress(Codec(header.attributes & CODEC_MASK), batch[BATCH_HEADER_BYTES:])
        return record_times(data, header)
    except (ProtocolError, ValueError) as error:  # or no codec has that number
        raise ImplausibleMessageError(str(error)) from error
