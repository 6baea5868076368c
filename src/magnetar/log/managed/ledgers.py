"""What the managed log asks of the ledger client. ``ledger.client`` implements it.

All raise ``LedgerError`` (``LedgerFencedError`` once another client recovers the ledger,
``NoSuchLedgerError``) or ``MetadataError``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from magnetar.log.seam import Buffer
from magnetar.model.entry import Entry
from magnetar.model.errors import MagnetarError
from magnetar.model.ledger import Quorums

LedgerAppendDone: TypeAlias = Callable[[MagnetarError | None, int, int, int], None]
"""``done(error, ledger_id, first_entry_id, count)``: the ``count`` payloads of one append, or a
leading part of what is still open of it, are confirmed under consecutive ids; the calls for one
append cover its payloads in order, exactly once. With ``error`` set the rest of it failed."""


class EntryLayout(Protocol):
    """How the entries of a ledger are laid out."""

    @property
    def payload_offset(self) -> int:
        """Where the payload starts in an entry."""
        ...


class ClosedLedger(Protocol):
    """What closing a ledger settled."""

    @property
    def last_entry_id(self) -> int: ...

    @property
    def length(self) -> int:
        """Payload bytes up to ``last_entry_id``."""
        ...


class ChainWriter(Protocol):
    """An open ledger; this process is its only writer."""

    @property
    def ledger_id(self) -> int: ...

    @property
    def last_add_pushed(self) -> int:
        """The id of the last entry given out; -1 before the first."""
        ...

    @property
    def last_add_confirmed(self) -> int: ...

    @property
    def length(self) -> int:
        """Payload bytes of all entries given out."""
        ...

    @property
    def digest(self) -> EntryLayout: ...

    def append(
        self, payloads: Sequence[Buffer], done: LedgerAppendDone, prefixes: Sequence[bytes] = ()
    ) -> list[bytes]:
        """Append in order under consecutive ids from ``last_add_pushed`` + 1, each with its
        prefix (if any are given) before it; returns the whole
        entries as built (the objects that the bookies get). Once one fails all later ones do."""
        ...

    def reader(self) -> ChainReader:
        """Reads the ledger up to what is confirmed now."""
        ...

    async def close(self) -> ClosedLedger:
        """Close the ledger at its last confirmed entry, also after an append failed."""
        ...


class ChainReader(Protocol):
    """A ledger open for reading."""

    @property
    def last_add_confirmed(self) -> int: ...

    @property
    def length(self) -> int: ...

    async def read(self, first_entry_id: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """Consecutive entries from ``first_entry_id`` on, at least one."""
        ...


class ChainTail(ChainReader, Protocol):
    """A reader whose ``last_add_confirmed`` moves while somebody waits for it to."""

    @property
    def closed(self) -> bool:
        """Nothing will follow ``last_add_confirmed``."""
        ...

    async def wait_past(self, entry_id: int) -> int:
        """Wait until entries after ``entry_id`` are confirmed or the ledger is closed; returns
        ``last_add_confirmed``. One caller at a time."""
        ...

    def told(self, entry_id: int) -> None:
        """The ledger's writer says that it has confirmed entries up to that one."""
        ...

    def close(self) -> None:
        """End what waiting began; reading goes on. Idempotent."""
        ...


class Ledgers(Protocol):
    """The ledger client."""

    async def create(
        self, custom: Mapping[str, bytes] | None = None, *, quorums: Quorums | None = None
    ) -> ChainWriter:
        """A new ledger; ``quorums`` None: the cluster's."""
        ...

    async def create_for_another(
        self, custom: Mapping[str, bytes], *, quorums: Quorums | None = None
    ) -> int:
        """A new ledger, for another process to write. Its id."""
        ...

    async def open(self, ledger_id: int) -> ChainReader:
        """Recover: fence, restore the tail, close; then read."""
        ...

    async def open_no_recovery(self, ledger_id: int) -> ChainTail:
        """Look, and leave the ledger's writer alone."""
        ...

    async def delete(self, ledger_id: int) -> None: ...

    async def given_up(self, ledger_id: int) -> bool:
        """An operator has closed it without entries that nobody can read."""
        ...

    async def check_space(
        self, quorums: Quorums | None = None, ledger_id: int | None = None
    ) -> None:
        """Raises ``NoSpaceError`` if the next entry, of the ledger that is written here or of a
        new one, would be refused for want of space, as far as is known without trying."""
        ...
