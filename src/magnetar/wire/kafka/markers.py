"""Markers: control batches that end a transaction in one partition.

A batch of one record, transactional and control, of the producer whose transaction it ends. Key:
version 2 (``0``), type 2 (``0`` abort, ``1`` commit). Value: version 2 (``0``), coordinator epoch
4. Source: Kafka's ``ControlRecordType``, ``EndTransactionMarker``.
"""

from __future__ import annotations

import struct
from typing import Final

from magnetar.model.errors import ProtocolError
from magnetar.wire.kafka.batches import CONTROL, TRANSACTIONAL, build_batch
from magnetar.wire.kafka.records import KafkaRecord, encode_records, read_batch

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1


def build_marker(
    producer_id: int, producer_epoch: int, commits: bool, coordinator_epoch: int, now_ms: int
) -> bytes:
    key = _KEY.pack(0, _COMMIT if commits else _ABORT)
    record = KafkaRecord(0, 0, key, _VALUE.pack(0, coordinator_epoch))
    return build_batch(
        encode_records([record]),
        count=1,
        last_offset_delta=0,
        attributes=TRANSACTIONAL | CONTROL,
        base_timestamp_ms=now_ms,
        max_timestamp_ms=now_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def read_marker(batch: memoryview) -> tuple[bool, int]:
    """(whether it commits, coordinator epoch). Raises ``ProtocolError``."""
    _, records = read_batch(batch)
    try:
        _, kind = _KEY.unpack_from(records[0].key or b"")
        _, coordinator_epoch = _VALUE.unpack_from(records[0].value or b"")
    except (IndexError, struct.error) as error:
        raise ProtocolError(f"a control batch without its record: {error}") from error
    return kind == _COMMIT, coordinator_epoch
