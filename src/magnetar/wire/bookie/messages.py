"""The requests of BookKeeper's protocol as values; both versions decode to them.

A chunk of frames decodes to a list of requests in the order of the frames, with one exception:
the adds of one ledger between two other requests become one ``AddRun``, so that the bookie takes
them with one call. Entry ids ascend within a run; an id that does not ascend begins a new run,
so no id occurs twice in one. See ``docs/adr/0021-runs-of-adds.md``.

``txn_id`` is version 3's transaction id (0 in version 2, which matches answers on ledger and
entry instead).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from magnetar.model.errors import BookieError

AUTH_DISABLED_PLUGIN = "AuthDisabledPlugin"
"""The plugin name that tells a client: nobody asks for authentication here, go ahead."""

ADD_RECOVERY = 1
ADD_HIGH_PRIORITY = 2
ADD_DEFERRED_SYNC = 4
READ_FENCE = 1
READ_HIGH_PRIORITY = 2
READ_STORED = 4
"""Flags of requests as the bookie and the ledger client know them (not the bits on the wire)."""


class AddRun:
    """Adds of one ledger under one master key and one set of flags, in order of their ids.

    ``entries[i]`` is the whole entry ``entry_ids[i]`` (owned ``bytes``); ``byte_count`` is their
    sum. ``txn_ids`` is parallel to them in version 3 and empty in version 2. ``unanswered`` is
    for whoever serves the run.
    """

    __slots__ = (
        "byte_count",
        "entries",
        "entry_ids",
        "flags",
        "ledger_id",
        "master_key",
        "txn_ids",
        "unanswered",
    )

    def __init__(
        self,
        ledger_id: int,
        master_key: bytes,
        flags: int,
        entry_ids: list[int] | None = None,
        entries: list[bytes] | None = None,
        byte_count: int = 0,
    ) -> None:
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.flags = flags
        self.entry_ids: list[int] = [] if entry_ids is None else entry_ids
        self.entries: list[bytes] = [] if entries is None else entries
        self.txn_ids: list[int] = []
        self.byte_count = byte_count
        self.unanswered = 0


class Read(NamedTuple):
    """Read one entry; ``entry_id`` -1 is the one of highest id.

    With ``previous_lac`` it is a long poll: wait up to ``timeout_ms`` for the last add confirmed
    to pass it; with ``piggyback`` the answer carries entry ``previous_lac + 1``.
    """

    txn_id: int
    ledger_id: int
    entry_id: int
    flags: int
    master_key: bytes
    previous_lac: int | None = None
    timeout_ms: int = 0
    piggyback: bool = False


class BatchRead(NamedTuple):
    """Consecutive entries; ``max_entries`` below 1 means no limit, ``max_bytes`` is of the whole
    answering frame."""

    request_id: int
    ledger_id: int
    entry_id: int
    flags: int
    master_key: bytes
    max_entries: int
    max_bytes: int


class Auth(NamedTuple):
    txn_id: int
    plugin: str
    payload: bytes


class WriteLac(NamedTuple):
    txn_id: int
    ledger_id: int
    lac: int
    master_key: bytes
    body: bytes


class ReadLac(NamedTuple):
    txn_id: int
    ledger_id: int


class ForceLedger(NamedTuple):
    txn_id: int
    ledger_id: int


class ListEntries(NamedTuple):
    txn_id: int
    ledger_id: int


class GetBookieInfo(NamedTuple):
    """``requested``: bit 1 total disk bytes, bit 2 free disk bytes."""

    txn_id: int
    requested: int


class Refused(NamedTuple):
    """A request that is understood well enough to be answered, with ``error``.

    ``operation`` is the number of the version it came in.
    """

    txn_id: int
    operation: int
    ledger_id: int
    entry_id: int
    error: BookieError


Request: TypeAlias = (
    AddRun
    | Read
    | BatchRead
    | Auth
    | WriteLac
    | ReadLac
    | ForceLedger
    | ListEntries
    | GetBookieInfo
    | Refused
)
