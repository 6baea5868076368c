"""A ledger's record in the index: what of a ledger outlives its bookie.

Value of the index's ``ledgers`` family, big-endian::

    version 1 | flags 1 | epoch 4 | master key 20 | last entry id 8 | LAC 8 | explicit LAC 8
    | LAC body n
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from magnetar.model.errors import BookieIOError

MASTER_KEY_BYTES = 20

_RECORD = struct.Struct(">BBI20sqqq")
_VERSION = 1
_FENCED, _DELETED = 1, 2


class LedgerRecord(NamedTuple):
    """The fields of a record. ``master_key``: empty if only the ledger's entries are known."""

    fenced: bool
    deleted: bool
    epoch: int
    master_key: bytes
    last_entry_id: int
    lac: int
    explicit_lac: int
    lac_body: bytes

    def encode(self) -> bytes:
        head = _RECORD.pack(
            _VERSION,
            (_FENCED if self.fenced else 0) | (_DELETED if self.deleted else 0),
            self.epoch,
            self.master_key,
            self.last_entry_id,
            self.lac,
            self.explicit_lac,
        )
        return head + self.lac_body


def decode_record(ledger_id: int, record: bytes) -> LedgerRecord:
    """What ``encode`` gave. Raises ``BookieIOError`` if it is not that."""
    if len(record) < _RECORD.size or record[0] != _VERSION:
        raise BookieIOError(
            f"index record of ledger {ledger_id} is damaged ({record[:8].hex()}...)"
        )
    _, flags, epoch, master_key, last_entry_id, lac, explicit_lac = _RECORD.unpack_from(record)
    if not any(master_key):
        master_key = b""  # known by its entries only: the key's record was damaged
    body = record[_RECORD.size :]
    fenced, deleted = bool(flags & _FENCED), bool(flags & _DELETED)
    return LedgerRecord(fenced, deleted, epoch, master_key, last_entry_id, lac, explicit_lac, body)


def record_deleted(record: bytes) -> bool:
    """Whether an encoded ledger is a deleted one."""
    return len(record) > 1 and bool(record[1] & _DELETED)
