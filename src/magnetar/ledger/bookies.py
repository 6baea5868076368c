"""How the ledger client sees a bookie: the seam between quorum writes and storage servers.

Implementations: ``connections.connection.BookieConnection`` (TCP, BookKeeper's protocol) and, for
a bookie in the same process, ``bookie.serving.local.LocalBookie``; both are chosen in ``app``.

The add path has no coroutine and no future per entry: a batch of entries goes down with one call
and comes back with one call of ``done`` (or a few, when answers arrive apart).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntFlag
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from magnetar.model.entry import LacReply as LacReply
from magnetar.model.errors import MagnetarError
from magnetar.model.ids import BookieId
from magnetar.wire.bookie.availability import Group

AddDone: TypeAlias = Callable[[MagnetarError | None, Sequence[int]], None]
"""``done(error, entry_ids)``: these entries are durable on the bookie (``error`` is None), or
were refused. Called on the loop, never from inside ``add_entries``; over all calls each entry id
of the request comes exactly once."""


class AddFlag(IntFlag):
    NONE = 0
    RECOVERY = 1  # a recovery or re-replication writes: allowed on a fenced ledger
    HIGH_PRIORITY = 2
    DEFERRED_SYNC = 4  # answered before the entry is durable; ``force_ledger`` makes up for it


class ReadFlag(IntFlag):
    NONE = 0
    FENCE = 1  # fence the ledger before reading; needs the master key
    HIGH_PRIORITY = 2
    STORED = 4  # of a batch: from the entry log, not from the read cache


class BookieClient(Protocol):
    """One bookie. Errors raised and passed are ``BookieError`` (its answer) or
    ``BookieUnavailableError`` (no answer)."""

    bookie_id: BookieId

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddDone,
    ) -> None:
        """Store whole entries (header, digest, payload), ``entries[i]`` under ``entry_ids[i]``;
        neither sequence is changed afterwards. ``flags`` are ``AddFlag``, from a writer as a plain
        int (an operator of an enum costs more than an add's other checks together).
        Never blocks and never raises for the world's faults: those go to ``done``."""
        ...

    async def read_entry(
        self,
        ledger_id: int,
        entry_id: int,
        flags: ReadFlag = ReadFlag.NONE,
        master_key: bytes = b"",
    ) -> bytes:
        """The whole entry; ``entry_id`` -1 is the one of highest id. Raises ``NoEntryError``,
        ``NoLedgerError``."""
        ...

    async def read_batch(
        self,
        ledger_id: int,
        first_entry_id: int,
        max_entries: int,
        max_bytes: int,
        flags: ReadFlag = ReadFlag.NONE,
        master_key: bytes = b"",
    ) -> Sequence[bytes | memoryview]:
        """Consecutive whole entries from ``first_entry_id`` on, at least one, stopping before the
        first that is missing, damaged or past ``max_bytes``: only of ``first_entry_id`` itself it
        says that there is none. With ``FENCE`` the ledger is fenced before any of them is read.
        They are bytes, unless the client lends them (``ConnectionOptions.lends_entries``).
        Raises as ``read_entry``."""
        ...

    async def read_lac(
        self, ledger_id: int, flags: ReadFlag = ReadFlag.NONE, master_key: bytes = b""
    ) -> LacReply:
        """The last add confirmed as far as the bookie knows; with ``FENCE`` the ledger is
        durably fenced before the answer. Raises ``NoLedgerError`` (never with ``FENCE``: that
        creates the ledger, fenced)."""
        ...

    async def write_lac(self, ledger_id: int, master_key: bytes, lac: int, body: bytes) -> None:
        """Tell an explicit last add confirmed (``body`` carries its digest)."""
        ...

    async def wait_lac(self, ledger_id: int, previous_lac: int, timeout_s: float) -> LacReply:
        """As ``read_lac``, but once the LAC is past ``previous_lac``, or the ledger is being
        fenced, or ``timeout_s`` are over. The LAC of the reply stands for itself: look at the
        entry, or ask ``read_lac``, for one with a digest."""
        ...

    async def force_ledger(self, ledger_id: int) -> None:
        """Returns when everything of the ledger that the bookie has answered is durable."""
        ...

    async def disk_space(self) -> tuple[int, int]:
        """(total bytes, free bytes) of the bookie's ledger disks."""
        ...

    @property
    def session(self) -> int:
        """Another number after each break: a bookie that was away may have lost what it had
        answered and not made durable."""
        ...

    async def close(self) -> None: ...


LacSource: TypeAlias = Callable[[int], tuple[int, bytes] | None]
"""``source(ledger_id)``: the last add confirmed of a ledger that is written in this process, and
the body that tells it, with its digest; None: it is not, or nothing may be told. On the loop."""


@runtime_checkable
class AsksForLacs(Protocol):
    """What a ``BookieClient`` of a bookie in this process is besides."""

    def ask_for_lacs(self, source: LacSource) -> None:
        """Until this client is closed: whoever asks the bookie for a LAC is told what ``source``
        says, if that is higher than what the bookie has heard."""
        ...


class ReadOnlyReason(NamedTuple):
    """Of a bookie that takes no entries: ``reason`` for people; ``lacks_space``: of its disks."""

    reason: str
    lacks_space: bool


class EntryLister(Protocol):
    """A bookie that tells which entries it holds."""

    async def list_entries(self, ledger_id: int) -> Sequence[Group]:
        """Of the ledger, condensed. Raises ``NoLedgerError``, ``UnknownLedgerStateError`` (it has
        lost entries, and cannot say), ``BookieUnavailableError``."""
        ...


class BookiePool(Protocol):
    """Clients by bookie id, connected when first used."""

    def client(self, bookie_id: BookieId) -> BookieClient: ...

    def let_ask(self, source: LacSource) -> frozenset[BookieId]:
        """The bookies that ask ``source`` for LACs from now on, and need not be told any: those of
        this process."""
        ...

    async def available(self) -> list[BookieId]:
        """The bookies that take new entries now, sorted."""
        ...

    async def close(self) -> None: ...
