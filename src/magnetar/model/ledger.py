"""What the metadata store says of a ledger: its quorums, its state, its fragments.

Rules (BookKeeper's):

* ``ensemble_size >= write_quorum >= ack_quorum >= 1``.
* The write set of entry ``e`` is ``ensemble[(e + i) % ensemble_size] for i < write_quorum``.
* A fragment starts at its ``first_entry_id`` and ends where the next begins; fragments are in
  strictly increasing order and the first starts at 0.
* ``last_entry_id`` and ``length`` count only when the state is CLOSED.
* OPEN -> IN_RECOVERY -> CLOSED, or OPEN -> CLOSED; CLOSED is final.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from magnetar.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId

COMPACTING_KEY: Final = "magnetar-compacting"
"""A custom key: another process than the log's owner writes into the ledger what compaction leaves
of the log that the value names."""

COMPACTED_KEY: Final = "magnetar-compacted"
"""A custom key: the ledger has what compaction left of the log that the value names."""

CURSOR_KEY: Final = "magnetar-cursor"
"""A custom key: the ledger has the acknowledgements of the cursor that the value names."""

LOG_KEY: Final = "magnetar-log"
"""A custom key: the ledger has entries of the log that the value names."""


class LedgerState(Enum):
    """Values are those of BookKeeper's ``LedgerMetadataFormat.State``."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class DigestType(Enum):
    """Values are those of BookKeeper's ``LedgerMetadataFormat.DigestType``."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


@dataclass(frozen=True, slots=True)
class Fragment:
    """Entries from ``first_entry_id`` on lie on ``bookies`` (ordered; order decides striping)."""

    first_entry_id: EntryId
    bookies: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class Quorums:
    """How a ledger is replicated: over ``ensemble_size`` bookies, each entry to ``write_quorum``
    of them, confirmed by ``ack_quorum``."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int

    def __post_init__(self) -> None:
        assert self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1, self


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """One ledger's metadata. Immutable; changes are made with ``dataclasses.replace`` and
    written by compare-and-set on the version that the store gave with it."""

    ledger_id: LedgerId
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    digest_type: DigestType
    password: bytes
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: EntryId = NO_ENTRY
    length: int = 0
    ctime_ms: int = 0
    creator_token: int = 0
    custom: tuple[tuple[str, bytes], ...] = field(default=())
    format_version: int = 3
    unknown_fields: bytes = b""
    """Protobuf fields of newer writers, kept as they came so that a rewrite does not drop them."""

    def __post_init__(self) -> None:
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            raise ValueError(
                f"ledger {self.ledger_id}: need E >= Qw >= Qa >= 1, got E={self.ensemble_size} "
                f"Qw={self.write_quorum} Qa={self.ack_quorum}"
            )

    @property
    def closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    def fragment_of(self, entry_id: EntryId) -> Fragment:
        """The fragment that holds ``entry_id`` (the last one for ids past the end)."""
        for fragment in reversed(self.fragments):
            if fragment.first_entry_id <= entry_id:
                return fragment
        raise ValueError(f"ledger {self.ledger_id} has no fragment for entry {entry_id}")

    def write_set(self, entry_id: EntryId) -> tuple[BookieId, ...]:
        """The ``write_quorum`` bookies that entry ``entry_id`` is written to, in order."""
        bookies = self.fragment_of(entry_id).bookies
        size = len(bookies)
        return tuple(bookies[(entry_id + i) % size] for i in range(self.write_quorum))

    def with_close(self, last_entry_id: EntryId, length: int) -> LedgerMetadata:
        return replace(self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)
