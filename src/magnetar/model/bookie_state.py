"""How a bookie is, for people and supervisors."""

from __future__ import annotations

from typing import NamedTuple


class DirectoryState(NamedTuple):
    """A ledger directory. ``dead_bytes``: in complete entry logs, of what is not live any more."""

    path: str
    total_bytes: int
    free_bytes: int
    dead_bytes: int
    limbo: bool


class JournalState(NamedTuple):
    """``file_id`` and ``offset``: up to where it is committed. ``problem``: why it takes nothing;
    empty if it does."""

    path: str
    file_id: int
    offset: int
    pending_bytes: int
    problem: str


class BookieState(NamedTuple):
    """``refusal``: why it takes no new entries; None: it does. ``limbo``: it has lost entries and
    denies nothing. ``deleted_ledgers_held``: go at the next look, ``next_look_ms`` (since 1970)."""

    bookie_id: str
    running: bool
    registered: bool
    read_only: bool
    refusal: str | None
    limbo: bool
    directories: tuple[DirectoryState, ...]
    failed_directories: tuple[str, ...]
    journals: tuple[JournalState, ...]
    write_cache_bytes: int
    read_cache_bytes: int
    ledgers: int
    deleted_ledgers_held: int
    next_look_ms: int
