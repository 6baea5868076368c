"""What a bookie knows of one ledger, and where the ledger lives.

Invariants: a bound master key never changes; a fence is never undone, and a deletion only by a
repair (``revive``); the last entry id and the LACs only grow in between.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from magnetar.bookie.journal.journal import Journal
from magnetar.bookie.storage.ledger_record import LedgerRecord, decode_record
from magnetar.bookie.storage.storage import LedgerStorage
from magnetar.model.entry import ENTRY_HEADER_BYTES
from magnetar.model.errors import BadRequestError, MagnetarError
from magnetar.speedups import inspect_adds

LAC_BODY_BYTES_MAX = 4096

_entry_ids = struct.Struct(">qq").unpack_from


class HeldLedger:
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
        "unforced",
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
        self.unforced = False
        """Entries that were answered before they were durable had no room in the journal: only a
        flush makes them durable, and ``force`` cannot."""

    def deferred_ended(self, error: MagnetarError | None, entry_ids: Sequence[int]) -> None:
        """What became, in the journal, of entries that were answered before."""
        if error is not None:
            self.unforced = True

    @property
    def certain(self) -> bool:
        """Whether what is not held was never held: the bookie has lost nothing since."""
        marks = self.storage.marks
        return not marks.limbo or self.epoch == marks.epoch

    def revive(self) -> None:
        """A repair brings the deleted ledger back. Nothing is left of what was here, and it stays
        fenced: the bookie has promised that, or would have."""
        self.deleted = False
        self.fenced = True
        self.fence_durable = False
        self.epoch = 0
        self.last_entry_id = -1

    def encode(self) -> bytes:
        """The ledger's record in the index."""
        return LedgerRecord(
            self.fenced,
            self.deleted,
            self.epoch,
            self.master_key,
            self.last_entry_id,
            self.lac,
            self.explicit_lac,
            self.lac_body,
        ).encode()

    def restore(self, record: bytes) -> None:
        """Take over what ``encode`` gave. Raises ``BookieIOError`` if it is not that."""
        found = decode_record(self.ledger_id, record)
        self.fenced = self.fence_durable = found.fenced
        self.deleted = found.deleted
        self.epoch = found.epoch
        self.master_key = found.master_key
        self.last_entry_id = found.last_entry_id
        self.lac = found.lac
        self.explicit_lac = found.explicit_lac
        self.lac_body = found.lac_body


def inspect_entries(
    ledger_id: int, entry_ids: Sequence[int], entries: Sequence[bytes], entry_bytes_max: int
) -> tuple[int, int, int]:
    """Check the headers of a batch; (bytes, highest LAC, highest entry id).

    Raises ``BadRequestError`` if a header does not name this ledger and entry, or an entry is
    too short or too long: replay finds an entry by its header alone.
    """
    found = inspect_adds(ledger_id, entry_ids, entries, entry_bytes_max)
    if found is not None:
        return found
    if len(entry_ids) != len(entries) or not entries:
        raise BadRequestError(
            f"add to ledger {ledger_id}: {len(entry_ids)} ids for {len(entries)} entries"
        )
    for entry_id, data in zip(entry_ids, entries, strict=True):
        if not ENTRY_HEADER_BYTES <= len(data) <= entry_bytes_max:
            raise BadRequestError(
                f"entry {ledger_id}:{entry_id} has {len(data)} bytes; allowed are "
                f"{ENTRY_HEADER_BYTES} to {entry_bytes_max} (entry_bytes_max)"
            )
        named = _entry_ids(data)
        if named != (ledger_id, entry_id) or entry_id < 0:
            raise BadRequestError(
                f"entry {ledger_id}:{entry_id} has a header of {named[0]}:{named[1]}"
            )
    raise AssertionError("a sound batch was not taken")
