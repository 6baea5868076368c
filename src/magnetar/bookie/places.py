"""How a bookie's directories and journals are, one by one."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.bookie.journal.journal import Journal
from magnetar.bookie.storage.storage import LedgerStorage
from magnetar.env.files.disk import Disk
from magnetar.model.bookie_state import DirectoryState, JournalState
from magnetar.model.errors import BookieIOError


def directory_states(storages: Sequence[LedgerStorage], disk: Disk) -> tuple[DirectoryState, ...]:
    """Raises ``BookieIOError`` if a disk cannot tell its space."""
    return tuple(_directory(storage, disk) for storage in storages)


def _directory(storage: LedgerStorage, disk: Disk) -> DirectoryState:
    try:
        space = disk.space(storage.path)
    except OSError as error:
        raise BookieIOError(
            f"the space of {storage.path} cannot be told: {error}; is it mounted?"
        ) from error
    dead, limbo = storage.reclaimer.usage.dead_bytes, storage.marks.limbo
    return DirectoryState(str(storage.path), space.total_bytes, space.free_bytes, dead, limbo)


def journal_states(journals: Sequence[Journal]) -> tuple[JournalState, ...]:
    return tuple(
        JournalState(
            str(journal.path),
            journal.committed.file_id,
            journal.committed.offset,
            journal.pending_bytes,
            _problem(journal),
        )
        for journal in journals
    )


def _problem(journal: Journal) -> str:
    if journal.broken is not None:
        return str(journal.broken)
    return "its disk has no room for a commit" if journal.out_of_space else ""
