"""What a bookie knows of one ledger, and how the index keeps it.

Record (value of the index's ``ledgers`` family), big-endian::

    version 1 | flags 1 | epoch 4 | master key 20 | last entry id 8 | LAC 8 | explicit LAC 8
    | LAC body n

Invariants: a bound master key never changes; a fence and a deletion are never undone; the last
entry id and the LACs only grow.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from magnetar.model.entry import ENTRY_HEADER_BYTES
from magnetar.model.errors import BadRequestError, BookieIOError

if TYPE_CHECKING:
    from magnetar.bookie.journal import Journal
    from magnetar.bookie.storage import LedgerStorage

MASTER_KEY_BYTES = 20
LAC_BODY_BYTES_MAX = 4096

_RECORD = struct.Struct(">BBI20sqqq")
_VERSION = 1
_FENCED, _DELETED = 1, 2
_entry_head = struct.Struct(">qqq").unpack_from


class LedgerState:
    """One ledger, on the loop. ``epoch``: losses of this bookie (``Marks.epoch``) before the
    ledger's first entry came; 0 also if that is not known."""

    __slots__ = (
        "deleted",
        "epoch",
        "explicit_lac",
        "fence_durable",
        "fenced",
        "journal",
        "lac",
        "lac_body",
        "last_entry_id",
        "ledger_id",
        "master_key",
        "storage",
    )

    def __init__(
        self, ledger_id: int, master_key: bytes, storage: LedgerStorage, journal: Journal
    ) -> None:
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.storage = storage
        self.journal = journal
        self.fenced = False
        self.fence_durable = False
        self.deleted = False
        self.epoch = 0
        self.last_entry_id = -1
        self.lac = -1
        self.explicit_lac = -1
        self.lac_body = b""

    @property
    def certain(self) -> bool:
        """Whether what is not held was never held: the bookie has lost nothing since."""
        marks = self.storage.marks
        return not marks.limbo or self.epoch == marks.epoch

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

    def restore(self, record: bytes) -> None:
        """Take over what ``encode`` gave. Raises ``BookieIOError`` if it is not that."""
        if len(record) < _RECORD.size or record[0] != _VERSION:
            raise BookieIOError(
                f"index record of ledger {self.ledger_id} is damaged ({record[:8].hex()}...)"
            )
        _, flags, self.epoch, self.master_key, self.last_entry_id, self.lac, self.explicit_lac = (
            _RECORD.unpack_from(record)
        )
        self.fenced = self.fence_durable = bool(flags & _FENCED)
        self.deleted = bool(flags & _DELETED)
        if not any(self.master_key):
            self.master_key = b""  # known by its entries only: the key's record was damaged
        self.lac_body = record[_RECORD.size :]


def record_deleted(record: bytes) -> bool:
    """Whether an encoded ledger is a deleted one."""
    return len(record) > 1 and bool(record[1] & _DELETED)


def inspect_entries(
    ledger_id: int, entry_ids: Sequence[int], entries: Sequence[bytes], entry_bytes_max: int
) -> tuple[int, int, int]:
    """Check the headers of a batch; (bytes, highest LAC, highest entry id).

    Raises ``BadRequestError`` if a header does not name this ledger and entry, or an entry is
    too short or too long: replay finds an entry by its header alone.
    """
    size = 0
    lac = last = -1
    if len(entry_ids) != len(entries) or not entries:
        raise BadRequestError(
            f"add to ledger {ledger_id}: {len(entry_ids)} ids for {len(entries)} entries"
        )
    for entry_id, data in zip(entry_ids, entries, strict=True):
        length = len(data)
        if not ENTRY_HEADER_BYTES <= length <= entry_bytes_max:
            raise BadRequestError(
                f"entry {ledger_id}:{entry_id} has {length} bytes; allowed are "
                f"{ENTRY_HEADER_BYTES} to {entry_bytes_max} (entry_bytes_max)"
            )
        found_ledger, found_entry, found_lac = _entry_head(data)
        if found_ledger != ledger_id or found_entry != entry_id or entry_id < 0:
            raise BadRequestError(
                f"entry {ledger_id}:{entry_id} has a header of {found_ledger}:{found_entry}"
            )
        if found_lac > lac:
            lac = found_lac
        if entry_id > last:
            last = entry_id
        size += length
    return size, lac, last
