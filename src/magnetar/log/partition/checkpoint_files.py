"""The small text files beside segments: checkpoints of offsets and of leader epochs, and whose
directory it is.

Owns their formats, and how they are replaced. Formats (source: Kafka's ``CheckpointFile`` and its
users):

======================================  =======================================================
``leader-epoch-checkpoint``             ``0``, number of lines, lines of ``epoch first-offset``
``recovery-point-offset-checkpoint``    ``0``, number of lines, lines of ``topic partition offset``
``replication-offset-checkpoint``       the same: high watermarks
``log-start-offset-checkpoint``         the same
``cleaner-offset-checkpoint``           the same: how far a log was compacted
``aborted-checkpoint``                  ours: lines of ``segment CRC-32C``, of each ``.txnindex``
``partition.metadata``                  ``version: 0``, ``topic_id: `` 22 characters of base64
======================================  =======================================================

Rules:

* A file is replaced as a whole: written beside, synced, renamed, its directory synced. So whoever
  reads finds the old one or the new one.
* One that cannot be understood is a ``MetadataFormatError`` that names it; the caller says whether
  it can do without.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from magnetar.env.files.disk import Disk
from magnetar.log.partition.leader_epochs import EpochStart
from magnetar.model.errors import MetadataFormatError

LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
COMPACTED_ENDS: Final = "cleaner-offset-checkpoint"
ABORTED_SUMS: Final = "aborted-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
_VERSION: Final = "0"
_FILE_BYTES_MAX: Final = 64 << 20

Partition = tuple[str, int]
"""Topic and number."""


def replace_file(disk: Disk, path: Path, data: bytes) -> None:
    """``path`` holds ``data``, durably. Raises ``OSError``."""
    beside = path.with_name(f"{path.name}.tmp")
    if exists(disk, beside):
        disk.remove(beside)  # of an attempt that failed; it may be longer than this one
    file = disk.open(beside, create=True)
    try:
        file.pwritev([data], 0)
        file.datasync()
    finally:
        file.close()
    disk.rename(beside, path)  # only now: what is under the name must be whole
    disk.sync_dir(path.parent)


def exists(disk: Disk, path: Path) -> bool:
    return path.name in disk.list(path.parent)


def read_file(disk: Disk, path: Path) -> bytes | None:
    """None if there is none. Raises ``OSError``."""
    if not exists(disk, path):
        return None
    file = disk.open(path)
    try:
        return file.pread(_FILE_BYTES_MAX, 0)
    finally:
        file.close()


# -- lines --------------------------------------------------------------------------------------


def _text(lines: Iterable[str]) -> bytes:
    listed = list(lines)
    return "\n".join([_VERSION, str(len(listed)), *listed, ""]).encode()


def _lines(data: bytes, fields: int, path: Path) -> list[list[str]]:
    found = data.decode("utf-8", "replace").split("\n")
    lines = [line.split() for line in found[2:] if line]
    if found[0].strip() != _VERSION or len(found) < 2 or not found[1].strip().isdigit():
        raise MetadataFormatError(f"{path} is no checkpoint of version {_VERSION}")
    if int(found[1]) != len(lines) or any(len(line) != fields for line in lines):
        raise MetadataFormatError(f"{path} does not hold {found[1]} lines of {fields} fields")
    return lines


def encode_epochs(starts: Iterable[EpochStart]) -> bytes:
    return _text(f"{start.epoch} {start.first_offset}" for start in starts)


def decode_epochs(data: bytes, path: Path) -> list[EpochStart]:
    """Raises ``MetadataFormatError``, which names ``path``."""
    lines = _lines(data, 2, path)
    return [EpochStart(*_numbers(line, path)) for line in lines]


def encode_sums(sums: Mapping[int, int]) -> bytes:
    return _text(f"{base} {crc}" for base, crc in sorted(sums.items()))


def decode_sums(data: bytes, path: Path) -> dict[int, int]:
    """Raises ``MetadataFormatError``, which names ``path``."""
    return dict(_numbers(line, path) for line in _lines(data, 2, path))


def encode_offsets(offsets: Mapping[Partition, int]) -> bytes:
    return _text(f"{topic} {number} {at}" for (topic, number), at in sorted(offsets.items()))


def decode_offsets(data: bytes, path: Path) -> dict[Partition, int]:
    """Raises ``MetadataFormatError``, which names ``path``."""
    found = {}
    for topic, *rest in _lines(data, 3, path):
        number, offset = _numbers(rest, path)
        found[topic, number] = offset
    return found


def _numbers(words: Iterable[str], path: Path) -> tuple[int, int]:
    try:
        first, second = map(int, words)
    except ValueError as error:
        raise MetadataFormatError(f"{path} has {list(words)} where numbers belong") from error
    return first, second


# -- partition.metadata -------------------------------------------------------------------------


def encode_topic_id(topic_id: uuid.UUID) -> bytes:
    text = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    return f"version: 0\ntopic_id: {text}".encode()


def decode_topic_id(data: bytes, path: Path) -> uuid.UUID:
    """Raises ``MetadataFormatError``, which names ``path``."""
    text = data.decode("utf-8", "replace")
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    if fields.get("version") != _VERSION or "topic_id" not in fields:
        raise MetadataFormatError(f"{path} names no topic id of version {_VERSION}")
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(fields["topic_id"].strip() + "=="))
    except ValueError as error:
        raise MetadataFormatError(f"{path}: {fields['topic_id']!r} is no topic id") from error
