"""Record batches to store, and a partition's folder to store them in."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from magnetar.env.files.disk import Disk, RealDisk
from magnetar.log.partition.batch_header import read_header
from magnetar.log.partition.limits import PartitionPolicy, SegmentLimits
from magnetar.log.partition.local_log import LocalLog
from magnetar.log.partition.recovery import Recovered, open_log
from magnetar.wire.checksum import crc32c
from magnetar.wire.varint import varint

NOW_MS = 1_700_000_000_000
SMALL = PartitionPolicy(segments=SegmentLimits(segment_bytes_max=2000, index_interval_bytes=150))


def zigzag(value: int) -> bytes:
    return varint((value << 1) ^ (value >> 63))


def record(at: int, key: bytes | None, value: bytes | None) -> bytes:
    body = b"\0" + zigzag(0) + zigzag(at)
    for part in (key, value):
        body += zigzag(-1) if part is None else zigzag(len(part)) + part
    body += zigzag(0)
    return zigzag(len(body)) + body


def batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    time_ms: int = NOW_MS,
    offset: int = 0,
    epoch: int = -1,
    producer: tuple[int, int, int] = (-1, -1, -1),
    attributes: int = 0,
) -> bytes:
    """``producer``: id, epoch, first sequence."""
    keys = keys or [None] * len(values)
    records = b"".join(record(i, *pair) for i, pair in enumerate(zip(keys, values, strict=True)))
    checked = struct.pack(
        ">hiqqqhii", attributes, len(values) - 1, time_ms, time_ms, *producer, len(values)
    )
    checked += records
    head = struct.pack(">ibI", epoch, 2, crc32c(checked))
    return struct.pack(">qi", offset, len(head) + len(checked)) + head + checked


def marker(producer_id: int, epoch: int, *, commits: bool) -> bytes:
    key = struct.pack(">hh", 0, 1 if commits else 0)
    value = struct.pack(">hi", 0, 3)
    return batch([value], keys=[key], producer=(producer_id, epoch, -1), attributes=0x30)


def opened(
    folder: Path, policy: PartitionPolicy = SMALL, disk: Disk | None = None, **known: int | bool
) -> tuple[LocalLog, Recovered]:
    return open_log(
        disk or RealDisk(),
        folder,
        policy,
        now_ms=NOW_MS,
        recovery_point=known.get("recovery_point", 0),
        log_start=known.get("log_start", 0),
        clean=bool(known.get("clean", False)),
    )


def filled(source: LocalLog, count: int, epoch: int = 0, size: int = 60) -> list[int]:
    """Batches of one, two, three, one ... records; the first offset of each."""
    first = []
    for i in range(count):
        values = [b"%d" % i + bytes(size)] * (1 + i % 3)
        data = batch(values, time_ms=NOW_MS + i)
        first.append(source.append_as_leader(data, epoch, NOW_MS).first_offset)
    return first


def offsets(source: LocalLog) -> list[tuple[int, int]]:
    """(first, last) of each batch of the log."""
    return [
        (header.base_offset, header.last_offset)
        for segment in source.segments
        for _, header in segment.headers()
    ]


def read_all(source: LocalLog, start: int, end: int | None = None) -> list[int]:
    """The base offsets of the batches that a reader of ``start`` gets, range by range."""
    found: list[int] = []
    end = source.log_end if end is None else end
    while (piece := source.range_from(start, end, 300)) is not None:
        data, at = piece.read(), 0
        while len(data) - at >= 61 and len(data) - at >= read_header(data, at).byte_count:
            header = read_header(data, at)
            found.append(header.base_offset)
            start = header.next_offset
            at += header.byte_count
    return found
