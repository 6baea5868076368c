"""The storage core as those above it see it: the TCP server and the client of the same process.

``bookie.bookie.Bookie`` implements it. Method for method it is what the ledger client calls
``BookieClient`` (this room may not import that one), with flags as plain ints, and a few methods
more that only a server needs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeAlias

from magnetar.model.errors import MagnetarError
from magnetar.wire.bookie.availability import Group
from magnetar.wire.bookie.messages import AddRun

AddDone: TypeAlias = Callable[[MagnetarError | None, Sequence[int]], None]
"""``done(error, entry_ids)``: durable (``error`` None) or refused. On the loop, never from inside
``add_entries``; over all calls each entry id of the request comes exactly once."""


RunsDone: TypeAlias = Callable[[MagnetarError | None, Sequence[AddRun], Sequence[int]], None]
"""``done(error, runs, entry_ids)``: as ``AddDone``, of one run these entries, or of several runs
all (no ids)."""


LacSource: TypeAlias = Callable[[int], tuple[int, bytes] | None]
"""``source(ledger_id)``: as ``ledger.bookies.LacSource``."""


class KnownLac(Protocol):
    """Read as ``model.entry.LacReply``."""

    @property
    def last_add_confirmed(self) -> int: ...

    @property
    def last_entry(self) -> bytes | None: ...

    @property
    def explicit_lac(self) -> bytes | None:
        """The body of the latest ``write_lac``; None if there was none."""
        ...


class BookieSpace(Protocol):
    """Of the disks that ledgers lie on."""

    @property
    def total_bytes(self) -> int: ...

    @property
    def free_bytes(self) -> int: ...


class BookieCore(Protocol):
    """Errors raised and passed are ``BookieError``. ``add`` flags: 1 recovery, 4 answered before it
    is durable; ``read`` flags:
    1 fence; both: 2 high priority."""

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddDone,
    ) -> None: ...

    def add_runs(self, runs: Sequence[AddRun], done: RunsDone) -> None:
        """``add_entries`` for each of them, in order."""
        ...

    def read_cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The whole entry if it can be had without waiting, else None."""
        ...

    async def read_entry(
        self, ledger_id: int, entry_id: int, flags: int = 0, master_key: bytes = b""
    ) -> bytes: ...

    async def read_batch(
        self,
        ledger_id: int,
        first_entry_id: int,
        max_entries: int,
        max_bytes: int,
        flags: int = 0,
        master_key: bytes = b"",
    ) -> Sequence[bytes]:
        """``EntryRuns``, where they are not copied on their way out."""
        ...

    async def read_lac(
        self, ledger_id: int, flags: int = 0, master_key: bytes = b""
    ) -> KnownLac: ...

    async def write_lac(self, ledger_id: int, master_key: bytes, lac: int, body: bytes) -> None:
        """Remember an explicit LAC, of those of a ledger the highest, durably."""
        ...

    async def force(self, ledger_id: int) -> None:
        """Returns when every add answered so far is durable."""
        ...

    async def list_entries(self, ledger_id: int) -> Collection[Group]:
        """The ids held, condensed. Raises ``NoLedgerError``."""
        ...

    def info(self) -> BookieSpace:
        """Raises ``BookieIOError``."""
        ...
