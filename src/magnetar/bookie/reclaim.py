"""Giving back space: entry logs of which every ledger has been deleted are removed.

A deleted ledger takes no entry any more (its record stays and refuses), so a log with none but
deleted ledgers can gain no live entry either. Which ledgers a log has is in its footer; a log
that was cut off by a crash has none and is walked once, record by record.

Logs that hold some live entries are not compacted here.
"""

from __future__ import annotations

import struct
from pathlib import Path

import structlog

from magnetar.bookie.entry_log import (
    HEADER_BYTES,
    RECORD_HEADER_BYTES,
    decode_footer,
    log_ids,
    log_path,
)
from magnetar.bookie.ledger_record import record_deleted
from magnetar.bookie.location_index import LocationIndex
from magnetar.env.disk import Disk, DiskFile

log = structlog.get_logger(__name__)

FOOTER_BYTES_MAX = 1 << 20
WALK_BYTES = 1 << 20
_record = struct.Struct(">IIq").unpack_from


class Reclaimer:
    """Of one ledger directory; used by its flush lane. Blocking."""

    def __init__(self, disk: Disk, directory: Path, index: LocationIndex) -> None:
        self._disk = disk
        self._directory = directory
        self._index = index
        self._walked: dict[int, frozenset[int] | None] = {}

    def remove_dead_logs(self, current: int) -> list[int]:
        """Remove every log but ``current`` that has deleted ledgers only; returns their ids.
        Call when the deletions are durable."""
        removed = []
        for log_id in log_ids(self._disk.list(self._directory)):
            if log_id >= current:
                continue
            ledgers = self._ledgers_of(log_id)
            if ledgers is not None and all(map(self._deleted, sorted(ledgers))):
                self._disk.remove(log_path(self._directory, log_id))
                self._walked.pop(log_id, None)
                removed.append(log_id)
        if removed:
            self._disk.sync_dir(self._directory)
            log.info("entry logs removed", directory=str(self._directory), logs=removed)
        return removed

    def _deleted(self, ledger_id: int) -> bool:
        record = self._index.ledger(ledger_id)
        return record is not None and record_deleted(record)

    def _ledgers_of(self, log_id: int) -> frozenset[int] | None:
        """None: cannot be told, keep the log."""
        if log_id in self._walked:
            return self._walked[log_id]
        path = log_path(self._directory, log_id)
        file = self._disk.open(path)
        try:
            size = self._disk.size(path)
            start = max(0, size - FOOTER_BYTES_MAX)
            footer = decode_footer(log_id, file.pread(size - start, start), start)
            if footer is not None:
                return frozenset(footer)
            self._walked[log_id] = walk(file, size)
            return self._walked[log_id]
        finally:
            file.close()


def walk(file: DiskFile, size: int) -> frozenset[int] | None:
    """The ledgers of a log's records; None unless they end exactly where the log does: a length
    that is damaged hides what follows."""
    ledgers = set()
    chunk, start, pos = b"", 0, HEADER_BYTES
    while pos + RECORD_HEADER_BYTES + 8 <= size:
        if not start <= pos <= start + len(chunk) - RECORD_HEADER_BYTES - 8:
            chunk, start = file.pread(WALK_BYTES, pos), pos
        length, _, ledger_id = _record(chunk, pos - start)
        if length < 8 or ledger_id < 0:
            return None
        ledgers.add(ledger_id)
        pos += RECORD_HEADER_BYTES + length
    return frozenset(ledgers) if pos == size else None
